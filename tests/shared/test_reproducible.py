"""The global generators, lent to one thread after another, and what one thread does with tiny numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shared.reproducible import flush_denormals, reproducible

CPU = torch.device("cpu")


def draw(seed: int) -> list[float]:
    with reproducible(seed, CPU):
        return [float(torch.rand(1)) for _ in range(10_000)]


def test_threads_that_draw_at_once_draw_what_each_would_alone() -> None:
    alone = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(draw, range(8))) == alone


def test_what_draws_within_it_may_borrow_them_again() -> None:
    with reproducible(1, CPU):
        first = float(torch.rand(1))
        draw(2)
        second = float(torch.rand(1))
    with reproducible(1, CPU):
        assert [float(torch.rand(1)), float(torch.rand(1))] == [first, second]


def halve_the_smallest() -> float:
    return float(torch.tensor([2.0**-126]).mul(0.5))


@pytest.mark.usefixtures("one_thread")
def test_tiny_numbers_are_zero_for_this_thread_until_it_is_left() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush them")
    with flush_denormals():
        assert halve_the_smallest() == 0
        with flush_denormals():
            assert halve_the_smallest() == 0
        assert halve_the_smallest() == 0  # the inner one found it so
    assert halve_the_smallest() == 2.0**-127


@pytest.mark.usefixtures("one_thread")
def test_with_several_threads_nothing_is_changed() -> None:
    torch.set_num_threads(2)
    with flush_denormals():
        assert halve_the_smallest() == 2.0**-127
