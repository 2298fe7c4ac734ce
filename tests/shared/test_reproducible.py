"""The global generators, lent to one thread after another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from shared.reproducible import reproducible

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
