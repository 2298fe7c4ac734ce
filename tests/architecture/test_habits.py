"""Project rules as small programs: no pickle, no global random, one place for the environment, no clock."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.architecture.sources import ROOT, Source, calls, dotted, imports, sources, within

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

Found = Iterator[tuple[str, int]]
"""(what, line)."""

# file -> why it may; a rule's test fails if an exemption is no longer needed
ENVIRONMENT = {
    "server/settings.py": "the coordinator's settings",
    "worker/settings.py": "the worker's settings",
    "feddisco/settings.py": "the operator's commands",
    "feddisco/demo.py": "hands its environment on to its child processes",
    "feddisco/forked.py": "a fork has the environment that it was given, and no other",
    "simulation/kernels/native/library.py": "the system's compiler and cache",
    "simulation/cluster.py": "Ray's address; where a node of a cluster has its data",
}
GLOBAL_RANDOM = {"server/api/work.py": "spreads the rechecks of waiting polls; no result depends on it"}


def unpickling(source: Source) -> Found:
    names = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
    yield from ((module, line) for module, line in imports(source) if within(module, *names))
    for name, call in calls(source.tree):
        if name in ("torch.load", "torch.save", "torch.jit.load"):
            yield name, call.lineno
        if any(k.arg == "allow_pickle" and not _is_false(k.value) for k in call.keywords):
            yield f"{name}(allow_pickle=...)", call.lineno


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


SEEDED = ("Generator", "RandomState", "SeedSequence", "default_rng", "PCG64")
TORCH_DRAWS = ("torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.normal")


def global_random(source: Source) -> Found:
    """Draws from a generator that everybody shares, or from one without a seed."""
    for name, call in calls(source.tree):
        given = {keyword.arg for keyword in call.keywords}
        if name.startswith("random.") and name not in ("random.Random", "random.SystemRandom"):
            drawn = _imports_random(source)  # otherwise it is an argument of that name
        elif name.startswith(("np.random.", "numpy.random.")):
            drawn = not (name.endswith(SEEDED) and (call.args or given))
        else:
            drawn = name in TORCH_DRAWS and "generator" not in given
        if drawn:
            yield name, call.lineno


def _imports_random(source: Source) -> bool:
    return any(module == "random" for module, _ in imports(source))


SEEDING = (
    "random.seed",
    "np.random.seed",
    "torch.seed",
    "torch.manual_seed",
    "torch.set_rng_state",
    "torch.default_generator.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.mps.manual_seed",
)


def global_seeding(source: Source) -> Found:
    """Seeding torch's own generators outside a function that forks and so restores them."""
    forking = {
        id(inner)
        for function in ast.walk(source.tree)
        if isinstance(function, ast.FunctionDef)
        and any(name == "torch.random.fork_rng" for name, _ in calls(function))
        for inner in ast.walk(function)
    }
    for name, call in calls(source.tree):
        if name in SEEDING and id(call) not in forking:
            yield name, call.lineno


def environment_read(source: Source) -> Found:
    for name, call in calls(source.tree):
        if name in ("os.getenv", "getenv"):
            yield name, call.lineno
    written = {
        id(node.value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    for node in ast.walk(source.tree):
        if dotted(node) in ("os.environ", "environ") and id(node) not in written:
            yield "os.environ", getattr(node, "lineno", 0)
        if isinstance(node, ast.ClassDef) and any("BaseSettings" in dotted(base) for base in node.bases):
            yield f"class {node.name}(BaseSettings)", node.lineno


def clock(source: Source) -> Found:
    now = (".datetime.now", ".datetime.utcnow", ".datetime.today", ".date.today")
    for name, call in calls(source.tree):
        if name.startswith("time.") or f".{name}".endswith(now):
            yield name, call.lineno


def assertions(source: Source) -> Found:
    """Asserts that do more than tell the type checker what we know: a user must not be able to cause one."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assert) and not _narrows(node.test):
            yield ast.unparse(node), node.lineno


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return dotted(test.func) == "isinstance"
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot)


Rule = Callable[[Source], Found]
PRODUCT_AND_TOOLS = ("shared", "server", "worker", "simulation", "feddisco", "alembic", "docs")
RULES: list[tuple[Rule, tuple[str, ...], dict[str, str], str]] = [
    (unpickling, PRODUCT_AND_TOOLS, {}, "import pickle\ntorch.load(f)\nnp.load(f, allow_pickle=True)"),
    (
        global_random,
        PRODUCT_AND_TOOLS,
        GLOBAL_RANDOM,
        "import random; random.random()\nnp.random.rand(3)\ntorch.randn(2)",
    ),
    (global_seeding, PRODUCT_AND_TOOLS, {}, "torch.manual_seed(0)\nrandom.seed(1)"),
    (environment_read, PRODUCT_AND_TOOLS, ENVIRONMENT, "os.environ['A']\nos.getenv('B')"),
    (clock, ("shared", "server/lifecycle"), {}, "dt.datetime.now()\ntime.time()"),
    (assertions, PRODUCT_AND_TOOLS, {}, "assert size < 10\nassert name"),
]


@pytest.mark.parametrize(
    ("rule", "folders", "exempt", "bad"), RULES, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_rule_holds_and_every_exemption_is_needed(
    rule: Rule, folders: tuple[str, ...], exempt: dict[str, str], bad: str
) -> None:
    found = [
        (source.name, f"{source.name}:{line} {what}")
        for source in sources(*folders)
        for what, line in rule(source)
    ]
    assert [text for name, text in found if name not in exempt] == []
    assert set(exempt) <= {name for name, _ in found}
    assert len({line for _, line in rule(Source("shared/bad.py", ast.parse(bad)))}) == len(bad.splitlines())


def test_no_two_test_files_have_one_name() -> None:
    """Folders of tests are no packages: pytest would collect the first of two such files only."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
