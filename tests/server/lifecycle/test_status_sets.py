"""The sets of statuses that everybody asks for, against the tables of what may follow what."""

from __future__ import annotations

from server.lifecycle.events import ClientEnrolled
from server.lifecycle.tables import ENROLMENT_MOVES, PARTICIPANT_MOVES, ROUND_MOVES, RUN_MOVES
from shared.schemas import EnrolmentStatus, ParticipantStatus, RoundStatus, RunStatus


def test_a_run_is_terminal_where_nothing_leads_on() -> None:
    going_on = {before for before, _ in RUN_MOVES}
    assert {status for status in RunStatus if status.is_terminal} == set(RunStatus) - going_on


def test_a_round_is_open_where_something_leads_on() -> None:
    assert {s for s in RoundStatus if s.is_open} == {
        before for before, _ in ROUND_MOVES if before is not None
    }


def test_a_participant_is_awaited_while_it_can_upload() -> None:
    can_upload = {before for before, after in PARTICIPANT_MOVES if after is ParticipantStatus.UPLOADED}
    assert {status for status in ParticipantStatus if status.is_awaited} == can_upload


def test_an_update_stays_uploaded_and_is_accepted_unless_rejected() -> None:
    uploaded = ParticipantStatus.UPLOADED
    later = {after for before, after in PARTICIPANT_MOVES if before is uploaded}
    assert {status for status in ParticipantStatus if status.has_uploaded} == {uploaded} | later
    rejected = {ParticipantStatus.REJECTED}
    assert {status for status in ParticipantStatus if status.is_accepted} == {uploaded} | later - rejected


def test_who_is_present_may_leave_and_who_is_gone_may_enrol() -> None:
    may_leave = {before for before, after in ENROLMENT_MOVES if after is EnrolmentStatus.LEFT}
    may_enrol = {before for (before, _), causes in ENROLMENT_MOVES.items() if ClientEnrolled in causes}
    assert {status for status in EnrolmentStatus if status.is_present} == may_leave
    assert {status for status in EnrolmentStatus if status.is_gone} == may_enrol - {None}
