from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shared.algorithms import available, load_algorithm
from shared.algorithms.base import Algorithm
from shared.algorithms.fedprox import FedProx
from shared.config import AlgorithmChoice
from shared.problems import InvalidConfiguration


def test_every_file_is_an_algorithm() -> None:
    assert set(available()) >= {
        "fedavg",
        "fedavgm",
        "feddc",
        "feddyn",
        "fednova",
        "fedopt",
        "fedprox",
        "moon",
        "scaffold",
    }
    for name in available():
        method = load_algorithm(AlgorithmChoice(name=name))
        assert isinstance(method, Algorithm)
        assert type(method).__module__ == f"shared.algorithms.{name}"


def test_parameters_are_given_and_checked() -> None:
    method = load_algorithm(AlgorithmChoice(name="fedprox", parameters={"mu": 0.3}))
    assert isinstance(method, FedProx)
    assert method.parameters.mu == 0.3
    with pytest.raises(
        InvalidConfiguration, match=r"'fedprox': mu=-1: .*greater than or equal to 0.* Its parameters are: mu"
    ):
        load_algorithm(AlgorithmChoice(name="fedprox", parameters={"mu": -1}))
    with pytest.raises(InvalidConfiguration, match=r"'fedavg': mu=0.3: .* Its parameters are: none"):
        load_algorithm(AlgorithmChoice(name="fedavg", parameters={"mu": 0.3}))


def test_an_algorithm_of_ones_own() -> None:
    method = load_algorithm(AlgorithmChoice(name="shared.algorithms.fedprox:FedProx", parameters={"mu": 1}))
    assert isinstance(method, FedProx)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedsgd", "'fedsgd' is not known.* fedavg, "),
        ("base", "'base' is not known"),
        ("no_such_package.module:Thing", "cannot be imported: No module named 'no_such_package'"),
        ("shared.algorithms.fedprox:Nope", "cannot be imported: .*Nope"),
        ("shared.algorithms.fedprox:FedProxParameters", "not an algorithm.* subclass"),
        ("math:pi", "not an algorithm"),
    ],
)
def test_what_cannot_be_loaded_is_explained(name: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_algorithm(AlgorithmChoice(name=name))


def test_checking_a_configuration_needs_no_torch() -> None:
    """The coordinator answers POST /runs, and starts, without importing it."""
    code = (
        "import sys; from shared.algorithms import *; from shared.config import AlgorithmChoice; "
        "import shared.aggregation, shared.weightings, shared.discrepancy; "
        "[load_algorithm(AlgorithmChoice(name=n)) for n in available()]; sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
