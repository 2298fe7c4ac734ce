"""Creating a run: from YAML, from a short form that writes it, or from another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from server.api import runs as runs_api
from server.api.dependencies import Viewer
from server.coordinator import Coordinator
from server.pages.actions import explain_refusal, require_form
from server.pages.explain import weighting_name
from server.pages.form_contexts import CreatePage
from server.pages.routes import make_router, render_visit
from server.pages.sign_in import read_form
from server.web.security import Visit
from shared import algorithms, models, tasks, weightings
from shared.config import RunConfig
from shared.problems import Forbidden, InvalidConfiguration, NotFound, Problem
from shared.run_files import read_config, write_config
from shared.schemas import InitialBlob, RunRequest
from shared.texts import format_count

__all__ = ["Creation"]

ADDRESS = "/create"
WHERE = "The configuration"
LONGEST = 40_000
"""Characters of YAML, with one for each end of a line."""
EXAMPLE = """\
name: first-run
task: digits
rounds: 20
algorithm: fedavg
weighting: {kind: disco, a: 0.5, b: 0.1}
local: {epochs: 2, batch_size: 32, learning_rate: 0.01}
min_clients: 3
"""
Word = Annotated[str, Query(max_length=2000)]


@dataclass(frozen=True)
class Creation:
    """``GET /create``: the form, perhaps filled in; ``POST``: check what is in it, or create the run."""

    coordinator: Coordinator

    def router(self) -> APIRouter:
        router = make_router(Viewer)
        router.add_api_route(ADDRESS, self.show, methods=["GET"])
        router.add_api_route(ADDRESS, self.answer, methods=["POST"])
        return router

    async def show(self, request: Request, template: Annotated[str, Query(max_length=63)] = "") -> Response:
        """``template``: the run to begin with. Other parameters are fields of the short form."""
        if template:
            return self._render(request, await self._copy(request, template), template)
        given = {name: value.strip() for name, value in request.query_params.items() if value.strip()}
        return self._render(request, write_short(given) if given else EXAMPLE, given=given)

    async def answer(self, request: Request) -> Response:
        text = template = ""
        try:
            fields = await read_form(request)
            text, template = join_lines(fields.get("text", "")), fields.get("template", "")
            check_length(text)
            config = await self.coordinator.threads.run_for_viewers(read_config, text, WHERE)
            if fields.get("do") != "create":
                return self._render(request, text, template, found=summarise(config))
            form = await require_form(self.coordinator, request, None)
            body = RunRequest(config=config, initial=await self._find_initial(config, template))
            await runs_api.create(body, self.coordinator, form.actor)
        except Problem as problem:
            return self._render(request, text, template, fault=str(problem), status=problem.status)
        return RedirectResponse(f"/runs/{config.name}", HTTPStatus.SEE_OTHER)

    def _render(
        self,
        request: Request,
        text: str,
        template: str = "",
        *,
        given: Mapping[str, str] | None = None,
        found: str = "",
        fault: str = "",
        status: int = HTTPStatus.OK,
    ) -> Response:
        visit: Visit = request.state.visit
        page = CreatePage(
            title="Create a run",
            now=self.coordinator.clock(),
            text=text,
            found=found,
            fault=fault,
            refusal=explain_refusal(visit, None),
            template=template,
            given=given or {},
            choices=list_choices(),
        )
        return render_visit(self.coordinator.sessions, request, "create.html", page, status)

    async def _copy(self, request: Request, template: str) -> str:
        visit: Visit = request.state.visit
        if not visit.person.reads(template):
            raise Forbidden(f"{visit.person.actor} may not read run {template!r}")
        threads, store = self.coordinator.threads, self.coordinator.store
        view = await threads.run(store.run_view, template, self.coordinator.clock())
        names = {run.run for run in await threads.run(store.runs)}
        return write_config(view.config.model_copy(update={"name": next_name(template, names)}))

    async def _find_initial(self, config: RunConfig, template: str) -> InitialBlob | None:
        """What the coordinator cannot build begins with the weights of the run that it was copied from."""
        base = tasks.base_of(config)
        if config.task in tasks.available() and base is None:
            return None
        hint = "Create it with `feddisco run create FILE`, where the task is installed and its model lies."
        try:
            view = await self.coordinator.threads.run(
                self.coordinator.store.run_view, template, self.coordinator.clock()
            )
        except NotFound:
            raise InvalidConfiguration(
                f"the task {config.task!r} is not built in, so the coordinator cannot build its model"
                if base is None
                else f"{base} lies at the sites, so the coordinator cannot build a model that begins from it",
                hint=hint,
            ) from None
        same = view.config.task == config.task and view.config.model == config.model
        if not same or (base is not None and view.config.task_options != config.task_options):
            raise InvalidConfiguration(f"{template} has another task or model", hint=hint)
        return InitialBlob(digest=view.initial_model, manifest=view.manifest)


def join_lines(text: str) -> str:
    """The text with the line ends of YAML; a browser sends two characters for each.

    >>> join_lines("name: a\\r\\nrounds: 5\\r\\n")
    'name: a\\nrounds: 5\\n'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_length(text: str) -> None:
    """Raises :class:`InvalidConfiguration`: a part of it would be read, too, and say something else."""
    if len(text) > LONGEST:
        raise InvalidConfiguration(
            f"{WHERE} has {len(text):,} characters, and this form takes at most {LONGEST:,}",
            hint="Create the run with `feddisco run create FILE`.",
        )


def list_choices() -> dict[str, tuple[str, ...]]:
    return {
        "task": tasks.available(),
        "model": models.available(),
        "algorithm": algorithms.available(),
        "weighting": weightings.available(),
    }


def next_name(name: str, taken: set[str]) -> str:
    """``skin-1`` -> ``skin-2``, or the next that is free; names have at most 63 characters.

    >>> next_name("skin-1", {"skin-1", "skin-2"}), next_name("demo", {"demo"})
    ('skin-3', 'demo-2')
    """
    stem, dash, number = name.rpartition("-")
    is_numbered = bool(dash) and number.isascii() and number.isdigit() and len(number) < 10
    stem, first = (stem, int(number) + 1) if is_numbered else (name, 2)
    candidates = (f"{stem[: 62 - len(str(n))]}-{n}" for n in range(first, first + len(taken) + 2))
    return next(candidate for candidate in candidates if candidate not in taken)


_WHOLE = ("rounds", "min_clients")
_LOCAL = {"epochs": int, "batch_size": int, "learning_rate": float}


def write_short(given: Mapping[str, str]) -> str:
    """The YAML of the short form; what cannot be read as a number stays as it is, to be refused in words.

    >>> write_short({"name": "a", "rounds": "5", "epochs": "2", "classes": "cat, dog"})
    'name: a\\nclasses: [cat, dog]\\nrounds: 5\\nlocal: {epochs: 2}\\n'
    """
    document: dict[str, Any] = {name: given[name] for name in ("name", "task") if name in given}
    if "classes" in given:
        document["classes"] = [name.strip() for name in given["classes"].split(",") if name.strip()]
    document |= {name: given[name] for name in ("model", "algorithm") if name in given}
    document |= {"weighting": {"kind": given["weighting"]}} if "weighting" in given else {}
    document |= {name: _number(given[name], int) for name in _WHOLE if name in given}
    local = {name: _number(given[name], kind) for name, kind in _LOCAL.items() if name in given}
    document |= {"local": local} if local else {}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def _number(text: str, kind: type[int] | type[float]) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def summarise(config: RunConfig) -> str:
    """One sentence on what a configuration means."""
    ready = (
        f"{format_count(config.min_clients, 'trainer')} {'is' if config.min_clients == 1 else 'are'} ready"
    )
    waits = f"it starts by itself when {ready}" if config.autostart else "it waits to be started"
    return (
        f"{config.name}: {format_count(config.rounds, 'round')} of {config.algorithm.name} on {config.task}, "
        f"weighted by {weighting_name(config.weighting)}; {waits}."
    )
