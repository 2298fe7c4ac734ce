"""What an operator does with a run: create, start, pause, resume, change, rewind and stop it. On a thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from server.blobs import BlobStore
from server.database.store import Store
from server.lifecycle.events import (
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StartRequested,
    StopRequested,
)
from server.runs.initial import make_initial
from server.runs.runner import Runner
from server.runs.space import Space
from shared.config import RunConfig
from shared.problems import IllegalTransition, InvalidConfiguration, NameTaken, NotFound
from shared.schemas import RunChanges, RunRequest

__all__ = ["Control"]


@dataclass(frozen=True)
class Control:
    """``max_update_bytes``: a run whose updates could be larger is not created."""

    store: Store
    blobs: BlobStore
    runner: Runner
    space: Space
    max_update_bytes: int
    clock: Callable[[], dt.datetime]

    def create(self, request: RunRequest, actor: str) -> None:
        """An enrolling run named ``request.config.name``, and its twin if it has one, from the same model.

        Imports PyTorch and may build a model.

        Raises NameTaken, QuotaExceeded, InvalidConfiguration where the assistant is nobody yet, and what
        :func:`server.runs.initial.make_initial` raises.
        """
        self.space.check(None, 0)
        twin = request.config.make_twin()
        configs = [request.config] if twin is None else [request.config, twin]
        for config in configs:
            self._check_free(config.name)  # before the model is built; the table's key decides
        self._check_assistant(request.config)
        initial = make_initial(request.config, request.initial, self.blobs, self.max_update_bytes)
        self.store.create_runs(
            *configs,
            classes=initial.classes,
            manifest=initial.manifest,
            initial_model=initial.digest,
            initial_bytes=initial.bytes,
            actor=actor,
            now=self.clock(),
        )

    def _check_free(self, name: str) -> None:
        try:
            self.store.run_state(name)
        except NotFound:
            return
        raise NameTaken(f"there is a run {name!r} already", hint="Choose another name.")

    def _check_assistant(self, config: RunConfig) -> None:
        """Whoever registered under its name would be sent the sites' single updates."""
        assistant = config.assistant
        if assistant is not None and not self.store.is_somebodys_name(assistant.client, self.clock()):
            name = assistant.client
            raise InvalidConfiguration(
                f"assistant: there is no client {name!r} yet, and anybody could register under that name",
                hint=f"Let it register first, or keep its name: feddisco clients invite --role evaluator "
                f"--name {name}.",
            )

    def start(self, run: str, actor: str) -> None:
        self.runner.commit(run, StartRequested(), actor=actor)

    def pause(self, run: str, reason: str, actor: str) -> None:
        self.runner.commit(run, PauseRequested(reason), actor=actor)

    def resume(self, run: str, actor: str) -> None:
        self.runner.commit(run, ResumeRequested(), actor=actor)

    def stop(self, run: str, reason: str, actor: str) -> None:
        self.runner.commit(run, StopRequested(reason), actor=actor)

    def change(self, run: str, changes: RunChanges, actor: str) -> None:
        """Change the configuration where that touches no past round; what is so already changes nothing.

        Raises:
            InvalidConfiguration: the new configuration would not be valid.
            IllegalTransition: a round that has begun would be touched.
        """
        if self.store.run_view(run, self.clock()).config.secure is not None:
            raise IllegalTransition(
                f"run {run!r} has secure sums, and its clients hold each other to one configuration",
                hint="Create a run that starts from this one's model (feddisco run create --weights).",
            )
        given = changes.model_dump(exclude_unset=True)
        self.runner.hand_over(run, self.store.change_run(run, given, actor=actor, now=self.clock()))

    def rewind(self, run: str, number: int, reason: str, actor: str) -> None:
        """Go back to a round's model, without a new run. Imports PyTorch.

        Raises:
            IllegalTransition: there is no such round to go back to, or its clients cannot go back.
        """
        from shared.algorithms import load_algorithm

        config = self.store.run_view(run, self.clock()).config
        algorithm = load_algorithm(config.algorithm)
        if config.secure is not None:
            raise IllegalTransition(
                f"run {run!r} has secure sums, and its clients unmask a round once: the run cannot go back",
                hint="Create a run that starts from the round's model (feddisco run create --weights).",
            )
        if algorithm.keeps:
            kept = ", ".join(algorithm.keeps)
            raise IllegalTransition(
                f"run {run!r} trains by {type(algorithm).__name__}, whose clients keep {kept} from round to "
                "round, and only the newest: the run cannot go back",
                hint="Create a run that starts from the round's model (feddisco run create --weights).",
            )
        if not config.averages(number):
            raise IllegalTransition(
                f"run {run!r} averages in every round that {config.average_every} divides, and after round "
                f"{number} clients went on from each other's models, which are not kept for ever",
                hint=f"Go back to round {number - number % config.average_every}.",
            )
        self.runner.commit(run, RewindRequested(number, reason), actor=actor)
