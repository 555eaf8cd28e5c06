"""A server process for the tests of background runs: it takes over unfinished runs, and starts one run on request.

    python -m tests.serve.background_child CONFIG TOLD [start]

Prints its address, then the id of the run it started. Ends of runs are written to TOLD, a JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dirigent.config.file import load_config
from dirigent.messages import Message, Request
from dirigent.run.trace import Trace
from dirigent.serve.http.server import bound, serve_until_stopped
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.start import begin, prepare
from dirigent.serve.service import ServeSettings, Service, open_service
from dirigent.store.keys import LOCAL_ADMIN

PURPOSE = {"kind": "test", "note": "for whom"}


async def main(config: str, told: str, *words: str) -> None:
    async def tell(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
        note(Path(told), {"purpose": dict(purpose), "status": trace.status, "answer": trace.answer})

    async with open_service(load_config(Path(config)), settings=ServeSettings(grace_s=1.0)) as service:
        service.on_finished["test"] = tell
        if "start" in words:
            asked = Asked(model="ultra", question=(Message("user", "do it"),), options=Request(()))
            run = prepare(service, asked, caller=LOCAL_ADMIN, began=time.monotonic())
            await begin(run, purpose=PURPOSE)
            print(run.id, flush=True)
        listener = bound("127.0.0.1", 0)
        await serve_until_stopped(service, listener)


def note(file: Path, said: dict[str, object]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
