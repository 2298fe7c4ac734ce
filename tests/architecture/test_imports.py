"""Who may import whom, by syntax tree; and what must stay unimported until it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.sources import PRODUCT, ROOT, Source, imports, sources, within

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

FIRST_PARTY = ("shared", "server", "worker", "simulation", "feddisco", "tests", "benchmarks", "experiments")
MAY_IMPORT = {  # docs/architecture.md says the same
    "shared": ("shared",),
    "server": ("server", "shared"),
    "worker": ("worker", "shared"),
    "simulation": ("simulation", "shared", "server.lifecycle"),
    "feddisco": ("feddisco", "simulation", "server", "worker", "shared", "experiments"),
    "alembic": ("server.database",),
    "experiments": ("experiments", "simulation", "worker", "shared"),
    "benchmarks": ("benchmarks", "simulation", "server", "worker", "feddisco", "shared"),
}
WEB = ("fastapi", "starlette", "uvicorn", "httpx", "jinja2", "server.api", "server.pages", "server.web")
LIGHT = (
    *("shared.config", "shared.schemas", "shared.problems", "shared.seeds", "shared.weightings"),
    *("shared.discrepancy", "shared.wire.header", "shared.wire.validation"),
    *("worker.main", "worker.loop", "worker.faults", "worker.diagnose"),
)

# (folders or files, what they must not import, file -> why it may, a sample that is wrong)
FORBIDDEN: list[tuple[tuple[str, ...], tuple[str, ...], dict[str, str], str]] = [
    (  # decision 2; database/ and the migrations are what is left
        (*(folder for folder in PRODUCT if folder not in ("server", "alembic")), "experiments", "benchmarks"),
        ("sqlalchemy", "psycopg", "sqlite3", "alembic"),
        {},
        "import sqlalchemy as sa",
    ),
    (
        (
            *("server/api", "server/blobs", "server/lifecycle", "server/monitoring", "server/pages"),
            *("server/runs", "server/sinks", "server/wakeups", "server/web"),
            *("server/app.py", "server/background.py", "server/batches.py", "server/certificates.py"),
            "server/garbage.py",
            *(
                "server/clock.py",
                "server/coordinator.py",
                "server/main.py",
                "server/ownership.py",
                "server/removals.py",
                "server/revocations.py",
                "server/settings.py",
                "server/threads.py",
            ),
        ),
        ("sqlalchemy", "psycopg", "sqlite3", "alembic"),
        {"server/wakeups/postgres.py": "LISTEN needs a connection of its own, outside any transaction"},
        "from sqlalchemy import select",
    ),
    (
        ("server/api", "server/pages", "server/web"),  # what follows from a request is said in server/runs
        ("server.lifecycle.machine", "server.lifecycle.events"),
        {},
        "from server.lifecycle.machine import Decision\nfrom server.lifecycle.events import StopRequested",
    ),
    (
        ("server/pages",),
        ("server.database", "server.runs"),
        {},
        "from server.database.store import Store",
    ),
    (
        (
            "server/blobs",
            "server/database",
            "server/lifecycle",
            "server/runs",
            "server/sinks",
            "server/wakeups",
        ),
        WEB,
        {"server/sinks/mlflow.py": "it calls MLflow"},
        "from server.web.ranges import parse\nfrom fastapi import Request",
    ),
    (
        ("shared",),
        ("fastapi", "starlette", "sqlalchemy", "alembic", "httpx", "uvicorn", "jinja2", "time"),
        {},
        "def f():\n    import time\nfrom httpx import Client",
    ),
    (("shared/weightings",), ("shared.algorithms",), {}, "from shared.algorithms import load_algorithm"),
]


def imported(found: Iterable[Source], modules: tuple[str, ...]) -> list[tuple[str, str]]:
    """(file, place and module) of every import of one of these or of something inside it."""
    return [
        (source.name, f"{source.name}:{line} imports {module}")
        for source in found
        for module, line in imports(source)
        if within(module, *modules)
    ]


def under(*places: str) -> list[Source]:
    """The files of these folders, and these files."""
    return [
        source
        for source in sources(*{place.split("/")[0] for place in places})
        if any(source.name == place or source.name.startswith(place + "/") for place in places)
    ]


def wrong(found: Iterable[Source], allowed: tuple[str, ...]) -> list[str]:
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


def test_the_documents_table_is_this_files() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(MAY_IMPORT)
    for folder, cell in rows.items():
        told = {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", cell)}
        if cell == "everything":
            told = set(PRODUCT) - {"alembic"} | {"experiments"}
        assert told | {folder} == {*MAY_IMPORT[folder], folder}, folder


def test_nothing_is_imported_relatively() -> None:
    def relative(found: Iterable[Source]) -> list[str]:
        return [f"{s.name}:{line}" for s in found for module, line in imports(s) if module.startswith(".")]

    assert relative(sources()) == []
    assert relative([Source("worker/x.py", ast.parse("from . import loop"))]) == ["worker/x.py:1"]


@pytest.mark.parametrize(
    ("places", "modules", "exempt", "bad"), FORBIDDEN, ids=[f"{p[0]}-{m[0]}" for p, m, _, _ in FORBIDDEN]
)
def test_what_must_not_be_imported_is_not_and_every_exemption_is_needed(
    places: tuple[str, ...], modules: tuple[str, ...], exempt: dict[str, str], bad: str
) -> None:
    for place in places:
        assert under(place), f"there is no {place}: has it moved?"
    found = imported(under(*places), modules)
    assert [text for name, text in found if name not in exempt] == []
    assert set(exempt) == {name for name, _ in found}
    assert imported([Source("bad.py", ast.parse(bad))], modules) != []


def test_the_database_is_all_of_the_server_that_may_speak_sql() -> None:
    """A new room or module of ``server`` has to be named above."""
    named = next(places for places, modules, _, _ in FORBIDDEN[1:] if "sqlalchemy" in modules)
    rest = {s.name for s in sources("server")} - {s.name for s in under(*named, "server/database")}
    assert rest == {"server/__init__.py"}


def beyond_the_state_machine(found: Iterable[Source]) -> list[str]:
    allowed = ("shared", "server.lifecycle", *(m for m in sys.stdlib_module_names if m != "time"))
    return [
        f"{source.name}:{line} imports {module}"
        for source in found
        for module, line in imports(source)
        if not within(module, *allowed)
    ]


def test_the_state_machine_knows_the_standard_library_and_shared_only() -> None:
    assert beyond_the_state_machine(sources("server/lifecycle")) == []
    bad = Source("server/lifecycle/x.py", ast.parse("import time\nimport numpy\nimport math"))
    assert [text.rpartition(" ")[2] for text in beyond_the_state_machine([bad])] == ["time", "numpy"]


# ---------------------------------------------------------------- circles


def module_of(source: Source) -> str:
    return source.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def circle(found: Iterable[Source], node: Callable[[str], str], *, types: bool) -> list[str]:
    """The nodes of one circle, or nothing. ``types``: with the imports that only the type checker sees."""
    modules = {module_of(source): source for source in found}
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        for imported_name, _ in imports(source, types=types):
            target = imported_name if imported_name in modules else imported_name.rpartition(".")[0]
            if target in modules and node(target) != node(name):
                graph.setdefault(node(name), set()).add(node(target))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room(module: str) -> str:
    """The package in a top-level folder; a module that lies beside the packages is a room of its own."""
    return ".".join(module.split(".")[:2])


ALL = ("shared", "server", "worker", "simulation", "feddisco", "experiments", "benchmarks")


def test_no_module_reaches_itself_by_imports_also_inside_functions() -> None:
    assert circle(sources(*ALL), lambda module: module, types=True) == []


def test_no_room_reaches_itself_by_imports_but_for_the_type_checker() -> None:
    assert circle(sources(*ALL), room, types=False) == []


def test_a_circle_is_noticed() -> None:
    bad = [
        Source("server/runs/x.py", ast.parse("from server.api.y import b")),
        Source("server/api/y.py", ast.parse("def f():\n    from server.runs import x\n")),
        Source("server/api/z.py", ast.parse("if TYPE_CHECKING:\n    from server.runs.x import a\n")),
    ]
    assert set(circle(bad, lambda module: module, types=True)) == {"server.runs.x", "server.api.y"}
    assert set(circle(bad, room, types=False)) == {"server.runs", "server.api"}
    assert circle([bad[0], bad[2]], room, types=False) == []


# ---------------------------------------------------------------- at run time


def test_the_migrations_folder_does_not_shadow_the_library() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_coordinator_the_console_script_and_the_light_modules_start_without_torch() -> None:
    """In one fresh process from the root; the list of what came in by accident is printed."""
    modules = ["alembic.config", "server.app", "feddisco.main", *LIGHT]
    program = (
        f"import sys, {', '.join(modules)}\n"
        "heavy = {'torch', 'torchvision', 'sklearn', 'matplotlib', 'ray', 'transformers'}\n"
        "heavy &= set(sys.modules)\n"
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
