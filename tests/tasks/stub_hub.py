"""The hub on loopback: its repositories, the place that large files are sent on to, and the viewer's rows.

Two servers on two ports, so that a redirect from the one to the other leads to another host, as the hub's do.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

import msgspec
from aiohttp import web

Row = dict[str, Any]


class StubHub:
    """Its files, its faults, and the requests it got."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """By `owner/name/path`."""
        self.rows: dict[str, list[Row]] = {}
        """By configuration."""
        self.fail: list[tuple[int, dict[str, str]]] = []
        """Status and headers to answer the next calls with."""
        self.gate = ""
        """The token that opens it; empty: open to all."""
        self.cut_at: list[int] = []
        """Of the next files, how many bytes come before the line breaks."""
        self.named_sha256: str | None = None
        """In place of the right one."""
        self.large = True
        """Whether files lie elsewhere, as large ones do."""
        self.row_extra: Row = {"truncated_cells": []}
        self.asked: list[str] = []
        self.paths: list[str] = []
        self.tokens: list[tuple[str, str]] = []
        """Who was shown which Authorization."""
        self.url = ""
        self.store_url = ""

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """A file of a repository, or a redirect to its place."""
        self.paths.append(request.raw_path)
        place = request.match_info
        name = f"{place['owner']}/{place['name']}/{place['file']}"
        self._note(request, "hub", f"{place['file']} {_begin(request)}")
        if refusal := self._refusal(request):
            return refusal
        if name not in self.files:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        if not self.large:
            return await self._send(request, self.files[name], {})
        sum_ = self.named_sha256 or hashlib.sha256(self.files[name]).hexdigest()
        headers = {"Location": f"{self.store_url}/{name}?signature=s", "X-Linked-Etag": f'"{sum_}"'}
        return web.Response(status=302, headers=headers)

    async def stored(self, request: web.Request) -> web.StreamResponse:
        self._note(request, "store", "")
        return await self._send(request, self.files[request.match_info["name"]], {})

    async def serve_rows(self, request: web.Request) -> web.Response:
        query = request.query
        self._note(request, "viewer", f"{query['config']} {query['offset']}")
        if refusal := self._refusal(request):
            return refusal
        if query["config"] not in self.rows:
            return web.json_response({"error": "The dataset does not exist."}, status=404)
        rows = self.rows[query["config"]]
        offset, length = int(query["offset"]), int(query["length"])
        page = [{"row_idx": i, "row": row, **self.row_extra} for i, row in enumerate(rows)][offset : offset + length]
        body = {"features": [], "rows": page, "num_rows_total": len(rows), "num_rows_per_page": 100, "partial": False}
        return web.json_response(body)

    def _note(self, request: web.Request, who: str, what: str) -> None:
        self.tokens.append((who, request.headers.get("Authorization", "")))
        if what:
            self.asked.append(what)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.fail:
            status, headers = self.fail.pop(0)
            return web.json_response({"error": "no"}, status=status, headers=headers)
        shown = request.headers.get("Authorization", "")
        if self.gate and shown != f"Bearer {self.gate}":
            return web.json_response({"error": "gated"}, status=403 if shown else 401)
        return None

    async def _send(self, request: web.Request, whole: bytes, headers: dict[str, str]) -> web.StreamResponse:
        begin = _begin(request)
        if begin and begin >= len(whole):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(whole)}"})
        if begin:
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(whole) - 1}/{len(whole)}"}
        body, status = whole[begin:], 206 if begin else 200
        if not self.cut_at:
            return web.Response(body=body, status=status, headers=headers)
        response = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: self.cut_at.pop(0)])
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def stub_hub() -> AsyncIterator[StubHub]:
    stub = StubHub()
    hub, store = web.Application(), web.Application()
    hub.router.add_get("/rows", stub.serve_rows)
    hub.router.add_get("/datasets/{owner}/{name}/resolve/main/{file:.+}", stub.resolve)
    store.router.add_get("/{name:.+}", stub.stored)
    runners = [web.AppRunner(app, access_log=None) for app in (hub, store)]
    for runner in runners:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.url, stub.store_url = (f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners)
    try:
        yield stub
    finally:
        for runner in runners:
            await runner.cleanup()


def written(rows: list[Row], file: str) -> bytes:
    """Rows as a file of that name holds them."""
    match PurePosixPath(file).suffix:
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            into = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), into)
            return into.getvalue()
        case ".csv":
            import csv

            text = io.StringIO(newline="")
            table = csv.DictWriter(text, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
            return text.getvalue().encode()
        case ".json":
            return json.dumps({"canary": "made up", "examples": rows}).encode()
        case _:
            return b"\n".join(msgspec.json.encode(row) for row in rows)


def _begin(request: web.Request) -> int:
    return int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
