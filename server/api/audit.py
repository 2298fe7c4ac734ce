"""The audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from server.api.dependencies import Admin, Coordinator
from server.api.documents import make_router

router = make_router("audit")

MEDIA_TYPE = "application/x-ndjson"
MOST = 1000
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "One entry a line", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
}
After = Annotated[int, Query(ge=0, le=2**53, description="only entries with a larger number")]
Limit = Annotated[int, Query(ge=1, le=MOST)]


@router.get("/audit", responses=RESPONSES, response_class=Response)
async def read_audit(
    coordinator: Coordinator, _admin: Admin, after: After = 0, limit: Limit = MOST
) -> Response:
    """The audit log as JSON lines, oldest first: byte for byte as each entry was hashed."""
    entries = await coordinator.threads.run(coordinator.store.audit_entries, after, limit)
    return Response("".join(f"{entry}\n" for entry in entries), media_type=MEDIA_TYPE)
