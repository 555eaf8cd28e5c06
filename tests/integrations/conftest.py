"""A real `dirigent serve` process with a key, over stub workers, and programs of others that talk to it.

Tests marked `integrations` need frameworks of their own and are left out of a plain run:

    make integrations                                     installs them (pinned) and runs these tests
    INTEGRATIONS=folder pytest -m integrations tests/…    with environments made before, one a framework
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dirigent.messages import ToolCall
from dirigent.store import Store
from dirigent.store.keys import Caller, create_key
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "integrations"
ENVIRONMENTS = Path(os.environ.get("INTEGRATIONS") or ROOT / ".venv-integrations").absolute()
"""Absolute, since the programs run in folders of their own."""

HELLO = "Hello from the pool."
"""What the stub says where nothing else is asked for."""
TOLD = "The tool said: 4 degrees in Oslo"
"""What it says once its tool call was answered."""

RUN_IT = "Please run the command."
"""Makes it call the shell of a coding client."""
CALLS = {
    "weather": '{"city": "Oslo"}',
    "exec_command": '{"cmd": "echo 4 degrees in Oslo"}',
    "Bash": '{"command": "echo 4 degrees in Oslo", "description": "a test"}',
}
"""The tools that it knows, and their arguments: one of our programs', Codex's and Claude Code's."""

CONFIG = """\
[[worker]]
name = "first"
kind = "openai"
model = "first"
base_url = "{url}"
abilities = {{ images = true, effort = true }}
price = {{ input = 1, output = 2 }}

[[worker]]
name = "second"
kind = "openai"
model = "second"
base_url = "{url}"
abilities = {{ images = true, effort = true }}
price = {{ input = 1, output = 2 }}

[[worker]]
name = "planner"
kind = "openai"
model = "planner"
base_url = "{url}"
price = {{ input = 1, output = 2 }}

[profile.ultra]
planner = "language"
planner_worker = "planner"

[profile.mini]
planner = "single"
planner_worker = "first"
max_steps = 1

[store]
url = "{store}"
"""
DSPY_FIELD = re.compile(r"\[\[ ## (\w+) ## ]]")
"""DSPy asks for its fields under such headings, `completed` last."""
PLAN = json.dumps(
    {
        "steps": [
            {"id": "0", "models": ["first"], "prompt": "Find it out.", "access_list": []},
            {"id": "1", "models": ["second"], "prompt": "Say it.", "access_list": ["0"]},
        ]
    }
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "integrations: needs frameworks that `make integrations` installs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "integrations" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("integrations")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def answer(call: StubCall) -> str | StubReply:
    """A provider that plans, calls the weather tool when it is offered, holds to schemas, and else says hello."""
    if call.model == "planner":
        return PLAN
    messages = call.body["messages"]
    told = [message for message in messages if message["role"] == "tool"]
    offered = [tool["function"]["name"] for tool in call.body.get("tools", ())]
    wanted = next((name for name in CALLS if name in offered and (name == "weather" or RUN_IT in call.text)), None)
    if wanted and not told:
        number = sum(message["role"] == "assistant" for message in messages)
        return StubReply(tool_calls=(ToolCall(f"call_{number}", wanted, CALLS[wanted]),), finish="tool_calls")
    if told:
        return f"The tool said: {_text(told[-1]['content'])}"
    if TOLD in call.text:  # an earlier step's result
        return TOLD
    format = call.body.get("response_format", {})
    if format.get("type") == "json_schema":
        return json.dumps(_fitting(format["json_schema"]["schema"]))
    fields = DSPY_FIELD.findall(json.dumps(messages))
    return f"[[ ## {fields[-2]} ## ]]\n{HELLO}\n\n[[ ## completed ## ]]" if fields else HELLO


@dataclasses.dataclass
class Running:
    """A running server, with its address and key."""

    url: str
    key: str
    stub: StubProvider

    async def program(self, *command: str | Path, cwd: Path, within_s: float = 60, **environ: str) -> str:
        """Run a client's program against the server; returns its output."""
        clean = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8", "TMPDIR": str(cwd)}
        ours = {"DIRIGENT_BASE_URL": self.url, "DIRIGENT_API_KEY": self.key, "NO_PROXY": "127.0.0.1"}
        running = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=cwd,
            env=clean | ours | environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, said = await asyncio.wait_for(running.communicate(), within_s)
        except TimeoutError:
            running.kill()
            out, said = await running.communicate()
            pytest.fail(f"{command} did not end within {within_s:g} s:\n{out.decode()}\n{said.decode()}")
        assert running.returncode == 0, f"{out.decode()}\n{said.decode()}"
        return out.decode()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)
    async with StubProvider(answer) as stub, served(tmp_path, stub) as running:
        yield running


@asynccontextmanager
async def served(folder: Path, stub: StubProvider) -> AsyncIterator[Running]:
    store_path, config = folder / "serve.db", folder / "dirigent.toml"
    config.write_text(CONFIG.format(url=stub.url("openai"), store=store_path))
    async with Store.open(store_path) as store:
        key = (await create_key(store, Caller(label="an integration"))).text
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dirigent", "serve", "--port", "0", "--grace", "1", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line.startswith("serving "), line + (await process.stderr.read()).decode()
        yield Running(line.split()[1], key, stub)
    finally:
        if process.returncode is None:
            process.terminate()
        _, said = await process.communicate()
        print(said.decode())


def lines_of(output: str) -> dict[str, str]:
    """`label: text` lines of a program's output."""
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _fitting(schema: dict[str, Any]) -> dict[str, str]:
    return dict.fromkeys(schema["properties"], "Oslo")
