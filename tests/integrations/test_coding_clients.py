"""Codex and Claude Code, as they are installed from npm, on our server: `make integrations`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conftest import ENVIRONMENTS, EXAMPLES, HELLO, RUN_IT, TOLD, Running

pytestmark = pytest.mark.integrations

PROGRAMS = ENVIRONMENTS / "node" / "node_modules" / ".bin"


@pytest.fixture
def codex_home(server: Running, tmp_path: Path) -> Path:
    """The example's configuration with the address of this server."""
    text = (EXAMPLES / "codex.toml").read_text()
    assert "http://127.0.0.1:8000/v1" in text
    home = tmp_path / "codex"
    home.mkdir()
    (home / "config.toml").write_text(text.replace("http://127.0.0.1:8000/v1", server.url))
    return home


async def codex(server: Running, question: str, *, home: Path, folder: Path) -> str:
    # Without its sandbox, which cannot be set up in a temporary folder: the one command it runs is the stub's.
    options = ("--skip-git-repo-check", "--sandbox", "danger-full-access")
    return await server.program(PROGRAMS / "codex", "exec", *options, question, cwd=folder, CODEX_HOME=str(home))


async def test_codex_gets_its_answer(server: Running, codex_home: Path, tmp_path: Path) -> None:
    assert (await codex(server, "Say hello.", home=codex_home, folder=tmp_path)).strip() == HELLO


async def test_codex_runs_a_command_for_a_step_and_continues(server: Running, codex_home: Path, tmp_path: Path) -> None:
    said = await codex(server, RUN_IT, home=codex_home, folder=tmp_path)
    assert "The tool said: " in said
    assert "4 degrees in Oslo" in said


def claude_environment(server: Running) -> dict[str, str]:
    lines = [line for line in (EXAMPLES / "claude-code.env").read_text().splitlines() if line and line[0] != "#"]
    pairs = dict(line.split("=", 1) for line in lines)
    assert pairs.keys() >= {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL"}
    ours = {"ANTHROPIC_BASE_URL": server.url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": server.key}
    return pairs | ours


async def test_claude_code_gets_its_answer(server: Running, tmp_path: Path) -> None:
    said = await server.program(PROGRAMS / "claude", "-p", "Say hello.", cwd=tmp_path, **claude_environment(server))
    assert said.strip() == HELLO


async def test_claude_code_runs_a_command_for_a_step_and_continues(server: Running, tmp_path: Path) -> None:
    command = (PROGRAMS / "claude", "-p", RUN_IT, "--allowedTools", "Bash(echo:*)")
    said = await server.program(*command, cwd=tmp_path, **claude_environment(server))
    assert said.strip() == TOLD
