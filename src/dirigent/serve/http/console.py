"""The console: its built files, served at `/` without a key. They hold no data; the API has it.

The files are in `dirigent/console/` (source: `web/`, made by `make console`). They are compressed once, when the
server starts. Names under `/assets/` hold a hash of their content, so browsers may cache them forever; the page itself
is requested each time. The content security policy allows nothing inline and nothing from elsewhere.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import mimetypes
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dirigent.serve.http.errors import Problem

FOLDER = Path(__file__).parents[2] / "console"
PAGE = "index.html"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
FOR_EVER = "public, max-age=31536000, immutable"


class File(msgspec.Struct, frozen=True):
    """A built file, as it is sent."""

    body: bytes
    compressed: bytes
    media_type: str
    etag: str


def is_console(path: str) -> bool:
    """Whether a path is the console's page or one of its files."""
    return path == "/" or path.startswith("/assets/")


@functools.cache
def files(folder: Path = FOLDER) -> dict[str, File]:
    """The built files by their path below the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            body = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            name = path.relative_to(folder).as_posix()
            found[name] = File(body, gzip.compress(body, 9, mtime=0), kind, etag)
    return found


async def page(request: Request) -> Response:
    """The console."""
    return _sent(request, PAGE, cache="no-cache")


async def asset(request: Request) -> Response:
    """A file of the console. Its name holds a hash of its content."""
    return _sent(request, "assets/" + request.path_params["name"], cache=FOR_EVER)


def _sent(request: Request, name: str, *, cache: str) -> Response:
    file = files().get(name)
    if file is None:
        raise Problem(404, f"the console has no file {name[:80]!r}")
    headers = HEADERS | {"Cache-Control": cache, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    packed = "gzip" in request.headers.get("accept-encoding", "") and len(file.compressed) < len(file.body)
    if packed:
        headers["Content-Encoding"] = "gzip"
    charset = "; charset=utf-8" if file.media_type.startswith(("text/", "image/svg")) else ""
    headers["Content-Type"] = file.media_type + charset
    return Response(file.compressed if packed else file.body, headers=headers)


ROUTES = (Route("/", page, methods=["GET"]), Route("/assets/{name}", asset, methods=["GET"]))
