"""The product's source files as syntax trees, for the rules in this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("shared", "server", "worker", "simulation", "feddisco", "alembic")


@dataclass(frozen=True)
class Source:
    """One file; ``name`` is its path from the root, with slashes."""

    name: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.name.split("/")[0]


@cache
def parsed(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"), str(path)))


def sources(*folders: str) -> list[Source]:
    """The files under these folders of the root; all of the product without any."""
    found = [parsed(path) for folder in folders or PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    if not found:
        raise RuntimeError(f"no source files in {folders}: has a folder moved?")
    return found


def imports(source: Source, types: bool = True) -> Iterator[tuple[str, int]]:
    """(module, line) of every import, also inside functions; ``from a import b`` counts as ``a.b``.

    ``types``: with those under ``if TYPE_CHECKING``, which no running program makes.
    """
    unseen = set() if types else _only_for_types(source.tree)
    for node in ast.walk(source.tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _only_for_types(tree: ast.AST) -> set[ast.AST]:
    return {
        inner
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and dotted(block.test).endswith("TYPE_CHECKING")
        for child in block.body
        for inner in ast.walk(child)
    }


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute or name; an empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            yield name, node


def within(module: str, *packages: str) -> bool:
    """Whether a dotted name is one of these packages or inside one."""
    return any(module == package or module.startswith(package + ".") for package in packages)
