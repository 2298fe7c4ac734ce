"""Devices by name, and what running out of memory looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shared.device import choose, describe, is_out_of_memory
from shared.problems import InvalidConfiguration

ROOT = Path(__file__).resolve().parents[2]


def test_auto_takes_the_best_there_is() -> None:
    expected = (
        "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    )
    assert str(choose("auto")) == expected
    assert str(choose("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "tpu", ""])
def test_a_device_that_is_not_there_lists_those_that_are(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"this machine has .*cpu"):
        choose(name)


def test_float16_needs_a_gpu() -> None:
    with pytest.raises(InvalidConfiguration, match="needs a GPU"):
        choose("cpu", "float16")
    assert choose("cpu", "bfloat16").type == "cpu"


def test_the_pages_description_tells_the_threads() -> None:
    number = torch.get_num_threads()
    assert describe(torch.device("cpu")) == ("cpu (1 thread)" if number == 1 else f"cpu ({number} threads)")


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 3])
def test_several_threads_take_tiny_numbers_for_zero(threads: int) -> None:
    """In a process of its own: threads that PyTorch has already would not heed it."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch; from shared.device import use_threads; "
            f"could = torch.set_flush_denormal(False); use_threads({threads}); "
            "print(could, int(torch.full((3_000_000,), 2.0**-126).mul(0.5).count_nonzero()))",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout.split()
    if told[0] == "False":
        pytest.skip("this processor cannot flush them")
    assert int(told[1]) == (3_000_000 if threads == 1 else 0)


def test_memory_that_ran_out_is_told_from_other_faults() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(caught.value)
