"""Who may import whom, by syntax tree; and what must stay unimported until it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.architecture.sources import PRODUCT, ROOT, Source, imports, sources, within

FIRST_PARTY = ("shared", "server", "worker", "simulation", "feddisco", "tests", "benchmarks", "experiments")
MAY_IMPORT = {
    "shared": ("shared",),
    "server": ("server", "shared"),
    "worker": ("worker", "shared"),
    "simulation": ("simulation", "shared", "server.lifecycle"),
    "feddisco": ("feddisco", "simulation", "server", "worker", "shared", "experiments"),
    "alembic": ("server", "shared"),
    "experiments": ("experiments", "simulation", "shared"),
    "benchmarks": ("benchmarks", "simulation", "server", "worker", "feddisco", "shared"),
}
NOT_IN_SHARED = ("fastapi", "starlette", "sqlalchemy", "alembic", "httpx", "uvicorn", "jinja2", "time")
LIGHT = ("config", "schemas", "problems", "seeds", "weighting", "discrepancy")


def wrong(found: list[Source], allowed: tuple[str, ...]) -> list[str]:
    """First-party imports outside of what is allowed."""
    return [
        f"{source.name}:{line} imports {module}"
        for source in found
        for module, line in imports(source)
        if within(module, *FIRST_PARTY) and not within(module, *allowed)
    ]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    assert wrong(sources(folder), MAY_IMPORT[folder]) == []


def test_every_folder_has_its_rule() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= {*MAY_IMPORT, "tests"}
    assert set(PRODUCT) <= set(MAY_IMPORT)


def test_nothing_is_imported_relatively() -> None:
    found = [f"{s.name}:{line}" for s in sources() for module, line in imports(s) if module.startswith(".")]
    assert found == []


def test_shared_knows_no_web_no_database_no_http_client_no_clock() -> None:
    assert [
        f"{source.name}:{line} imports {module}"
        for source in sources("shared")
        for module, line in imports(source)
        if within(module, *NOT_IN_SHARED)
    ] == []


def test_the_state_machine_knows_the_standard_library_and_shared_only() -> None:
    allowed = ("shared", "server.lifecycle", *(m for m in sys.stdlib_module_names if m != "time"))
    assert [
        f"{source.name}:{line} imports {module}"
        for source in sources("server/lifecycle")
        for module, line in imports(source)
        if not within(module, *allowed)
    ] == []


def test_the_migrations_folder_does_not_shadow_the_library() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_coordinator_the_console_script_and_the_light_modules_start_without_torch() -> None:
    """In one fresh process from the root; the list of what came in by accident is printed."""
    modules = ["alembic.config", "server.app", "feddisco.main", *(f"shared.{name}" for name in LIGHT)]
    program = (
        f"import sys, {', '.join(modules)}\n"
        "heavy = {'torch', 'torchvision', 'sklearn', 'matplotlib', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported at start: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_rules_notice_a_wrong_import() -> None:
    bad = Source(
        "worker/x.py", ast.parse("def f():\n    from server.app import create\nimport shared.wire\n")
    )
    assert wrong([bad], MAY_IMPORT["worker"]) == ["worker/x.py:2 imports server.app.create"]
