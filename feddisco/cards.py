"""A model card: what a run's model is, how it was made and what it scored, in Markdown.

Written to be given away, it names no client and repeats no words of a site or an operator. Of a run that
weighs by discrepancy, a client's examples and weight tell its discrepancy to who knows a and b: see
docs/model.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feddisco.model_choice import Choice, choose_model
from feddisco.models import Description, describe_model
from shared.schedules import CONSTANT
from shared.schemas import RoundStatus, RoundView, RunView
from shared.texts import escape_controls, format_count

if TYPE_CHECKING:
    from feddisco.admin import AdminClient
    from shared.config import RunConfig
    from shared.model_files import ModelFacts
    from shared.tasks.base import Task

__all__ = ["fetch_card", "write_card", "write_text"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")
_BULLET = re.compile(r"^-")
_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)")
_PIPELINES = {
    "images": "image-classification",
    "texts": "text-classification",
    "table": "tabular-classification",
}


def fetch_card(
    client: AdminClient,
    run: str,
    round: str | None = None,
    metric: str | None = None,
    allow: Sequence[str] = (),
) -> str:
    """The card of the model that :func:`feddisco.models.fetch_model` with the same arguments would give."""
    view, rounds = client.run(run), client.rounds(run)
    choice = choose_model(view, rounds, round, metric)
    return write_card(view, rounds, choice, describe_model(view, choice, allow))


def write_card(view: RunView, rounds: Sequence[RoundView], choice: Choice, described: Description) -> str:
    """Everything in it is from the coordinator's rows; the task adds the preprocessing, if it is at hand."""
    facts = described.facts
    parts = [
        _front(facts, described.task),
        f"# {write_text(view.run)}\n",
        _summary(view, rounds, facts, choice),
        _use(view),
        _classes(facts),
        _preprocessing(described),
        _scores(view, facts, choice),
        _training(view),
        _weights(view.config, rounds, choice),
        _limits(view, facts),
        _origin(view, facts),
    ]
    return "\n".join(part for part in parts if part)


def write_text(value: object) -> str:
    """Foreign text as text: no markup, no line of its own."""
    line = " ".join(escape_controls(str(value)).split())
    escaped = _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return _NUMBER.sub(r"\1\\\2", _BULLET.sub(r"\\-", escaped))


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(write_text, row)) + " |" for row in rows)]) + "\n"


def _front(facts: ModelFacts, task: Task | None) -> str:
    kind = _PIPELINES.get(str(facts.preprocessing.get("kind")), "")
    if task is not None and task.outputs != len(facts.classes):
        kind = "tabular-regression"
    pipeline = f"pipeline_tag: {kind}\n" if kind else ""
    return f"---\nlibrary_name: pytorch\ntags: [federated-learning, feddisco]\n{pipeline}---\n"


def _summary(view: RunView, rounds: Sequence[RoundView], facts: ModelFacts, choice: Choice) -> str:
    made = (one for one in rounds if one.status is RoundStatus.COMPLETED and one.round <= choice.number)
    # whose updates are in the model: a client may have been refused, or have declined, before it sent one
    sizes = {row.index: row.examples for one in made for row in one.ledger if row.included}
    clients, examples = len(sizes), sum(sizes.values())
    if view.totals is not None:  # of a secure run only sums are known
        clients, examples = view.totals.clients, view.totals.examples
    who = f"{format_count(clients, 'client')} with {format_count(examples, 'example')}"
    trained = f"{who} trained it together by FedDisco; no example left its site. " if choice.number else ""
    return (
        f"A model for the task {write_text(facts.task)} with {len(facts.classes)} classes. {trained}"
        f"This is {write_text(choice.sentence)}.\n"
    )


def _use(view: RunView) -> str:
    file = f"{view.run}.safetensors"
    return (
        "## Use\n\n```console\n"
        f"feddisco predict {file} FILE...\n```\n\n```python\nimport feddisco\n\n"
        f'model, transform, classes = feddisco.load("{file}")\n```\n'
    )


def _classes(facts: ModelFacts) -> str:
    return "## Classes\n\n" + "".join(f"{i}. {write_text(name)}\n" for i, name in enumerate(facts.classes))


def _preprocessing(described: Description) -> str:
    given = described.facts.preprocessing
    if not given:  # whoever reads the card should know that it is not known, and whoever writes it why
        return f"## Preprocessing\n\n{write_text(described.lacking)}\n" if described.lacking else ""
    rows = [(name, value) for name, value in given.items() if value is not None]
    return "## Preprocessing\n\n" + _table(("what", "how"), rows)


def _scores(view: RunView, facts: ModelFacts, choice: Choice) -> str:
    if not facts.scores:
        return "## Scores\n\nNo evaluator has scored this model.\n"
    rows: list[tuple[str, str]] = [(name, f"{value:.4f}") for name, value in facts.scores.items()]
    rows += [(f"accuracy: {name}", f"{value:.4f}") for name, value in facts.per_category.items()]
    evaluators = len(choice.evaluations)
    rule = {"median": "their median", "weighted": "weighted by their examples"}[view.config.combine_scores]
    by = "one evaluator" if evaluators == 1 else f"{evaluators} evaluators, {rule}"
    return f"## Scores\n\nOn {facts.test_examples} test examples of {by}.\n\n" + _table(
        ("score", "value"), rows
    )


def _training(view: RunView) -> str:
    config = view.config
    local = config.local.model_dump(exclude_none=True)
    if config.local.schedule == CONSTANT:
        local.pop("schedule")
    else:
        local["schedule"] = _said("", local["schedule"])
    weighting = config.weighting.model_dump(exclude_none=True)
    rows: list[tuple[str, Any]] = [
        ("rounds", f"{view.completed_rounds} of {view.rounds}"),
        ("clients a round", config.clients_per_round or "all"),
        ("algorithm", _said(config.algorithm.name, config.algorithm.parameters)),
        ("weighting", _said(weighting.pop("kind"), weighting)),
        ("local training", _said("", local)),
        ("model", config.model or "the task's own"),
        ("seed", config.seed),
        *_list_beside(config),
        ("begun", f"{view.created_at:%Y-%m-%d}"),
        ("ended", f"{view.finished_at:%Y-%m-%d}" if view.finished_at else "not yet"),
    ]
    return "## Training\n\n" + _table(("what", "how"), rows)


def _list_beside(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """What else made the model, where the run asked for it. No client's name: the assistant's is left out."""
    parts: dict[str, Any] = {
        "aggregation rule": None if config.aggregation.kind == "mean" else config.aggregation,
        "updates packed": config.compression,
        "distillation of each average": config.distillation,
        "private training, DP-SGD": config.dp,
        "secure sums": config.secure,
        "calibration in the last round": config.calibration,
    }
    if config.average_every > 1:
        yield (
            "averaged",
            f"every {config.average_every} rounds; between, models travelled from client to client",
        )
    for name, part in parts.items():
        if part is not None:
            options = part.model_dump(exclude_none=True)
            yield name, _said(options.pop("kind", ""), options)
    if config.assistant is not None:
        yield "step on examples of no trainer", "at one evaluator, which was sent every single update"


def _said(name: str, options: dict[str, Any]) -> str:
    values = (
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in options.items()
    )
    return ", ".join([*([name] if name else []), *values])


def _weights(config: RunConfig, rounds: Sequence[RoundView], choice: Choice) -> str:
    """From the ledger of the round that made the model."""
    made = next((one for one in rounds if one.round == choice.number and one.scored_model), None)
    # nobody's weight is known in a secure round
    if made is None or all(row.weight is None for row in made.ledger):
        return ""
    cells = list(_ledger(made.ledger))
    return f"## Weights of round {choice.number}\n\n{_explain_weights(config, made)}" + _table(
        ("client", "examples", "weight", "by size alone", "why"), cells
    )


def _explain_weights(config: RunConfig, made: RoundView) -> str:
    """Where the model is more, or something else, than the mean by these weights."""
    said = []
    if config.calibrates(made.round):
        said.append("In this round clients measured: no model is averaged by these weights.")
    if config.average_every > 1:
        said.append("A weight adds to what the model that the client trained counts at the next average.")
    if made.assistance is not None and made.assistance.outcome == "missed":
        said.append("The step on examples of no trainer was missed in this round: it was made without.")
    return f"{' '.join(said)}\n\n" if said else ""


def _ledger(rows: Iterable[Any]) -> Iterator[tuple[object, ...]]:
    for row in rows:
        weights = ["" if value is None else f"{value:.4f}" for value in (row.weight, row.size_weight)]
        why = "in" if row.included else row.status.value  # a reason is in somebody's words, with names
        yield row.index + 1, row.examples, *weights, why


def _limits(view: RunView, facts: ModelFacts) -> str:
    licence = f" Licence of the data: {write_text(facts.data_licence)}." if facts.data_licence else ""
    said = "The scores are those of the evaluators' own test examples; for other data they say nothing. "
    return (
        f"## Limits\n\n{said if facts.scores else ''}Probabilities are not calibrated unless a score above "
        f"says so.{licence}\n"
    )


def _origin(view: RunView, facts: ModelFacts) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in facts.made_with.items())
    return f"## Origin\n\nTensors: SHA-256 `{facts.model_digest}`. Written by {write_text(versions)}.\n"
