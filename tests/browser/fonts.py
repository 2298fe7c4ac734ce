"""Fonts that the browser tests choose, so that no result depends on the fonts of the machine.

They come with matplotlib, which the lock files pin. Chromium is started with a fontconfig file of its own
that knows these files alone: every family that the style sheet asks for falls back to one of them.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FONTS", "Font", "write_fontconfig"]


@dataclass(frozen=True)
class Font:
    """A family for all text, with its bold, and one of fixed width for code."""

    family: str
    files: tuple[str, ...]
    fixed_width: str = "DejaVu Sans Mono"
    fixed_width_files: tuple[str, ...] = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")


FONTS = {
    "wide": Font("DejaVu Sans", ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")),  # as wide as Verdana
    "narrow": Font("STIXGeneral", ("STIXGeneral.ttf", "STIXGeneralBol.ttf")),  # as narrow as Times
}


def write_fontconfig(font: Font, folder: Path) -> Path:
    """Copies the font's files into ``folder`` and writes the fontconfig file that knows no other."""
    source = _matplotlib_fonts()
    for name in (*font.files, *font.fixed_width_files):
        shutil.copyfile(source / name, folder / name)
    config = folder / "fonts.conf"
    config.write_text(
        f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>{folder}</dir>
<cachedir>{folder / "cache"}</cachedir>
<alias><family>monospace</family><prefer><family>{font.fixed_width}</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>{font.family}</family></prefer></alias>
</fontconfig>
""",
        encoding="utf-8",
    )
    return config


def _matplotlib_fonts() -> Path:
    found = importlib.util.find_spec("matplotlib")  # not imported: the folder is all that is needed
    if found is None or found.origin is None:
        raise FileNotFoundError("matplotlib, whose fonts the browser tests use, is not installed")
    return Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
