"""What this site answers about its labels: each question once, the same answer to every run that asks it.

::

    STATE/disclosures.json   the answers (mode 0600), there before any is sent

A question is (data, metric, target). The data are known by their fingerprint, and where files were only
touched or moved by what that does not change: label counts, inputs, names and sizes of files. So neither many
runs, nor classes that nobody has, nor another order of the classes, bring a second draw of the noise, and a
second explicit target is answered on other data only. ``docs/privacy.md`` says what this protects against.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.config import AnyMetric
from shared.discrepancy import Target, discrepancy, largest, shares
from shared.faults import SENTENCES, FaultCode
from shared.files import PRIVATE, replace_file
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration
from shared.schemas import Grade
from worker.candidates import Fits, count_fits
from worker.locks import locked
from worker.noise import make_noise, sensitivity

__all__ = [
    "Answer",
    "Disclosures",
    "NotDisclosed",
    "Question",
    "Rule",
    "describe_answer",
    "mark_labels",
    "told_size",
]


class NotDisclosed(Exception):
    """The site does not answer."""

    def __init__(self, code: FaultCode) -> None:
        super().__init__(SENTENCES[code])
        self.code = code


@dataclass(frozen=True)
class Rule:
    """What this site tells. ``dealt``: the run dealt the data, so that it knows the labels anyway."""

    grade: Grade | Literal["none"]
    epsilon: float = 1.0
    metrics: tuple[AnyMetric, ...] = ("kl",)
    targets: tuple[Literal["uniform", "explicit", "global"], ...] = ("uniform", "explicit")
    dealt: bool = False


@dataclass(frozen=True)
class Question:
    """A run's question, and what the answer is made of. ``counts``: one a class, in the contract's order.

    ``data`` is all that this site decides about the examples, ``reading`` what the run makes of
    them, ``classes`` the contract's names. ``contents`` are digests of the data that touched files leave as
    they were: any of them tells that the data are those of before.
    """

    data: str
    reading: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    metric: AnyMetric
    target: Target
    contents: tuple[str, ...] = ()

    @property
    def marks(self) -> frozenset[str]:
        """All by which the data are known again."""
        return frozenset({self.data, *self.contents, mark_labels(self.classes, self.counts)})

    @property
    def labels(self) -> str:
        """The same for equal counts in any order of the classes (with their shares of the target).

        A metric of one's own may go by that order.
        """
        if is_own(self.metric):
            given = [list(self.counts), shares(self.target, len(self.counts))]
            return hashlib.sha256(json.dumps(given).encode()).hexdigest()
        if isinstance(self.target, str):
            pairs: Sequence[object] = sorted(count for count in self.counts if count)
        else:
            pairs = sorted(zip(self.counts, shares(self.target, len(self.counts)), strict=True))
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()

    @property
    def goal(self) -> str:
        """The target, by the shares that it consists of; of which classes they are, ``by_class`` tells."""
        if isinstance(self.target, str):
            return "uniform"
        wanted = [round(share, 12) for share in shares(self.target, len(self.counts))]
        return json.dumps(wanted if is_own(self.metric) else sorted(wanted))

    @property
    def by_class(self) -> str | None:
        """Of an explicit target: which class has which share, in whatever order they are named."""
        if isinstance(self.target, str):
            return None
        wanted = [round(share, 12) for share in shares(self.target, len(self.counts))]
        pairs = sorted(zip(self.classes, wanted, strict=True))
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


class Answer(BaseModel):
    """One answer as it is kept; ``classes`` is the number of classes that it was given for.

    ``by_class`` is None for the uniform target, and of what earlier versions answered for an explicit one.
    ``marks`` are all by which the data have been known since; earlier versions kept ``data`` alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    data: str
    reading: str
    labels: str
    metric: AnyMetric
    goal: str
    by_class: str | None = None
    classes: int
    grade: Grade
    epsilon: float | None
    value: float
    half_width: float = 0.0
    marks: tuple[str, ...] = ()

    def is_of(self, question: Question) -> bool:
        """Whether it was given on the same data."""
        return not question.marks.isdisjoint((self.data, *self.marks))


class _Book(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    answers: tuple[Answer, ...] = ()


class Disclosures:
    """The answers of the workers that share the state folder ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "disclosures.json"

    def answer(self, question: Question, rule: Rule) -> Answer:
        """The answer to send; where it is new, it is on disk before this returns.

        Raises:
            NotDisclosed: the rule, or an earlier answer, forbids it.
            InvalidConfiguration: the file of answers cannot be read. Without it the site might answer twice.
        """
        grade = check_rule(question.metric, question.target, len(question.counts), rule)
        if rule.dealt and grade == "exact":
            return _make_answer(question, grade, rule.epsilon)
        with locked(self._folder / "disclosures.lock"):
            before = self._read()
            kept = tuple(map(partial(_note_marks, question), before))
            if kept != before:  # also where it is not answered now
                self._keep(kept)
            found = _find(question, rule, kept)
            if found is None:
                found = _make_answer(question, grade, rule.epsilon)
            given = _for_classes(found, question)
            if given not in kept:
                self._keep((*kept, given))
        return given

    def _keep(self, answers: tuple[Answer, ...]) -> None:
        content = _Book(answers=answers).model_dump_json(indent=1)
        replace_file(self._path, content.encode(), mode=PRIVATE)

    def _read(self) -> tuple[Answer, ...]:
        try:
            return _Book.model_validate_json(self._path.read_bytes()).answers
        except FileNotFoundError:
            return ()
        except ValidationError as error:
            raise InvalidConfiguration(
                f"the record of what this site has told, {self._path}, cannot be read.",
                hint="Restore it from a backup. Without it the same question would be answered anew.",
            ) from error


def check_rule(metric: AnyMetric, target: Target, classes: int, rule: Rule) -> Grade:
    """The grade of an answer, as far as it can be said without the data and the earlier answers.

    Raises :class:`NotDisclosed` where there is none.
    """
    if rule.grade == "none":
        raise NotDisclosed(FaultCode.NOTHING_TOLD)
    if rule.dealt and rule.grade == "exact":
        return rule.grade
    if metric not in rule.metrics:
        raise NotDisclosed(FaultCode.OTHER_METRIC)
    if ("uniform" if isinstance(target, str) else "explicit") not in rule.targets:
        raise NotDisclosed(FaultCode.TARGET_NOT_ALLOWED)
    if rule.grade == "noised" and is_own(metric):
        raise NotDisclosed(FaultCode.OTHER_METRIC)  # no bound is known, so no noise hides a label
    if rule.grade == "noised" and metric == "kl" and min(shares(target, classes)) == 0:
        raise NotDisclosed(FaultCode.EMPTY_CLASS)
    return rule.grade


def _find(question: Question, rule: Rule, kept: Sequence[Answer]) -> Answer | None:
    """The answer given before, at this grade; None if there is none and there may be one."""
    epsilon = rule.epsilon if rule.grade == "noised" else None
    asked = [
        each
        for each in kept
        if (each.metric, each.grade, each.epsilon) == (question.metric, rule.grade, epsilon)
    ]
    here = [each for each in kept if each.is_of(question)]
    if any(each.goal == question.goal and each.by_class not in (None, question.by_class) for each in here):
        raise NotDisclosed(
            FaultCode.OTHER_TARGET
        )  # whatever the labels: else it would tell which are as many
    for each in asked:
        if each.labels == question.labels and each.goal == question.goal:
            return each
    if question.goal != "uniform" and any(each.goal not in ("uniform", question.goal) for each in here):
        raise NotDisclosed(FaultCode.OTHER_TARGET)
    for each in here:
        if (each.goal, each.metric) == (question.goal, question.metric):
            if each.reading != question.reading:
                raise NotDisclosed(FaultCode.OTHER_CLASSES)
            if each.by_class != question.by_class and each.labels != question.labels:
                raise NotDisclosed(FaultCode.OTHER_TARGET)  # an earlier version did not keep which it was
            if each in asked and each.data == question.data:
                return each  # other counts by the run's seed alone, where it draws what is held out
    return None


def _note_marks(question: Question, answer: Answer) -> Answer:
    """The answer, with all that its data are known by if they are the question's: each may change later."""
    if not answer.is_of(question):
        return answer
    return answer.model_copy(update={"marks": tuple(sorted({*answer.marks, *question.marks}))})


def _make_answer(question: Question, grade: Grade, epsilon: float) -> Answer:
    value, half_width = discrepancy(question.counts, question.target, question.metric), 0.0
    if grade == "noised":
        size, classes = sum(question.counts), len(question.counts)
        noise = make_noise(sensitivity(question.metric, question.target, classes, size), epsilon)
        end = largest(question.metric, question.target, classes)
        value, half_width = min(max(noise.add(value), 0.0), end), noise.half_width
    return Answer(
        data=question.data,
        reading=question.reading,
        labels=question.labels,
        metric=question.metric,
        goal=question.goal,
        by_class=question.by_class,
        classes=len(question.counts),
        grade=grade,
        epsilon=epsilon if grade == "noised" else None,
        value=value,
        half_width=half_width,
        marks=tuple(sorted(question.marks)),
    )


def _for_classes(answer: Answer, question: Question) -> Answer:
    """The same answer for a run whose contract has other classes that this site has none of.

    Only the entropy of the labels is told by ``kl`` to uniform: d = ln C - H.
    """
    classes = len(question.counts)
    if answer.classes == classes:
        return answer
    if answer.metric != "kl" or answer.goal != "uniform":
        raise NotDisclosed(FaultCode.OTHER_CLASSES)
    if answer.grade == "exact" and answer.labels == question.labels:
        value = discrepancy(question.counts, question.target, question.metric)
    else:
        value = min(max(answer.value + math.log(classes / answer.classes), 0.0), math.log(classes))
    return answer.model_copy(update={"classes": classes, "value": value, "reading": question.reading})


def describe_answer(answer: Answer, question: Question) -> str:
    """For this site's log: what was told, and how many label counts it leaves open."""
    how = "exact" if answer.grade == "exact" else f"noised with epsilon {answer.epsilon:g}"
    if is_own(answer.metric):
        return f"told d = {answer.value:.4g} by {answer.metric}, {how}"
    fits = count_fits(question.counts, question.target, question.metric, answer.value, answer.half_width)
    return f"told d = {answer.value:.4g}, {how}; {_words(fits)}"


def _words(fits: Fits) -> str:
    number = f"{fits.number:,}" if fits.all else f"at least {fits.number:,}"
    return f"{number} label count{'s fit' if fits.number != 1 or not fits.all else ' fits'}"


def mark_labels(classes: Sequence[str], counts: Sequence[int]) -> str:
    """A digest of the label counts by class, without classes that nobody has, in whatever order."""
    held = sorted((name, count) for name, count in zip(classes, counts, strict=True) if count)
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()


def told_size(examples: int, sizes: Literal["exact", "rounded"]) -> int:
    """The number of examples as runs are told it: as it is, or to two significant digits, half up.

    >>> told_size(4_149, "rounded"), told_size(4_150, "rounded"), told_size(97, "rounded")
    (4100, 4200, 97)
    """
    if sizes == "exact":
        return examples
    step: int = 10 ** max(len(str(examples)) - 2, 0)
    return (examples + step // 2) // step * step
