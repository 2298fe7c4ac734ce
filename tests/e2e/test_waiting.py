"""A site falls silent: the run says that it waits for it, pauses, and goes on when it is resumed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from shared.schemas import RunStatus
from tests.helpers.processes import deployment, run_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RUN = "clinics"


def test_a_silent_site_is_named_and_the_run_goes_on_with_it_afterwards(tmp_path: Path) -> None:
    with deployment(tmp_path) as system:
        system.start_coordinator()
        _, silent = system.start_workers(2)
        system.create(
            run_config(
                RUN,
                partition="niid1:2:0.3",
                rounds=100_000,
                quorum=2,
                round_deadline_seconds=3,
                waiting_deadline_seconds=15,
            )
        )
        system.wait_for(lambda: system.admin.run(RUN).completed_rounds > 1, "two rounds are completed")
        with system.frozen(silent):
            system.wait_for(lambda: system.status(RUN) is RunStatus.WAITING, "the run says that it waits")
            view = system.admin.run(RUN)
            (listed,) = system.admin.runs()
            assert listed.reason is not None
            assert listed.reason.endswith(f"away: {silent}")
            assert view.waiting_for.startswith(f"{listed.reason}; since ")
            assert listed.waiting_since is not None
            assert listed.waiting_until is not None
            assert (listed.waiting_until - listed.waiting_since).total_seconds() == 15
            metrics = httpx.get(
                f"{system.urls['coordinator']}/metrics",
                headers={"Authorization": f"Bearer {system.processes.environment['FEDDISCO_ADMIN_TOKEN']}"},
            ).text
            assert f'feddisco_run_waiting_since_timestamp_seconds{{run="{RUN}"}}' in metrics
            at = {"url": system.urls["coordinator"]}
            assert "pauses at" in system.console("run", "show", RUN, settings=at)
            system.wait_for(lambda: system.status(RUN) is RunStatus.PAUSED, "the run pauses")
        paused = system.admin.run(RUN)
        assert paused.reason is not None
        assert paused.reason.startswith("it could not go on since ")
        system.wait_for(
            lambda: all(e.status == "ready" for e in system.admin.run(RUN).enrolments), "the site is back"
        )
        system.console("run", "resume", RUN, settings=at)
        system.wait_for(
            lambda: system.admin.run(RUN).completed_rounds > paused.completed_rounds, "it goes on"
        )
