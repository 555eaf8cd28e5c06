"""Data sets come from the hub: page by page or file by file, resumed after a cut, checked, and never half."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.published_rows import published

from dirigent.errors import ConfigError
from dirigent.tasks.benchmarks import fetch_benchmark
from dirigent.tasks.hub import Addresses, HubSet, fetch

LCB = "".join(json.dumps(row) + "\n" for row, _ in published("livecodebench", 4)).encode()


class StubHub:
    """The two services of the hub on loopback, in the shape that they answer."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.fail: list[int] = []
        """Statuses to answer the next calls with."""
        self.asked: list[str] = []
        self.auth: list[str] = []
        self.token = ""
        self.cut_file_at: int | None = None
        self.named_sha256 = hashlib.sha256(LCB).hexdigest()
        self.row_extra: dict[str, Any] = {"truncated_cells": []}

    async def serve_rows(self, request: web.Request) -> web.Response:
        query = request.query
        self.asked.append(f"{query['config']} {query['offset']}")
        self.auth.append(request.headers.get("Authorization", ""))
        if self.fail:
            return web.json_response({"error": "busy"}, status=self.fail.pop(0))
        if self.token and self.auth[-1] != f"Bearer {self.token}":
            return web.json_response({"error": "gated"}, status=401)
        rows = self.rows[query["config"]]
        offset, length = int(query["offset"]), int(query["length"])
        page = [{"row_idx": i, "row": row, **self.row_extra} for i, row in enumerate(rows)][offset : offset + length]
        body = {"features": [], "rows": page, "num_rows_total": len(rows), "num_rows_per_page": 100, "partial": False}
        return web.json_response(body)

    async def serve_file(self, request: web.Request) -> web.StreamResponse:
        begin = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.asked.append(f"{request.match_info['file']} {begin}")
        if self.fail:
            return web.Response(status=self.fail.pop(0))
        if begin >= len(LCB):
            return web.Response(status=416, headers={"X-Linked-Etag": f'"{self.named_sha256}"'})
        body, headers = LCB[begin:], {"X-Linked-Etag": f'"{self.named_sha256}"'}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(LCB) - 1}/{len(LCB)}"
        if self.cut_file_at is not None:
            return await self._cut(request, body)
        return web.Response(body=body, status=206 if begin else 200, headers=headers)

    async def _cut(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Promise all, send some, and hang up."""
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: self.cut_file_at])
        self.cut_file_at = None
        assert request.transport is not None
        request.transport.close()
        return response


@pytest.fixture
async def hub() -> AsyncIterator[tuple[StubHub, Addresses]]:
    stub = StubHub()
    app = web.Application()
    app.router.add_get("/rows", stub.serve_rows)
    app.router.add_get("/datasets/{owner}/{name}/resolve/main/{file}", stub.serve_file)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield stub, Addresses(url, url)
    await runner.cleanup()


def rows(n: int) -> list[dict[str, Any]]:
    return [row for row, _ in published("gsm8k", n)]


async def test_a_set_is_fetched_page_by_page_once_and_for_all(tmp_path: Path, hub: tuple[StubHub, Addresses]) -> None:
    stub, addresses = hub
    stub.rows["main"] = rows(230)
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        tasks = await fetch_benchmark(
            "gsm8k", cache=tmp_path, addresses=addresses, progress=lambda what, done, total: seen.append((done, total))
        )
        assert len(tasks) == 230
    assert stub.asked == ["main 0", "main 100", "main 200"]
    assert seen == [(100, 230), (200, 230), (230, 230)]


async def test_what_came_before_a_cut_is_not_asked_again(tmp_path: Path, hub: tuple[StubHub, Addresses]) -> None:
    stub, addresses = hub
    stub.rows["main"] = rows(150)
    wanted = HubSet("openai/gsm8k", configs=("main",))
    part = tmp_path / f"{wanted.name}.main.part"
    whole = "".join(json.dumps(row | {"config": "main"}) + "\n" for row in rows(100))
    part.write_text(whole + '{"question": "cut in the mi')
    path = await fetch(wanted, cache=tmp_path, addresses=addresses)
    assert stub.asked == ["main 100"]
    assert len(path.read_text().splitlines()) == 150
    assert not part.exists()


async def test_a_busy_hub_is_asked_again_and_then_given_up_with_what_came_kept(
    tmp_path: Path, hub: tuple[StubHub, Addresses]
) -> None:
    stub, addresses = hub
    stub.rows["main"] = rows(150)
    wanted = HubSet("openai/gsm8k", configs=("main",))
    stub.fail = [429, 503]
    await fetch(wanted, cache=tmp_path / "patient", addresses=addresses, wait_s=0.001)
    stub.fail = [503] * 9
    with pytest.raises(ConfigError, match="could not be fetched: HTTP 503; what came is kept"):
        await fetch(wanted, cache=tmp_path / "given-up", addresses=addresses, wait_s=0.001)


async def test_several_configurations_make_one_set(tmp_path: Path, hub: tuple[StubHub, Addresses]) -> None:
    stub, addresses = hub
    for config in ("AIME2025-I", "AIME2025-II"):
        stub.rows[config] = [{"question": f"{config} {i}", "answer": str(i)} for i in range(15)]
    tasks = await fetch_benchmark("aime25", cache=tmp_path, addresses=addresses)
    assert len({task.question for task in tasks}) == len(tasks) == 30


async def test_a_gated_set_says_how_to_get_in_and_lets_a_token_in(
    tmp_path: Path, hub: tuple[StubHub, Addresses], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, addresses = hub
    stub.rows["gpqa_diamond"] = [row for row, _ in published("gpqa", 3)]
    stub.token = "made-up"
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"HTTP 401\); accept its terms at https://\S+/gpqa and set HF_TOKEN"):
        await fetch_benchmark("gpqa", cache=tmp_path, addresses=addresses)
    monkeypatch.setenv("HF_TOKEN", "made-up")
    assert len(await fetch_benchmark("gpqa", cache=tmp_path, addresses=addresses)) == 3


async def test_cells_that_come_cut_off_are_an_error_and_no_question(
    tmp_path: Path, hub: tuple[StubHub, Addresses]
) -> None:
    stub, addresses = hub
    stub.rows["main"] = rows(2)
    stub.row_extra = {"truncated_cells": ["question"]}
    with pytest.raises(ConfigError, match="row 0 of openai/gsm8k comes with cells cut off"):
        await fetch_benchmark("gsm8k", cache=tmp_path, addresses=addresses)


async def test_a_file_that_broke_off_goes_on_where_it_was(tmp_path: Path, hub: tuple[StubHub, Addresses]) -> None:
    stub, addresses = hub
    stub.cut_file_at = 1000
    wanted = HubSet("livecodebench/code_generation_lite", files=("test6.jsonl",))
    path = await fetch(wanted, cache=tmp_path, addresses=addresses, wait_s=0.001)
    assert path.read_bytes() == LCB
    assert stub.asked == ["test6.jsonl 0", "test6.jsonl 1000"]


async def test_a_file_with_another_sum_than_the_hub_names_is_deleted(
    tmp_path: Path, hub: tuple[StubHub, Addresses]
) -> None:
    stub, addresses = hub
    stub.named_sha256 = "0" * 64
    with pytest.raises(ConfigError, match=r"not 0000.*the download was deleted"):
        await fetch_benchmark("livecodebench", cache=tmp_path, addresses=addresses)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a test may wait


async def test_a_sum_that_we_know_goes_before_the_hubs(tmp_path: Path, hub: tuple[StubHub, Addresses]) -> None:
    _, addresses = hub
    wanted = HubSet("a/b", files=("f.jsonl",), sha256={"f.jsonl": "1" * 64})
    with pytest.raises(ConfigError, match="not 1111"):
        await fetch(wanted, cache=tmp_path, addresses=addresses)


async def test_what_is_not_on_the_hub_says_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="math_l5 is not on the hub; get it from https://"):
        await fetch_benchmark("math_l5", cache=tmp_path)


async def test_a_benchmark_without_a_training_part_has_none(tmp_path: Path) -> None:
    assert await fetch_benchmark("math500", part="train", cache=tmp_path) == []


def test_a_mirror_is_named_by_the_environment() -> None:
    assert Addresses.of({}).files == "https://huggingface.co"
    assert Addresses.of({"HF_ENDPOINT": "https://mirror.example/"}).files == "https://mirror.example"
