"""The two vendors' own clients work with another base URL.

The Python clients are part of every test run. The JavaScript clients want npm: `make integrations-plain` runs all.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.integrations.conftest import ENVIRONMENTS, EXAMPLES, HELLO, TOLD, Running, lines_of


async def test_the_openai_client_chats_streams_calls_tools_and_parses(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    said = lines_of(await server.program(sys.executable, EXAMPLES / "openai_python.py", cwd=tmp_path))
    assert said["chat"] == said["stream"] == HELLO
    assert said["tool"] == TOLD
    assert said["structured"] == "name='Oslo' country='Oslo'"
    assert said["run"].startswith("trace ")
    assert said["run"].endswith(" USD")


async def test_the_openai_client_uses_the_responses_api(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    said = lines_of(await server.program(sys.executable, EXAMPLES / "openai_responses.py", cwd=tmp_path))
    assert said["answer"] == said["follow-up"] == said["stream"] == HELLO
    assert said["kept"] == "completed"
    assert said["tool"] == TOLD
    assert said["structured"] == "name='Oslo' country='Oslo'"


async def test_the_anthropic_client_speaks_its_own_wire(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    said = lines_of(await server.program(sys.executable, EXAMPLES / "anthropic_python.py", cwd=tmp_path))
    assert said["message"] == said["stream"] == HELLO
    assert said["tool"] == said["tool runner"] == TOLD


@pytest.mark.integrations
async def test_the_javascript_client_of_openai_works(server: Running, tmp_path: Path) -> None:
    said = lines_of(await server.program("node", beside_its_packages("openai_node.mjs"), cwd=tmp_path))
    assert said["chat"] == said["stream"] == said["responses"] == HELLO
    assert said["tool"] == TOLD
    assert said["structured"] == "Oslo"


@pytest.mark.integrations
async def test_the_javascript_client_of_anthropic_works(server: Running, tmp_path: Path) -> None:
    said = lines_of(await server.program("node", beside_its_packages("anthropic_node.mjs"), cwd=tmp_path))
    assert said["message"] == said["stream"] == HELLO
    assert said["tool"] == said["tool runner"] == TOLD


def beside_its_packages(program: str) -> Path:
    """Copy a program into the folder of its packages: Node looks for them nowhere else."""
    return Path(shutil.copy(EXAMPLES / program, ENVIRONMENTS / "plain"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_program_shows_its_command(path: Path) -> None:
    story = path.read_text().split('"""')[1]
    assert "DIRIGENT_BASE_URL=" in story
    assert f"python {path.name}" in story
    assert "pip install" in story
