"""Write what a setting is for into the two pages of settings, from its declaration.

Run ``python docs/make_settings.py`` after a change of a description or a default; a test compares the files.
Below each heading the first paragraph is written, and only that; what follows it is for people to write.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from pydantic_settings import BaseSettings

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from feddisco.flags import format_default  # noqa: E402
from server.settings import Settings  # noqa: E402
from worker.settings import WorkerSettings  # noqa: E402

PAGES: dict[str, type[BaseSettings]] = {
    "settings-worker.md": WorkerSettings,
    "settings-coordinator.md": Settings,
}


def rendered() -> dict[Path, str]:
    """Each page's path and what it should contain."""
    return {DOCS / name: _page(DOCS / name, settings) for name, settings in PAGES.items()}


def _page(path: Path, settings: type[BaseSettings]) -> str:
    def fill(heading: re.Match[str]) -> str:
        return f"{heading['line']}\n{_purpose(settings, heading['name'].lower())}\n\n"

    pattern = r"(?P<line>^### .*`FEDDISCO_(?P<name>[A-Z0-9_]+)`)\n(?:.+\n)*\n"
    return re.sub(pattern, fill, path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _purpose(settings: type[BaseSettings], name: str) -> str:
    field = settings.model_fields[name]
    default = format_default(field)
    text = f"{field.description} Default: `{default}`." if default else str(field.description)
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    for page, text in rendered().items():
        page.write_text(text, encoding="utf-8")
