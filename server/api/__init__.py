"""The HTTP API: one module a noun, which parses, calls and answers; no SQL, no transition."""

from fastapi import APIRouter

from shared.schemas import build_bodies

build_bodies()  # before any router is made of them


def api_routers() -> tuple[APIRouter, ...]:
    """Every router, in the order of the documentation."""
    from server.api import (
        assistance,
        audit,
        blobs,
        clients,
        enrolments,
        events,
        operations,
        progress,
        runs,
        updates,
        users,
        work,
    )

    modules = (
        clients,
        users,
        runs,
        enrolments,
        work,
        progress,
        updates,
        assistance,
        blobs,
        events,
        audit,
        operations,
    )
    return tuple(module.router for module in modules)
