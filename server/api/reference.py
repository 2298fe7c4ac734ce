"""The page ``/docs``: every call, made from the OpenAPI document, without a script or a foreign server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from server.pages.routes import asset

__all__ = ["page"]

Document = Mapping[str, Any]


def page(document: Document) -> str:
    """The whole page as HTML."""
    title = f"{document['info']['title']} {document['info']['version']}"
    calls = "\n".join(_calls(document))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Interface · {escape(title)}</title>\n"
        f'<link rel="icon" type="image/svg+xml" href="{asset("favicon.svg")}">\n'
        f'<link rel="stylesheet" href="{asset("style.css")}">\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<main id="main" tabindex="-1">\n<h1>{escape(title)}: interface</h1>\n'
        f"<p>{escape(document['info'].get('description', ''))}</p>\n"
        '<p>For programs: <a href="/openapi.json">the OpenAPI document</a>. '
        'What can go wrong: <a href="/problems">the catalogue of problems</a>.</p>\n'
        f"{calls}\n</main>\n</body>\n</html>\n"
    )


def _calls(document: Document) -> Iterator[str]:
    tag = None
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            first = call.get("tags", ["other"])[0]
            if first != tag:
                tag = first
                yield f"<h2>{escape(tag.capitalize())}</h2>"
            yield _call(path, method, call)


def _call(path: str, method: str, call: Document) -> str:
    parts = [f"<section><h3><code>{escape(method.upper())} {escape(path)}</code></h3>"]
    parts.append(f"<p>{escape(call.get('description') or call.get('summary', ''))}</p>")
    if who := _who(call):
        parts.append(f"<p>Token: {escape(who)}.</p>")
    parts.extend(_parameters(call.get("parameters", ())))
    if body := _body(call):
        parts.append(f"<p>Body: {escape(body)}.</p>")
    parts.append(f"<p>Answers: {escape(', '.join(_answers(call)))}.</p></section>")
    return "\n".join(parts)


def _who(call: Document) -> str:
    return " or ".join(name for scheme in call.get("security", ()) for name in scheme)


def _parameters(parameters: Any) -> Iterator[str]:
    if not parameters:
        return
    yield "<ul>"
    for parameter in parameters:
        need = "" if parameter.get("required") else ", optional"
        words = f": {parameter['description']}" if parameter.get("description") else ""
        name = f"<code>{escape(parameter['name'])}</code>"
        yield f"<li>{name} ({escape(parameter['in'])}{need}){escape(words)}</li>"
    yield "</ul>"


def _body(call: Document) -> str:
    content = call.get("requestBody", {}).get("content", {})
    return " or ".join(
        f"{kind} {_schema(media.get('schema', {}))}".strip() for kind, media in content.items()
    )


def _answers(call: Document) -> Iterator[str]:
    for status, answer in call.get("responses", {}).items():
        kinds = [
            f"{kind} {_schema(media.get('schema', {}))}".strip()
            for kind, media in answer.get("content", {}).items()
        ]
        yield f"{status} {' or '.join(kinds)}".strip()


def _schema(schema: Document) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "items" in schema:
        return f"list of {_schema(schema['items'])}"
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    return " or ".join(filter(None, map(_schema, options)))
