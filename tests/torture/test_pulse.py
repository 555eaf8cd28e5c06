"""The pulse notices a loop that is blocked, and takes neither a busy machine nor another thread's work for it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.torture.machine import waited_s
from tests.torture.names import HERE, PUBLIC, can_mislead, name_server
from tests.torture.pulse import bare_server, pulse, worst_ms

BLOCKING = """
import asyncio, sys, time
async def answer(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        await asyncio.sleep(0.2)
        time.sleep(0.3)
asyncio.run(main())
"""


async def test_a_loop_that_sleeps_is_noticed_and_an_idle_one_beside_it_is_not() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BLOCKING, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        async with bare_server() as bare, pulse(process.pid, url) as beats, pulse(bare.pid, bare.url) as idle:
            await asyncio.sleep(2.0)
    finally:
        process.kill()
        await process.wait()
    assert worst_ms(beats) > 150
    assert worst_ms(idle) < 150
    assert len(beats) > 2
    assert all(beat.own_ms <= beat.clock_ms for beat in [*beats, *idle])


async def test_the_time_a_process_waits_for_a_processor_is_counted() -> None:
    if waited_s(os.getpid()) == 0.0:
        pytest.skip("this kernel does not count")
    busy = (
        "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "until = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass"
    )
    crowd = [await asyncio.create_subprocess_exec(sys.executable, "-c", busy) for _ in range(3)]
    await asyncio.sleep(0.8)
    waited = sum(waited_s(process.pid) for process in crowd)
    for process in crowd:
        await process.wait()
    assert waited > 0.1


def test_a_process_that_has_ended_has_waited_for_nothing() -> None:
    assert waited_s(2**22 + 1) == 0.0


@pytest.mark.system
async def test_a_rebound_name_means_a_public_address_once_and_this_machine_afterwards() -> None:
    if not can_mislead():
        pytest.skip("a name server needs root, for port 53")
    asking = "import socket, sys; print(socket.getaddrinfo(sys.argv[1], 1)[0][4][0])"
    async with name_server() as names:

        async def meaning(name: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *(*names.before, sys.executable, "-c", asking, name), stdout=asyncio.subprocess.PIPE
            )
            told, _ = await process.communicate()
            return told.decode().strip()

        assert [await meaning("a.rebind.example") for _ in range(3)] == [PUBLIC, HERE, HERE]
        assert await meaning("B.Rebind.Example.") == PUBLIC
        assert dict(names.asked) == {"a.rebind.example": 3, "b.rebind.example": 1}
