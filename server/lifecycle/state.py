"""What the state machine works on: a run, its enrolments, its current round. All frozen."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from shared.config import EVERYBODY, Draws, Participants, RunConfig, ScoreRule, StopWhen
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus

__all__ = ["Enrolment", "Participant", "Policy", "Round", "Run", "Score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The part of a run's configuration that decides transitions."""

    rounds: int
    seed: int
    min_clients: int
    clients_per_round: int | None
    draws: Draws = "seeded"
    quorum: int
    deadline: dt.timedelta
    max_attempts: int
    autostart: bool
    needs_discrepancy: bool
    participants: Participants = EVERYBODY
    join: Literal["late", "before_start"] = "late"
    max_examples: int | None = None
    approve: Literal["nothing", "sizes"] = "nothing"
    evaluate_every: int = 1
    stop_when: StopWhen | None = None
    keep: Literal["last", "best"] = "last"
    combine_scores: ScoreRule = "median"

    @property
    def needs_scores(self) -> bool:
        """Whether the run's course goes by its evaluators' scores."""
        return self.stop_when is not None or self.keep == "best"

    @classmethod
    def of(cls, config: RunConfig) -> Policy:
        return cls(
            rounds=config.rounds,
            seed=config.seed,
            min_clients=config.min_clients,
            clients_per_round=config.clients_per_round,
            draws=config.draws,
            quorum=config.updates_needed,
            deadline=dt.timedelta(seconds=config.round_deadline_seconds),
            max_attempts=config.max_attempts,
            autostart=config.autostart,
            needs_discrepancy=config.needs_discrepancy,
            participants=config.participants,
            join=config.join,
            max_examples=config.max_examples,
            approve=config.approve,
            evaluate_every=config.evaluate_every,
            stop_when=config.stop_when,
            keep=config.keep,
            combine_scores=config.combine_scores,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A client in a run. ``index`` orders all sums and seeds; fixed at the latest when the run starts.

    ``approved_examples``: the size that the operator approved; 0: the operator refused the client.
    """

    client: str
    role: Role
    status: EnrolmentStatus
    examples: int
    index: int | None = None
    reason: str | None = None
    approved_examples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A client in one attempt of a round."""

    client: str
    index: int
    status: ParticipantStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One attempt of a round; ``participants`` in index order."""

    number: int
    attempt: int
    status: RoundStatus
    deadline_at: dt.datetime
    participants: tuple[Participant, ...]
    reason: str | None = None

    def participant(self, client: str) -> Participant | None:
        return next((p for p in self.participants if p.client == client), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one evaluator's score of a round's model is; ``value`` is None if it is no finite number."""

    round: int
    client: str
    metric: str
    value: float | None
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the state machine sees it. ``round`` is the newest round, finished or not.

    ``scores`` are the evaluators', by round and client; none where the policy does not go by them.

    ``highest_attempt`` is the highest number that any attempt of any round has had. When the run goes back,
    that becomes ``rewound_attempts``, and the highest round so far ``rewound_rounds``: attempts of rounds up
    to that are counted from there on, so none is named as an earlier one was.
    """

    id: str
    status: RunStatus
    policy: Policy
    enrolments: tuple[Enrolment, ...] = ()
    completed_rounds: int = 0
    round: Round | None = None
    reason: str | None = None
    highest_attempt: int = 0
    rewound_rounds: int = 0
    rewound_attempts: int = 0
    scores: tuple[Score, ...] = ()

    def enrolment(self, client: str) -> Enrolment | None:
        return next((e for e in self.enrolments if e.client == client), None)
