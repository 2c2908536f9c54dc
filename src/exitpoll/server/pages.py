"""GET / and GET /docs: a page to try the model on, and one on the paths; nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/elements.js": ("elements.js", "text/javascript"),
    "/page/charts.js": ("charts.js", "text/javascript"),
    "/page/climbs.js": ("climbs.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
DOCS = "/docs"
PAGES = (*FILES, DOCS)  # open without a key: they hold nothing of the model but its name
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page(path: str, describe: Callable[[], dict[str, Any]]) -> Response:
    """Return a page, or a file that belongs to it.

    Args:
        path: One of `PAGES`.
        describe: Returns the OpenAPI document.

    Returns:
        The response; its headers allow no script, style or request but this server's own.
    """
    if path == DOCS:
        return Response(documentation(describe()), media_type="text/html", headers=HEADERS)
    name, media_type = FILES[path]
    return Response(_content(name), media_type=media_type, headers=HEADERS)


@cache
def _content(name: str) -> bytes:
    """Read a file of the page."""
    return (files("exitpoll.server") / "page" / name).read_bytes()


def documentation(described: dict[str, Any]) -> str:
    """Write an OpenAPI document for people: every path, with an example to copy and what errors mean.

    Args:
        described: The document.

    Returns:
        The page.
    """
    operations = [
        (path, method, operation) for path, item in described["paths"].items() for method, operation in item.items()
    ]
    asking = [_operation(*row) for row in operations if "requestBody" in row[2]]
    others = "".join(
        f"<tr><td><span class='method'>{method.upper()}</span> <code>{escape(path)}</code></td>"
        f"<td>{escape(operation['summary'])}</td></tr>"
        for path, method, operation in operations
        if "requestBody" not in operation
    )
    title = f"{escape(described['info']['title'])} {escape(described['info']['version'])}: API"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{title}</title><link rel='icon' href='page/icon.svg' type='image/svg+xml'>"
        "<link rel='stylesheet' href='page/page.css'></head><body class='docs'>"
        f"<header><h1>{title}</h1><p class='links'><a href='./'>Try it</a> <a href='openapi.json'>openapi.json</a></p>"
        f"</header><main><h2>Predict</h2>{''.join(asking)}"
        "<section class='card'><h2>Operate</h2><div class='wide' tabindex='0' role='group' aria-label='Operate'><table>"
        f"<thead><tr><th scope='col'>path</th><th scope='col'>answers</th></tr></thead><tbody>{others}</tbody></table>"
        f"</div></section>{_errors(operations)}</main></body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    """Write a path that takes a body, with an example."""
    example = operation["requestBody"]["content"]["application/json"]["schema"]["example"]
    body = escape(json.dumps(example, indent=2, ensure_ascii=False))
    return (
        f"<section class='card'><h3><span class='method'>{method.upper()}</span> <code>{escape(path)}</code></h3>"
        f"<p>{escape(operation['summary'])}</p>"
        f"<pre tabindex='0' role='group' aria-label='Example for {escape(path)}'>{body}</pre></section>"
    )


def _errors(operations: list[tuple[str, str, dict[str, Any]]]) -> str:
    """Write what the codes of errors mean."""
    codes: dict[str, str] = {}
    for _, _, operation in operations:
        codes |= {code: words["description"] for code, words in operation["responses"].items() if code != "200"}
    rows = "".join(f"<tr><td>{code}</td><td>{escape(words)}</td></tr>" for code, words in sorted(codes.items()))
    head = "<thead><tr><th scope='col'>code</th><th scope='col'>meaning</th></tr></thead>"
    return f"<section class='card'><h2>Errors</h2><table>{head}<tbody>{rows}</tbody></table></section>"
