"""People with tokens: who there is, a token for another, renewing and revoking. For admins."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from server.api import users as users_api
from server.api.dependencies import Viewer
from server.api.users import UserName
from server.coordinator import Coordinator
from server.pages.actions import Actions, Form, explain_refusal, require_form
from server.pages.form_contexts import ActionPage, FormField, TokenPage, UsersPage
from server.pages.routes import make_router, render_visit
from server.web.security import Visit
from shared.config import describe_faults
from shared.problems import InvalidRequest, Problem
from shared.schemas import UserRequest, UserRole, UserToken

__all__ = ["Users", "read_user", "write_command"]

ADDRESS = "/users"
SURE = FormField(name="sure", label="I am sure", kind="tick")


@dataclass(frozen=True)
class Users:
    """The page of users, and what is done on it."""

    coordinator: Coordinator

    def router(self) -> APIRouter:
        router = make_router(Viewer)
        router.add_api_route(ADDRESS, self.show, methods=["GET"])
        router.add_api_route(f"{ADDRESS}/add", self.back, methods=["GET"])
        router.add_api_route(f"{ADDRESS}/add", self.add, methods=["POST"])
        for word, show, act in (
            ("renew", self.show_renewal, self.renew),
            ("revoke", self.show_revocation, self.revoke),
        ):
            address = f"{ADDRESS}/{{name}}/do/{word}"
            router.add_api_route(address, show, methods=["GET"])
            router.add_api_route(address, act, methods=["POST"])
        return router

    async def show(self, request: Request) -> Response:
        return await self._render(request)

    async def back(self) -> Response:
        """Where a browser asks for the form's address itself."""
        return RedirectResponse(ADDRESS, HTTPStatus.SEE_OTHER)

    async def add(self, request: Request) -> Response:
        """The token, this once; or the form again, with what was wrong."""
        given: dict[str, str] = {}
        try:
            form = await require_form(self.coordinator, request, None, UserRole.ADMIN)
            given = form.fields
            body = read_user(given)
            made = await users_api.add_user(body, self.coordinator, form.actor)
        except Problem as problem:
            self.coordinator.telemetry.count_problem(problem.code)
            return await self._render(request, given, str(problem), problem.status)
        return self._show_token(request, made, write_command(body))

    async def show_renewal(self, request: Request, name: UserName) -> Response:
        return await self._show_form(request, self._describe_renewal(name))

    async def renew(self, request: Request, name: UserName) -> Response:
        """The new token, this once."""
        made: list[UserToken] = []

        async def act(form: Form) -> None:
            form.require_tick()
            made.append(await users_api.renew_user(name, self.coordinator, form.actor))

        page = self._describe_renewal(name)
        answer = await Actions(self.coordinator).act(request, page, None, act, UserRole.ADMIN)
        return self._show_token(request, made[0], page.command) if made else answer

    async def show_revocation(self, request: Request, name: UserName) -> Response:
        return await self._show_form(request, self._describe_revocation(name))

    async def revoke(self, request: Request, name: UserName) -> Response:
        async def act(form: Form) -> None:
            form.require_tick()
            await users_api.revoke_user(name, self.coordinator, form.actor)

        page = self._describe_revocation(name)
        return await Actions(self.coordinator).act(request, page, None, act, UserRole.ADMIN)

    def _describe_renewal(self, name: str) -> ActionPage:
        return self._describe(
            name,
            "renew",
            "Renew",
            f"{name} gets a new token, which you see once. The one before ends at once, with the sessions "
            "and streams that are open by it; who was revoked is let in again.",
        )

    def _describe_revocation(self, name: str) -> ActionPage:
        return self._describe(
            name,
            "revoke",
            "Revoke",
            f"The token of {name} ends at once, with the sessions and streams that are open by it. The name "
            "stays taken, since the logs name people.",
        )

    def _describe(self, name: str, action: str, label: str, explanation: str) -> ActionPage:
        return ActionPage(
            title=f"{label} the token of {name}",
            now=self.coordinator.clock(),
            label=label,
            trail=((ADDRESS, "Users"),),
            explanation=explanation,
            command=f"feddisco users {action} {name}",
            address=f"{ADDRESS}/{name}/do/{action}",
            back=ADDRESS,
            fields=[SURE],
            fault="",
            refusal="",
        )

    async def _show_form(self, request: Request, page: ActionPage) -> Response:
        return await Actions(self.coordinator).show(request, page, None, UserRole.ADMIN)

    def _show_token(self, request: Request, made: UserToken, command: str) -> Response:
        entrance = self.coordinator.entrance.url or str(request.base_url).rstrip("/")
        page = TokenPage(
            title=f"Token of {made.name}",
            now=self.coordinator.clock(),
            made=made,
            address=entrance,
            command=command,
        )
        answer = render_visit(self.coordinator.sessions, request, "token.html", page)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def _render(
        self,
        request: Request,
        given: Mapping[str, str] | None = None,
        fault: str = "",
        status: int = HTTPStatus.OK,
    ) -> Response:
        visit: Visit = request.state.visit
        refusal = explain_refusal(visit, None, UserRole.ADMIN)
        page = UsersPage(
            title="Users",
            now=self.coordinator.clock(),
            users=[] if refusal else await users_api.list_users(self.coordinator, visit.person.actor),
            roles=[str(role) for role in UserRole],
            given=given or {},
            fault=fault,
            refusal=refusal,
        )
        return render_visit(self.coordinator.sessions, request, "users.html", page, status)


def read_user(given: Mapping[str, str]) -> UserRequest:
    """``runs``: names by commas or blanks; none: all runs. Raises :class:`InvalidRequest`.

    >>> read_user({"name": "vera", "role": "viewer", "runs": "skin-1, skin-2"}).runs
    ('skin-1', 'skin-2')
    """
    runs = re.split(r"[,\s]+", given.get("runs", "").strip())
    document = {
        "name": given.get("name", "").strip(),
        "role": given.get("role", ""),
        "runs": [run for run in runs if run] or None,
    }
    try:
        return UserRequest.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(describe_faults(error)) from None


def write_command(request: UserRequest) -> str:
    """
    >>> write_command(UserRequest(name="vera", role=UserRole.VIEWER, runs=("a",)))
    'feddisco users add vera --role viewer --run a'
    """
    words = ["feddisco", "users", "add", request.name, "--role", str(request.role)]
    for run in request.runs or ():
        words += ["--run", run]
    return shlex.join(words)
