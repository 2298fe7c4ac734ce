"""How numbers and weights are put into words, and whether the words can be read: contrast."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, get_args, get_origin

import pytest

from server.pages import STATIC
from server.pages.explain import (
    WORDS,
    adjustment_sentence,
    columns,
    fallback,
    formula,
    legend,
    sentence,
    travelling_sentence,
    weighting_name,
)
from server.pages.words import (
    amount,
    detail,
    distance,
    duration,
    indexed,
    number,
    percent,
    size,
    tone,
)
from server.pages.words import sentence as written
from shared.config import DiscoWeighting, Metric, RunConfig, SizesWeighting, UniformWeighting, Weighting
from shared.schemas import (
    AdjustmentView,
    EnrolmentStatus,
    EnrolmentView,
    Grade,
    LedgerRow,
    ParticipantStatus,
    Role,
    RoundStatus,
    RunStatus,
)
from shared.weightings import Contribution, available, kinds
from shared.weightings.entropy import EntropyWeighting
from shared.weightings.feddgga import FedDgGaWeighting
from shared.weightings.fedlaw import FedLawWeighting
from shared.weightings.fedlws import FedLwsWeighting
from shared.weightings.own import OwnWeighting
from shared.weightings.qfedavg import QFedAvgWeighting
from tests.helpers.weighting_rounds import weigh_any
from tests.shared.test_weightings import Squared

# ---------------------------------------------------------------- words


def test_numbers() -> None:
    assert number(1 / 6) == "0.1667"
    assert number(-0.00001) == "0.0000", "no minus zero"
    assert number(-0.0258, sign=True) == "\u22120.0258"
    assert number(0.5, 1, sign=True) == "+0.5"
    assert (number(None), number(math.nan), number(math.inf), number(-math.inf)) == ("–", "–", "∞", "\u2212∞")
    assert percent(0.91349) == "91.3\u202f%"
    assert percent(None) == "–"
    assert amount(62006) == "62\u202f006"
    assert amount(None) == "–"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (248_760, "249 kB"),
        (44_700_000, "44.7 MB"),
        (999_600, "1.0 MB"),
        (2**40, "1.1 TB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert size(count) == text.replace(" ", "\u202f")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.424, "0.42 s"),
        (9.999, "10.0 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (7380, "2 h 03 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds).replace("\u202f", " ") == text


def test_distances_in_time() -> None:
    now = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    assert distance(now + dt.timedelta(seconds=245), now).replace("\u202f", " ") == "in 4 min 05 s"
    assert distance(now - dt.timedelta(seconds=3), now) == "3\u202fs ago"
    assert distance(now, now) == "0\u202fs ago"
    assert distance(None, now) == "never"


def test_what_an_event_carries_is_one_line() -> None:
    carried = {
        "participants": ["a", "b"],
        "deadline_at": "2026-11-28T12:30:05.123456+00:00",
        "model": "ab" * 32,
        "value": 0.123456789,
        "none": None,
    }
    assert detail(carried) == (
        "participants: a, b · deadline at: 2026-11-28 12:30:05 UTC · model: abababababab · "
        "value: 0.123457 · none: –"
    )


def test_sentences_and_subscripts() -> None:
    assert written("round 3: waiting") == "Round 3: waiting."
    assert written("Done.") == "Done."
    assert written("  ") == ""
    assert str(indexed("pₖ < <b>")) == "p<sub>k</sub> &lt; &lt;b&gt;"


@pytest.mark.parametrize("kind", [RunStatus, RoundStatus, ParticipantStatus, EnrolmentStatus])
def test_every_state_has_a_shape(kind: type[StrEnum]) -> None:
    assert {tone(status.value) for status in kind} <= {"wait", "go", "done", "hold", "end", "bad"}


# ---------------------------------------------------------------- the weights, explained


def rows(weighting: Weighting, examples: list[int], discrepancies: list[float]) -> list[LedgerRow]:
    """A round's ledger as the coordinator computes and stores it."""
    everyone = [
        Contribution(index, n, d) for index, (n, d) in enumerate(zip(examples, discrepancies, strict=True))
    ]
    return [
        LedgerRow(client=f"c{entry.index}", status=ParticipantStatus.AGGREGATED, **vars(entry))
        for entry in weigh_any(weighting, everyone, everyone).rows
    ]


def test_a_disco_weight_in_words() -> None:
    """n = (1/6, 5/6), d = (0.2, 0.8) of their sum: 1/6 - 0.1 + 0.1 = 1/6; 5/6 - 0.4 + 0.1 = 8/15; sum 0.7."""
    made = rows(DiscoWeighting(a=0.5, b=0.1), [100, 500], [0.1, 0.4])
    assert sentence(made[0], made, DiscoWeighting(a=0.5, b=0.1)).replace("\u202f", " ") == (
        "0.1667 − 0.5 × 0.2000 + 0.1 = 0.1667, divided by the sum of scores 0.7000 gives 23.81 %."
    )


def test_a_score_below_zero_an_infinite_discrepancy_and_the_fallback() -> None:
    """The infinite one stays out of the sum: d = 0.9 of 1.0 in all; 20/620 - 0.45 + 0.1 = -0.3177."""
    weighting = DiscoWeighting(a=0.5, b=0.1)
    made = rows(weighting, [500, 20, 100], [0.1, 0.9, math.inf])
    assert "= −0.3177, not above zero, so it counts as 0" in sentence(made[1], made, weighting).replace(
        "\u2212", "−"
    )
    assert sentence(made[2], made, weighting).endswith("its discrepancy is infinite, its weight 0.")
    harsh = DiscoWeighting(a=9, b=0.0)
    none = rows(harsh, [10, 30], [0.5, 0.5])
    assert fallback(none, harsh) == "No score of this round is above zero; the run falls back to sizes."
    assert sentence(none[1], none, harsh).replace("\u202f", " ").endswith("the fallback gives 75.00 %.")
    assert fallback(made, weighting) is None


def test_other_weightings_in_words() -> None:
    made = rows(SizesWeighting(), [600, 2400], [0.1, 0.1])
    text = sentence(made[0], made, SizesWeighting()).replace("\u202f", " ")
    assert text == "600 of 3 000 examples give 20.00 %."
    made = rows(UniformWeighting(), [600, 2400], [0.1, 0.1])
    assert (
        sentence(made[0], made, UniformWeighting()).replace("\u202f", " ")
        == "One of 2 clients gives 50.00 %."
    )


def every_weighting() -> Iterator[Weighting]:
    """Every kind with every choice of its options, as the configuration declares them."""
    for kind in kinds():
        choices = {
            name: get_args(field.annotation)
            for name, field in kind.model_fields.items()
            if get_origin(field.annotation) is Literal
        }
        if "metric" in kind.model_fields and "metric" not in choices:  # or one's own
            choices["metric"] = get_args(Metric)
        for chosen in itertools.product(*choices.values()):
            options = dict(zip(choices, chosen, strict=True))
            yield kind.model_validate(options)
            if "target" in kind.model_fields:
                yield kind.model_validate(options | {"target": (1, 2)})
    yield FedDgGaWeighting(centred=False)
    yield FedLwsWeighting(mean=DiscoWeighting())
    yield OwnWeighting(kind="ours.weights:Ours")


def test_there_are_as_many_weightings_as_the_configuration_allows() -> None:
    """Disco with 4 metrics, 3 normalisations, 3 fallbacks and 2 sorts of target; FedAWA with 2 distances."""
    assert len(list(every_weighting())) == len(kinds()) - 1 + 4 * 3 * 3 * 2 + 1 + 1 + 3


def test_every_weighting_and_every_option_has_its_words() -> None:
    """What is missing here would be a page that cannot be shown."""
    legends = defaultdict(set)
    for weighting in every_weighting():
        words = weighting_name(weighting), formula(weighting), legend(weighting)
        assert all(words)
        assert not any(set(text) & set("{}") for text in words)
        legends[legend(weighting)].add(weighting.model_dump_json(exclude={"on_all_zero"}))
        rule = Squared() if isinstance(weighting, OwnWeighting) else weighting
        made = rows(rule, [600, 2400], [0.1, 0.4])
        assert all(sentence(row, made, weighting) for row in made)
        shown = [[column.value(row) for column in columns(weighting)] for row in made]
        assert all(value is not None for value in shown[0]) or weighting.kind == "feddgga"
        none = [row.model_copy(update={"score": -1.0}) for row in made]
        instead = getattr(weighting, "mean", weighting)
        assert bool(fallback(none, weighting)) == hasattr(instead, "on_all_zero")
    shared = [same for same in legends.values() if len(same) > 1]
    assert [len(same) for same in shared] == [2], "only the two without discrepancies say the same"


def test_a_metric_of_ones_own_is_named() -> None:
    own = DiscoWeighting(metric="ours.metrics:earth_mover")
    assert "dₖ is the distance ours.metrics:earth_mover between its labels" in legend(own)
    assert "may have sent dₖ with noise" in legend(own)


def test_the_words_are_of_kinds_there_are() -> None:
    assert set(WORDS) == set(available())


def told(weighting: Weighting, row: int = 0) -> str:
    made = rows(weighting, [600, 2400], [0.1, 0.4])
    return sentence(made[row], made, weighting).replace("\u202f", " ")


def test_weights_by_entropy_and_loss_in_words() -> None:
    """0.2 e^-0.1 = 0.1810, 0.8 e^-0.4 = 0.5363; losses 1.5 and 1.6: 0.3, 1.28."""
    assert told(EntropyWeighting()) == (
        "0.2000 × exp(− 0.1000 ÷ 1) = 0.1810, divided by the sum of scores 0.7172 gives 25.23 %."
    )
    assert told(QFedAvgWeighting(q=1)) == (
        "0.2000 × 1.5000 to the power 1 = 0.3000, divided by the sum of scores 1.5800 gives 18.99 %."
    )


def test_a_gap_in_words() -> None:
    weighting = FedDgGaWeighting()
    assert told(weighting).startswith(
        "No gap of it is known yet, so its 0.5000 stays; divided by the sum 1.0000"
    )
    row = rows(weighting, [600, 2400], [0.1, 0.4])[0]
    moved = row.model_copy(update={"details": {"before": 0.5, "gap": 0.25}, "score": 0.6})
    assert sentence(moved, [moved], weighting).startswith(
        "Its gap of +0.2500 moves 0.5000 to 0.6000; divided"
    )


def test_a_learned_weight_in_words() -> None:
    """Of the logarithms of 1/4 and 3/4."""
    made = [
        row.model_copy(update={"details": {"logit": math.log(share)}, "weight": share})
        for row, share in zip(rows(SizesWeighting(), [600, 2400], [0.1, 0.4]), (0.25, 0.75), strict=True)
    ]
    told = sentence(made[0], made, FedLawWeighting()).replace("\u202f", " ")
    assert told == (
        "e^−1.3863 is 0.3333 of the round's largest, divided by 1.3333, the sum of these, gives 25.00 %."
    )


def test_what_is_done_to_the_model_in_words() -> None:
    assert adjustment_sentence(None) is None
    assert adjustment_sentence(AdjustmentView(step=0.25)) == "Then the mean update is taken 0.2500 times."
    assert adjustment_sentence(AdjustmentView(shrink=0.99)) == "Then the whole model is multiplied by 0.9900."
    assert adjustment_sentence(AdjustmentView(layers={"fc": 0.998, "conv": 1.0})) == (
        "Then its layers are multiplied, each by its factor: fc 0.9980, conv 1.0000."
    )


def test_a_client_without_examples_is_out_with_its_reason() -> None:
    made = rows(SizesWeighting(), [600, 0], [0.1, 0.1])
    assert sentence(made[1], made, SizesWeighting()) == "Not in the model: no examples."


def test_the_formula_has_the_rounds_own_constants() -> None:
    assert formula(DiscoWeighting(a=0.4, b=-0.2)) == "pₖ = max(nₖ − 0.4 × dₖ − 0.2, 0) ÷ sum over the round"


# ---------------------------------------------------------------- colours


def palette(scheme: str) -> dict[str, str]:
    """The named colours of the style sheet; the dark ones stand in the media query."""
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)[:2]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if scheme == "light" else dark))


def contrast(one: str, other: str) -> float:
    """Ratio of relative luminances (WCAG 2.2), 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_four_and_a_half_to_one_and_drawings_three(scheme: str) -> None:
    colours = palette(scheme)
    words = ("ink", "quiet", "accent", "wait", "go", "done", "hold", "end", "bad")
    lines = ("accent", "second", "third", "fourth", "fifth", "sixth", "hollow")
    for ground in ("paper", "sheet"):
        for name in words:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for name in lines:
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)
    assert contrast(colours["accent"], colours["room"]) >= 3, "a bar in its room"
    assert contrast(colours["ink"], colours["tint"]) >= 3, "the mark across a small bar"


def test_light_and_dark_name_the_same_colours() -> None:
    assert palette("light").keys() == palette("dark").keys()


@pytest.mark.parametrize(
    ("grade", "epsilon", "words"),
    [
        ("exact", None, "exact"),
        ("noised", 1.0, "noised, epsilon 1"),
        ("noised", 0.25, "noised, epsilon 0.25"),
        (None, None, "not said whether noised"),
    ],
)
def test_how_a_discrepancy_was_disclosed(grade: Grade | None, epsilon: float | None, words: str) -> None:
    now = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
    row = EnrolmentView(
        client="north", role=Role.TRAINER, status=EnrolmentStatus.READY, index=0, examples=1,
        discrepancy=0.1, device="cpu", reason=None, enrolled_at=now, last_seen_at=None, last_error=None,
        grade=grade, epsilon=epsilon,
    )  # fmt: skip
    assert row.disclosed == words


@pytest.mark.parametrize(
    ("round", "said"),
    [
        (7, "until round 8."),
        (8, "An average:"),
        (9, "until the run ends with round 10."),
        (10, "The run ends between two averages"),
    ],
)
def test_models_travel_until_the_next_average_or_the_end(round: int, said: str) -> None:
    config = RunConfig(name="a", rounds=10, average_every=4)
    assert said in (travelling_sentence(config, round) or "")
