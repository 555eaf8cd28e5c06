"""Every command and program in the README and the docs works unchanged.

Every `dirigent …` line is read by the program's own parser, every `make …` is a target, every program named is there,
every `curl …` is sent to a real server, every link between the pages leads somewhere, and every piece of TOML is valid.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import typer

from dirigent.cli import app
from dirigent.cli.learn import ByDefault
from dirigent.config.file import parse_config
from dirigent.store import Store
from dirigent.store.keys import Caller, create_key
from tests.integrations.conftest import EXAMPLES, ROOT, Running

DOCS = ROOT / "docs"
MADE = {"cli.md", "LOG.md", "PLAN.md"}
"""Made from the commands' own help; notes on work."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.name not in MADE and page.parent.name != "results"),
]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for _, language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def typed(page: Path) -> list[str]:
    """Every line that a reader is to type, continued lines joined."""
    found = []
    for text in blocks(page, "", "console", "bash", "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            found.append(line.removeprefix("$ ").removeprefix(".venv/bin/").strip())
    return found


def of(page: Path, program: str) -> list[list[str]]:
    """The words after the program's name in each line that calls it."""
    lines = [line for line in typed(page) if line.startswith(f"{program} ")]
    return [shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:] for line in lines]


CURLS = [page for page in PAGES if of(page, "curl")]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_dirigent_command_is_real(page: Path) -> None:
    for words in of(page, "dirigent"):
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            if isinstance(command, ByDefault) and words[0] not in command.commands:
                words = ["fit", *words]
            assert words[0] in command.commands, f"dirigent {words}"
            command, words = command.commands[words[0]], words[1:]
        command.make_context("dirigent", list(words), resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_target_and_program_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = [words[0] for words in of(page, "make")] + re.findall(r"`make ([a-z-]+)[^`]*`", text)
    assert set(named) <= TARGETS
    for path in re.findall(r"(?<![\w/])((?:gym/)?(?:benchmarks|examples|recipes|tests|deploy)/[\w./-]*\w\.\w+)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name)
def test_every_piece_of_configuration_is_valid(page: Path) -> None:
    presets = "".join(f'[[worker]]\npreset = "{preset}"\n' for preset in ("gpt-5", "claude-sonnet-4", "gemma-3-27b"))
    for piece in blocks(page, "toml"):
        if re.search(r"^\[(\[worker\]|profile|store|serve|guardrails|\[override\])", piece, re.MULTILINE):
            named = re.search(r'^name = "(?:gpt-5|claude-sonnet-4|gemma-3-27b)"', piece, re.MULTILINE)
            assert parse_config(piece if named else f"{presets}\n{piece}").config


@pytest.mark.parametrize("page", CURLS, ids=name)
async def test_every_curl_is_answered_by_a_real_server(page: Path, server: Running, tmp_path: Path) -> None:
    async with Store.open(tmp_path / "serve.db") as store:
        admin = (await create_key(store, Caller(label="an operator", role="admin"))).text
    last_id = ""
    async with aiohttp.ClientSession() as session:
        for words in of(page, "curl"):
            url, headers, body = request_of([word.replace("resp_…", last_id) for word in words])
            keyed = {"$KEY": server.key, "$ADMIN": admin}.get(headers.get("Authorization", "")[7:], server.key)
            where = server.url.removesuffix("/v1") + url
            how = {"headers": headers | {"Authorization": f"Bearer {keyed}"}, "data": body}
            async with session.request("GET" if body is None else "POST", where, **how) as response:
                text = await response.text()
                assert response.status == 200, f"{words}: {text}"
            last_id = json.loads(text).get("id", "") if text.startswith("{") else ""


def request_of(words: list[str]) -> tuple[str, dict[str, str], str | None]:
    """Path, headers and body of a curl command; fails on an option that is not known here."""
    url, headers, body = "", {}, None
    left = iter(words)
    for word in left:
        if word in ("-H", "--header"):
            key, _, value = next(left).partition(": ")
            headers[key] = value
        elif word in ("-d", "--data"):
            body = next(left)
        else:
            assert word.startswith("http://127.0.0.1:8000/"), word
            url = word
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else ""), headers, body


def test_the_pages_of_the_site_are_all_in_its_index() -> None:
    shown = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert shown == there, "put it under nav in mkdocs.yml"


def test_the_versions_on_the_integrations_page_are_the_installed_ones() -> None:
    packages = [EXAMPLES / "package.json", EXAMPLES / "plain" / "package.json"]
    lines = [path.read_text().replace('": "', "==").replace('"', "") for path in packages]
    lines += [path.read_text() for path in EXAMPLES.glob("requirements-*.txt")]
    pinned = dict(re.findall(r"^ *([@\w/-]+)(?:\[\w+])?==([\d.]+)", "\n".join(lines), re.MULTILINE))
    official = dict(re.findall(r"^(openai|anthropic)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    told = [row[1] for row in rows_of(DOCS / "integrations.md").values() if len(row) == 3 and row[1] != "tried with"]
    pairs = [pair for cell in told for pair in re.findall(r"([@\w/-]+) (\d+\.[\d.]+)", cell)]
    assert len(pairs) >= 13
    for package, version in pairs:
        assert version in (pinned.get(package), official.get(package)), f"{package} {version}"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("requirements-*.txt")), ids=lambda path: path.stem)
def test_requirements_are_locked_with_all_their_dependencies(path: Path) -> None:
    locked = (EXAMPLES / "locked" / path.name.removeprefix("requirements-")).read_text().lower().splitlines()
    for line in path.read_text().lower().splitlines():
        assert re.sub(r"\[\w+]", "", line) in locked
    assert all(re.fullmatch(r"[a-z0-9_.-]+==\S+", line) for line in locked)


def test_the_metrics_in_the_guide_are_those_of_the_server_and_none_is_left_out() -> None:
    source = (ROOT / "src" / "dirigent" / "serve" / "http" / "metrics.py").read_text(encoding="utf-8")
    told = re.findall(r"`(dirigent_\w+)`", (DOCS / "deploy.md").read_text(encoding="utf-8"))
    assert {name.removesuffix("_total") for name in told} == set(re.findall(r'"(dirigent_\w+)"', source))


def test_the_figures_in_the_readme_are_those_of_the_reports() -> None:
    rows = rows_of(ROOT / "README.md")
    local, exact = (
        json.loads((DOCS / "results" / f"{name}.json").read_text())["planners"] for name in ("gym-local", "gym")
    )
    for planner, label in (("conductor", "**the conductor**"), ("spans", "`spans`"), ("best", "the best worker alone")):
        measured = planner in local or planner in exact
        shown = [cells for name, cells in rows.items() if name.startswith(label)]
        assert len(shown) == measured
        cells = shown[0] if measured else ["–", "–"]
        for row, cell in zip((local.get(planner), exact.get(planner)), cells, strict=False):
            assert cell.split(" ")[0] == (f"{100 * row['accuracy']:.1f}" if row else "–")
    recorded = rows_of(DOCS / "results" / "recorded.md")
    for title, label in (("GSM8K", "zeroeval_gsm8k"), ("MATH", "zeroeval_math_l5"), ("MMLU-Pro", "mmlu_pro")):
        (cells,) = (cells for name, cells in rows.items() if title in name)
        known = dict(zip(recorded["set"], recorded[f"recorded_{label}"], strict=True))
        assert cells == [known[name] for name in ("best", "vote", "knn", "oracle")]


def rows_of(page: Path) -> dict[str, list[str]]:
    """Rows of a page's tables by their first cell; the first of a name counts."""
    found: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(label, cells)
    return found
