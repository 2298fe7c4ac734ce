"""What a site does for a run as its assistant: the step of a round that needs data, on the site's own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shared.faults import TRANSIENT, Doing, Fault, FaultCode
from shared.problems import Conflict, DigestMismatch, InvalidRequest, Truncated
from shared.schemas import MOST_LEFT_OUT, AssistReport
from shared.texts import format_count, format_size
from worker.faults import (
    UPLOAD_BREAKS,
    LocalFault,
    describe_broken_upload,
    describe_fault,
    local_faults,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.schemas import Assist
    from worker.client import CoordinatorClient
    from worker.journal import RunJournal
    from worker.progress import Reporter
    from worker.site import LocalRun, Site

__all__ = ["Assisting"]

ANSWER = "assistance.safetensors"


@dataclass(frozen=True)
class Assisting:
    """It remembers nothing: killed, it is asked the same again, and makes the same of it."""

    coordinator: CoordinatorClient
    site: Site
    reporter: Reporter

    def answer(self, assignment: Assist, local: LocalRun, journal: RunJournal) -> None:
        """Fetch what is asked about, do the step, send the answer.

        Raises :class:`worker.faults.LocalFault` that says why there is none.
        """
        self.site.check_assisting(local.view)
        with local_faults(Doing.LOADING_TRAINING_DATA):
            if local.workbench.spare_examples() is None:
                raise LocalFault(Fault(FaultCode.NO_EXAMPLES), _explain_no_examples(local))
        paths = self._fetch(assignment, local, journal)
        try:
            self._make_and_send(assignment, local, paths, journal.folder / ANSWER)
        except LocalFault as fault:
            if fault.told.code not in TRANSIENT:
                journal.keep_only(set())
            raise
        journal.keep_only(set())  # others' updates are for the step alone

    def _make_and_send(
        self, assignment: Assist, local: LocalRun, paths: Mapping[str, Path], path: Path
    ) -> None:
        with local_faults(Doing.ASSISTING):
            report = (
                self._distil(assignment, local, paths, path)
                if assignment.work == "distil"
                else (self._learn(assignment, local, paths, path))
            )
        size = path.stat().st_size
        try:
            self.coordinator.assist(assignment.run, assignment.round, report, path)
        except Conflict as refused:
            self.reporter.say(f"{_title(assignment)}: the answer was not taken: {refused}")
            return
        except (DigestMismatch, Truncated):
            raise  # damaged on the way: it is asked for again
        except InvalidRequest as invalid:  # made again, it would be the same, and refused again
            self.give_up(assignment, describe_fault(invalid, Doing.ASSISTING))
            return
        except UPLOAD_BREAKS as error:
            raise describe_broken_upload(error, size) from error
        finally:
            path.unlink(missing_ok=True)
        self.reporter.say(f"{_title(assignment)}: {_describe(assignment, report)}, sent {format_size(size)}")

    def give_up(self, assignment: Assist, fault: LocalFault) -> None:
        """Report that no answer will come, and why."""
        self.reporter.say(f"{_title(assignment)}: no answer ({fault.told.code}): {fault}")
        try:
            self.coordinator.assist_failure(assignment.run, assignment.round, assignment.attempt, fault)
        except Conflict:
            return  # the round has gone on meanwhile

    def _fetch(self, assignment: Assist, local: LocalRun, journal: RunJournal) -> dict[str, Path]:
        """All files that it looks at, by digest."""
        from shared.update_forms import find_form, whole_layout
        from shared.wire import largest_bytes

        workbench = local.workbench
        form = find_form(local.view.config, workbench.manifest)
        layout = (
            whole_layout(local.view.config, workbench.algorithm, workbench.manifest)
            if form is None
            else form.layout
        )
        longest = {update.update: largest_bytes(layout) for update in assignment.updates}
        longest[assignment.start] = workbench.model_bytes
        if assignment.model is not None:
            longest[assignment.model] = workbench.model_bytes
        journal.keep_only(set(longest))
        return {
            digest: journal.fetch_blob(digest, partial(self.coordinator.download, longest=most))
            for digest, most in sorted(longest.items())
        }

    def _find_whole(
        self, assignment: Assist, local: LocalRun, paths: Mapping[str, Path], held: ExitStack
    ) -> dict[int, Path]:
        """Each update as a file of a whole one, by index."""
        import tempfile
        from pathlib import Path

        from shared.update_forms import find_form
        from shared.wire.packing import unpack

        form = find_form(local.view.config, local.workbench.manifest)
        files = {update.index: paths[update.update] for update in assignment.updates}
        if form is None:
            return files
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir=paths[assignment.start].parent)))
        start = paths[assignment.start]
        return {index: unpack(path, start, form, folder / f"whole-{index}") for index, path in files.items()}

    def _distil(
        self, assignment: Assist, local: LocalRun, paths: Mapping[str, Path], to: Path
    ) -> AssistReport:
        from shared import wire

        distiller = local.workbench.make_distiller()
        if distiller is None or assignment.model is None:
            raise LocalFault(Fault(FaultCode.NO_EXAMPLES), "the run distils nothing, but asks for it")
        shares = {update.index: update.share for update in assignment.updates}
        with ExitStack() as held:
            whole = self._find_whole(assignment, local, paths, held)
            teachers = {index: (path, shares[index]) for index, path in whole.items()}
            start = paths[assignment.start]
            made, how = distiller.distil(paths[assignment.model], start, teachers, assignment.round)
        wire.write(to, {wire.MODEL: {s.name: made[s.name] for s in local.workbench.manifest}})
        return AssistReport(
            attempt=assignment.attempt,
            steps=how.steps,
            chosen=how.chosen,
            before=how.before,
            after=how.after,
            left_out=how.left_out[:MOST_LEFT_OUT],
        )

    def _learn(
        self, assignment: Assist, local: LocalRun, paths: Mapping[str, Path], to: Path
    ) -> AssistReport:
        import numpy as np
        import torch

        from shared import wire
        from shared.aggregation import Stream, UpdateFile
        from shared.aggregation.proxy import Mixture
        from shared.algorithms.base import UpdateInfo
        from shared.schemas import TensorKind
        from shared.weightings import load_weighting

        weighting = load_weighting(local.view.config.weighting)
        examples = local.workbench.proxy_examples(*weighting.proxy_size)
        if examples is None:
            raise LocalFault(Fault(FaultCode.NO_EXAMPLES), "there are no examples to learn on")
        parameters = [s for s in local.workbench.manifest if s.kind is TensorKind.PARAMETER]
        with ExitStack() as held:
            local.workbench.load_model(paths[assignment.start])
            whole = self._find_whole(assignment, local, paths, held)
            files = [UpdateFile(UpdateInfo(index, 0, 0.0, 0), path) for index, path in sorted(whole.items())]
            proxy = Mixture(examples, files, Stream(files, parameters))
            found = weighting.learn(np.array(assignment.begin), sorted(whole), proxy)
        numbers = torch.from_numpy(found)
        wire.write(to, {"learned": {"numbers": numbers}})
        return AssistReport(attempt=assignment.attempt)


def _explain_no_examples(local: LocalRun) -> str:
    if local.workbench.partition is None:
        return "there are no training data here, on which it would work"
    return "the partition leaves no examples over, on which it would work: write `validation: 1000` into it"


def _describe(assignment: Assist, report: AssistReport) -> str:
    of = format_count(len(assignment.updates), "update")
    if assignment.work != "distil":
        return f"weighed {of}"
    return f"distilled {of} in {format_count(report.steps, 'step')}"


def _title(assignment: Assist) -> str:
    return f"{assignment.run} round {assignment.round}"
