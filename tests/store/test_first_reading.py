"""msgspec looks through a type when it is first decoded, and crashes where two threads do so at once. Queries run in
threads, so everything that they decode must have been looked through before there are any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IN_A_NEW_PROCESS = """
import asyncio, sys, threading

import msgspec

from dirigent.store import Store, run_states
from dirigent.store.keys import Caller, authenticate, create_key, list_keys
from dirigent.store.responses import KeptResponse, find_response, keep_response
from tests.store.samples import a_trace

late = set()

def watch(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        late.add(frame.f_locals["obj"].__name__)

threading.setprofile(watch)  # for every thread but this one


class Unlooked(msgspec.Struct):
    x: int


class Body(msgspec.Struct):
    x: str


async def main(url):
    async with Store.open(url) as store:
        if sys.argv[2] == "itself":
            await store.read(lambda _: msgspec.json.decode(b'{"x": 1}', type=Unlooked))
            return
        await store.save(a_trace("one"))
        assert (await store.get("one")).id == "one"
        await store.save(a_trace("two", question="key sk-proj-" + "a1B2" * 10))
        assert [trace.id async for trace in store.export()] == ["one", "two"]
        made = await create_key(store, Caller(label="x"))
        assert (await authenticate(store, made.text)).label == "x"
        assert await list_keys(store)
        await keep_response(store, KeptResponse("r", "k", "one", "completed", b"[]", b"{}"))
        assert (await find_response(store, "r", key_id="k")).run_id == "one"
        await run_states.begin(store, "three", key_id="k", body=Body("sk-proj-" + "a1B2" * 10))
        assert (await run_states.find(store, "three")).read(Body)

asyncio.run(main(sys.argv[1]))
print(",".join(sorted(late)))
"""


@pytest.mark.parametrize(("what", "late"), [("store", ""), ("itself", "Unlooked")])
def test_nothing_is_looked_through_in_a_thread(tmp_path: Path, what: str, late: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, str(tmp_path / "x.db"), what],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, late), ran.stderr[-2000:]
