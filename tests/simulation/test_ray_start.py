"""A machine too busy for Ray's 30 seconds: a second try, then a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.cluster import SLOW_START, _start


class BusyRay:
    """Stands for Ray on a machine that is too slow so many times."""

    def __init__(self, slow: int) -> None:
        self.slow, self.tries, self.ended = slow, 0, 0

    def init(self, **_: Any) -> None:
        self.tries += 1
        if self.tries <= self.slow:
            raise Exception(f"The current node {SLOW_START}.")

    def shutdown(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(("slow", "tries", "ended"), [(0, 1, 0), (1, 2, 1)])
def test_a_slow_start_is_tried_once_more(slow: int, tries: int, ended: int) -> None:
    ray = BusyRay(slow)
    _start(ray, address="local")
    assert (ray.tries, ray.ended) == (tries, ended)


def test_a_second_slow_start_is_what_connect_explains() -> None:
    with pytest.raises(RuntimeError, match=SLOW_START):
        _start(BusyRay(2), address="local")


def test_ray_still_says_it_in_these_words() -> None:
    node = pytest.importorskip("ray._private.node")
    with open(node.__file__, encoding="utf-8") as source:
        assert SLOW_START in source.read()
