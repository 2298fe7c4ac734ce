"""From the OpenAPI document to the context of the page ``/docs``: every call of the API."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from server.pages.contexts import CallEntry, CallGroup, ParameterEntry, ReferencePage

__all__ = ["reference_page"]

Document = Mapping[str, Any]


def reference_page(document: Document, now: dt.datetime) -> ReferencePage:
    """The calls in the document's order, grouped by their first tag."""
    groups: dict[str, list[CallEntry]] = {}
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            tag = call.get("tags", ["other"])[0]
            groups.setdefault(tag, []).append(_call(path, method, call))
    return ReferencePage(
        title="API",
        now=now,
        name=f"{document['info']['title']} {document['info']['version']}",
        description=document["info"].get("description", ""),
        groups=tuple(CallGroup(tag=tag, calls=tuple(calls)) for tag, calls in groups.items()),
    )


def _call(path: str, method: str, call: Document) -> CallEntry:
    return CallEntry(
        method=method.upper(),
        path=path,
        description=call.get("description") or call.get("summary", ""),
        tokens=tuple(name for scheme in call.get("security", ()) for name in scheme),
        parameters=tuple(
            ParameterEntry(
                name=parameter["name"],
                place=parameter["in"],
                required=parameter.get("required", False),
                description=parameter.get("description", ""),
            )
            for parameter in call.get("parameters", ())
        ),
        body=_content(call.get("requestBody", {})),
        answers=tuple(
            f"{status} {_content(answer)}".strip() for status, answer in call.get("responses", {}).items()
        ),
    )


def _content(part: Document) -> str:
    """Media types, each with its schema: ``application/json RunView or text/event-stream``."""
    return " or ".join(
        f"{kind} {_schema(media.get('schema', {}))}".strip()
        for kind, media in part.get("content", {}).items()
    )


def _schema(schema: Document) -> str:
    return " or ".join(_names(schema))


def _names(schema: Document) -> Iterator[str]:
    if "$ref" in schema:
        yield str(schema["$ref"]).rsplit("/", 1)[-1]
    elif "items" in schema:
        yield f"list of {_schema(schema['items'])}"
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from _names(option)
