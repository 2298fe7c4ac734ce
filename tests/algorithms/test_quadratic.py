"""Every algorithm against independently computed numbers, through trainer, files and aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.algorithms.base import effective_steps
from shared.algorithms.fednova import accumulated
from tests.helpers.quadratic_problem import FULL, LIMITS, PART, VECTORS, Federation, Round

TAU222 = (2, 2, 2)
TAU421 = (4, 2, 1)
SAME = {"dual_weights": "same"}
ALPHA = {"alpha": 0.2}
ALPHA_BY_SIZE = {"alpha": 0.2, "alpha_scaling": "size"}
LINEAR_BY_SIZE = {**ALPHA_BY_SIZE, "scaled_terms": "linear"}
NORMALISED = {"mu": 0.5, "normalised": True}
FEDOPT = {"server_learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}


@dataclass(frozen=True)
class Case:
    """A section of the vectors, the federation it describes, and which entry is which quantity."""

    section: str
    prefix: str
    algorithm: str
    weighting: str
    part: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    steps: tuple[int, int, int] = TAU222
    momentum: float = 0.0
    suffix: str = ""

    def federation(self, folder: Path) -> Federation:
        return Federation(folder, self.algorithm, self.parameters, self.weighting, self.steps, self.momentum)

    def expected(self, quantity: str) -> Any:
        return VECTORS[self.section][f"{self.prefix}{quantity}{self.suffix}"]

    @property
    def participation(self) -> Any:
        return PART if self.part else FULL


MODELS = [
    Case("fedavg", "n_full_tau2", "fedavg", "n"),
    Case("fedavg", "n_part_tau2", "fedavg", "n", part=True),
    Case("fedavg", "u_full_tau2", "fedavg", "u"),
    Case("fedavg", "u_part_tau2", "fedavg", "u", part=True),
    Case("fedavg", "disco_full_tau2", "fedavg", "disco"),
    Case("fedavg", "disco_part_tau2", "fedavg", "disco", part=True),
    Case("fedavg", "n_full_tau421", "fedavg", "n", steps=TAU421),
    Case("fedavg", "n_full_tau2_momentum0.9", "fedavg", "n", momentum=0.9),
    Case("fedprox_mu0.5", "n_full_tau2", "fedprox", "n", parameters={"mu": 0.5}),
    Case("fedprox_mu0.5", "disco_full_tau2", "fedprox", "disco", parameters={"mu": 0.5}),
    Case("fedprox_mu0.5", "n_part_tau2", "fedprox", "n", part=True, parameters={"mu": 0.5}),
    *(
        Case(
            "fedavgm_beta0.5",
            f"{weighting}_{who}_{'damped' if damped else 'undamped'}",
            "fedavgm",
            weighting,
            part=who == "part",
            parameters={"beta": 0.5, "damped": damped},
        )
        for weighting, who in (("n", "full"), ("disco", "full"), ("n", "part"))
        for damped in (False, True)
    ),
    *(
        Case(
            "fedopt_eta0.1_b1_0.9_b2_0.99_tau1e-3_v0_1e-6",
            f"{variant}_{weighting}_full",
            "fedopt",
            weighting,
            parameters={**FEDOPT, "variant": variant},
        )
        for variant in ("adagrad", "adam", "yogi")
        for weighting in ("n", "disco")
    ),
    *(
        Case("fednova", f"{weighting}_{who}_tau421_w", "fednova", weighting, who == "part", steps=TAU421)
        for weighting in ("n", "disco")
        for who in ("full", "part")
    ),
    Case("fednova", "n_full_tau421_momentum0.9_anorm_w", "fednova", "n", steps=TAU421, momentum=0.9),
    Case(
        "fednova",
        "n_full_tau421_momentum0.9_but_plain_tau_w",
        "fednova",
        "n",
        parameters={"normaliser": "steps"},
        steps=TAU421,
        momentum=0.9,
    ),
    *(  # server momentum on equal steps is FedAvgM
        Case("fedavgm_beta0.5", f"n_{who}_undamped", "fednova", "n", who == "part", {"beta": 0.5})
        for who in ("full", "part")
    ),
    *(  # and so is the normalised FedProx its plain self
        Case("fedprox_mu0.5", f"{weighting}_full_tau2", "fedprox", weighting, parameters=NORMALISED)
        for weighting in ("n", "disco")
    ),
    Case("feddyn_alpha0.2", "n_full_theta", "feddyn", "n", parameters={"alpha": 0.2}),
    Case(
        "feddyn_alpha0.2",
        "u_full_sizescaled_alpha_theta",
        "feddyn",
        "u",
        parameters={"alpha": 0.2, "alpha_scaling": "size"},
    ),
    Case(
        "feddc_alpha0.2",
        "u_full_without_gradient_term_theta_equals_feddyn_u_full",
        "feddc",
        "u",
        parameters={"alpha": 0.2, "gradient_term": False},
    ),
]


def _close(found: list[Tensor], expected: list[list[float]]) -> None:
    # Vectors shorter than the rounds (two of three) hold the first ones.
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(found)[: len(wanted)], wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", MODELS, ids=lambda case: f"{case.section}-{case.prefix}")
def test_models(case: Case, tmp_path: Path) -> None:
    rounds = list(case.federation(tmp_path).rounds(case.participation))
    _close([after.model for after in rounds], case.expected(""))


@pytest.mark.parametrize(
    "case",
    [
        *(
            Case("scaffold", f"{weighting}_{who}_", "scaffold", weighting, part=who == "part")
            for weighting in ("n", "u", "disco")
            for who in ("full", "part")
        ),
        Case("scaffold", "n_full_tau421_", "scaffold", "n", steps=TAU421),
        Case("scaffold", "n_full_momentum0.9_correction_after_step_", "scaffold", "n", momentum=0.9),
    ],
    ids=lambda case: case.prefix,
)
def test_scaffold(case: Case, tmp_path: Path) -> None:
    rounds = list(case.federation(tmp_path).rounds(case.participation))
    _close([after.model for after in rounds], case.expected("w"))
    _close([after.server["control"] for after in rounds], case.expected("c"))
    if f"{case.prefix}ck_after3" in VECTORS["scaffold"]:
        _close([kept["control"] for kept in rounds[-1].kept], case.expected("ck_after3"))


@pytest.mark.parametrize("weighting", ["n", "disco"])
def test_scaffold_with_weighted_controls(weighting: str, tmp_path: Path) -> None:
    vector = LIMITS[f"scaffold_weighted_c_full_tau2_{weighting}"]
    rounds = list(Federation(tmp_path, "scaffold", {"dual_weights": "same"}, weighting).rounds(FULL))
    _close([after.model for after in rounds], vector["w"])
    _close([after.server["control"] for after in rounds], vector["c"])


@pytest.mark.parametrize(
    ("weighting", "who", "momentum", "norms"),
    [
        ("n", "full_tau421", 0.0, ""),
        ("n", "part_tau421", 0.0, ""),
        ("disco", "full_tau421", 0.0, ""),
        ("disco", "part_tau421", 0.0, ""),
        ("n", "full_tau421_momentum0.9", 0.9, "anorm_"),
    ],
)
def test_fednovas_effective_steps(
    weighting: str, who: str, momentum: float, norms: str, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, "fednova", {}, weighting, TAU421, momentum)
    accumulations = {index: accumulated(steps, momentum) for index, steps in enumerate(TAU421)}
    if momentum:
        anorm = VECTORS["fednova"]["anorm_momentum0.9_tau_4_2_1"]
        assert list(accumulations.values()) == pytest.approx(anorm, abs=1e-9)
    participation = PART if who.startswith("part") else FULL
    found = [effective_steps(federation.weights(present), accumulations) for present in participation]
    assert found == pytest.approx(VECTORS["fednova"][f"{weighting}_{who}_{norms}tau_eff"], abs=1e-9)


@pytest.mark.parametrize("weighting", ["n", "disco"])
def test_the_weights_of_the_problem(weighting: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", weighting=weighting)
    full = VECTORS["n"] if weighting == "n" else VECTORS["p_disco_full_a0.5_b0.1"]
    assert list(federation.weights((0, 1, 2)).values()) == pytest.approx(full, abs=1e-9)
    for present in PART:
        row = VECTORS["p_partial"][f"S={[index + 1 for index in present]}"]
        assert list(federation.weights(present).values()) == pytest.approx(row[weighting], abs=1e-9)


@pytest.mark.parametrize("weighting", ["u", "n", "disco"])
@pytest.mark.parametrize("who", ["full", "part"])
def test_feddyn(weighting: str, who: str, tmp_path: Path) -> None:
    case = Case("feddyn_alpha0.2", f"{weighting}_{who}_", "feddyn", weighting, who == "part", {"alpha": 0.2})
    rounds = list(case.federation(tmp_path).rounds(case.participation))
    _close([after.model for after in rounds], case.expected("theta"))
    _close([after.scored for after in rounds], case.expected("mean"))
    _close([-0.2 * after.server["drift"] for after in rounds], case.expected("h"))
    _close([kept["gradient"] for kept in rounds[-1].kept], case.expected("gk_after3"))


def test_feddyn_scores_the_mean_with_size_scaled_alpha(tmp_path: Path) -> None:
    parameters = {"alpha": 0.2, "alpha_scaling": "size"}
    rounds = list(Federation(tmp_path, "feddyn", parameters, "u").rounds(FULL))
    _close([after.scored for after in rounds], VECTORS["feddyn_alpha0.2"]["u_full_sizescaled_alpha_mean"])


@pytest.mark.parametrize(
    ("weighting", "who"), [("u", "full"), ("u", "part"), ("disco", "full"), ("disco", "part")]
)
def test_feddc(weighting: str, who: str, tmp_path: Path) -> None:
    case = Case("feddc_alpha0.2", f"{weighting}_{who}_", "feddc", weighting, who == "part", {"alpha": 0.2})
    rounds = list(case.federation(tmp_path).rounds(case.participation))
    _close([after.model for after in rounds], case.expected("theta"))
    _close([after.scored for after in rounds], case.expected("mean"))
    _close([kept["drift"] for kept in rounds[-1].kept], case.expected("drift_after3"))
    _close([kept["gradient"] for kept in rounds[-1].kept], case.expected("gk_after3"))
    _close([rounds[-1].server["gradient"]], [case.expected("g_after3")])


# ---------------------------------------------------------------- invariants


def _mean_kept(after: Round, group: str) -> Tensor:
    """Over all clients; one that never took part has zero."""
    return sum((kept.get(group, torch.zeros(2)) for kept in after.kept), start=torch.zeros(2)) / 3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("algorithm", "parameters", "group", "factor"),
    [
        ("scaffold", {}, "control", 1.0),  # c = mean of c_k
        ("feddyn", {"alpha": 0.2}, "gradient", -5.0),  # h = -alpha drift = mean of g_k
        ("feddc", {"alpha": 0.2}, "drift", 1.0),
        ("feddc", {"alpha": 0.2, "alpha_scaling": "size"}, "drift", 1.0),
    ],
)
def test_server_state_is_the_mean_of_the_clients_states(
    algorithm: str, parameters: dict[str, Any], group: str, factor: float, momentum: float, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, algorithm, parameters, "disco", TAU421, momentum)
    for after in federation.rounds((*PART, *PART[:1])):
        server = after.server["control" if algorithm == "scaffold" else "drift"]
        torch.testing.assert_close(server, factor * _mean_kept(after, group).double(), atol=1e-12, rtol=0)


def test_fednova_with_equal_steps_is_fedavg(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("fednova", "fedavg")]
    for folder in folders:
        folder.mkdir()
    found = [
        list(Federation(folder, folder.name, {}, "disco", momentum=0.9).rounds(PART)) for folder in folders
    ]
    for nova, average in zip(*found, strict=True):
        torch.testing.assert_close(nova.model, average.model, atol=1e-15, rtol=1e-14)


def test_fednova_ignores_a_client_without_a_step(tmp_path: Path) -> None:
    """tau = 2, 2, 0 and sizes: tau_eff = 0.9 * 2; x - 1.8 (0.6 (x - y_1) + 0.3 (x - y_2)) / 2."""
    x = torch.tensor(VECTORS["w0"], dtype=torch.float64)
    y = torch.tensor(VECTORS["local_two_steps_from_w0_plain_sgd"], dtype=torch.float64)
    after = Federation(tmp_path, "fednova", {}, "n", (2, 2, 0)).last(FULL[:1])
    expected = x - 0.9 * (0.6 * (x - y[0]) + 0.3 * (x - y[1]))
    torch.testing.assert_close(after.model, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        ("fedprox", {"mu": 0}),
        ("fedavgm", {"beta": 0}),
        ("scaffold", {}),  # in the first round all control variates are zero
    ],
)
def test_switched_off_it_is_fedavg(algorithm: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    participation = FULL[:1] if algorithm == "scaffold" else PART
    rounds = list(Federation(tmp_path, algorithm, parameters, "n").rounds(participation))
    who = "full" if algorithm == "scaffold" else "part"
    expected = VECTORS["fedavg"][f"n_{who}_tau2"][: len(rounds)]
    _close([after.model for after in rounds], expected)


def test_scaffolds_server_learning_rate_scales_the_step(tmp_path: Path) -> None:
    """x + 0.5 (mean - x): half of FedAvg's first step."""
    after = Federation(tmp_path, "scaffold", {"server_learning_rate": 0.5}, "n").last(FULL[:1])
    _close([after.model], [[(1 + w) / 2 for w in VECTORS["fedavg"]["n_full_tau2"][0]]])


# ---------------------------------------------------------------- limits


def _limit(name: str, parameters: Any, weighting: str, *rest: Any) -> Any:
    """One long run; those that are not Disco's take seconds each for what the vectors above show, too."""
    marks = () if weighting == "disco" or (name == "feddc" and parameters is ALPHA) else pytest.mark.slow
    return pytest.param(name, parameters, weighting, *rest, marks=marks)


@pytest.mark.parametrize(
    ("algorithm", "parameters", "weighting", "steps", "limit", "rounds", "tolerance"),
    [
        *(
            _limit(name, parameters, weighting, steps, LIMITS[row][weighting], rounds, 1e-4)
            for name, parameters, steps, row, rounds in (
                ("fedavg", {}, TAU222, "fedavg_tau2", 45),
                ("fedavg", {}, TAU421, "fedavg_tau421", 35),
                ("fednova", {}, TAU421, "fednova_tau421", 45),
                ("fedprox", {"mu": 0.5}, TAU222, "fedprox_mu0.5_tau2", 45),
            )
            for weighting in ("u", "n", "disco")
        ),
        _limit("scaffold", {}, "u", TAU222, LIMITS["scaffold_any_weights_any_steps"], 45, 1e-4),
        _limit("scaffold", {}, "disco", TAU222, LIMITS["scaffold_any_weights_any_steps"], 45, 1e-4),
        _limit("scaffold", {}, "n", TAU421, LIMITS["scaffold_any_weights_any_steps"], 30, 1e-4),
        _limit("scaffold", SAME, "n", TAU222, LIMITS["scaffold_weighted_c"]["n"], 45, 1e-4),
        _limit("scaffold", SAME, "disco", TAU222, LIMITS["scaffold_weighted_c"]["disco"], 40, 1e-4),
        _limit("feddyn", ALPHA, "disco", TAU222, LIMITS["feddyn_alpha0.2_any_weights"], 75, 1e-2),
        _limit("feddyn", ALPHA_BY_SIZE, "u", TAU222, LIMITS["feddyn_sizescaled_alpha"], 130, 1e-2),
        _limit("feddyn", LINEAR_BY_SIZE, "n", TAU222, LIMITS["feddyn_sizescaled_alpha"], 130, 1e-2),
        _limit("feddc", ALPHA, "n", TAU222, LIMITS["feddc_alpha0.2_any_weights"], 50, 1e-3),
        _limit("feddc", ALPHA_BY_SIZE, "u", TAU222, LIMITS["feddc_sizescaled_alpha"], 80, 1e-3),
    ],
)
def test_long_run_limits(
    algorithm: str,
    parameters: dict[str, Any],
    weighting: str,
    steps: Any,
    limit: list[float],
    rounds: int,
    tolerance: float,
    tmp_path: Path,
) -> None:
    """Where each method ends: why Disco alone does not move the limit of SCAFFOLD, FedDyn and FedDC."""
    after = Federation(tmp_path, algorithm, parameters, weighting, steps).last(FULL[:1] * rounds)
    expected = torch.tensor(limit, dtype=torch.float64)
    torch.testing.assert_close(after.scored, expected, atol=tolerance, rtol=0)
