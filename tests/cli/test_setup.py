"""`dirigent init`, `doctor`, `version`, `pool`: they set up a pool and report its faults."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dirigent.config.file import load_config
from dirigent.sandbox import SandboxError
from dirigent.sandbox.programs import confinement_problem
from dirigent.version import __version__
from tests.cli.conftest import Run
from tests.facts import says
from tests.programs import need

KEY = "not-a-real-key-0123456789"


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the extra `local`, on which a download would be for nothing."""

    async def fetch(name: str, **_: object) -> Path:
        raise AssertionError(f"{name} was downloaded, and cannot be used")

    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr("dirigent.cli.running.fetch", fetch)


@pytest.mark.usefixtures("no_extra")
@pytest.mark.parametrize("command", [["serve"], ["demo"], ["ask", "q"], ["plan", "q"]], ids=" ".join)
def test_a_missing_extra_is_said_once_before_anything_is_downloaded(run: Run, command: list[str]) -> None:
    ran = run(*command)
    assert (ran.code, ran.out) == (2, "")
    assert says(ran.err, "error: xllamacpp pip install dirigent[local]")


@pytest.mark.usefixtures("no_extra")
def test_a_missing_extra_is_one_finding_for_all_its_workers(run: Run) -> None:
    ran = run("doctor")
    assert ran.code == 1
    assert ran.out.count("xllamacpp") == 1
    assert "(smol, smol-brief, smol-free)" in ran.out
    ran = run("pool", "check")
    assert ran.code == 1
    assert ran.err.count("xllamacpp") == 1


class TestInit:
    def test_without_anything_it_writes_the_local_pool(self, run: Run, own_place: Path) -> None:
        ran = run("init")
        assert ran.code == 0
        assert "smol" in ran.out
        assert {w.kind for w in load_config(own_place / "dirigent.toml").config.worker} == {"local"}

    def test_a_key_gives_its_providers_workers_and_is_not_written(
        self, run: Run, own_place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        output = run("init", "--path", "mine.toml", "--json").object
        assert output["keys"] == {"anthropic": "ANTHROPIC_API_KEY"}
        text = (own_place / "mine.toml").read_text()
        assert KEY not in text
        assert [w.name for w in load_config(own_place / "mine.toml").config.worker] == output["workers"]

    def test_the_next_commands_are_those_that_read_the_file_it_wrote(self, run: Run) -> None:
        assert re.search(r'dirigent pool check\W.*dirigent ask "…"\n$', run("init").err)
        ran = run("init", "--path", "mine.toml")
        assert re.search('dirigent pool check --config mine.toml .*dirigent ask "…" --config mine.toml', ran.err)

    def test_a_file_that_is_there_is_kept_unless_forced(self, run: Run, pool_file: Path) -> None:
        ran = run("init")
        assert ran.code == 2
        assert says(ran.err, "--force")
        assert run("init", "--force").code == 0
        assert "smol" in pool_file.read_text()

    def test_without_anything_and_without_the_extra_it_writes_nothing_and_says_how_to_go_on(
        self, run: Run, own_place: Path, no_extra: None
    ) -> None:
        ran = run("init")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: ")
        assert ran.err.count("xllamacpp") == 1
        assert "pip install 'dirigent[local]'" in ran.err
        assert "OPENAI_API_KEY" in ran.err
        assert not (own_place / "dirigent.toml").exists()

    def test_a_key_is_enough_without_the_extra(self, run: Run, no_extra: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        assert run("init").code == 0

    def test_a_folder_that_cannot_be_written_is_named(self, run: Run) -> None:
        ran = run("init", "--path", "no/such/folder.toml")
        assert ran.code == 2
        assert "no/such/folder.toml" in ran.err


def test_version_is_the_packages(run: Run) -> None:
    assert run("version").out.startswith(f"dirigent {__version__}")
    assert run("--version").out == f"dirigent {__version__}\n"
    assert run("version", "--json").object["version"] == __version__


@pytest.mark.usefixtures("pool_file")
class TestPool:
    def test_list_shows_cards_and_prices(self, run: Run) -> None:
        ran = run("pool", "list")
        assert "finds things" in ran.out
        listed = run("pool", "list", "--json").object["workers"]
        assert [w["name"] for w in listed] == ["boss", "finder", "sayer"]
        assert listed[2]["output_usd_per_mtok"] == 2

    def test_check_asks_each_worker_once(self, run: Run) -> None:
        ran = run("pool", "check", "--json")
        assert ran.code == 0
        assert [(w["worker"], w["status"]) for w in ran.object["workers"]] == [
            ("boss", "ok"), ("finder", "ok"), ("sayer", "ok"),
        ]  # fmt: skip

    def test_check_says_why_a_worker_does_not_answer(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text(
            '[[worker]]\nname = "my-vllm"\nkind = "openai"\nmodel = "m"\nretries = 0\n'
            'base_url = "http://127.0.0.1:9/v1"\n'
        )
        ran = run("pool", "check")
        assert ran.code == 1
        assert says(ran.out, "my-vllm")
        assert ran.err.startswith("my-vllm: "), "its name once"

    def test_check_of_nobody_is_no_success(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text("")
        ran = run("pool", "check", "--json")
        assert ran.code == 2
        assert says(ran.object["error"], "[[worker]] dirigent init --force")

    def test_presets_are_listed_with_prices(self, run: Run) -> None:
        rows = run("pool", "presets", "--json").object["presets"]
        assert all(row["output_usd_per_mtok"] is not None for row in rows), "a preset that genai-prices lacks"
        assert "gpt-5" in run("pool", "presets").out


def test_a_worker_that_only_reads_results_is_not_asked_by_a_check(run: Run, pool_file: Path) -> None:
    vote = '[[worker]]\nname = "vote"\nkind = "vote"\n'
    pool_file.write_text(pool_file.read_text().replace("[profile.ultra]", f"{vote}[profile.ultra]"))
    ran = run("pool", "check", "--json")
    (row,) = [row for row in ran.object["workers"] if row["worker"] == "vote"]
    assert row["status"] == "ok"


@pytest.mark.usefixtures("pool_file")
class TestDoctor:
    def test_all_is_well_with_scripted_workers(self, run: Run) -> None:
        ran = run("doctor", "--json")
        assert ran.code == 0
        assert ran.object["ok"] is True
        assert {"python", "extras", "config", "store"} <= {check["what"] for check in ran.object["checks"]}

    @pytest.mark.system
    def test_where_code_can_be_graded_the_walls_of_the_sandbox_are_named(self, run: Run) -> None:
        need("bwrap")
        (found,) = [check for check in run("doctor", "--json").object["checks"] if check["what"] == "sandbox"]
        assert found["ok"] is True
        assert found["found"].startswith("bubblewrap, seccomp, ")

    def test_the_walls_around_programs_of_workers_are_tried_and_named(self, run: Run, pool_file: Path) -> None:
        if confinement_problem():
            pytest.skip(confinement_problem())
        pool_file.write_text('[[worker]]\nname = "python"\nkind = "python"\n')
        (found,) = [check for check in run("doctor", "--json").object["checks"] if check["what"] == "programs"]
        assert found["ok"] is True
        assert says(found["found"], "seccomp python")

    def test_where_programs_cannot_be_confined_the_fix_is_said(
        self, run: Run, pool_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dirigent.sandbox.programs.open_untested", _refused)
        monkeypatch.setattr("dirigent.sandbox.programs.open_alone", _refused)
        (found,) = [check for check in run("doctor", "--json").object["checks"] if check["what"] == "programs"]
        assert (found["ok"], found["needed"]) == (False, False)
        assert says(found["fix"], 'bubblewrap programs = "unconfined" [sandbox]')
        pool_file.write_text('[[worker]]\nname = "python"\nkind = "python"\n[sandbox]\nprograms = "unconfined"\n')
        monkeypatch.undo()
        assert run("doctor", "--json").code == 0

    def test_without_a_sandbox_all_else_is_well_and_the_fix_is_said(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        ran = run("doctor")
        assert ran.code == 0
        (line,) = [line for line in ran.out.splitlines() if line.startswith("sandbox")]
        assert says(line, "sandbox note bwrap bubblewrap")

    @pytest.mark.parametrize(
        ("does", "limit_s", "said"),
        [
            ("echo 'no namespaces for you' >&2; exit 1", 60.0, "no namespaces for you"),
            ("exec sleep 60", 0.3, "0.3"),
        ],
        ids=["fails", "hangs"],
    )
    def test_a_sandbox_that_fails_or_hangs_is_a_note_and_no_crash(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, limit_s: float, said: str
    ) -> None:
        for name in ("bwrap", "prlimit", "setpriv"):
            (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr("dirigent.cli.doctor.SANDBOX_S", limit_s)
        ran = run("doctor")
        assert ran.code == 0
        assert says(ran.out, said)

    def test_a_missing_key_and_a_dead_server_are_problems_with_a_fix(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text(
            '[[worker]]\npreset = "gpt-5"\n'
            '[[worker]]\nname = "dead"\nkind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        )
        ran = run("doctor")
        assert ran.code == 1
        assert says(ran.out, "problem gpt-5 OPENAI_API_KEY")
        assert says(ran.out, "127.0.0.1:9")

    def test_a_key_that_cannot_be_one_is_told_by_its_worker_and_variable(
        self, run: Run, pool_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "one\ntwo")
        pool_file.write_text('[[worker]]\npreset = "gpt-5"\n')
        ran = run("ask", "q")
        assert (ran.code, ran.out) == (2, "")
        assert says(ran.err, "gpt-5 OPENAI_API_KEY")
        assert "two" not in ran.err
        assert says(run("doctor").out, "problem gpt-5 OPENAI_API_KEY")

    def test_a_wrong_file_is_a_finding_and_no_crash(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text("[profile.ultra]\nmax_step = 1")
        ran = run("doctor")
        assert ran.code == 1
        assert says(ran.out, "max_step")

    def test_a_store_that_the_file_names_is_mended_in_the_file(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text('[store]\nurl = "mysql://h/x"\n')
        (line,) = [line for line in run("doctor").out.splitlines() if line.startswith("store")]
        assert "problem" in line
        assert "[store]" in line

    def test_weights_that_are_not_here_are_a_finding(self, run: Run, pool_file: Path) -> None:
        pool_file.write_text('[[worker]]\nname = "smol"\nkind = "local"\n')
        ran = run("doctor")
        assert says(ran.out, "smollm2-135m dirigent pool pull")


COMMANDS = (
    ["init"], ["ask"], ["plan"], ["doctor"], ["demo"], ["version"], ["pool", "list"], ["pool", "check"],
    ["pool", "pull"], ["pool", "presets"], ["traces", "list"], ["traces", "show"], ["traces", "export"],
    ["traces", "replay"], ["traces", "delete"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(run: Run, command: list[str]) -> None:
    ran = run(*command, "--help")
    assert ran.code == 0
    assert f"Example:  dirigent {' '.join(command)}" in ran.out


@contextlib.asynccontextmanager
async def _refused(**options: object) -> AsyncIterator[None]:
    raise SandboxError("nothing holds here")
    yield
