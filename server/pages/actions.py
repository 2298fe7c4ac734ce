"""Forms with which people act. Each does what a call of the API does, by calling it; no script is needed.

A form is taken only from who has signed in and has the right, and only with the seal of this browser and
this session (``server.web.sessions``). What is refused is said on the form.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError

from server.api import clients as clients_api
from server.api import enrolments as enrolments_api
from server.api import runs as runs_api
from server.api.dependencies import Viewer
from server.api.documents import ClientId, RunId
from server.coordinator import Coordinator
from server.pages.form_contexts import ActionPage, FormField
from server.pages.offers import ACTIONS, REASON, list_change_fields, refuse_action, show_command
from server.pages.routes import make_router, render_visit
from server.pages.sign_in import FOREIGN, read_form
from server.web.security import Visit
from shared.config import describe_faults, split_tags
from shared.problems import Forbidden, InvalidRequest, NotFound, Problem
from shared.schemas import (
    ApprovalRequest,
    ControlRequest,
    EnrolmentView,
    RewindRequest,
    RunChanges,
    UserRole,
)
from shared.texts import format_count

__all__ = ["Actions", "Form"]

Body = TypeVar("Body", bound=BaseModel)
SIGN_IN = "Sign in to do it here."
ActionName = Annotated[str, Path(pattern="^[a-z]{1,20}$")]


@dataclass(frozen=True)
class Form:
    """A form that came with the right seal, and who sent it."""

    actor: str
    fields: dict[str, str]

    def text(self, name: str) -> str:
        return self.fields.get(name, "").strip()

    def body(self, kind: type[Body], *names: str) -> Body:
        """These fields as the body of a call. Raises :class:`InvalidRequest` that names each wrong one."""
        try:
            return kind.model_validate({name: self.text(name) for name in names})
        except ValidationError as error:
            raise InvalidRequest(describe_faults(error)) from None

    def reason(self) -> ControlRequest:
        """Raises :class:`InvalidRequest` for one that is too long."""
        return self.body(ControlRequest, "reason")

    def changes(self) -> RunChanges:
        """What differs from what the form showed: so nobody undoes what another has changed meanwhile.

        Raises :class:`InvalidRequest` that names each wrong field, and if nothing differs.
        """
        given: dict[str, Any] = {
            name: self.text(name) or None  # an empty field is not sent at all
            for name in RunChanges.model_fields
            if self.text(name) != self.text(f"was_{name}")
        }
        if "tags" in given:
            given["tags"] = split_tags(given["tags"] or "")
        if not given:
            raise InvalidRequest("nothing is changed", hint="Change a field, then send the form.")
        try:
            return RunChanges.model_validate(given)
        except ValidationError as error:
            raise InvalidRequest(describe_faults(error)) from None

    def require_tick(self) -> None:
        if self.text("sure") != "yes":
            raise InvalidRequest("tick the box first", hint="What this does cannot be undone.")


@dataclass(frozen=True)
class Actions:
    """The addresses below ``/runs/RUN/do/`` and ``/clients/CLIENT/do/``."""

    coordinator: Coordinator

    def router(self) -> APIRouter:
        router = make_router(Viewer)
        for address, show, act in (
            ("/runs/{run}/do/{action}", self.show_run_action, self.act_on_run),
            ("/runs/{run}/clients/{client}/do/{action}", self.show_enrolment_action, self.act_on_enrolment),
            ("/clients/{client}/do/revoke", self.show_revocation, self.revoke_client),
        ):
            router.add_api_route(address, show, methods=["GET"])
            router.add_api_route(address, act, methods=["POST"])
        return router

    # ------------------------------------------------------------ runs

    async def show_run_action(self, request: Request, run: RunId, action: ActionName) -> Response:
        page = await self._describe_run_action(run, action)
        return await self.show(request, page, run, ACTIONS[action].role)

    async def act_on_run(self, request: Request, run: RunId, action: ActionName) -> Response:
        page = await self._describe_run_action(run, action)

        async def act(form: Form) -> None:
            if ACTIONS[action].is_final:
                form.require_tick()
            match action:
                case "start":
                    await runs_api.start(run, self.coordinator, form.actor)
                case "resume":
                    await runs_api.resume(run, self.coordinator, form.actor)
                case "pause":
                    await runs_api.pause(run, self.coordinator, form.actor, form.reason())
                case "change":
                    await runs_api.change(run, form.changes(), self.coordinator, form.actor)
                case "archive":
                    await runs_api.archive(run, self.coordinator, form.actor)
                case "unarchive":
                    await runs_api.unarchive(run, self.coordinator, form.actor)
                case "delete":
                    reason = form.reason().reason
                    await runs_api.delete(run, self.coordinator, form.actor, reason)
                case "rewind":
                    body = form.body(RewindRequest, "round", "reason")
                    await runs_api.rewind(run, body, self.coordinator, form.actor)
                case _:
                    await runs_api.stop(run, self.coordinator, form.actor, form.reason())

        role, then = ACTIONS[action].role, "/" if action == "delete" else None
        return await self.act(request, page, run, act, role, then)

    async def _describe_run_action(self, run: str, action: str) -> ActionPage:
        view = await self.coordinator.threads.run(
            self.coordinator.store.run_view, run, self.coordinator.clock()
        )
        if action not in ACTIONS:
            raise NotFound(f"There is nothing to do called {action!r}.")
        chosen = ACTIONS[action]
        return self._describe(
            title=f"{chosen.label} {run}",
            trail=((f"/runs/{run}", run),),
            label=chosen.label,
            explanation=f"{run} is {view.status.value}. {chosen.explanation}",
            command=show_command(action, run, reason=True),
            address=f"/runs/{run}/do/{action}",
            back=f"/runs/{run}",
            fields=list_change_fields(view.config) if action == "change" else chosen.form,
            refusal=refuse_action(chosen, view),
        )

    # ------------------------------------------------------------ clients of a run

    async def show_enrolment_action(
        self, request: Request, run: RunId, client: ClientId, action: ActionName
    ) -> Response:
        return await self.show(request, await self._describe_enrolment_action(run, client, action), run)

    async def act_on_enrolment(
        self, request: Request, run: RunId, client: ClientId, action: ActionName
    ) -> Response:
        page = await self._describe_enrolment_action(run, client, action)

        async def act(form: Form) -> None:
            if action == "approve":
                body = form.body(ApprovalRequest, "examples")
                await enrolments_api.approve(run, client, body, self.coordinator, form.actor)
            else:
                await enrolments_api.refuse(run, client, self.coordinator, form.actor, form.reason())

        return await self.act(request, page, run, act)

    async def _describe_enrolment_action(self, run: str, client: str, action: str) -> ActionPage:
        view = await self.coordinator.threads.run(
            self.coordinator.store.run_view, run, self.coordinator.clock()
        )
        found = next((row for row in view.enrolments if row.client == client), None)
        if found is None or action not in ("approve", "refuse"):
            raise NotFound(f"There is no client {client!r} in {run!r} to {action}.")
        label = "Let in" if action == "approve" else "Keep out"
        return self._describe(
            title=f"{label} {client}",
            trail=((f"/runs/{run}", run),),
            label=label,
            explanation=_explain_enrolment(action, found),
            command=_enrolment_command(action, run, found),
            address=f"/runs/{run}/clients/{client}/do/{action}",
            back=f"/runs/{run}#clients",
            fields=[FormField(name="examples", label="", kind="hidden", value=str(found.examples))]
            if action == "approve"
            else [REASON],
        )

    # ------------------------------------------------------------ clients

    async def show_revocation(self, request: Request, client: ClientId) -> Response:
        return await self.show(request, await self._describe_revocation(client), None)

    async def revoke_client(self, request: Request, client: ClientId) -> Response:
        async def act(form: Form) -> None:
            form.require_tick()
            await clients_api.revoke(client, self.coordinator, form.actor)

        return await self.act(request, await self._describe_revocation(client), None, act)

    async def _describe_revocation(self, client: str) -> ActionPage:
        return self._describe(
            title=f"Revoke {client}",
            trail=(("/clients", "Clients"),),
            label="Revoke",
            explanation=f"The token of {client} stops working at once, and it leaves every run. What it "
            "delivered stays. The site can only join again under another name.",
            command=f"feddisco clients revoke {client}",
            address=f"/clients/{client}/do/revoke",
            back="/clients",
            fields=[FormField(name="sure", label="I am sure", kind="tick")],
        )

    # ------------------------------------------------------------ all forms

    def _describe(
        self,
        *,
        title: str,
        trail: Sequence[tuple[str, str]],
        label: str,
        explanation: str,
        command: str,
        address: str,
        back: str,
        fields: Sequence[FormField],
        refusal: str = "",
    ) -> ActionPage:
        return ActionPage(
            title=title,
            now=self.coordinator.clock(),
            label=label,
            trail=trail,
            explanation=explanation,
            command=command,
            address=address,
            back=back,
            fields=fields,
            fault="",
            refusal=refusal,
        )

    async def show(
        self, request: Request, page: ActionPage, run: str | None, role: UserRole = UserRole.OPERATOR
    ) -> Response:
        visit: Visit = request.state.visit
        refusal = page.refusal or explain_refusal(visit, run, role)
        return self._render(request, replace(page, refusal=refusal))

    async def act(
        self,
        request: Request,
        page: ActionPage,
        run: str | None,
        act: Callable[[Form], Awaitable[None]],
        role: UserRole = UserRole.OPERATOR,
        then: str | None = None,
    ) -> Response:
        """Do it and lead back, or to ``then``; or the form again, with what was wrong."""
        fields = page.fields
        try:
            form = await require_form(self.coordinator, request, run, role)
            fields = [_keep_entry(one, form) for one in page.fields]
            await act(form)
        except Problem as problem:
            self.coordinator.telemetry.count_problem(problem.code)
            visit: Visit = request.state.visit
            refusal = page.refusal or explain_refusal(visit, run, role)
            again = replace(page, fault=str(problem), refusal=refusal, fields=fields)
            return self._render(request, again, problem.status)
        return RedirectResponse(then or page.back, HTTPStatus.SEE_OTHER)

    def _render(self, request: Request, page: ActionPage, status: int = HTTPStatus.OK) -> Response:
        return render_visit(self.coordinator.sessions, request, "action.html", page, status)


def _keep_entry(field: FormField, form: Form) -> FormField:
    """With what was typed: what is hidden says how things are now, and a tick is given anew."""
    if field.kind in ("hidden", "tick"):
        return field
    return replace(field, value=form.fields.get(field.name, field.value))


async def require_form(
    coordinator: Coordinator, request: Request, run: str | None, role: UserRole = UserRole.OPERATOR
) -> Form:
    """The form, if who sent it has signed in, made it here and has the role for the run (None: for all).

    Raises :class:`Forbidden`; an attempt without the right is noted in the audit log.
    """
    visit: Visit = request.state.visit
    if visit.session is None:
        raise Forbidden("nobody has signed in with this browser", hint="Sign in, then send the form again.")
    fields = await read_form(request)
    if not coordinator.sessions.is_own_form(request, fields.get("seal", "")):
        raise Forbidden(FOREIGN)
    person = await coordinator.read_notes.require_right(visit.person, role, run, request)
    return Form(person.actor, fields)


def explain_refusal(visit: Visit, run: str | None, role: UserRole = UserRole.OPERATOR) -> str:
    """Why there is no form for this visitor; empty if there is one."""
    if visit.session is None:
        return SIGN_IN
    if visit.person.may(role, run):
        return ""
    if visit.person.role is not UserRole.VIEWER and role is UserRole.ADMIN:
        return "This is for admins; your token is an operator's."
    if not visit.person.role.includes(role):
        return "Your token is for reading only."
    whose = ", ".join(sorted(visit.person.runs or ()))
    what = "concerns all runs" if run is None else "is another run"
    return f"Your token is for {whose} only; this {what}."


def _explain_enrolment(action: str, found: EnrolmentView) -> str:
    if action == "approve" and not found.examples:
        return f"{found.client} takes part as {found.role.value}. The run is secure: no size is declared."
    if action == "approve":
        return (
            f"{found.client} takes part as {found.role.value} with "
            f"{format_count(found.examples, 'example')}. If it declares another number, it waits again."
        )
    return (
        f"{found.client} takes no part in the run; an open round goes on without it. If it enrols again, it "
        "waits for approval."
    )


def _enrolment_command(action: str, run: str, found: EnrolmentView) -> str:
    options = f"--examples {found.examples}" if action == "approve" else "--reason WHY"
    return f"feddisco run {action} {run} {found.client} {options}"
