"""Random faults in a federation of real processes: ``make test-faults``.

``--faults N``: so many on each database; ``--fault-seed S``: from which on. ``--faults-out FILE`` adds a line
for each, and passes over those that have one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults.federation import Federation, federation
from tests.faults.trials import Trial, play, play_undisturbed
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
    undisturbed = play_undisturbed(fed)
    first: int = request.config.getoption("--fault-seed")
    given: str | None = request.config.getoption("--faults-out")
    out = None if given is None else Path(given)
    played = read_played(out, fed)
    bad: list[Trial] = []
    for seed in range(first, first + int(request.config.getoption("--faults"))):
        if seed in played:
            continue
        trial = play(fed, seed, undisturbed)
        print(trial, flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
        if trial.violations or not trial.is_same_model:
            bad.append(trial)
            break  # what it has left behind may be the next one's fault
    assert bad == [], f"kept in {fed.system.folder}; one again: --fault-seed SEED --faults 1"


def read_played(out: Path | None, fed: Federation) -> set[int]:
    """Seeds that have a line already, so that many trials can be played in several goes."""
    if out is None or not out.exists():
        return set()
    database = "sqlite" if fed.postgres is None else "postgresql"
    lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    return {line["seed"] for line in lines if line["database"] == database}
