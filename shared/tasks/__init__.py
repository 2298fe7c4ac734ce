"""Tasks by name: model, data, loss and metrics of a run.

A built-in task is the file ``shared/tasks/NAME.py`` (dashes as underscores) with its class under
``TASK``; anybody's own is ``package.module:attribute``, code that the site itself installed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shared.problems import InvalidConfiguration
from shared.texts import find_nearest
from shared.value_faults import say_value_fault

if TYPE_CHECKING:
    from shared.config import RunConfig
    from shared.tasks.base import Task

__all__ = ["available", "base_of", "load_task", "task_of"]

_WITH_BASE = frozenset({"hf-image", "hf-text"})
_HELPERS = frozenset(
    {"base", "images", "leaf", "loading", "pretrained", "regression", "tables", "texts", "transforms"}
)


def available() -> tuple[str, ...]:
    """Names of the built-in tasks."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in modules if name not in _HELPERS))


def load_task(
    name: str, options: Mapping[str, Any] | None = None, classes: tuple[str, ...] | None = None
) -> Task:
    """The task ``name`` with its ``options``; ``classes`` is the run's class contract, if it states one.

    Raises:
        InvalidConfiguration: no such task, an option it does not know or cannot take, or a class
            contract that differs from the task's own classes.
    """
    kind = _find(name)
    given = dict(options or {})
    if classes is not None and "classes" in kind.Options.model_fields:
        given.setdefault("classes", classes)
    try:
        task = kind(kind.Options.model_validate(given))
    except ValidationError as error:
        raise InvalidConfiguration(_first_fault(error), hint=_options_hint(name, kind)) from None
    if classes is not None and task.classes != tuple(classes):
        raise InvalidConfiguration(
            f"classes: task {name!r} has the classes {list(task.classes)}, received {list(classes)}.",
            hint="Leave classes out, or state them in the task's own order.",
        )
    return task


def base_of(config: RunConfig) -> str | None:
    """Which model of transformers the run begins from, as ``hf:NAME``; None for a task without one.

    Read from the configuration alone: nothing is imported, and whether there is such a model is not asked.
    """
    base = config.task_options.get("base") if config.task in _WITH_BASE else None
    return f"hf:{base}" if isinstance(base, str) else None


def task_of(config: RunConfig) -> Task:
    """The task of a run, with the run's class contract."""
    return load_task(config.task, config.task_options, config.classes)


def _find(name: str) -> type[Task]:
    if ":" in name:
        return _imported(name)
    if name not in available():
        near = find_nearest(name, available(), most=3) or available()
        raise InvalidConfiguration(
            f"task: there is no built-in task {name!r}.",
            hint=f"Did you mean {' or '.join(near)}? Your own task is written package.module:attribute.",
        )
    kind: type[Task] = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").TASK
    return kind


def _imported(path: str) -> type[Task]:
    from shared.tasks.base import Task

    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfiguration(
            f"task: {path!r} cannot be imported: {error}.",
            hint="The module must be installed where this program runs; write it package.module:attribute.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InvalidConfiguration(
            f"task: {path!r} is {found!r}, not a subclass of shared.tasks.base.Task.",
            hint="Derive the class from Task and name the class itself.",
        )
    return found


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    field = ".".join(("task_options", *map(str, fault["loc"])))
    return f"{field}: {say_value_fault(dict(fault))}, received {fault['input']!r}."


def _options_hint(name: str, kind: type[Task]) -> str:
    known = ", ".join(kind.Options.model_fields) or "none"
    return f"Options of task {name!r}: {known}."
