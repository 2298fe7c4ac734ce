"""What a site keeps of secure sums, and what it refuses by it."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from shared.config import DiscoWeighting
from shared.problems import InvalidConfiguration
from shared.schemas import SumTotals
from shared.secure.client import Client
from shared.secure.faults import ProtocolRefused
from shared.secure.messages import Attempt
from shared.secure.ring import Ring
from tests.helpers.secure_parties import Party, random_vectors
from worker.faults import LocalFault
from worker.journal import Journal, RunJournal
from worker.secure_work import (
    _check_apart,
    _check_repeated,
    _hide,
    _hold_totals,
    _keep,
    _keep_client,
    _Known,
    _note_disclosed,
    _read,
    _Summed,
)
from worker.state import describe_identity, find_identities, obtain_identity

RING = Ring(64, clients=5, limit=8.0)


def attempt(number: int, again: int = 1) -> Attempt:
    return Attempt(run="skin", round=number, attempt=again)


def agreed(party: Party, names: list[int]) -> Client:
    """Client 1 of the party, after it has signed that these are left."""
    roster = party.advertise(party.vectors)
    survivors = party.upload(party.share_keys(roster, party.vectors), names)
    party.agree(survivors, names)
    return party.clients[1]


@pytest.fixture
def journal(tmp_path: Path) -> RunJournal:
    return Journal(tmp_path, lambda words: None).open_run("skin")


def test_a_second_sum_of_a_round_over_others_is_refused(journal: RunJournal) -> None:
    """The difference of the two would be one client's update."""
    vectors = random_vectors(RING, 4, 20, seed=1)
    everybody = list(vectors)
    first = agreed(Party(vectors, RING, attempt=attempt(3)), everybody)
    _check_repeated(journal, first)
    _note_disclosed(journal, first)
    again = agreed(Party(vectors, RING, attempt=attempt(3, 2)), everybody)
    _check_repeated(journal, again)  # the same sum tells nothing new
    fewer = agreed(Party(vectors, RING, attempt=attempt(3, 3)), everybody[:3])
    with pytest.raises(ProtocolRefused, match="the difference of the two sums would tell somebody's"):
        _check_repeated(journal, fewer)
    other = {index: vector + np.uint64(index == 1) for index, vector in vectors.items()}
    changed = agreed(Party(other, RING, attempt=attempt(3, 4)), everybody)
    with pytest.raises(ProtocolRefused, match="other numbers"):
        _check_repeated(journal, changed)
    _check_repeated(journal, agreed(Party(vectors, RING, attempt=attempt(4)), everybody[:3]))


def test_nothing_is_added_to_a_second_sum_of_a_round_that_lacks_a_member(journal: RunJournal) -> None:
    """Those who had not helped with the first sum could unmask the second without this site's consent."""
    vectors = random_vectors(RING, 5, 20, seed=1)
    everybody = list(vectors)

    def add(again: int, names: list[int]) -> None:
        party = Party({name: vectors[name] for name in names}, RING, attempt=attempt(3, again))
        inboxes = party.share_keys(party.advertise(names), names)
        _hide(party.clients[1], inboxes[1], vectors[1].copy(), journal)

    add(1, everybody)
    _note_disclosed(journal, agreed(Party(vectors, RING, attempt=attempt(3)), everybody[:4]))
    add(2, everybody)
    add(3, everybody[:4])  # the member that dropped out stays away
    sent = (journal.folder / "masked.safetensors").read_bytes()
    with pytest.raises(LocalFault, match="has helped to unmask round 3 before, over other members"):
        add(4, everybody[:3])
    assert (journal.folder / "masked.safetensors").read_bytes() == sent


def test_sums_that_differ_by_few_sites_are_unmasked_where_the_policy_lets_them(journal: RunJournal) -> None:
    vectors = random_vectors(RING, 9, 20, seed=1)
    everybody = list(vectors)

    def asked(number: int, missing: int) -> Client:
        return agreed(Party(vectors, RING, attempt=attempt(number)), everybody[: len(everybody) - missing])

    _check_apart(journal, asked(0, 3), least=3)
    _note_disclosed(journal, asked(0, 3))  # of other numbers
    for number, missing in ((1, 0), (2, 3), (3, 0)):
        _check_apart(journal, asked(number, missing), least=3)
        _note_disclosed(journal, asked(number, missing))
    for missing in (1, 2):
        with pytest.raises(ProtocolRefused, match=r"differ by [12] of the sites, .* asks for 3"):
            _check_apart(journal, asked(4, missing), least=3)
        _check_apart(journal, asked(4, missing), least=1)
    assert len(_read(journal.folder / "summed.json", _Summed).sets) == 2  # type: ignore[union-attr]


def test_the_first_sum_is_remembered_beside_the_newest(journal: RunJournal) -> None:
    vectors = random_vectors(RING, 4, 8, seed=2)
    for number in (0, 1, 2):
        _note_disclosed(journal, agreed(Party(vectors, RING, attempt=attempt(number)), list(vectors)))
    fewer = agreed(Party(vectors, RING, attempt=attempt(0, 9)), list(vectors)[:3])
    with pytest.raises(ProtocolRefused):
        _check_repeated(journal, fewer)


TOTALS = SumTotals(clients=4, examples=1000, discrepancy=2.1, counts=(400, 600))
DISCO = DiscoWeighting(normalise="all_clients", on_all_zero="raise")


@pytest.mark.parametrize(
    "other", [{"examples": 10**9}, {"discrepancy": 4.2}, {"clients": 3}, {"counts": (600, 400)}]
)
def test_totals_and_the_rule_of_weights_stay_as_first_told(
    tmp_path: Path, journal: RunJournal, other: dict[str, object]
) -> None:
    """By others a coordinator could choose the one site whose score is not 0."""
    _keep(journal.folder / "known.json", _Known(identities={1: "a" * 64}))  # as earlier versions left it
    _hold_totals(None, DISCO.model_copy(update={"a": 9.0}), journal)  # round 0: nothing is told yet
    _hold_totals(TOTALS, DISCO, journal)
    restarted = Journal(tmp_path, lambda words: None).open_run("skin")
    _hold_totals(TOTALS, DISCO, restarted)
    with pytest.raises(ProtocolRefused, match="other sums over all trainers than it did before"):
        _hold_totals(TOTALS.model_copy(update=other), DISCO, restarted)
    with pytest.raises(ProtocolRefused, match="another rule of weights than it did before"):
        _hold_totals(TOTALS, DISCO.model_copy(update={"a": 50.0, "b": 11.2}), restarted)
    assert _read(restarted.folder / "known.json", _Known) == _Known(
        identities={1: "a" * 64}, totals=TOTALS, weighting=DISCO
    )


def test_keys_are_private_files_and_survive_the_process_and_its_sweep(tmp_path: Path) -> None:
    vectors = random_vectors(RING, 4, 8, seed=3)
    client = Party(vectors, RING).clients[1]
    _keep_client(Journal(tmp_path, lambda words: None).open_run("skin"), client)
    restarted = Journal(tmp_path, lambda words: None).open_run("skin")
    assert _read(restarted.folder / "secure.json", Client) == client
    assert stat.S_IMODE((restarted.folder / "secure.json").stat().st_mode) == 0o600


def test_an_identity_key_is_made_once_and_never_replaced(tmp_path: Path) -> None:
    key = obtain_identity(tmp_path)
    assert obtain_identity(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "identity.key").stat().st_mode) == 0o600
    assert len(describe_identity(key)) == 95
    assert find_identities(tmp_path) == {}, "it has no name yet"
    (tmp_path / "identity.key").write_text("not a key")
    with pytest.raises(InvalidConfiguration, match="Restore it from a backup"):
        obtain_identity(tmp_path)
