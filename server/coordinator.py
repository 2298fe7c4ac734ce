"""The parts of one coordinator process, made once by ``server.app``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.background import Background
from server.batches import Batches
from server.blobs import BlobStore
from server.blobs.cache import BlobCache
from server.blobs.integrity import BlobIntegrity
from server.certificates import Entrance
from server.clock import Clock
from server.database.store import Store
from server.monitoring.metrics import Telemetry
from server.monitoring.readiness import Readiness
from server.runs.answers import AnswerIntake
from server.runs.assignments import Assignments
from server.runs.blob_faults import BlobFaults
from server.runs.control import Control
from server.runs.enrolment import Enrolments
from server.runs.intake import Intake
from server.runs.layout import RunLayouts
from server.runs.people import People
from server.runs.presence import Presence
from server.runs.removal import Removal
from server.runs.runner import Runner
from server.runs.scrub import Scrub
from server.runs.space import Space
from server.runs.timekeeping import TimeKeeper
from server.settings import Settings
from server.sinks.follow import SinkFollower
from server.threads import Threads
from server.wakeups.feeds import Feeds
from server.wakeups.hub import Hub
from server.web.admission import Gate
from server.web.grants import DownloadGrants
from server.web.oidc import IdentityProvider
from server.web.open_calls import OpenCalls
from server.web.protocol import Connections
from server.web.read_notes import ReadNotes
from server.web.security import Guard
from server.web.sessions import Sessions
from shared.schemas import Assignment

__all__ = ["Coordinator"]


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """Everything that lives as long as the process."""

    settings: Settings
    entrance: Entrance
    clock: Clock
    threads: Threads
    background: Background = field(default_factory=Background)
    # what it keeps
    store: Store
    blobs: BlobStore
    space: Space
    integrity: BlobIntegrity
    faults: BlobFaults
    blob_cache: BlobCache = field(default_factory=BlobCache)
    # what it does with a run
    runner: Runner
    timekeeper: TimeKeeper
    control: Control
    removal: Removal
    enrolments: Enrolments
    people: People
    assignments: Assignments
    polls: Batches[str, Assignment | None]
    layouts: RunLayouts
    scrub: Scrub
    intake: Intake
    answers: AnswerIntake
    # who asks, who waits, what is counted
    guard: Guard
    sessions: Sessions
    provider: IdentityProvider | None
    open_calls: OpenCalls
    read_notes: ReadNotes
    gate: Gate
    connections: Connections
    grants: DownloadGrants = field(default_factory=DownloadGrants)
    presence: Presence
    hub: Hub
    feeds: Feeds
    telemetry: Telemetry
    readiness: Readiness
    sinks: Sequence[SinkFollower] = ()

    def end_access(self, key: str) -> None:
        """A client, user or session (``make_key``) is not accepted any more: what is open by it ends.

        At other coordinators, too. On the event loop.
        """
        self.end_access_here(key)
        self.hub.announce_end(key)

    def end_access_here(self, key: str) -> None:
        """In this process alone."""
        self.guard.forget(key)
        self.open_calls.end(key)
        kind, _, name = key.partition(":")
        if kind == "client":
            self.hub.refuse(name)

    def close(self) -> None:
        """Let threads finish; nothing is half done afterwards."""
        self.hub.close()
        self.runner.close()
        self.threads.close()  # including what a cancelled task had begun there: it uses the database
        self.presence.flush()
        self.store.engine.dispose()
