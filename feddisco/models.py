"""A run's model as a file that says what it is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from feddisco.model_choice import Choice, choose_model, scores_of
from shared.model_files import ModelFacts, read_tensors, write_model
from shared.problems import InvalidConfiguration
from shared.scores import summarise
from shared.versions import find_versions

if TYPE_CHECKING:
    from feddisco.admin import AdminClient
    from shared.config import ScoreRule
    from shared.schemas import EvaluationView, RunView
    from shared.tasks.base import Task

__all__ = [
    "Description",
    "check_allowed",
    "check_is_file",
    "describe_model",
    "fetch_model",
    "load_allowed_task",
]

BUILT_IN_PREFIX = "torchvision:"


def fetch_model(
    client: AdminClient,
    run: str,
    out: Path,
    *,
    round: str | None = None,
    metric: str | None = None,
    allow: Sequence[str] = (),
    plain: bool = False,
) -> str:
    """Write a round's global model (the one that is scored) to ``out``; returns the sentence to print.

    ``round`` and ``metric`` are those of :func:`feddisco.model_choice.choose_model`. ``plain``: the tensors
    alone, byte by byte as the coordinator keeps them.

    Raises:
        InvalidConfiguration: there is no such model.
    """
    from shared.wire import largest_bytes, model_layout

    check_is_file(out)
    view = client.run(run)
    choice = choose_model(view, client.rounds(run), round, metric)
    longest = largest_bytes(model_layout(view.manifest))
    if plain:
        client.download(choice.digest, out, longest)
        return f"{out}: {choice.sentence}; sha256 {choice.digest}"
    tensors = out.with_name(out.name + ".tensors")  # what an interrupted download left there is gone on with
    client.download(choice.digest, tensors, longest)
    try:
        note = _write_with_facts(view, choice, tensors, out, allow)
    finally:
        tensors.unlink()
    return f"{out}: {choice.sentence}; tensors sha256 {choice.digest}{note}"


def check_is_file(out: Path) -> None:
    """Raise :class:`InvalidConfiguration` where a file is to be written and a folder is named."""
    if not out.name or out.is_dir():
        raise InvalidConfiguration(f"{out} is a folder.", hint="Name the file to write.")


def _write_with_facts(view: RunView, choice: Choice, tensors: Path, out: Path, allow: Sequence[str]) -> str:
    """Returns what to say besides."""
    described = describe_model(view, choice, allow)
    write_model(out, read_tensors(tensors), described.facts)
    return f".\n{described.lacking}" if described.lacking else ""


@dataclass(frozen=True)
class Description:
    """What a model is of. ``task`` is None where it is not at hand; ``lacking`` says what that leaves out."""

    facts: ModelFacts
    task: Task | None
    lacking: str = ""


def describe_model(view: RunView, choice: Choice, allow: Sequence[str]) -> Description:
    """What a file or a card says of the model. Code that the coordinator names runs only if it is allowed.

    What its task and its model alone know is left out where they are not allowed, or not installed.
    """
    from shared.wire.tensors import tied_names

    config, facts = view.config, _describe_run(view, choice)
    try:
        task = load_allowed_task(config.task, config.task_options, view.classes, allow)
    except InvalidConfiguration as reason:
        return Description(facts, None, f"Without preprocessing: {reason}")
    known = {
        "model": config.model or getattr(task, "default_model", None),
        "input_shape": tuple(task.input_shape),
        "preprocessing": task.describe_inputs(),
    }
    try:
        check_allowed("model", config.model, allow)
        tied = tied_names(task.build_model(config.model, config.seed))
    except InvalidConfiguration as reason:
        lacking = f"Without the names of tied tensors, if it has any: {reason}"
        return Description(facts.model_copy(update=known), task, lacking)
    return Description(facts.model_copy(update={**known, "tied": tied}), task)


def _describe_run(view: RunView, choice: Choice) -> ModelFacts:
    """What the coordinator's rows say of the model."""
    config = view.config
    return ModelFacts(
        run=view.run,
        round=choice.number,
        rounds=view.rounds,
        task=config.task,
        task_options=config.task_options,
        model=config.model,
        classes=view.classes,
        algorithm=config.algorithm.name,
        weighting=config.weighting.kind,
        scores=scores_of(choice.evaluations, config.combine_scores),
        per_category=_pool_categories(choice.evaluations, config.combine_scores),
        test_examples=sum(each.examples for each in choice.evaluations),
        model_digest=choice.digest,
        data_licence=config.data_licence,
        made_with=find_versions("torch"),
    )


def _pool_categories(evaluations: Sequence[EvaluationView], rule: ScoreRule) -> dict[str, float]:
    """Several evaluators' accuracy by category as one, by the run's rule."""
    found: dict[str, list[tuple[float, int]]] = {}
    for each in evaluations:
        for name, value in each.per_category.items():
            found.setdefault(name, []).append((value, each.examples))
    return {name: summarise(scores, rule) for name, scores in found.items()}


def check_allowed(what: str, name: str | None, allow: Sequence[str]) -> None:
    """Raise :class:`InvalidConfiguration` for an import path that none of the patterns matches.

    A file or a coordinator names it: to import it unasked would run code that somebody else chose.
    """
    if name is None or ":" not in name or name.startswith(BUILT_IN_PREFIX):
        return
    if not any(fnmatchcase(name, pattern) for pattern in allow):
        raise InvalidConfiguration(
            f"{what} {name!r} is not built in, and its code is not imported unasked.",
            hint=f"If you know it, allow it: --allow {name}, or feddisco.load(..., allow=[{name!r}]).",
        )


def load_allowed_task(
    name: str, options: dict[str, object], classes: tuple[str, ...], allow: Sequence[str]
) -> Task:
    """The task that a file or a coordinator names, if it is built in or allowed."""
    check_allowed("task", name, allow)
    from shared.tasks import load_task

    return load_task(name, options, classes)
