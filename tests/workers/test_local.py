"""Local models: a real SmolLM2 in a real child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Event, Image, Message, Request, Schema, Tool
from dirigent.workers import local_server
from dirigent.workers.local import Local, LocalModel
from dirigent.workers.worker import Price
from tests.facts import facts
from tests.workers.gguf_adapter import write_adapter

pytestmark = pytest.mark.asyncio(loop_scope="module")

WaitUntil = Callable[..., Awaitable[None]]

ENDLESS = 'root ::= "a"+'
"""A grammar that lets the model never stop."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(weights_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalModel]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {
        "babble": write_adapter(folder / "babble.gguf", size=3.0),
        "nothing": write_adapter(folder / "nothing.gguf", size=0.0),
    }
    async with LocalModel(weights_path, adapters=adapters, slots=3, context_tokens=4096) as model:
        yield model


@pytest.fixture(scope="module")
def worker(model: LocalModel) -> Local:
    return Local(model, name="smol", about="small")


def ask(text: str, *before: Message, **fields: Any) -> Request:
    fields = {"max_output_tokens": 40, "temperature": 0.0} | fields
    return Request(messages=(*before, Message("user", text)), **fields)


CAPITALS = (
    Message("user", "What is the capital of Italy?"),
    Message("assistant", "The capital of Italy is Rome."),
    Message("user", "What is the capital of Spain?"),
    Message("assistant", "The capital of Spain is Madrid."),
)


async def test_it_answers_a_question(worker: Local) -> None:
    reply = await worker.ask(ask("What is the capital of France?", *CAPITALS))
    assert reply.text == "The capital of France is Paris."
    assert reply.finish == "stop"
    assert reply.cost_usd == 0
    assert reply.model == "SmolLM2-135M-Instruct.Q4_1", "no path of this machine"
    assert reply.usage.input_tokens > 60
    assert 5 < reply.usage.output_tokens < 15
    assert reply.seconds > 0


async def test_its_card_lists_its_abilities(worker: Local) -> None:
    assert worker.info.kind == "local"
    assert worker.info.price == Price()
    assert worker.info.context_tokens == 4096
    assert worker.info.abilities == {"grammar", "schema", "json_mode", "seed", "stop"}


async def test_the_models_own_template_adds_its_system_line(model: LocalModel, worker: Local) -> None:
    await worker.ask(ask("Hi", max_output_tokens=1))
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    prompt = (await call(model, "/apply-template", body))["prompt"]
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


async def test_pieces_join_to_the_text(worker: Local) -> None:
    seen: list[Event] = []
    reply = await worker.ask(ask("Tell me about the sea."), observe=seen.append)
    pieces = [event.text for event in seen if isinstance(event, Delta)]
    assert len(pieces) > 10
    assert "".join(pieces) == reply.text
    assert reply.finish == "length"
    assert reply.usage.output_tokens == 40


async def test_the_same_seed_gives_the_same_text(worker: Local) -> None:
    def request(seed: int) -> Request:
        return ask("Make up a name.", temperature=1.5, seed=seed, max_output_tokens=12)

    await worker.ask(request(0))  # from here on the prompt comes from the cache, and rounds alike
    texts = [(await worker.ask(request(seed))).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


async def test_a_grammar_is_obeyed(worker: Local) -> None:
    reply = await worker.ask(ask("Is fire cold?", grammar='root ::= "yes" | "no"'))
    assert reply.text in ("yes", "no")


async def test_a_schema_is_obeyed(worker: Local) -> None:
    shape = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    reply = await worker.ask(ask("A city?", schema=Schema(shape)))
    assert json.loads(reply.text)["city"] in ("Rome", "Oslo")


async def test_json_mode_gives_json(worker: Local) -> None:
    reply = await worker.ask(ask("Write an object.", json_mode=True))
    if reply.finish == "stop":
        json.loads(reply.text)
    assert reply.text.lstrip()[0] == "{"


async def test_a_stop_ends_the_reply(worker: Local) -> None:
    reply = await worker.ask(ask("What is the capital of France?", *CAPITALS, stop=(" France",)))
    assert reply.text == "The capital of"


async def test_a_repeated_beginning_is_read_once(worker: Local) -> None:
    rules = Message("system", "You are a careful planner of many things. " * 30)
    await worker.ask(ask("First.", rules, max_output_tokens=1))
    await worker.ask(ask("Something else.", max_output_tokens=1))
    reply = await worker.ask(ask("Second.", rules, max_output_tokens=1))
    assert reply.usage.cached_input_tokens > 200


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask("x", tools=(Tool("f", {}),)), "tools"),
        (Request((Message("user", (Image(url="https://example.com/a.png"),)),)), "images"),
        (ask("x", effort="high"), "effort"),
    ],
)
async def test_a_request_beyond_its_abilities_is_refused(worker: Local, request_: Request, field: str) -> None:
    with pytest.raises(WorkerError, match=facts(f"smol {field}")) as caught:
        await worker.ask(request_)
    assert caught.value.fault == "request"


async def test_a_prompt_longer_than_the_context_is_refused(worker: Local) -> None:
    with pytest.raises(WorkerError, match=facts("context")) as caught:
        await worker.ask(ask("word " * 5000))
    assert caught.value.fault == "request"
    assert caught.value.worker == "smol"


async def test_a_broken_grammar_is_refused(worker: Local) -> None:
    with pytest.raises(WorkerError, match="grammar") as caught:
        await worker.ask(ask("x", grammar="root ::= (("))
    assert caught.value.fault == "request"


async def test_adapters_change_their_own_workers_only(model: LocalModel, worker: Local) -> None:
    question = ask("What is the capital of France?", *CAPITALS, max_output_tokens=8)
    babbler = Local(model, name="babbler", adapter="babble", skills=("noise",))
    silent = Local(model, name="silent", adapter="nothing")
    assert babbler.info.model == "SmolLM2-135M-Instruct.Q4_1+babble"
    replies = [await someone.ask(question) for someone in (worker, babbler, silent, worker, babbler)]
    texts = [reply.text for reply in replies]
    assert texts[0] == texts[2] == texts[3] == "The capital of France is Paris."
    assert texts[1] == texts[4] != texts[0]


async def test_adapters_do_not_mix_when_asked_at_once(model: LocalModel, worker: Local) -> None:
    question = ask("What is the capital of France?", *CAPITALS, max_output_tokens=8)
    babbler = Local(model, name="babbler", adapter="babble")
    replies = await asyncio.gather(*(someone.ask(question) for someone in (worker, babbler) * 3))
    texts = [reply.text for reply in replies]
    assert texts[0::2] == ["The capital of France is Paris."] * 3
    assert not any("Paris" in text for text in texts[1::2])


async def test_an_adapter_the_model_does_not_have_is_named(model: LocalModel) -> None:
    with pytest.raises(ConfigError, match=facts("bable babble nothing")):
        Local(model, name="x", adapter="bable")


async def call(model: LocalModel, path: str, body: object = None, *, key: str | None = None) -> Any:
    """The child's own HTTP interface, with its key unless another is given."""
    child = await model.running()
    headers = {"Authorization": f"Bearer {child.key.reveal() if key is None else key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(
            "GET" if body is None else "POST", f"http://127.0.0.1:{child.port}{path}", json=body
        ) as response,
    ):
        return await response.json() if response.status == 200 else response.status


async def busy(model: LocalModel) -> bool:
    return any(slot["is_processing"] for slot in await call(model, "/slots"))


async def wait_busy(model: LocalModel) -> None:
    while not await busy(model):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.01)


async def wait_idle(model: LocalModel, *, within_s: float) -> None:
    end = time.monotonic() + within_s
    while await busy(model):
        assert time.monotonic() < end, f"still generating {within_s:g} s after the cancel"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("key", ["", "wrong"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/slots", "/props", "/lora-adapters"])
async def test_without_the_key_the_child_refuses_requests(model: LocalModel, path: str, key: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]} if "completion" in path else None
    assert await call(model, path, body, key=key) == 401


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_key_cannot_be_read_off_the_process(model: LocalModel) -> None:
    child = await model.running()
    assert child.key.reveal().encode() not in shown_by_the_system(child.process.pid)


def shown_by_the_system(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


async def test_cancelling_stops_the_generation_within_a_second(model: LocalModel, worker: Local) -> None:
    writing = asyncio.Event()
    request = ask("a", grammar=ENDLESS, max_output_tokens=3000)
    task = asyncio.create_task(worker.ask(request, observe=lambda event: writing.set()))
    await writing.wait()
    assert await busy(model)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_idle(model, within_s=1.0)


async def test_cancelling_an_unwatched_ask_stops_it_too(model: LocalModel, worker: Local) -> None:
    task = asyncio.create_task(worker.ask(ask("a", grammar=ENDLESS, max_output_tokens=3000)))
    await wait_busy(model)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_idle(model, within_s=1.0)


async def test_cancelling_while_the_prompt_is_read_stops_the_reading(model: LocalModel, worker: Local) -> None:
    task = asyncio.create_task(worker.ask(ask("Something new to read. " * 700)))
    await wait_busy(model)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_idle(model, within_s=3.0)  # reading it all takes more than ten


async def test_a_deadline_ends_the_ask(worker: Local) -> None:
    request = ask("a", grammar=ENDLESS, max_output_tokens=3000, deadline=time.monotonic() + 0.5)
    with pytest.raises(WorkerError) as caught:
        await worker.ask(request)
    assert caught.value.fault == "timeout"


async def test_a_deadline_counts_while_waiting_for_a_slot(weights_path: Path) -> None:
    async with LocalModel(weights_path, slots=1, context_tokens=512) as model:
        worker = Local(model, name="smol")
        async with model.slots.lease(None, "somebody else"):
            with pytest.raises(WorkerError) as caught:
                await worker.ask(ask("x", deadline=time.monotonic() + 0.05))
    assert caught.value.fault == "timeout"


async def test_a_child_that_dies_fails_its_ask_and_is_started_again(weights_path: Path) -> None:
    async with LocalModel(weights_path, slots=1, context_tokens=512) as model:
        worker = Local(model, name="smol")
        first = await model.running()

        def kill(event: Event) -> None:
            if first.process.returncode is None:
                first.process.kill()

        with pytest.raises(WorkerError, match=facts("9")) as caught:
            await worker.ask(ask("a", grammar=ENDLESS, max_output_tokens=400), observe=kill)
        assert caught.value.fault == "connect"
        assert caught.value.worker == "smol"
        reply = await worker.ask(ask("Is fire cold?", grammar='root ::= "yes" | "no"'))
        assert reply.text in ("yes", "no")
        assert (await model.running()).process.pid != first.process.pid


async def test_asks_at_once_share_one_start(weights_path: Path) -> None:
    async with LocalModel(weights_path, slots=2, context_tokens=512) as model:
        first, second = await asyncio.gather(model.running(), model.running())
    assert first is second


async def test_close_ends_the_child_even_while_it_writes(weights_path: Path) -> None:
    model = LocalModel(weights_path, slots=1, context_tokens=512)
    worker, writing = Local(model, name="smol"), asyncio.Event()
    task = asyncio.create_task(
        worker.ask(ask("a", grammar=ENDLESS, max_output_tokens=400), observe=lambda event: writing.set())
    )
    await writing.wait()
    pid = (await model.running()).process.pid
    await model.close()
    assert gone(pid)
    with pytest.raises(WorkerError):
        await task
    await model.close()


async def test_close_while_starting_leaves_no_child(weights_path: Path) -> None:
    model = LocalModel(weights_path, slots=1, context_tokens=512)
    task = asyncio.create_task(model.running())
    await asyncio.sleep(0.2)
    await model.close()
    with pytest.raises(WorkerError):  # no caller cancelled the ask
        await task


async def test_an_ask_that_waited_while_the_model_was_closed_starts_no_child(weights_path: Path) -> None:
    model = LocalModel(weights_path, slots=1, context_tokens=512)
    worker, writing = Local(model, name="smol"), asyncio.Event()
    first, second = (
        asyncio.create_task(
            worker.ask(ask("a", grammar=ENDLESS, max_output_tokens=400), observe=lambda event: writing.set())
        )
        for _ in range(2)
    )
    await writing.wait()
    await model.close()
    for task in (first, second):
        with pytest.raises(WorkerError) as caught:
            await task
        assert not caught.value.retryable, "a second try would start the closed process"
    assert model._start is None
    assert (await worker.ask(ask("a", max_output_tokens=2))).text, "an ask after it starts the model again"
    await model.close()


def gone(pid: int) -> bool:
    """No such process, or one that is dead and only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


PARENT = """
import asyncio, sys
from dirigent.workers.local import LocalModel

async def main():
    child = await LocalModel(sys.argv[1], slots=1, context_tokens=512).running()
    print(child.process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_parent_that_is_killed_takes_the_child_along(weights_path: Path, wait_until: WaitUntil) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(weights_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert not gone(pid)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await wait_until(lambda: gone(pid), within_s=5.0)


async def test_the_error_for_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    async with LocalModel(tmp_path / "bad.gguf") as model:
        with pytest.raises(WorkerError, match=facts("smol bad.gguf")) as caught:
            await Local(model, name="smol").ask(ask("x"))
    assert not caught.value.retryable


async def test_weights_by_name_that_cannot_be_had_fail_the_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    async with LocalModel("smollm2-135m", cache=tmp_path / "cache") as model:
        with pytest.raises(WorkerError, match=facts("smollm2-135m")):
            await Local(model, name="smol").ask(ask("x"))


@pytest.mark.parametrize(
    ("weights", "message"),
    [("smollm-135m", "smollm-135m smollm2-135m"), ("there/is/none.gguf", "there/is/none.gguf")],
)
async def test_wrong_weights_are_found_before_anything_starts(weights: str, message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        LocalModel(weights)


async def test_a_missing_adapter_file_is_found_before_anything_starts(weights_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("adapter no.gguf")):
        LocalModel(weights_path, adapters={"a": "no.gguf"})


async def test_the_error_for_a_missing_extra_names_the_package(
    weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=facts("pip install dirigent[local]")):
        LocalModel(weights_path)


async def test_copied_text_is_guessed_and_the_text_stays_the_same(model: LocalModel) -> None:
    copied = "The lamp of the old harbour master stands on the third shelf beside two brass compasses."
    body = {
        "messages": [{"role": "user", "content": f"Repeat this: {copied}"}],
        "grammar": f'root ::= "{copied} {copied}"',
        "temperature": 0.0,
        "max_tokens": 80,
    }
    reply = await call(model, "/v1/chat/completions", body)
    assert reply["choices"][0]["message"]["content"] == f"{copied} {copied}"
    timings = reply["timings"]
    assert timings["draft_n_accepted"] > timings["predicted_n"] / 2, "most of a copy is guessed"


async def test_a_wrong_guess_is_dropped(model: LocalModel) -> None:
    said = "one two three four five six seven"
    body = {
        "messages": [{"role": "user", "content": f"{said} eight nine ten eleven"}],
        "grammar": f'root ::= "{said} zero {said} zero"',
        "temperature": 0.0,
        "max_tokens": 80,
    }
    reply = await call(model, "/v1/chat/completions", body)
    assert reply["choices"][0]["message"]["content"] == f"{said} zero {said} zero"
    assert reply["timings"]["draft_n"] > reply["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize(("threads", "writing"), [(1, 1), (2, 1), (4, 3)])
async def test_a_core_is_left_to_the_reader_of_tokens(threads: int, writing: int) -> None:
    assert local_server.writing_threads(threads) == writing


async def test_threads_are_cores_within_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= local_server.physical_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(local_server, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")
    monkeypatch.setattr(local_server, "_quota_cores", lambda: 64)
    assert local_server.physical_cores() == 2, "hyper-threads of one core count once"
    monkeypatch.setattr(local_server, "_quota_cores", lambda: 1)
    assert local_server.physical_cores() == 1
