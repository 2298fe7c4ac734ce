"""The HTTP API: one module a noun, which parses, calls and answers; no SQL, no transition."""

from fastapi import APIRouter


def api_routers() -> tuple[APIRouter, ...]:
    """Every router below ``/api/v1``, in the order of the documentation."""
    from server.api import blobs, clients, enrolments, events, progress, runs, updates, work

    modules = (clients, runs, enrolments, work, progress, updates, blobs, events)
    return tuple(module.router for module in modules)
