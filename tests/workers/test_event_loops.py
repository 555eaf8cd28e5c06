"""One event loop after another, and several at a time, as in a program that embeds a conductor."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dirigent.concurrency import PerLoop
from dirigent.conduct import Conductor
from dirigent.errors import WorkerError
from dirigent.messages import Reply, Request, conversation
from dirigent.planners.fixed import Single
from dirigent.run.trace import Trace
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.cached import Cached
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.http import HttpClient, HttpWorker
from dirigent.workers.local import Local, LocalModel
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.pool import Pool
from dirigent.workers.ratelimited import RateLimited
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import WorkerInfo
from dirigent.workers.wrappers import wrap
from tests.facts import facts
from tests.stub_provider import WIRES, StubProvider, WireName

MAKE = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
THREADS = 4
ASKED = Request(conversation("hi"), max_output_tokens=4, temperature=0.0)


@pytest.fixture
def stub() -> Iterator[StubProvider]:
    """A provider in a loop and thread of its own, which outlives the loops of those who ask it."""
    with running_loop() as loop:
        stub = StubProvider()
        asyncio.run_coroutine_threadsafe(stub.__aenter__(), loop).result()
        try:
            yield stub
        finally:
            asyncio.run_coroutine_threadsafe(stub.__aexit__(), loop).result()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def at_once(work: Callable[[int], str]) -> list[str]:
    """What so many threads get that begin at the same moment."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> str:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(begin, range(THREADS)))


def sockets() -> int:
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            count += str(fd.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def conducting(stub: StubProvider, client: HttpClient, wire: WireName) -> Conductor:
    inner = HttpWorker(WorkerInfo("w", model="m"), MAKE[wire](), client, base_url=stub.url(wire))
    return Conductor(Single("w"), Pool([wrap(inner, concurrency=2)]))


@pytest.mark.parametrize("wire", WIRES)
def test_a_conductor_runs_in_one_loop_after_another(stub: StubProvider, wire: WireName):
    client = HttpClient()
    conductor = conducting(stub, client, wire)

    async def ask(question: str) -> Trace:
        async with client:
            return await conductor.run(question)

    for question in ("one", "two", "three"):
        trace = asyncio.run(ask(question))
        assert trace.status == "done", trace.error
        assert question in trace.answer


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_client_closed_in_its_loop_leaves_no_socket(stub: StubProvider):
    client = HttpClient()
    conductor = conducting(stub, client, "openai")

    async def several() -> int:
        async with client:
            await asyncio.gather(*(conductor.run("hi") for _ in range(5)))
            return sockets()

    before = sockets()
    for _ in range(3):
        while_open = asyncio.run(several())
        assert while_open > before, "the connections are kept for the next call"
        for _ in range(500):  # the provider closes its own ends in its own thread
            if sockets() <= before:
                break
            threading.Event().wait(0.01)
        assert sockets() <= before


def test_a_client_is_shared_by_threads(stub: StubProvider):
    client = HttpClient()
    conductor = conducting(stub, client, "openai")

    def several(number: int) -> str:
        async def ask() -> str:
            async with client:
                traces = [await conductor.run(f"question {number}") for _ in range(5)]
            return {trace.answer for trace in traces}.pop()

        return asyncio.run(ask())

    for number, answer in enumerate(at_once(several)):
        assert f"question {number}" in answer


async def test_a_closed_client_opens_again(stub: StubProvider):
    client = HttpClient()
    conductor = conducting(stub, client, "openai")
    assert (await conductor.run("hi")).status == "done"
    session = client.session()
    await client.close()
    await client.close()
    assert session.closed
    assert (await conductor.run("hi")).status == "done"
    await client.close()


def test_every_loop_has_a_value_of_its_own_and_keeps_it():
    values = PerLoop(object)

    async def get() -> object:
        found = values.get()
        assert values.get() is found
        return found

    first, second = asyncio.run(get()), asyncio.run(get())
    assert first is not second


def test_the_value_of_a_closed_loop_is_dropped():
    class Value:
        pass

    values = PerLoop(Value)

    async def get() -> weakref.ref[Value]:
        return weakref.ref(values.get())

    first = asyncio.run(get())
    asyncio.run(get())
    gc.collect()
    assert first() is None


def test_a_limit_of_calls_holds_in_one_loop_after_another():
    guard, now, most = threading.Lock(), 0, 0

    async def answer(request: Request) -> str:
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
        await asyncio.sleep(0.001)
        with guard:
            now -= 1
        return "ok"

    worker = RateLimited(Scripted(answer), concurrency=2, requests_per_minute=1000)

    async def crowd() -> int:
        return len(await asyncio.gather(*(worker.ask(ASKED) for _ in range(9))))

    assert [asyncio.run(crowd()) for _ in range(3)] == [9, 9, 9]
    assert most == 2


def test_places_of_a_loop_that_ended_are_free_again():
    worker = RateLimited(Scripted("ok", delay_s=0.05), concurrency=1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.gather(*(worker.ask(ASKED) for _ in range(3)))

    asyncio.run(give_up())
    loop = asyncio.new_event_loop()
    task = loop.create_task(worker.ask(ASKED))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert not task.done()
    assert asyncio.run(worker.ask(ASKED)).text == "ok"
    loop.run_until_complete(task)
    loop.close()


def test_a_limited_worker_is_shared_by_threads():
    worker = RateLimited(Scripted("ok", delay_s=0.001), concurrency=2, requests_per_minute=100_000)

    def crowd(number: int) -> str:
        async def ask() -> str:
            async with asyncio.timeout(30):
                return "".join([r.text for r in await asyncio.gather(*(worker.ask(ASKED) for _ in range(50)))])

        return asyncio.run(ask())

    assert at_once(crowd) == ["ok" * 50] * THREADS


def test_a_cache_is_shared_by_threads():
    inner = Scripted("ok", delay_s=0.02)
    worker = Cached(inner)

    def ask(number: int) -> str:
        return asyncio.run(worker.ask(ASKED)).text

    assert at_once(ask) == ["ok"] * THREADS
    calls = inner.calls
    assert at_once(ask) == ["ok"] * THREADS
    assert inner.calls == calls, "the cache is shared by all"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_local_model_answers_in_one_loop_after_another(weights_path: Path):
    model = LocalModel(weights_path, slots=1, threads=1, context_tokens=512)
    worker = Local(model, name="smol")

    async def ask() -> int:
        async with model:
            replies = await asyncio.gather(worker.ask(ASKED), worker.ask(ASKED))  # one waits for the other's slot
            assert all(reply.text for reply in replies)
            return (await model.running()).process.pid

    pids = [asyncio.run(ask()) for _ in range(2)]
    assert pids[0] != pids[1]
    assert not any(map(alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_local_model_belongs_to_one_loop_at_a_time(weights_path: Path):
    model = LocalModel(weights_path, slots=1, threads=1, context_tokens=512)
    worker = Local(model, name="smol")

    async def asked_and_closed() -> Reply:
        async with model:
            return await worker.ask(ASKED)

    with running_loop() as loop:
        pid = asyncio.run_coroutine_threadsafe(model.running(), loop).result().process.pid
        with pytest.raises(WorkerError, match=facts("smol loop")) as caught:
            asyncio.run(worker.ask(ASKED))
        assert not caught.value.retryable
        with pytest.raises(WorkerError, match=facts("loop")):
            asyncio.run(model.close())
        assert alive(pid), "no other process can end it"
        asyncio.run_coroutine_threadsafe(model.close(), loop).result()
        assert asyncio.run(asked_and_closed()).text, "closed there, it may be asked here"
    assert not alive(pid)


ONLY_CLOSED = """
import asyncio, sys
from dirigent.messages import Request, conversation
from dirigent.workers.local import Local, LocalModel

model = LocalModel(sys.argv[1], slots=1, threads=1, context_tokens=512)
loop = asyncio.new_event_loop()
child = loop.run_until_complete(model.running())  # kept, so that only the model can end it
loop.close()
print(asyncio.run(Local(model, name="smol").ask(Request(conversation("hi"), max_output_tokens=4))).text != "")
child.process._transport._proc.wait(5)
print("ended")
"""


def test_a_local_model_leaves_no_child_if_its_loop_is_only_closed(weights_path: Path):
    program = [sys.executable, "-W", "ignore", "-c", ONLY_CLOSED, str(weights_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "ended"], done.stderr
