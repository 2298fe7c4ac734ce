"""Questions that come together are asked together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from server.batches import MOST, Batches
from shared.problems import StorageUnavailable


class Asked:
    """Doubles numbers, and notes with how many it was asked."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fault: Exception | None = None

    async def __call__(self, keys: Sequence[int]) -> Mapping[int, int]:
        self.batches.append(list(keys))
        await self.go_on.wait()
        if self.fault is not None:
            raise self.fault
        if -1 in keys:
            raise ZeroDivisionError
        return {key: 2 * key for key in keys}


def test_those_of_one_moment_share_a_batch_and_those_behind_the_next() -> None:
    async def check() -> None:
        ask = Asked()
        batches = Batches(ask)
        assert await asyncio.gather(*map(batches.get, (3, 1, 3, 2))) == [6, 2, 6, 4]
        assert ask.batches == [[3, 1, 2]]
        ask.go_on.clear()
        first = asyncio.create_task(batches.get(5))
        await asyncio.sleep(0.01)
        later = [asyncio.create_task(batches.get(key)) for key in (5, 6, 7)]
        await asyncio.sleep(0.01)
        assert ask.batches[1:] == [[5]]
        ask.go_on.set()
        assert await asyncio.gather(first, *later) == [10, 10, 12, 14]
        assert ask.batches[2:] == [[5, 6, 7]], "who came after the question was asked is asked for anew"

    asyncio.run(check())


def test_a_batch_is_bounded() -> None:
    async def check() -> None:
        ask = Asked()
        keys = range(2 * MOST + 1)
        assert await asyncio.gather(*map(Batches(ask).get, keys)) == [2 * key for key in keys]
        assert [len(batch) for batch in ask.batches] == [MOST, MOST, 1]

    asyncio.run(check())


def test_an_error_is_that_of_who_causes_it_and_the_next_are_answered() -> None:
    async def check() -> None:
        batches = Batches(Asked())
        answers = await asyncio.gather(*map(batches.get, (1, 2, -1, 3)), return_exceptions=True)
        assert [answers[0], answers[1], answers[3]] == [2, 4, 6]
        assert isinstance(answers[2], ZeroDivisionError)
        assert await batches.get(1) == 2

    asyncio.run(check())


def test_a_fault_of_the_storage_is_that_of_all_who_asked() -> None:
    async def check() -> None:
        ask = Asked()
        ask.fault = StorageUnavailable("the disk is full")
        answers = await asyncio.gather(*map(Batches(ask).get, (1, 2, 3)), return_exceptions=True)
        assert answers == [ask.fault] * 3
        assert len(ask.batches) == 1, "it was not asked again"

    asyncio.run(check())


def test_who_leaves_takes_nobodys_answer_away() -> None:
    async def check() -> None:
        ask = Asked()
        ask.go_on.clear()
        batches = Batches(ask)
        first, second = (asyncio.create_task(batches.get(4)) for _ in range(2))
        alone = asyncio.create_task(batches.get(-1))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        alone.cancel()
        ask.go_on.set()
        assert await second == 8
        assert await batches.get(4) == 8

    asyncio.run(check())
