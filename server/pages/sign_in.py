"""Signing in and out with a browser, by a token or an identity provider: two forms, no script."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from server.pages.form_contexts import SignedInPage, SignInPage
from server.pages.routes import make_router, render
from server.web.admission import SIGN_IN
from server.web.oidc import CALLBACK, Attempt, IdentityProvider, NotSignedIn
from server.web.security import Guard, Person, hash_token
from server.web.sessions import SESSION_HOURS, Sessions, choose_next
from shared.problems import Forbidden, InvalidRequest, Problem, Unauthorised, WrongToken

__all__ = ["SignIn", "read_form"]

PROVIDER_ADDRESS = f"{SIGN_IN}/oidc"
FIELDS = 30
TOO_LATE = "The sign-in was not begun here, or too long ago. Try again."
UNKNOWN = "is not known here, or has been revoked. An admin adds people: feddisco users add NAME."
FOREIGN = "The form was not made by this coordinator, or is too old. Try again."
OTHER_FORM = "No form of these pages has as many. Load the page again, then send its form."

log = logging.getLogger("feddisco.sign-in")


@dataclass(frozen=True, kw_only=True)
class SignIn:
    """``end_session`` ends a session, by the hash of its cookie, of the person whose it is.

    ``count`` is called with the code of each refusal. ``provider`` says who somebody is, if there is one;
    ``find_person`` who that is here, with the hash of the person's token: None for nobody, or not any more.
    """

    sessions: Sessions
    guard: Guard
    end_session: Callable[[str, str], Awaitable[None]]
    count: Callable[[str], None]
    clock: Callable[[], dt.datetime]
    provider: IdentityProvider | None
    find_person: Callable[[str], Awaitable[tuple[Person, str] | None]]

    def router(self) -> APIRouter:
        router = make_router()
        router.add_api_route(SIGN_IN, self.show, methods=["GET"])
        router.add_api_route(SIGN_IN, self.enter, methods=["POST"])
        router.add_api_route("/sign-out", self.leave, methods=["POST"])
        if self.provider is not None:
            router.add_api_route(PROVIDER_ADDRESS, self.go_to_provider, methods=["GET"])
            router.add_api_route(CALLBACK, self.come_back, methods=["GET"])
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

    async def go_to_provider(self, request: Request) -> Response:
        """Lead the browser to the identity provider."""
        assert self.provider is not None
        wanted = choose_next(request.query_params.get("next", "/"))
        try:
            address, attempt = await self.provider.begin(wanted)
        except NotSignedIn as why:
            return self._refuse(request, wanted, str(why))
        answer = RedirectResponse(address, HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})
        self.sessions.keep_attempt(request, answer, asdict(attempt))
        return answer

    async def come_back(self, request: Request) -> Response:
        """Who the identity provider says is here, if that is somebody here.

        A page leads on: the new cookie is strict, and a redirect that another site has begun brings none.
        """
        assert self.provider is not None
        kept = self.sessions.read_attempt(request)
        if kept is None:
            return self._refuse(request, "/", TOO_LATE)
        attempt = Attempt(**kept)
        try:
            name = await self.provider.finish(attempt, dict(request.query_params))
            found = await self.find_person(name)
        except NotSignedIn as why:
            return self._refuse(request, attempt.next, str(why))
        if found is None:
            return self._refuse(request, attempt.next, f"{name[:100]!a} {UNKNOWN}")
        person, token_hash = found
        page = SignedInPage(title="Signed in", now=self.clock(), wanted=choose_next(attempt.next))
        answer = render("signed_in.html", page)
        answer.headers["Cache-Control"] = "no-store"
        await self.sessions.start(request, answer, token_hash, person.actor)
        self.sessions.forget_attempt(request, answer)
        return answer

    def _refuse(self, request: Request, wanted: str, why: str) -> Response:
        """The form again; an attempt is for one answer."""
        self.count(WrongToken.code)
        log.info("nobody was signed in: %s", why)
        answer = self.ask(request, wanted, why, HTTPStatus.FORBIDDEN)
        self.sessions.forget_attempt(request, answer)
        return answer

    async def leave(self, request: Request) -> Response:
        """The session ends here; a copy of its cookie is worth nothing then."""
        form = await read_form(request)
        answer = RedirectResponse(SIGN_IN, HTTPStatus.SEE_OTHER)
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
            provider=None if self.provider is None else self.provider.name,
            provider_address=f"{PROVIDER_ADDRESS}?{urlencode({'next': choose_next(wanted)})}",
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
    """The fields of an ordinary form; a body that is none has no fields.

    Raises :class:`InvalidRequest` for one with more fields than any form here has.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    body = (await request.body()).decode("ascii", "replace")
    try:
        fields = parse_qs(body, max_num_fields=FIELDS)
    except ValueError:
        raise InvalidRequest(f"the form has more than {FIELDS} fields", hint=OTHER_FORM) from None
    return {name: values[0] for name, values in fields.items()}
