"""Frameworks and coding clients of others, each in an environment of its own: `make integrations`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conftest import ENVIRONMENTS, EXAMPLES, HELLO, TOLD, Running, lines_of

pytestmark = pytest.mark.integrations

FRAMEWORKS = {
    "agents": ("openai_agents.py", {"chat_completions": TOLD, "responses": TOLD}),
    "langchain": ("langchain_langgraph.py", {"chat": HELLO, "stream": HELLO, "agent": TOLD, "graph": HELLO}),
    "llamaindex": ("llamaindex.py", {"complete": HELLO, "agent": TOLD}),
    "autogen": ("autogen_chat.py", {"assistant": TOLD}),
    "ag2": ("ag2_agent.py", {"agent": TOLD}),
    "crewai": ("crewai_crew.py", {"crew": TOLD}),
    "dspy": ("dspy_program.py", {"greeting": HELLO}),
}
"""Environment -> its program, and what that prints over the stub."""


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_the_framework_runs_on_a_conducted_model(name: str, server: Running, tmp_path: Path) -> None:
    program, expected = FRAMEWORKS[name]
    python = ENVIRONMENTS / name / "bin" / "python"
    said = lines_of(await server.program(python, EXAMPLES / program, cwd=tmp_path, within_s=100))
    assert {label: said.get(label) for label in expected} == expected
    assert server.stub.calls[0].model == "planner", "no plan was written"
