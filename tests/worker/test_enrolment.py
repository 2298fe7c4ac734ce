"""Small decisions: the lowest free index, the first difference of two models."""

from __future__ import annotations

import pytest

from shared.schemas import TensorKind, TensorSpec
from worker.enrolment import lowest_free
from worker.site import first_difference


@pytest.mark.parametrize(("taken", "free"), [((), 0), ((0,), 1), ((1, 0, 3), 2), ((5,), 0), ((0, 1, 2), 3)])
def test_the_lowest_free_index(taken: tuple[int, ...], free: int) -> None:
    assert lowest_free(taken) == free


def test_the_first_difference_of_two_models_names_the_tensor() -> None:
    ours = TensorSpec(name="fc.weight", shape=(10, 4), dtype="F32")
    theirs = TensorSpec(name="fc.weight", shape=(7, 4), dtype="F32")
    frozen = TensorSpec(name="fc.weight", shape=(10, 4), dtype="F32", kind=TensorKind.FROZEN)
    assert first_difference([ours], [ours]) is None
    assert first_difference([ours], [theirs]) == (
        "fc.weight F32 [10, 4] parameter here, fc.weight F32 [7, 4] parameter there"
    )
    assert "frozen" in (first_difference([ours], [frozen]) or "")
    assert first_difference([ours], []) == "1 tensors here, 0 there"
