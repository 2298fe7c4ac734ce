"""Attempts to get into a run, or to weigh more in it than one should, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import load
from typer.testing import CliRunner

from feddisco.main import app
from tests.helpers.live_coordinator import ADMIN, JOIN, Live, ManualClient, enrolled, file_of, live

SIZES = {"kind": "sizes"}
MOST = 2**53


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def invite(at: Live, **token: Any) -> str:
    answer = at.admin.post("/join-tokens", json=token)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["token"]
    return made


def join(at: Live, token: str, name: str | None = None) -> ManualClient:
    answer = at.http(token).post("/clients", json={} if name is None else {"name": name})
    assert answer.status_code == 201, answer.text
    return ManualClient(at.http(answer.json()["token"]), answer.json()["client"])


def row_of(at: Live, client: str, run: str = "demo") -> dict[str, Any]:
    (found,) = [row for row in at.run(run)["enrolments"] if row["client"] == client]
    return dict(found)


def assert_refused(answer: httpx.Response, code: str, sentence: str) -> None:
    status = {"not-admitted": 403, "invalid-request": 422, "out-of-bounds": 422}.get(code, 409)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert sentence in answer.json()["detail"]


# -------------------------------------------------------------------- C1


def test_c1_a_stranger_with_2_to_the_53_examples_does_not_get_into_a_running_run(at: Live) -> None:
    names = ["site-0", "site-1", "site-2"]
    at.create(weighting=SIZES, min_clients=3, participants=names, join="before_start", rounds=3)
    sites = enrolled(at, [500, 300, 200])
    stranger = at.site("stranger")
    assert stranger.work() is None, "it is not offered a run that does not name it"
    assert_refused(stranger.enrol("demo", MOST), "not-admitted", "participants name not it as trainer")
    shown = row_of(at, "stranger")
    assert (shown["status"], shown["reason"]) == ("refused", "the run's participants name not it as trainer")
    assert [e["detail"]["examples"] for e in at.events() if e["kind"] == "client_refused"] == [MOST]
    for site in sites:
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    first = at.admin.get("/runs/demo/rounds/1").json()
    assert [row["weight"] for row in first["ledger"]] == [0.5, 0.3, 0.2]
    assert [row["client"] for row in at.admin.get("/runs/demo/rounds/2").json()["ledger"]] == names


def test_c1_among_those_who_are_admitted_sizes_are_bounded(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=2, max_examples=1000)
    site = at.site("anna")
    sentence = "declares 9007199254740992 examples, the run takes at most 1000 from a client (max_examples)"
    assert_refused(site.enrol("demo", MOST), "not-admitted", sentence)
    assert site.enrol("demo", 1000).status_code == 200


def test_c1_and_nobody_weighs_more_than_the_cap(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=4, max_weight=0.4)
    for site in enrolled(at, [500, 300, 200, MOST]):
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    ledger = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
    assert [row["weight"] for row in ledger] == pytest.approx([0.3, 0.18, 0.12, 0.4])
    assert ledger[3]["uncapped_weight"] == pytest.approx(1.0)
    page = httpx.get(f"{at.url}/runs/demo/rounds/1").text
    assert "No weight is above 40.0\u202f%" in page
    assert "With the run&#39;s cap it is 40.00\u202f%." in page


def test_a_cap_that_cannot_be_kept_is_said(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=2, max_weight=0.3)
    for site in enrolled(at, [500, MOST]):
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    assert [r["weight"] for r in at.admin.get("/runs/demo/rounds/1").json()["ledger"]] == [0.5, 0.5]
    page = httpx.get(f"{at.url}/runs/demo/rounds/1").text
    assert "The 2 weights of this round could not sum to 100 % so, they are equal instead." in page


def test_a_size_is_a_whole_number_that_is_there(at: Live) -> None:
    at.create(weighting=SIZES)
    site = at.site("anna")
    for size in ("-1", "1.5", str(MOST + 1), '"many"', "null", "NaN", "1e999"):
        content = f'{{"task": "tests.nowhere:Task", "classes": ["cat", "dog", "owl"], "examples": {size}}}'
        headers = {"Content-Type": "application/json"}
        answer = site.http.post("/runs/demo/enrolments", content=content, headers=headers)
        assert answer.status_code == 422, answer.text
    assert at.run()["enrolments"] == []


# -------------------------------------------------------------------- C2


def test_c2_a_discrepancy_above_its_range_is_refused_and_shown(at: Live) -> None:
    at.create(weighting={"kind": "disco"})
    site = at.site("liar")
    site.enrol("demo", 10)
    sentence = "above 1.09861, the largest that labels of 3 classes can have by kl"
    for value in (1e308, 1.0987):
        assert_refused(site.submit("demo", value), "invalid-request", sentence)
    assert [sentence in e["detail"]["detail"] for e in at.events() if e["kind"] == "discrepancy_refused"]
    assert row_of(at, "liar")["status"] == "awaiting_discrepancy"
    assert_refused(site.submit("demo", "Infinity"), "invalid-request", "is infinite")
    assert_refused(site.submit("demo", 0.1, "l2"), "invalid-request", "by 'l2', the run asks for 'kl'")
    assert site.submit("demo", 1.0986).status_code == 204


def test_c2_infinity_only_where_a_class_has_no_share(at: Live) -> None:
    at.create(weighting={"kind": "disco", "target": [0.5, 0.5, 0]})
    site = at.site("anna")
    site.enrol("demo", 10)
    assert_refused(site.submit("demo", 0.7), "invalid-request", "above 0.693147")
    assert site.submit("demo", "Infinity").status_code == 204


# -------------------------------------------------------------------- C3


def test_c3_an_update_of_1e30_is_refused_at_the_upload_and_the_run_goes_on(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=3, quorum=2, rounds=2)
    honest, other, liar = enrolled(at, [100, 100, 100])
    for value in (1e30, -1e30, 3e38):
        sentence = "the run takes no magnitude above 1e+12 (max_entry)"
        assert_refused(liar.upload("demo", 1, file_of(value)), "out-of-bounds", sentence)
    sentence = "more than 1000 times the norm of the model it started from (0): it is not believed (max_norm)"
    assert_refused(liar.upload("demo", 1, file_of(1e6)), "out-of-bounds", sentence)
    assert [e["detail"]["code"] for e in at.events() if e["kind"] == "update_invalid"] == [
        "out-of-bounds"
    ] * 4
    failure = {"attempt": 1, "code": "refused", "reason": "my update was refused"}
    assert liar.http.post("/runs/demo/rounds/1/failure", json=failure).status_code == 204
    for site in (honest, other):
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    run = at.run()
    assert run["status"] == "running"
    ledger = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
    assert [row["weight"] for row in ledger] == [0.5, 0.5, None]
    assert [row["norm"] for row in ledger] == [pytest.approx(17**0.5), pytest.approx(17**0.5), None]


@pytest.mark.parametrize(("rule", "value"), [("mean", 180.8), ("median", 1.0)])
def test_c3_a_larger_update_is_flagged_and_a_robust_rule_holds(at: Live, rule: str, value: float) -> None:
    at.create(weighting=SIZES, min_clients=5, rounds=1, aggregation=rule, max_weight=0.2, max_norm=1e4)
    for place, site in enumerate(enrolled(at, [100, 100, 100, 100, MOST])):
        body = file_of(900.0 if place == 4 else 1.0)
        assert site.upload("demo", 1, body).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    view = at.admin.get("/runs/demo/rounds/1").json()
    model = load(at.admin.get(f"/blobs/{view['model']}").content)
    assert all(tensor == pytest.approx(value) for tensor in model.values())
    page = at.admin.get(f"{at.url}/runs/demo/rounds/1").text
    assert "Its norm 3711 is more than 3 times the round&#39;s median 4.123." in page
    assert page.count("times the round&#39;s median") == 1
    assert "1 update stands out" in at.admin.get(f"{at.url}/runs/demo").text


# -------------------------------------------------------------------- C4


def score(site: ManualClient, number: int, accuracy: float, examples: int) -> httpx.Response:
    body = {"loss": 1.0, "accuracy": accuracy, "examples": examples}
    return site.http.put(f"/runs/demo/rounds/{number}/metrics", json=body)


def judges(at: Live, *sizes: int) -> list[ManualClient]:
    found = [at.site(f"judge-{place}") for place in range(len(sizes))]
    for judge, size in zip(found, sizes, strict=True):
        assert judge.enrol("demo", size, role="evaluator").status_code == 200
    return found


def test_c4_an_evaluator_of_ones_own_choosing_is_not_admitted(at: Live) -> None:
    at.create(weighting=SIZES, participants={"trainers": "anyone", "evaluators": ["registry"]})
    liar = at.site("liar")
    sentence = "participants name not it as evaluator"
    assert_refused(liar.enrol("demo", MOST, role="evaluator"), "not-admitted", sentence)
    assert score(liar, 0, 1.0, MOST).status_code == 403
    assert at.run()["accuracy"] is None


def test_c4_an_evaluators_size_is_the_one_it_is_admitted_with(at: Live) -> None:
    at.create(weighting=SIZES, max_examples=1000, combine_scores="weighted")
    liar, honest = judges(at, 100, 300)
    sentence = "scored on 9007199254740992 examples, but 'judge-0' is enrolled with 100"
    assert_refused(score(liar, 0, 1.0, MOST), "invalid-request", sentence)
    assert score(liar, 0, 1.0, 100).status_code == score(honest, 0, 0.11, 300).status_code == 204
    assert at.run()["accuracy"] == pytest.approx((1.0 * 100 + 0.11 * 300) / 400)


def test_c4_one_liar_among_three_does_not_write_the_headline(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=1, rounds=1)
    liar, one, other = judges(at, MOST, 100, 100)
    score(one, 0, 0.11, 100)
    score(other, 0, 0.13, 100)
    score(liar, 0, 1.0, MOST)
    assert at.run()["accuracy"] == 0.13, "the median of 0.11, 0.13 and 1"
    (site,) = enrolled(at, [10])
    assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    score(liar, 1, 1.0, MOST)
    assert at.run()["accuracy"] == 0.13, "the first to score a round does not speak for all"
    assert score(site, 1, 1.0, MOST).status_code == 204, "a participant's own score is shown"
    assert at.run()["accuracy"] == 0.13, "and counts for nothing else"
    score(one, 1, 0.21, 100)
    score(other, 1, 0.22, 100)
    assert at.run()["accuracy"] == 0.22
    page = at.admin.get(f"{at.url}/runs/demo").text
    assert "after round 1, median of 3 of 3 evaluators" in page
    assert all(judge.name in page for judge in (liar, one, other)), "each is shown"
    assert [run["accuracy"] for run in at.admin.get("/runs").json()] == [0.22]


@pytest.mark.parametrize("rule", ["median", "weighted"])
@pytest.mark.parametrize("losses", [(1e308, -1e308, 0.5), (1e308, 1e308)], ids=["both signs", "one sign"])
def test_c4_absurd_losses_do_not_stop_a_run(at: Live, rule: str, losses: tuple[float, ...]) -> None:
    """Each is a number, and their sum is none: a run that goes by the loss goes on, with a score between."""
    stops = {"metric": "loss", "patience": 3}
    at.create(weighting=SIZES, min_clients=1, combine_scores=rule, stop_when=stops)
    crew = judges(at, *[10] * len(losses))
    (site,) = enrolled(at, [10])
    assert site.upload("demo", 1, file_of(1.0), loss=1e308).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    for number in (0, 1):
        for judge, loss in zip(crew, losses, strict=True):
            body = {"loss": loss, "accuracy": 0.5, "examples": 10}
            answer = judge.http.put(f"/runs/demo/rounds/{number}/metrics", json=body)
            assert answer.status_code == 204, answer.text
    site.until("train")
    assert at.run()["status"] == "running"


def test_absurd_losses_of_training_are_shown(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=3, rounds=1)
    sites = enrolled(at, [100, 200, 300])
    for site in sites:
        assert site.upload("demo", 1, file_of(1.0), loss=1e308).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    told = sites[0].http.get("/runs/demo/rounds/1")
    assert (told.status_code, told.json()["sums"]["loss"]) == (200, 1e308)
    assert at.admin.get(f"{at.url}/runs/demo").status_code == 200


def test_c4_an_evaluator_that_the_operator_refuses_counts_no_more(at: Live) -> None:
    at.create(weighting=SIZES)
    liar, honest = judges(at, 100, 100)
    score(liar, 0, 1.0, 100)
    score(honest, 0, 0.11, 100)
    assert at.run()["accuracy"] == pytest.approx(0.555)
    at.admin.post("/runs/demo/enrolments/judge-0/refuse", json={})
    assert at.run()["accuracy"] == 0.11
    assert score(liar, 0, 1.0, 100).status_code == 403


# -------------------------------------------------------------------- C5


def test_c5_a_run_does_not_start_with_a_client_without_examples(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=2)
    full, empty = at.site("full"), at.site("empty")
    assert_refused(empty.enrol("demo", 0), "not-admitted", "declares 0 examples; a size is 1 or more")
    assert full.enrol("demo", 100).status_code == 200
    run = at.run()
    assert (run["status"], run["completed_rounds"]) == ("enrolling", 0)
    assert run["waiting_for"] == "1 of 2 trainers is ready; the run starts with 2"


# -------------------------------------------------------------------- approval


def test_sizes_wait_for_the_operator_and_the_page_says_who_waits(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=2, approve="sizes")
    anna, otto = enrolled(at, [100, 200])
    assert row_of(at, "site-0")["status"] == "awaiting_approval"
    page = httpx.get(f"{at.url}/runs/demo").text
    assert "feddisco run approve demo site-0 site-1" in page
    assert "its size of 200 examples waits for the operator&#39;s approval" in page
    model = at.run()["initial_model"]
    assert anna.http.get(f"/blobs/{model}").status_code == 403, "models are for those who are admitted"
    wrong = at.admin.post("/runs/demo/enrolments/site-0/approve", json={"examples": 90})
    assert_refused(wrong, "illegal-transition", "declares 100 examples in run 'demo', not 90")
    for name, size in (("site-0", 100), ("site-1", 200)):
        answer = at.admin.post(f"/runs/demo/enrolments/{name}/approve", json={"examples": size})
        assert answer.status_code == 204, answer.text
    assert at.run()["status"] == "running"
    assert row_of(at, "site-1")["approved_examples"] == 200
    assert anna.http.get(f"/blobs/{model}").status_code == 200
    assert otto.until("train")["index"] == 1


def test_a_changed_size_waits_again(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=2, approve="sizes")
    anna = at.site("anna")
    for size in (100, 300):
        anna.enrol("demo", size)
        at.admin.post("/runs/demo/enrolments/anna/approve", json={"examples": 100})
        anna.http.delete("/runs/demo/enrolments/me")
    anna.enrol("demo", 300)
    sentence = "its size of 300 examples, not the 100 that were approved, waits for the operator's approval"
    assert row_of(at, "anna")["reason"] == sentence


def test_a_client_is_taken_out_of_a_run(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=3)
    sites = enrolled(at, [100, 200, 300])
    answer = at.admin.post("/runs/demo/enrolments/site-2/refuse", json={"reason": "not 300 images"})
    assert answer.status_code == 204
    assert row_of(at, "site-2")["reason"] == "refused by the operator: not 300 images"
    late = sites[2].upload("demo", 1, file_of(1.0))
    assert_refused(late, "update-late", "refused by the operator: not 300 images")
    assert sites[2].http.get(f"/blobs/{at.run()['initial_model']}").status_code == 403
    for site in sites[:2]:
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    waits = sites[2].http.get("/work").json()["reason"]
    assert "not admitted, refused by the operator" in waits
    assert sites[2].enrol("demo", 300).json()["status"] == "awaiting_approval"


def test_a_refused_trainer_of_a_secure_run_is_let_in_again(at: Live) -> None:
    at.create(weighting=SIZES, min_clients=3, secure={})
    registered = at.http(JOIN).post("/clients", json={"name": "dora", "identity": "ab" * 32})
    dora = ManualClient(at.http(registered.json()["token"]), "dora")
    assert dora.enrol("demo", 0).json()["status"] == "ready"
    at.admin.post("/runs/demo/enrolments/dora/refuse", json={"reason": "no contract yet"})
    early = at.admin.post("/runs/demo/enrolments/dora/approve", json={"examples": 0})
    assert_refused(early, "illegal-transition", "does not wait for approval in run 'demo': it is refused")
    assert dora.enrol("demo", 0).json()["status"] == "awaiting_approval"
    command = ["run", "approve", "demo", "dora", "--url", at.url]
    told = CliRunner().invoke(app, command, env={"FEDDISCO_TOKEN": ADMIN})
    assert (told.exit_code, told.output.strip()) == (0, "dora takes part in demo.")
    assert row_of(at, "dora")["status"] == "ready"
    assert dora.http.delete("/runs/demo/enrolments/me").status_code == 204
    assert dora.enrol("demo", 0).json()["status"] == "ready"


@pytest.mark.parametrize("call", ["approve", "refuse"])
def test_only_the_operator_approves_and_refuses(at: Live, call: str) -> None:
    at.create(approve="sizes")
    site = at.site("anna")
    site.enrol("demo", 10)
    answer = site.http.post(
        f"/runs/demo/enrolments/anna/{call}", json={"examples": 10} if call == "approve" else {}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


# -------------------------------------------------------------------- join tokens


def test_a_join_token_is_for_one_client_and_seven_days_unless_said_otherwise(at: Live) -> None:
    made = at.admin.post("/join-tokens", json={}).json()
    (listed,) = [row for row in at.admin.get("/join-tokens").json() if row["id"] == made["id"]]
    assert (made["uses"], listed["uses_left"]) == (1, 1)
    days = (
        at.coordinator.clock() - at.coordinator.clock().fromisoformat(listed["expires_at"])
    ).total_seconds()
    assert -days / 86400 == pytest.approx(7, abs=0.01)
    join(at, made["token"])
    again = at.http(made["token"]).post("/clients", json={})
    assert again.json()["code"] == "wrong-token"
    unlimited = at.admin.post("/join-tokens", json={"uses": None, "valid_seconds": None}).json()
    assert (unlimited["uses"], unlimited["expires_at"]) == (None, None)


def test_a_join_token_with_a_name_is_for_that_client_alone(at: Live) -> None:
    token = invite(at, name="north")
    other = at.http(token).post("/clients", json={"name": "south"})
    assert_refused(other, "wrong-name", "the join token is for the client 'north', not for 'south'")
    squatter = at.http(invite(at)).post("/clients", json={"name": "north"})
    assert_refused(squatter, "name-taken", "is kept, for the client of another join token")
    taken = at.admin.post("/join-tokens", json={"name": "north"})
    assert_refused(taken, "name-taken", "is kept, for another join token")
    assert join(at, token).name == "north"
    registered = at.admin.post("/join-tokens", json={"name": "north"})
    assert_refused(registered, "name-taken", "there is a client 'north' already")


def test_a_revoked_join_token_keeps_no_name(at: Live) -> None:
    made = at.admin.post("/join-tokens", json={"name": "north"}).json()
    at.admin.delete(f"/join-tokens/{made['id']}")
    assert join(at, invite(at), "north").name == "north"


def test_a_name_is_for_one_client(at: Live) -> None:
    answer = at.admin.post("/join-tokens", json={"name": "north", "uses": 2})
    assert (answer.status_code, "for one use" in answer.text) == (422, True)


def test_groups_and_roles_come_with_the_join_token(at: Live) -> None:
    at.create(weighting=SIZES, participants={"trainers": ["group:clinics"], "evaluators": ["group:clinics"]})
    clinic = join(at, invite(at, group="clinics", role="trainer"), "north")
    bank = join(at, invite(at, group="banks"), "bank")
    assert clinic.work() == {"kind": "enrol", "run": "demo"}
    assert bank.work() is None
    sentence = "participants name neither it nor its group banks as trainer"
    assert_refused(bank.enrol("demo", 10), "not-admitted", sentence)
    bound = clinic.enrol("demo", 10, role="evaluator")
    assert_refused(bound, "not-admitted", "its join token lets it take part as trainer only")
    assert clinic.enrol("demo", 10).status_code == 200
    (row,) = [row for row in at.admin.get("/clients").json() if row["client"] == "north"]
    assert (row["group"], row["role"]) == ("clinics", "trainer")


def test_an_evaluator_is_not_offered_a_run_that_has_none(at: Live) -> None:
    at.create(weighting=SIZES, participants={"trainers": "anyone"})
    judge = join(at, invite(at, role="evaluator"))
    assert judge.work() is None
    assert_refused(judge.enrol("demo", 10, role="evaluator"), "not-admitted", "name not it as evaluator")


def test_a_run_that_names_fewer_trainers_than_it_needs_is_not_created(at: Live) -> None:
    config = {"name": "demo", "task": "digits", "participants": ["north", "south"], "min_clients": 3}
    answer = at.admin.post("/runs", json={"config": config})
    assert answer.status_code == 422
    assert "participants names 2 trainers, fewer than min_clients 3" in answer.text
