"""Clients and join codes: who there is, inviting a site, revoking."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from urllib.parse import urlsplit

import segno
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from server.api import clients as clients_api
from server.api.clients import TokenId
from server.api.dependencies import Viewer
from server.coordinator import Coordinator
from server.pages.actions import explain_refusal, require_form
from server.pages.form_contexts import ClientsPage, InvitationPage, Picture
from server.pages.routes import make_router, render_visit
from server.web.security import Visit
from shared.addresses import check_address, is_loopback
from shared.config import describe_faults
from shared.join_codes import JoinCode, write_join_code
from shared.problems import InvalidRequest, Problem
from shared.schemas import JOIN_TOKEN_SECONDS, JoinToken, JoinTokenRequest

__all__ = ["Invitations"]

ADDRESS = "/clients"
FAR_DAYS = 3650.0


@dataclass(frozen=True)
class Invitations:
    """The page of clients, and the forms on it."""

    coordinator: Coordinator

    def router(self) -> APIRouter:
        router = make_router(Viewer)
        router.add_api_route(ADDRESS, self.show, methods=["GET"])
        router.add_api_route(f"{ADDRESS}/invite", self.back, methods=["GET"])
        router.add_api_route(f"{ADDRESS}/invite", self.invite, methods=["POST"])
        router.add_api_route("/join-tokens/{token}/revoke", self.revoke_join_token, methods=["POST"])
        return router

    async def show(self, request: Request) -> Response:
        return await self._render(request)

    async def back(self) -> Response:
        """Where a browser asks for the form's address itself."""
        return RedirectResponse(ADDRESS, HTTPStatus.SEE_OTHER)

    async def invite(self, request: Request) -> Response:
        """The join code, this once; or the form again, with what was wrong."""
        given: dict[str, str] = {}
        try:
            form = await require_form(self.coordinator, request, None)
            given = form.fields
            body = read_invitation(given)
            address = _read_address(given.get("address", "").strip())
            made = await clients_api.create_join_token(body, self.coordinator, form.actor)
        except Problem as problem:
            return await self._render(request, given, str(problem), problem.status)
        runs = await self.coordinator.threads.run(self.coordinator.store.runs)
        task = next((run.task for run in runs if not run.status.is_terminal), "TASK")
        page = self._describe(made, address or made.address or str(request.base_url).rstrip("/"), task, body)
        answer = render_visit(self.coordinator.sessions, request, "invitation.html", page)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _describe(
        self, made: JoinToken, address: str, task: str, request: JoinTokenRequest
    ) -> InvitationPage:
        pin = made.fingerprint if address.startswith("https:") else None
        code = write_join_code(JoinCode(made.token, address, pin))
        is_near = is_loopback(urlsplit(address).hostname or "")
        return InvitationPage(
            title="Join code",
            now=self.coordinator.clock(),
            made=made,
            code=code,
            picture=draw_code(code),
            site=f"export FEDDISCO_JOIN={code}\nfeddisco worker --task {task} --data FOLDER",
            command=write_command(request),
            caution=f"It leads to {address}, which is this machine to every worker. For sites elsewhere give "
            "an address, or set FEDDISCO_PUBLIC_URL at the coordinator."
            if is_near
            else "",
        )

    async def revoke_join_token(self, request: Request, token: TokenId) -> Response:
        try:
            form = await require_form(self.coordinator, request, None)
            await clients_api.revoke_join_token(token, self.coordinator, form.actor)
        except Problem as problem:
            return await self._render(request, {}, str(problem), problem.status)
        return RedirectResponse(f"{ADDRESS}#codes", HTTPStatus.SEE_OTHER)

    async def _render(
        self,
        request: Request,
        given: Mapping[str, str] | None = None,
        fault: str = "",
        status: int = HTTPStatus.OK,
    ) -> Response:
        visit: Visit = request.state.visit
        refusal = explain_refusal(visit, None)
        threads, store = self.coordinator.threads, self.coordinator.store
        page = ClientsPage(
            title="Clients",
            now=self.coordinator.clock(),
            clients=[] if refusal else await threads.run(store.clients),
            join_tokens=[]
            if refusal
            else await clients_api.list_join_tokens(self.coordinator, visit.person.actor),
            given=given or {},
            fault=fault,
            refusal=refusal,
        )
        return render_visit(self.coordinator.sessions, request, "clients.html", page, status)


def read_invitation(given: Mapping[str, str]) -> JoinTokenRequest:
    """Raises :class:`InvalidRequest` that names each field."""
    words = {name: given[name].strip() or None for name in ("name", "group", "role") if name in given}
    try:
        days = float(given.get("days", "7") or 0)
        uses = int(given.get("uses", "1") or 0)
    except ValueError:
        raise InvalidRequest("days and uses are numbers") from None
    if not 0 <= days <= FAR_DAYS:
        raise InvalidRequest(f"days: 0 (until it is revoked) to {FAR_DAYS:g}, received {days:g}")
    document = {**words, "uses": uses or None, "valid_seconds": max(1, round(days * 86400)) if days else None}
    try:
        return JoinTokenRequest.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(describe_faults(error)) from None


def write_command(request: JoinTokenRequest) -> str:
    """``feddisco clients invite --name north``: what the form asks for."""
    words = ["feddisco", "clients", "invite"]
    words += [] if request.uses == 1 else ["--uses", str(request.uses or 0)]
    days = 0 if request.valid_seconds is None else request.valid_seconds / 86400
    words += [] if days == JOIN_TOKEN_SECONDS / 86400 else ["--days", f"{days:g}"]
    for name, value in (("role", request.role), ("group", request.group), ("name", request.name)):
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)


def draw_code(text: str) -> Picture:
    """A QR code: its dark modules, row by row, with the quiet zone of four that the standard asks for."""
    rows = segno.make(text, error="m", micro=False).matrix
    runs = (
        f"M{start + 4} {y + 4}h{length}v1h-{length}z"
        for y, row in enumerate(rows)
        for start, length in _dark_runs(row)
    )
    return Picture(size=len(rows) + 8, path="".join(runs))


def _dark_runs(row: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each run of dark modules starts, and how long it is.

    >>> list(_dark_runs([1, 1, 0, 1]))
    [(0, 2), (3, 1)]
    """
    place = 0
    for is_dark, group in groupby(row):
        length = len(list(group))
        if is_dark:
            yield place, length
        place += length


def _read_address(text: str) -> str | None:
    try:
        return check_address(text) if text else None
    except ValueError as error:
        raise InvalidRequest(f"address: {error}") from None
