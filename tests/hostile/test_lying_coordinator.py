"""A coordinator that lies to one site of a secure run, on the wire, between real workers: it gets nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.database.migrations import upgrade
from shared.schemas import RunStatus
from tests.helpers.live_coordinator import Live, live
from tests.helpers.processes import run_config
from tests.helpers.worker_crew import Member, create, worker

pytestmark = pytest.mark.usefixtures("one_thread")

Work = dict[str, Any]
Lie = Callable[[Work], None]
OTHER = "f" * 64
ALONE = 11.2
"""``b`` for which, with ``a`` 50, one of four sites of the partition has a score above 0."""


class Lying(httpx.BaseTransport):
    """The network of one site, on which ``lie`` changes what it is asked to do; ``sent``: what it tells."""

    def __init__(self, lie: Lie) -> None:
        self._network = httpx.HTTPTransport()
        self._lie = lie
        self.sent: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self.sent.append(request.url.path.removeprefix("/api/v1/"))
        response = self._network.handle_request(request)
        if not request.url.path.endswith("/work") or response.status_code != httpx.codes.OK:
            return response
        found: Work = json.loads(b"".join(response.iter_raw()))
        self._lie(found)
        return answer(found)

    def close(self) -> None:
        self._network.close()


def answer(found: Work) -> httpx.Response:
    body = json.dumps(found).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))


def is_at(work: Work, round: int, step: str) -> bool:
    return work["kind"] == "secure" and (work["round"], work["step"]) == (round, step)


def give_another_model(work: Work) -> None:
    if is_at(work, 1, "advertise"):
        work["model"] = OTHER


def give_other_totals(work: Work) -> None:
    """So that one site's score is the largest by far."""
    if is_at(work, 1, "advertise"):
        work["totals"]["examples"] = 10**9


def swap_a_mask_key(work: Work) -> None:
    if is_at(work, 1, "share"):
        advertisements = work["roster"]["advertisements"]
        advertisements[0]["mask_key"] = advertisements[0]["sealing_key"]


def show_another_identity(work: Work) -> None:
    if is_at(work, 1, "advertise"):
        work["identities"]["0"] = OTHER


def train_on_another_model(work: Work) -> None:
    if work["kind"] == "train":
        work["model"] = OTHER


def ask_without_masks(work: Work) -> None:
    if work["kind"] == "train":
        work["inbox"] = None


def tell_totals_below_its_own(work: Work) -> None:
    if work.get("totals"):
        work["totals"] |= {"examples": 10, "counts": [1] * 10}


def tell_labels_that_are_no_sum(work: Work) -> None:
    if work.get("totals"):
        work["totals"]["counts"][0] += 1


def ask_totals_again(work: Work) -> None:
    """Over fewer sites than before: the difference of the two sums would be the labels of those missing."""
    if work["kind"] == "train":
        work |= {"kind": "secure", "step": "upload"}
        del work["relative_size"], work["again"], work["revision"]


LIES: list[tuple[Lie, tuple[int, ...], int, str]] = [  # who is lied to; who says what of it
    (give_another_model, (1,), 0, "client 1 was given another model than this client"),
    (give_other_totals, (1,), 2, "client 1 was given another config than this client"),
    (swap_a_mask_key, (1,), 1, "the keys of client 0 are not signed by its identity"),
    (show_another_identity, (1,), 1, "another identity key of client 0 than it did before"),
    (train_on_another_model, (1,), 1, "the coordinator gives another model, configuration or totals"),
    (ask_without_masks, (1,), 1, "the coordinator asks for an update without masks"),
    (tell_totals_below_its_own, (0, 1, 2), 2, "the totals that the coordinator tells are below this site's"),
    (tell_labels_that_are_no_sum, (0, 1, 2), 2, "label counts that are no sum of the sites' examples"),
    (
        ask_totals_again,
        (0, 1, 2),
        2,
        "asks for examples and labels in the sum of round 1, which is of updates",
    ),
]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    upgrade(url)
    with live(url, tmp_path / "coordinator") as found:
        yield found


@pytest.mark.parametrize(
    ("lie", "lied_to", "teller", "sentence"), LIES, ids=[lie.__name__ for lie, _, _, _ in LIES]
)
def test_a_lie_ends_the_attempt_and_is_told(
    lie: Lie, lied_to: tuple[int, ...], teller: int, sentence: str, at: Live, tmp_path: Path
) -> None:
    training = {"local": {"steps": 2, "batch_size": 8}, "weighting": {"kind": "disco", "target": "global"}}
    config = run_config("lied", rounds=3, max_attempts=1, secure={}, **training)
    create(at, **config.model_dump(mode="json"))
    sites: list[Member] = [
        worker(
            at,
            tmp_path,
            f"site-{index}",
            partition="run",
            index=index,
            transport=Lying(lie) if index in lied_to else None,
        )
        for index in range(3)
    ]
    at.wait_for(lambda: at.run("lied")["status"] == RunStatus.PAUSED, 60)
    found = at.run("lied")
    assert (found["completed_rounds"], found["current_round"]["round"]) == (0, 1)
    assert found["current_round"]["secure"]["score"] is None, "nothing was unmasked"
    at.wait_for(lambda: sentence in sites[teller].log)
    assert at.admin.post("/runs/lied/stop").status_code == 200
    for site in sites:
        site.join()


def tell_other_totals_later(work: Work) -> None:
    """Below each site's discrepancy but one, times a: the sum of round 2 would be that site's update."""
    if work.get("totals") and work["round"] > 1:
        work["totals"] |= {"examples": 10**9, "discrepancy": 4.2}


def test_the_totals_of_the_first_round_are_those_of_all(at: Live, tmp_path: Path) -> None:
    """All sites are told the same lie, so that no two of them could find it by comparing."""
    training = {"local": {"steps": 2, "batch_size": 8}, "weighting": {"kind": "disco"}}
    config = run_config("lied", rounds=3, max_attempts=1, secure={}, **training)
    create(at, **config.model_dump(mode="json"))
    sites: list[Member] = [
        worker(
            at,
            tmp_path,
            f"site-{index}",
            partition="run",
            index=index,
            transport=Lying(tell_other_totals_later),
        )
        for index in range(3)
    ]
    at.wait_for(lambda: at.run("lied")["status"] == RunStatus.PAUSED, 60)
    found = at.run("lied")
    assert (found["completed_rounds"], found["current_round"]["round"]) == (1, 2)
    assert found["current_round"]["secure"]["score"] is None, "nothing was unmasked"
    sentence = "tells other sums over all trainers than it did before"
    at.wait_for(lambda: all(sentence in site.log for site in sites))
    assert at.admin.post("/runs/lied/stop").status_code == 200
    for site in sites:
        site.join()


def test_a_site_that_is_nearly_the_whole_sum_is_told_so(at: Live, tmp_path: Path) -> None:
    """No lie: a and b are the operator's, and leave the others a score of 0."""
    weighting = {"kind": "disco", "a": 50, "b": ALONE}
    training = {"local": {"steps": 2, "batch_size": 8}, "weighting": weighting, "partition": "niid1:4:0.3"}
    config = run_config("alone", rounds=2, min_clients=4, secure={}, **training)
    create(at, **config.model_dump(mode="json"))
    sites = [worker(at, tmp_path, f"site-{index}", partition="run", index=index) for index in range(4)]
    at.wait_for(lambda: at.run("alone")["status"] == RunStatus.COMPLETED, 60)
    for site in sites:
        site.join()
    lines = [line for site in sites for line in site.log.splitlines() if "own weight" in line]
    assert len([line for line in lines if "own weight 1.0000" in line]) == 1
    for line in lines:
        assert ("who reads the sum reads the update" in line) == ("own weight 1.0000" in line)


class Unmasking(httpx.BaseTransport):
    """The network of a site to which the run is shown without its secure sums."""

    def __init__(self) -> None:
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._network.handle_request(request)
        if request.url.path != "/api/v1/runs/lied" or response.status_code != httpx.codes.OK:
            return response
        view: Work = json.loads(b"".join(response.iter_raw()))
        view["config"]["secure"] = None
        return answer(view)

    def close(self) -> None:
        self._network.close()


class Ending(httpx.HTTPTransport):
    """The network of a site that is not known any more once it is over."""

    over = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.over:
            request.headers["Authorization"] = "Bearer of-nobody"
        return super().handle_request(request)


def test_a_run_joined_with_secure_sums_stays_so_after_a_restart(at: Live, tmp_path: Path) -> None:
    """A site reads the run's configuration again when it starts, and may be shown another one."""
    config = run_config("lied", rounds=1, max_attempts=1, secure={}, autostart=False)
    create(at, **config.model_dump(mode="json"))
    network = Ending()
    first = worker(at, tmp_path, "site-0", partition="run", index=0, transport=network)
    at.wait_for(lambda: [row["status"] for row in at.run("lied")["enrolments"]] == ["ready"], 60)
    network.over = True
    assert first.join() != 0
    again = worker(at, tmp_path, "site-0", partition="run", index=0, transport=Unmasking())
    more = [worker(at, tmp_path, f"site-{index}", partition="run", index=index) for index in (1, 2)]
    at.wait_for(lambda: len(at.run("lied")["enrolments"]) == len(more) + 1, 60)
    assert at.admin.post("/runs/lied/start").status_code == 200
    at.wait_for(lambda: "asks for its numbers in clear" in again.log, 60)
    assert at.admin.post("/runs/lied/stop").status_code == 200
    for site in (again, *more):
        site.join()


# ---------------------------------------------------------------- what is not this client's part


def make_work(work: Work, kind: str, /, **told: Any) -> None:
    work.clear()
    work.update(kind=kind, run="lied", **told)


def ask_for_a_score(work: Work) -> None:
    """Of a constant model it would be the label counts."""
    if work["kind"] == "secure":
        make_work(work, "evaluate", round=0, model=work["model"])


def ask_for_the_discrepancy(work: Work) -> None:
    if work["kind"] == "secure":
        make_work(work, "discrepancy", metric="kl", target="uniform")


def ask_for_assistance(work: Work) -> None:
    if work["kind"] == "secure":
        model, later = work["model"], work["deadline_at"]
        updates = [{"index": 1, "update": model, "share": 1.0}]
        of = {"round": 1, "attempt": 1, "work": "distil", "deadline_at": later}
        make_work(work, "assist", start=model, model=model, updates=updates, **of)


def ask_an_evaluator_to_train(work: Work) -> None:
    if work["kind"] == "evaluate":
        of = {
            "round": 1,
            "attempt": 1,
            "index": 0,
            "relative_size": 1.0,
            "deadline_at": "2099-01-01T00:00:00Z",
        }
        make_work(work, "train", model=work["model"], **of)


def check_nothing_left(site: Member, network: Lying, sentence: str) -> None:
    assert sentence in site.log
    told = {path.rpartition("/")[2] for path in network.sent}
    assert told <= {"clients", "enrolments", "decline", "me"}, network.sent


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (ask_for_a_score, "the coordinator asks this trainer to score a model, which is for evaluators"),
        (ask_for_the_discrepancy, "asks for the discrepancy in clear, and the run has secure sums"),
        (ask_for_assistance, "asks this trainer to work as the run's assistant, which is for evaluators"),
    ],
)
def test_a_trainer_of_a_secure_run_sends_nothing_in_clear(
    lie: Lie, sentence: str, at: Live, tmp_path: Path
) -> None:
    """Whatever it is asked; its policy was held to the run as a trainer's alone."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("sums_only: true\ndisclosure: none\nassistant: true\n")
    config = run_config("lied", rounds=1, max_attempts=1, secure={})
    create(at, **config.model_dump(mode="json"))
    network = Lying(lie)
    lied_to = worker(at, tmp_path, "site-0", partition="run", index=0, policy=policy, transport=network)
    others = [worker(at, tmp_path, f"site-{index}", partition="run", index=index) for index in (1, 2)]
    assert lied_to.join() == 4
    check_nothing_left(lied_to, network, sentence)
    assert at.admin.post("/runs/lied/stop").status_code == 200
    for site in others:
        site.join()


def test_an_evaluator_trains_nothing(at: Live, tmp_path: Path) -> None:
    """Its policy's limits of training were never held to the run."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("most_epsilon: 1\nfewest_trainers: 5\nmost_steps: 1\n")
    create(at, **run_config("lied", evaluate_every=1).model_dump(mode="json"))
    network = Lying(ask_an_evaluator_to_train)
    judge = worker(at, tmp_path, "judge", role="evaluator", partition="run", policy=policy, transport=network)
    assert judge.join() == 4
    check_nothing_left(judge, network, "asks this evaluator to train, which is for trainers")
