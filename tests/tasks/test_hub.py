"""Data sets come from the hub: file by file or page by page, resumed after a cut, checked, and always whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.facts import facts
from tests.published_rows import PUBLISHED_ROWS, published
from tests.tasks.stub_hub import Row, StubHub, stub_hub, written

from dirigent.errors import ConfigError
from dirigent.tasks import hub as hub_module
from dirigent.tasks.benchmarks import BENCHMARKS, fetch_benchmark
from dirigent.tasks.hub import Addresses, HubSet, fetch

LCB_FILE = "livecodebench/code_generation_lite/test6.jsonl"
LCB = "".join(json.dumps(row) + "\n" for row, _ in published("livecodebench", 4)).encode()
LCB_SET = HubSet("livecodebench/code_generation_lite", configs=("v6",), files=("test6.jsonl",))
GSM8K = HubSet("openai/gsm8k", configs=("main",))


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubHub]:
    """Reached as users reach a mirror: by HF_ENDPOINT alone."""
    async with stub_hub() as stub:
        stub.files[LCB_FILE] = LCB
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("DIRIGENT_DATASETS_SERVER", raising=False)
        yield stub


@pytest.fixture
def viewer(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> StubHub:
    """The same hub with rows, and nothing here that reads Parquet."""
    monkeypatch.setenv("DIRIGENT_DATASETS_SERVER", hub.url)
    monkeypatch.setattr(hub_module, "parquet_is_readable", lambda: False)
    return hub


def rows(n: int) -> list[Row]:
    return [row for row, _ in published("gsm8k", n)]


def lay_out(stub: StubHub, name: str) -> int:
    """Writes a benchmark's files to its authors' paths; returns their number of questions."""
    source = BENCHMARKS[name].hub
    assert source is not None
    asked = [row for row, _ in published(name, 3 * len(source.files))]
    for i, file in enumerate(source.files):
        # Only a file's name has its configuration, and Parquet has no empty objects.
        taken = asked[3 * i : 3 * i + 3]
        own = [{key: value for key, value in row.items() if key != "config" and value != {}} for row in taken]
        stub.files[f"{source.dataset}/{file}"] = written(own, file)
    return len(asked)


@pytest.mark.parametrize("name", PUBLISHED_ROWS)
async def test_every_benchmark_comes_from_its_files_and_the_second_time_from_the_cache(
    tmp_path: Path, hub: StubHub, name: str
) -> None:
    pytest.importorskip("pyarrow")
    n = lay_out(hub, name)
    hub.gate = "made-up" if (gated := name == "gpqa") else ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "made-up" if gated else "")
        first = await fetch_benchmark(name, cache=tmp_path)
    assert len(first) == n
    asked = len(hub.asked)
    hub.files.clear()
    assert await fetch_benchmark(name, cache=tmp_path) == first
    assert len(hub.asked) == asked
    assert len(list(tmp_path.iterdir())) == 1  # noqa: ASYNC240 - a test may wait


async def test_a_row_says_which_configuration_it_is_of(tmp_path: Path, hub: StubHub) -> None:
    pytest.importorskip("pyarrow")
    lay_out(hub, "bbh")
    tasks = await fetch_benchmark("bbh", cache=tmp_path)
    assert len({task.tags["subject"] for task in tasks}) == 27
    assert tasks[0].id == "bbh-boolean_expressions-0"


@pytest.mark.parametrize("name", PUBLISHED_ROWS)
async def test_files_are_asked_for_where_the_hubs_own_client_does(tmp_path: Path, hub: StubHub, name: str) -> None:
    client = pytest.importorskip("huggingface_hub")
    pytest.importorskip("pyarrow")
    source = BENCHMARKS[name].hub
    assert source is not None
    lay_out(hub, name)
    await fetch(source, cache=tmp_path)
    asked = {
        client.hf_hub_url(source.dataset, file, repo_type="dataset", endpoint=hub.url).removeprefix(hub.url)
        for file in source.files
    }
    assert set(hub.paths) == asked


async def test_the_token_goes_to_the_hub_and_not_to_the_target_of_its_redirect(
    tmp_path: Path, hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "made-up")
    await fetch(LCB_SET, cache=tmp_path)
    assert hub.tokens == [("hub", "Bearer made-up"), ("store", "")]


def test_with_a_mirror_the_hubs_own_viewer_is_not_asked() -> None:
    usual = Addresses.of({})
    assert usual == Addresses("https://huggingface.co", "https://datasets-server.huggingface.co")
    assert Addresses.of({"HF_ENDPOINT": "https://huggingface.co/"}) == usual
    mirror = {"HF_ENDPOINT": "https://mirror.example/"}
    assert Addresses.of(mirror) == Addresses("https://mirror.example", "")
    assert Addresses.of(mirror | {"DIRIGENT_DATASETS_SERVER": "https://rows.example"}).rows == "https://rows.example"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "HTTP 401 HF_TOKEN --data https://huggingface.co/datasets/Idavidrein/gpqa"),
        ("another", "HTTP 403 HF_TOKEN --data https://huggingface.co/datasets/Idavidrein/gpqa"),
    ],
)
async def test_a_gated_set_says_how_to_get_in(
    tmp_path: Path, hub: StubHub, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    lay_out(hub, "gpqa")
    hub.gate = "made-up"
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match=facts(said)):
        await fetch_benchmark("gpqa", cache=tmp_path)


async def test_a_set_that_asks_for_consent_since_we_last_looked_says_so(tmp_path: Path, hub: StubHub) -> None:
    hub.gate = "made-up"
    with pytest.raises(ConfigError, match=facts("livecodebench/code_generation_lite 401 HF_TOKEN --data")):
        await fetch_benchmark("livecodebench", cache=tmp_path)


async def test_a_set_that_is_not_there_says_where_to_get_it(tmp_path: Path, hub: StubHub) -> None:
    hub.files.clear()
    with pytest.raises(
        ConfigError, match=facts("HTTP 404 test.jsonl https://huggingface.co/datasets/HuggingFaceH4/MATH-500")
    ):
        await fetch_benchmark("math500", cache=tmp_path)


async def test_a_file_that_was_moved_is_asked_of_the_viewer_row_by_row(
    tmp_path: Path, hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRIGENT_DATASETS_SERVER", hub.url)
    hub.rows["default"] = [row for row, _ in published("math500", 3)]
    assert len(await fetch_benchmark("math500", cache=tmp_path)) == 3
    assert hub.asked == ["test.jsonl 0", "default 0"]


async def test_parquet_that_cannot_be_read_is_not_fetched_and_the_error_names_the_missing_package(
    tmp_path: Path, hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "parquet_is_readable", lambda: False)
    with pytest.raises(ConfigError, match=facts("openai/gsm8k Parquet pip install pyarrow --data")):
        await fetch_benchmark("gsm8k", cache=tmp_path)
    assert hub.asked == []


async def test_an_interrupted_download_continues_at_its_last_byte(tmp_path: Path, hub: StubHub) -> None:
    hub.cut_at = [1000]
    path = await fetch(LCB_SET, cache=tmp_path, wait_s=0.001)
    assert path.read_bytes() == LCB
    assert hub.asked == ["test6.jsonl 0", "test6.jsonl 1000"]


@pytest.mark.parametrize("large", [True, False])
async def test_a_cut_download_is_no_set_until_the_rest_has_come(tmp_path: Path, hub: StubHub, large: bool) -> None:
    hub.large = large
    hub.cut_at = [300] * 5
    with pytest.raises(ConfigError, match=facts("livecodebench/code_generation_lite")):
        await fetch(LCB_SET, cache=tmp_path, wait_s=0.001)
    assert [file.suffix for file in tmp_path.iterdir()] == [".part"]  # noqa: ASYNC240 - a test may wait
    path = await fetch(LCB_SET, cache=tmp_path)
    assert path.read_bytes() == LCB
    assert hub.asked[-1] == "test6.jsonl 1500"


async def test_a_partial_download_longer_than_the_file_is_fetched_anew(tmp_path: Path, hub: StubHub) -> None:
    hub.large = False
    part = tmp_path / f"{LCB_SET.name}.test6.jsonl.part"
    part.write_bytes(b"{" + b"x" * len(LCB))
    assert (await fetch(LCB_SET, cache=tmp_path, wait_s=0.001)).read_bytes() == LCB


async def test_a_file_that_had_come_whole_is_not_fetched_again(tmp_path: Path, hub: StubHub) -> None:
    (tmp_path / f"{LCB_SET.name}.test6.jsonl.part").write_bytes(LCB)
    assert (await fetch(LCB_SET, cache=tmp_path)).read_bytes() == LCB
    assert hub.asked == [f"test6.jsonl {len(LCB)}"]


async def test_a_login_page_is_no_data_set(tmp_path: Path, hub: StubHub) -> None:
    pytest.importorskip("pyarrow")
    hub.large = False
    page = b"<!doctype html><title>Sign in to the network</title>"
    hub.files |= {LCB_FILE: page, "openai/gsm8k/main/test-00000-of-00001.parquet": page}
    for name in ("livecodebench", "gsm8k"):
        with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1"):
            await fetch_benchmark(name, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a test may wait


async def test_a_table_that_cannot_be_read_is_not_kept(tmp_path: Path, hub: StubHub) -> None:
    pytest.importorskip("pyarrow")
    hub.files["openai/gsm8k/main/test-00000-of-00001.parquet"] = b"PAR1" + b"\0" * 100 + b"PAR1"
    with pytest.raises(ConfigError, match=facts("openai--gsm8k-test-main.main--test-00000-of-00001.parquet.part")):
        await fetch_benchmark("gsm8k", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a test may wait


async def test_a_file_with_another_sum_than_the_hub_names_is_deleted(tmp_path: Path, hub: StubHub) -> None:
    hub.named_sha256 = "0" * 64
    with pytest.raises(ConfigError, match=facts("test6.jsonl " + "0" * 64)):
        await fetch_benchmark("livecodebench", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a test may wait


async def test_a_known_checksum_overrides_the_hubs(tmp_path: Path, hub: StubHub) -> None:
    hub.files["a/b/f.jsonl"] = LCB
    wanted = HubSet("a/b", files=("f.jsonl",), sha256={"f.jsonl": "1" * 64})
    with pytest.raises(ConfigError, match=facts("f.jsonl " + "1" * 64)):
        await fetch(wanted, cache=tmp_path)


async def test_rows_are_fetched_page_by_page_once_and_for_all(tmp_path: Path, viewer: StubHub) -> None:
    viewer.rows["main"] = rows(230)
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        tasks = await fetch_benchmark(
            "gsm8k", cache=tmp_path, progress=lambda what, done, total: seen.append((done, total))
        )
        assert len(tasks) == 230
    assert viewer.asked == ["main 0", "main 100", "main 200"]
    assert seen == [(100, 230), (200, 230), (230, 230)]


async def test_rows_that_came_before_a_cut_are_not_asked_again(tmp_path: Path, viewer: StubHub) -> None:
    viewer.rows["main"] = rows(150)
    part = tmp_path / f"{GSM8K.name}.main.part"
    whole = "".join(json.dumps(row | {"config": "main"}) + "\n" for row in rows(100))
    part.write_text(whole + '{"question": "cut in the mi')
    path = await fetch(GSM8K, cache=tmp_path)
    assert viewer.asked == ["main 100"]
    assert len(path.read_text().splitlines()) == 150
    assert not part.exists()


async def test_rows_of_several_configurations_make_one_set(tmp_path: Path, viewer: StubHub) -> None:
    for config in ("AIME2025-I", "AIME2025-II"):
        viewer.rows[config] = [{"question": f"{config} {i}", "answer": str(i)} for i in range(15)]
    tasks = await fetch_benchmark("aime25", cache=tmp_path)
    assert len({task.question for task in tasks}) == len(tasks) == 30


async def test_a_busy_hub_is_retried_and_after_the_last_try_the_received_part_stays(
    tmp_path: Path, viewer: StubHub
) -> None:
    viewer.rows["main"] = rows(150)
    viewer.fail = [(429, {}), (503, {})]
    await fetch(GSM8K, cache=tmp_path / "patient", wait_s=0.001)
    viewer.fail = [(503, {})] * 9
    with pytest.raises(ConfigError, match=facts("openai/gsm8k HTTP 503")):
        await fetch(GSM8K, cache=tmp_path / "given-up", wait_s=0.001)


@pytest.mark.parametrize("header", [{"Retry-After": "55"}, {"RateLimit": '"api";r=0;t=55'}])
async def test_the_hub_is_waited_for_as_long_as_it_asks(
    tmp_path: Path, viewer: StubHub, monkeypatch: pytest.MonkeyPatch, header: dict[str, str]
) -> None:
    viewer.rows["main"] = rows(1)
    viewer.fail = [(429, header)]
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float, *rest: Any) -> None:
        waits.append(delay)
        await real(0, *rest)

    monkeypatch.setattr(hub_module.asyncio, "sleep", sleep)
    await fetch(GSM8K, cache=tmp_path)
    assert waits == [55.0]


async def test_cells_that_come_cut_off_are_an_error_and_no_question(tmp_path: Path, viewer: StubHub) -> None:
    viewer.rows["main"] = rows(2)
    viewer.row_extra = {"truncated_cells": ["question"]}
    with pytest.raises(ConfigError, match=facts("0 openai/gsm8k --data")):
        await fetch_benchmark("gsm8k", cache=tmp_path)


async def test_rows_that_the_viewer_cannot_show_are_not_requested_again(tmp_path: Path, viewer: StubHub) -> None:
    viewer.fail = [(501, {})]
    with pytest.raises(ConfigError, match=facts("openai/gsm8k HTTP 501 --data")):
        await fetch_benchmark("gsm8k", cache=tmp_path)
    assert viewer.asked == ["main 0"]


async def test_the_error_for_a_set_outside_the_hub_names_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("math_l5 https://github.com/WildEval/ZeroEval --data")):
        await fetch_benchmark("math_l5", cache=tmp_path)


async def test_a_benchmark_without_a_training_part_has_none(tmp_path: Path) -> None:
    assert await fetch_benchmark("math500", part="train", cache=tmp_path) == []
