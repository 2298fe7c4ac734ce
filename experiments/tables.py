"""What a table of the paper is: rows, columns, published figures; read from ``experiments/tables/*.yaml``.

Settings (``settings.yaml``) and methods (``methods.yaml``) are shared by all tables, so that tables that
have a cell in common share its runs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from shared.config import Frozen
from shared.documents import parse_yaml
from shared.problems import InvalidConfiguration

__all__ = [
    "BASE",
    "TUNED",
    "Figure",
    "Grid",
    "Measure",
    "Method",
    "Published",
    "Setting",
    "Table",
    "Tune",
    "available",
    "load_table",
    "methods",
    "settings",
]

HERE = Path(__file__).resolve().parent
BASE = "base"
"""The weighting that a method has without Disco: in the paper sizes, for FedDyn and FedDC uniform."""

TUNED = "tuned"
"""The weighting that ``tune`` chose."""

Measure = Literal["last_ten", "best", "last", "loss", "client_variance", "tail"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


class Setting(Frozen):
    """Data, partition and local training: the fields of a run without name, seed and method."""

    title: str
    config: dict[str, Any]
    disco: dict[str, Any] = Field(default_factory=dict, description="what Disco is told here, as its target")
    unrun: str = Field("for want of time", description="why it was not run here, if it was not")


class Method(Frozen):
    """An algorithm with the parameters tuned in the paper, and its weighting without Disco."""

    title: str
    algorithm: dict[str, Any]
    local: dict[str, Any] = Field(default_factory=dict, description="what it changes in local training")
    base: Literal["sizes", "uniform"] = "sizes"


class Published(Frozen):
    """A figure of the paper: percent (or a loss), its standard deviation, rounds to the target accuracy."""

    value: float
    std: float | None = None
    rounds: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"value": value} if isinstance(value, int | float) else value


class Grid(Frozen):
    """Disco with every pair of a and b."""

    a: tuple[float, ...]
    b: tuple[float, ...]


class Tune(Frozen):
    """Disco with every pair of a and b, run for one method; the best pair is every method's ``tuned``.

    Best is the pair whose last ten rounds are most accurate, on the examples that no client is dealt
    (``partition.validation`` of the setting) or, as in the paper, on the test set.
    """

    a: tuple[float, ...] = Field(alias="weighting.a", min_length=1)
    b: tuple[float, ...] = Field(alias="weighting.b", min_length=1)
    on: Literal["validation", "test"] = "validation"
    method: Name = "fedavg"

    @model_validator(mode="before")
    @classmethod
    def _on_is_a_word(cls, value: Any) -> Any:
        """YAML 1.1 reads the key ``on`` as true."""
        if not isinstance(value, dict):
            return value
        return {"on" if key is True else key: given for key, given in value.items()}

    @property
    def pairs(self) -> tuple[str, ...]:
        """By their names as weightings."""
        return tuple(f"a{a:g}-b{b:g}" for a in self.a for b in self.b)


class Quick(Frozen):
    """What ``--quick`` does: the first rounds of one seed, perhaps of fewer settings."""

    rounds: int = Field(3, ge=1)
    settings: tuple[Name, ...] | None = None
    methods: tuple[Name, ...] | None = None


class Figure(Frozen):
    """A picture: accuracy by round, the gain over a grid, a value by level, accuracy by category, or by what
    a weighting has to know.
    """

    kind: Literal["curves", "heatmap", "levels", "categories", "variance", "needs"]
    title: str
    label: str = Field("", description="levels: what the levels are")
    levels: tuple[float, ...] = Field((), description="one for each setting")


class Table(Frozen):
    """A table or figure of the paper. ``published[setting][method][weighting]``."""

    name: Name
    title: str
    source: str | None = Field(description="where it is in the paper; None: it is not")
    kind: Literal["runs", "theory", "exploration-1", "exploration-2"] = "runs"
    claim: str = Field("", description="what the paper says, in one sentence")
    headline: bool = Field(False, description="whether the page of all results begins with it")
    note: str = Field("", description="what differs here, and why")
    compared: str = Field("Disco", description="what is ahead or behind of the first weighting")
    settings: tuple[Name, ...] = ()
    methods: tuple[Name, ...] = ()
    weightings: tuple[Name, ...] = (BASE, "disco")
    only: dict[Name, tuple[Name, ...]] = Field(
        default_factory=dict, description="methods with other weightings than the table's"
    )
    added: tuple[str, ...] = Field(
        (), description="weightings that a caller adds; a table's state and counts are without them"
    )
    borrows: Name | None = Field(
        None, description="a table whose runs are one row or column of this: alone they show nothing of it"
    )
    published_of: str = Field(
        "", description="the setting of the published figures, if it is not the table's"
    )
    sign_only: bool = Field(False, description="so little of it is published that only signs compare")
    grid: Grid | None = None
    tune: Tune | None = None
    chosen: Name | None = Field(None, description="what tuned stands for; a choice sets it, no file does")
    seeds: int = Field(5, ge=1)
    measure: Measure = "last_ten"
    spread: Literal["seeds", "rounds"] = Field(
        "seeds", description="over what the paper's standard deviation is"
    )
    target_accuracy: float | None = Field(None, gt=0, lt=1)
    rounds: int | None = Field(None, ge=1, description="fewer than the setting's")
    published: dict[Name, dict[Name, dict[Name, Published]]] = Field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    quick: Quick = Field(default_factory=Quick)

    @model_validator(mode="after")
    def _known(self) -> Self:
        for kind, given, known in (
            ("setting", self.settings, settings()),
            ("method", self.methods, methods()),
        ):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"{kind} {unknown[0]!r} is not in {kind}s.yaml")
        for setting, rows in self.published.items():
            for method, figures in rows.items():
                if setting not in self.settings or method not in self.methods:
                    raise ValueError(f"published figures of {setting}/{method}, which is not in the table")
                weightings = (*self.weightings_of(method), *([TUNED] if self.tune else []))
                if unknown := [name for name in figures if name not in weightings]:
                    raise ValueError(f"published weighting {unknown[0]!r} of {setting}/{method}")
        self._check_tuning()
        return self

    def _check_tuning(self) -> None:
        if self.tune is None:
            if TUNED in self.weightings:
                raise ValueError("weighting 'tuned' without tune: which a and b to try")
            return
        if self.grid is not None or len(self.settings) != 1 or self.tune.method not in self.methods:
            raise ValueError("tune goes with one setting, a method of the table, and without grid")
        partition = settings()[self.settings[0]].config.get("partition")
        held = partition.get("validation", 0) if isinstance(partition, dict) else 0
        if self.tune.on == "validation" and not held:
            raise ValueError(f"tune on validation, but {self.settings[0]} has no partition.validation")

    def weightings_of(self, method: str) -> tuple[str, ...]:
        """The method's weightings by name, as they are written in the table; behind them what was added."""
        own = self._own_weightings(method)
        return (*own, *(name for name in self.added if name not in own))

    def is_added(self, method: str, weighting: str) -> bool:
        """Whether the table has it for this method because it was added alone."""
        return weighting not in self._own_weightings(method)

    def _own_weightings(self, method: str) -> tuple[str, ...]:
        named = self.only.get(method, self.weightings)
        if self.tune is not None and method == self.tune.method:
            return (*(name for name in named if name not in (TUNED, *self.tune.pairs)), *self.tune.pairs)
        if self.grid is None:
            return tuple(self.tuned if name == TUNED else name for name in named)
        pairs = tuple(f"a{a:g}-b{b:g}" for a in self.grid.a for b in self.grid.b)
        return (*(name for name in named if name not in pairs), *pairs)

    @property
    def tuned(self) -> Name:
        """What ``tuned`` stands for: the pair that was chosen; until one is, the first that is tried."""
        return self.chosen or (self.tune.pairs[0] if self.tune else TUNED)

    def published_figure(self, setting: Name, method: Name, weighting: Name) -> Published | None:
        """The paper's figure; that of ``tuned`` belongs to the pair that was chosen."""
        figures = self.published.get(setting, {}).get(method, {})
        return figures.get(weighting) or (figures.get(TUNED) if weighting == self.tuned else None)

    @property
    def higher_is_better(self) -> bool:
        return self.measure not in ("loss", "client_variance")


def available() -> tuple[str, ...]:
    """Names of all tables."""
    return tuple(sorted(path.stem for path in (HERE / "tables").glob("*.yaml")))


def load_table(name: str) -> Table:
    """A table by name.

    Raises:
        InvalidConfiguration: no such table, or its file is not right; names the field.
    """
    if name not in available():
        raise InvalidConfiguration(
            f"table: there is no table {name!r}.", hint=f"Tables: {', '.join(available())}; or all."
        )
    path = HERE / "tables" / f"{name}.yaml"
    try:
        return Table.model_validate({"name": name, **_yaml(path)})
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the whole"
        raise InvalidConfiguration(f"{path.name}: {where}: {fault['msg']}.") from None


@cache
def settings() -> dict[str, Setting]:
    """All settings by name."""
    return {
        name: Setting.model_validate(fields)
        for name, fields in _yaml(HERE / "settings.yaml").items()
        if not name.startswith("_")
    }


@cache
def methods() -> dict[str, Method]:
    """All methods by name."""
    return {name: Method.model_validate(fields) for name, fields in _yaml(HERE / "methods.yaml").items()}


def _yaml(path: Path) -> dict[str, Any]:
    document = parse_yaml(path.read_text(encoding="utf-8"), path)
    if not isinstance(document, dict):
        raise InvalidConfiguration(f"{path.name} is not a mapping of names to values.")
    return document
