"""Random faults in a federation of real processes: ``make test-faults``.

``--faults N``: so many on each database; ``--fault-seed S``: from which on. ``--faults-out FILE`` adds a line
for each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults.federation import Federation, Trial, federation, list_faults, play, play_undisturbed
from tests.helpers.databases import NoPostgres, OwnPostgres, own_cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


@pytest.fixture(params=["sqlite", "postgresql"])
def fed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:

        def make_postgres(environment: dict[str, str]) -> OwnPostgres:
            try:
                return stack.enter_context(own_cluster(environment))
            except NoPostgres as why:
                pytest.skip(f"no PostgreSQL: {why}")

        wanted = make_postgres if request.param == "postgresql" else None
        yield stack.enter_context(federation(tmp_path / "federation", wanted))


def test_random_faults(fed: Federation, request: pytest.FixtureRequest) -> None:
    """Nothing acknowledged is lost, every ledger adds up, and the run ends with the model without faults."""
    undisturbed, faults = play_undisturbed(fed), list_faults(fed)
    first: int = request.config.getoption("--fault-seed")
    out: str | None = request.config.getoption("--faults-out")
    trials: list[Trial] = []
    for seed in range(first, first + int(request.config.getoption("--faults"))):
        turn, place = divmod(seed, len(faults))  # each once in a turn, in another order each time
        fault = random.Random(f"turn {turn}").sample(faults, len(faults))[place]
        trial = play(fed, fault, seed, undisturbed)
        trials.append(trial)
        if out is not None:
            with Path(out).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
        print(trial, flush=True)
    bad = [trial for trial in trials if trial.violations or not trial.is_same_model]
    assert bad == [], f"kept in {fed.system.folder}; one again: --fault-seed SEED --faults 1"
