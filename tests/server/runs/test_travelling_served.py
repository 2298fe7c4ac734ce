"""FedSkip in the service: who is handed whose model, who may have it, how long it is kept, what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feddisco.admin import AdminClient
from feddisco.cards import fetch_card
from feddisco.replay import replay_round
from server.runs.verification import verify
from shared.travelling import deal_models
from tests.helpers.live_coordinator import (
    ADMIN,
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    settings_for,
    sha256,
    upload_headers,
)

SIZES = (10, 30, 60)
SKIPPING: dict[str, Any] = {"weighting": {"kind": "sizes"}, "average_every": 3, "min_clients": 3, "rounds": 4}
NUMBERS = 17


def train(at: Live, client: ManualClient, number: int, value: float, **more: Any) -> str:
    """Take the assignment, fetch its model and upload another; the digest of what it started from."""
    work = client.until("train")
    assert work["round"] == number
    digest = str(work["model"])
    assert client.http.get(f"/blobs/{digest}").status_code == 200
    assert client.upload("demo", number, file_of(value), **more).status_code == 200
    return digest


def play(at: Live, clients: list[ManualClient], number: int) -> list[str]:
    """Each client uploads numbers of its own; what they started from."""
    begun = [train(at, client, number, value_of(number, at_)) for at_, client in enumerate(clients)]
    wait_for_round(at, number)
    return begun


def wait_for_round(at: Live, number: int) -> None:
    at.wait_for(lambda: at.run()["completed_rounds"] >= number)


def value_of(number: int, client: int) -> float:
    return 10.0 * number + client


def ledger(at: Live, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = at.admin.get(f"/runs/demo/rounds/{number}").json()["ledger"]
    return rows


def model_of(at: Live, number: int) -> float:
    """Its last number; all are alike."""
    from safetensors.numpy import load

    digest = at.admin.get(f"/runs/demo/rounds/{number}").json()["model"]
    found = load(at.admin.get(f"/blobs/{digest}").content)
    return float(found["scale"])


def test_models_travel_and_are_averaged_by_what_they_were_trained_on(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING)
        clients = enrolled(at, SIZES)
        initial = at.run()["initial_model"]
        assert play(at, clients, 1) == [initial] * 3
        holders = [0, 1, 2]  # by number, who trained the model last; all numbers alike, so a value tells it
        earned = list(map(float, SIZES))
        for number in (2, 3):
            dealt = deal_models(0, number, 3, 3)
            begun = play(at, clients, number)
            assert begun == [sha256(file_of(value_of(number - 1, holders[n or 0]))) for n in dealt]
            rows = ledger(at, number)
            assert [row["started_from"] for row in rows] == [holders[n or 0] for n in dealt]
            before = [value_of(number - 1, row["started_from"]) for row in rows]
            lengths = [abs(value_of(number, k) - start) * NUMBERS**0.5 for k, start in enumerate(before)]
            assert [row["norm"] for row in rows] == pytest.approx(lengths), "from its own start"
            assert [row["cosine"] for row in rows] == [None] * 3
            for index, place in enumerate(dealt):
                holders[place or 0] = index
                earned[place or 0] += SIZES[index]
            mean = sum(e * value_of(number, h) for e, h in zip(earned, holders, strict=True)) / sum(earned)
            assert model_of(at, number) == pytest.approx(mean)
        fourth = play(at, clients, 4)
        average = at.admin.get("/runs/demo/rounds/3").json()["model"]
        assert fourth == [average] * 3, "all from the average"
        assert model_of(at, 4) == pytest.approx(sum(n * value_of(4, k) for k, n in enumerate(SIZES)) / 100)
        page = at.admin.get(f"{at.url}/runs/demo/rounds/2").text
        assert page.count("the model of site-") == 3
        assert "No average yet" in page
        assert "until round 3" in page
        assert "all clients start from next" in at.admin.get(f"{at.url}/runs/demo/rounds/3").text
        assert "averaged every 3 rounds" in at.admin.get(f"{at.url}/runs/demo").text
        with AdminClient(at.url, token=ADMIN) as admin:
            card = fetch_card(admin, "demo")
        assert "| averaged | every 3 rounds; between, models travelled" in card
        assert verify(at.coordinator.store, at.coordinator.blobs).faults == ()
        receipt = clients[0].http.get("/runs/demo/rounds/2/receipt").json()
        assert receipt["row"]["started_from"] is None, "a site is not told whose model it had"
        (own,) = clients[0].http.get("/runs/demo/rounds/2").json()["ledger"]
        assert (own["client"], own["started_from"]) == ("site-0", None)
    for number in (1, 2, 3, 4):
        same, sentence = replay_round(settings_for(database_url, tmp_path / "data"), "demo", number)
        assert same, sentence


def test_a_model_is_for_the_one_client_that_goes_on_from_it_and_for_as_long(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING)
        clients = enrolled(at, SIZES)
        play(at, clients, 1)
        given = [str(client.until("train")["model"]) for client in clients]
        assert len(set(given)) == 3
        for client, own in zip(clients, given, strict=True):
            asked = [client.http.get(f"/blobs/{digest}").status_code for digest in given]
            assert asked == [200 if digest == own else 403 for digest in given]
        stranger = at.site("stranger")
        assert stranger.http.get(f"/blobs/{given[0]}").status_code == 403
        play(at, clients, 2)
        store, names = at.coordinator.store, [client.name for client in clients]
        assert not any(store.blob_readable(name, digest) for name in names for digest in given)


def test_whose_client_fails_stays_as_it_was_and_who_comes_late_begins_with_the_average(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING, quorum=2)
        clients = enrolled(at, SIZES)
        play(at, clients, 1)
        late = at.site("late")
        assert late.enrol("demo", 40).status_code == 200
        dealt = deal_models(0, 2, 3, 3)
        for client in clients[:2]:
            train(at, client, 2, 50.0 + clients.index(client))
        clients[2].until("train")
        failed = clients[2].http.post(
            "/runs/demo/rounds/2/failure", json={"attempt": 1, "code": "task-error", "reason": "broken"}
        )
        assert failed.status_code == 204, failed.text
        wait_for_round(at, 2)
        left = dealt[2] or 0
        values = [value_of(1, k) for k in range(3)]
        earned = list(map(float, SIZES))
        for index in (0, 1):
            values[dealt[index] or 0] = 50.0 + index
            earned[dealt[index] or 0] += SIZES[index]
        assert values[left] == value_of(1, left), "nobody brought it back"
        mean = sum(e * v for e, v in zip(earned, values, strict=True)) / sum(earned)
        assert model_of(at, 2) == pytest.approx(mean)
        everybody = [*clients, late]
        begun = [str(client.until("train")["model"]) for client in everybody]
        third = deal_models(0, 3, 3, 4)
        wanted = [at.run()["initial_model"] if n is None else sha256(file_of(values[n])) for n in third]
        assert begun == wanted
        assert third.count(None) == 1


def test_a_round_that_is_drawn_again_is_dealt_the_same(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING, quorum=3)
        clients = enrolled(at, SIZES)
        play(at, clients, 1)
        first = [train(at, client, 2, 90.0) for client in clients[:2]]
        first.append(str(clients[2].until("train")["model"]))
        failure = {"attempt": 1, "code": "task-error", "reason": "broken"}
        assert clients[2].http.post("/runs/demo/rounds/2/failure", json=failure).status_code == 204
        second = [train(at, client, 2, 50.0 + place, attempt=2) for place, client in enumerate(clients)]
        wait_for_round(at, 2)
        assert second == first
        assert [row["started_from"] for row in ledger(at, 2)] == list(deal_models(0, 2, 3, 3))


def test_models_are_kept_for_the_next_round_and_for_replays_and_no_longer(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**(SKIPPING | {"rounds": 7}), keep_updates=1)
        clients = enrolled(at, SIZES)
        store = at.coordinator.store
        made = {number: {sha256(file_of(value_of(number, k))) for k in range(3)} for number in range(1, 8)}
        play(at, clients, 1)
        play(at, clients, 2)
        needed = store.referenced_blobs()
        assert made[1] | made[2] <= needed, "round 2 can be replayed, and round 3 starts from what it left"
        play(at, clients, 3)
        needed = store.referenced_blobs()
        assert not made[1] & needed
        assert made[2] | made[3] <= needed
        for number in (4, 5, 6):
            play(at, clients, number)
        assert not (made[1] | made[2] | made[3] | made[4]) & store.referenced_blobs()
        assert store.unneeded_blobs()
        refused = at.admin.post("/runs/demo/rewind", json={"round": 5, "reason": "again"})
        assert refused.status_code == 409
        assert "Go back to round 3" in refused.text
        assert at.admin.post("/runs/demo/rewind", json={"round": 3, "reason": "again"}).status_code == 200
        again = clients[0].until("train")
        assert (again["round"], again["model"]) == (4, at.admin.get("/runs/demo/rounds/3").json()["model"])


def test_a_round_waits_for_a_travelling_model_that_is_damaged(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING)
        clients = enrolled(at, SIZES)
        play(at, clients, 1)
        lost = sha256(file_of(value_of(1, 1)))
        for client in clients:
            client.until("train")
        path = at.coordinator.blobs.path(lost)
        path.write_bytes(b"nothing of it")
        for place, client in enumerate(clients):
            assert client.upload("demo", 2, file_of(value_of(2, place))).status_code == 200
        said = at.wait_for(lambda: (found := at.run()["waiting_for"]) and "delayed" in found and found)
        assert f"the travelling model that the round starts from, {lost}, is damaged" in said
        assert at.run()["completed_rounds"] == 1
        body = file_of(value_of(1, 1))
        path.unlink()
        assert at.admin.put(f"/blobs/{lost}", content=body, headers=upload_headers(body)).status_code == 204
        wait_for_round(at, 2)
        assert model_of(at, 2) > value_of(2, 0)


def test_who_withdraws_is_erased_after_the_next_average(database_url: str, tmp_path: Path) -> None:
    """Until then the model that it trained, and what others have made of it since, is somebody's start."""
    with live(database_url, tmp_path / "data") as at:
        at.create(**SKIPPING, quorum=2)
        clients = enrolled(at, SIZES)
        play(at, clients, 1)
        asked = at.admin.post("/clients/site-2/erase")
        assert asked.status_code < 300, asked.text
        assert "demo, round 1" in asked.text
        for number in (2, 3):
            for place, client in enumerate(clients[:2]):
                train(at, client, number, value_of(number, place))
            wait_for_round(at, number)
        at.coordinator.removal.erase_pending()
        assert "site-2" not in at.admin.get("/runs/demo").text
        kept = at.coordinator.store.referenced_blobs()
        assert sha256(file_of(value_of(1, 2))) not in kept
        assert sha256(file_of(value_of(1, 1))) in kept
    same, sentence = replay_round(settings_for(database_url, tmp_path / "data"), "demo", 3)
    assert same, sentence


def test_an_algorithm_that_does_not_go_with_it_is_refused_when_the_run_is_created(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        with pytest.raises(AssertionError, match="algorithm scaffold sends more of each client than a model"):
            at.create(**SKIPPING, algorithm="scaffold")
        assert at.admin.get("/runs").json() == []
