"""Signing in and out with a browser: two forms, no script."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from server.pages.contexts import SignInPage
from server.pages.routes import render
from server.web.security import Guard, hash_token
from server.web.sessions import SESSION_HOURS, Sessions, choose_next
from shared.problems import Forbidden, Problem, Unauthorised

__all__ = ["SignIn", "read_form"]

ADDRESS = "/sign-in"
FIELDS = 30
FOREIGN = "The form was not made by this coordinator, or is too old. Try again."


@dataclass(frozen=True, kw_only=True)
class SignIn:
    """``end_session`` ends a session, by the hash of its cookie, of the person whose it is.

    ``count`` is called with the code of each refusal.
    """

    sessions: Sessions
    guard: Guard
    end_session: Callable[[str, str], Awaitable[None]]
    count: Callable[[str], None]
    clock: Callable[[], dt.datetime]

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        router.add_api_route(ADDRESS, self.show, methods=["GET"])
        router.add_api_route(ADDRESS, self.enter, methods=["POST"])
        router.add_api_route("/sign-out", self.leave, methods=["POST"])
        return router

    async def show(self, request: Request) -> HTMLResponse:
        return self.ask(request, request.query_params.get("next", "/"))

    async def enter(self, request: Request) -> Response:
        """A right token leads to the page that was asked for; anything else to the form again."""
        form = await read_form(request)
        wanted = form.get("next", "/")
        if not self.sessions.is_own_form(request, form.get("seal", "")):
            return self.ask(request, wanted, FOREIGN, HTTPStatus.FORBIDDEN)
        token = form.get("token", "").strip()
        try:
            person = await self.guard.check_viewer_token(token)
        except Problem as problem:
            self.count(problem.code)
            return self.ask(request, wanted, _explain(problem), problem.status)
        answer = RedirectResponse(choose_next(wanted), HTTPStatus.SEE_OTHER)
        await self.sessions.start(request, answer, hash_token(token), person.actor)
        return answer

    async def leave(self, request: Request) -> Response:
        """The session ends here; a copy of its cookie is worth nothing then."""
        form = await read_form(request)
        answer = RedirectResponse(ADDRESS, HTTPStatus.SEE_OTHER)
        if not self.sessions.is_own_form(request, form.get("seal", "")):
            return answer
        session = self.sessions.read(request)
        person = await self.guard.find_session_owner(session)
        if session is not None and person is not None:
            await self.end_session(session, person.actor)
        self.sessions.forget(request, answer)
        return answer

    def ask(
        self, request: Request, wanted: str, fault: str = "", status: int = HTTPStatus.OK
    ) -> HTMLResponse:
        """The form; ``wanted`` is the page to go to afterwards."""
        nonce, seal = self.sessions.protect_form(request)
        page = SignInPage(
            title="Sign in",
            now=self.clock(),
            wanted=choose_next(wanted),
            seal=seal,
            fault=fault,
            hours=SESSION_HOURS,
        )
        answer = render("sign_in.html", page, status)
        answer.headers["Cache-Control"] = "no-store"
        self.sessions.keep_nonce(request, answer, nonce)
        return answer


def _explain(problem: Problem) -> str:
    match problem:
        case Forbidden():
            return "This is a worker's token. It reads its own rows by the API, but not these pages."
        case Unauthorised():
            return "This token is not known here, or has been revoked."
        case _:
            return f"Not possible at the moment: {problem.detail}."


async def read_form(request: Request) -> dict[str, str]:
    """The fields of an ordinary form; a body that is none has no fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    body = (await request.body()).decode("ascii", "replace")
    try:
        fields = parse_qs(body, max_num_fields=FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}
