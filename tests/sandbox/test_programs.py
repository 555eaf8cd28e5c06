"""A worker's program runs behind the strongest walls of the machine, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.facts import facts, says
from tests.programs import need

from dirigent.sandbox import Profile, SandboxError, alone, programs
from dirigent.sandbox.box import open_untested
from dirigent.sandbox.inside import landlock
from dirigent.sandbox.programs import Programs, confinement_problem


@pytest.fixture
async def confined() -> AsyncIterator[Programs]:
    if confinement_problem():
        pytest.skip(confinement_problem())
    opened = Programs(profile=Profile(wall_s=2.0))
    yield opened
    await opened.close()


async def test_a_program_reports_its_output_and_its_walls(confined: Programs) -> None:
    ran = await confined.run("print('so:')\nprint(7 * 11)")
    assert (ran.exit_code, ran.output, ran.error) == (0, "so:\n77\n", "")
    assert ran.confined_by in ("bubblewrap", "landlock")
    assert ran.confined_by in await confined.walls()
    assert ran.printed


async def test_a_program_that_fails_reports_its_error(confined: Programs) -> None:
    ran = await confined.run("print(1)\n1 / 0")
    assert (ran.exit_code, ran.output) == (1, "1\n")
    assert ran.error.strip().endswith("ZeroDivisionError: division by zero")
    assert not ran.printed


async def test_a_program_without_end_has_no_exit_code_and_says_why(confined: Programs) -> None:
    ran = await confined.run("while True: pass")
    assert ran.exit_code is None
    assert says(ran.error, "stopped 2 s")


async def test_programs_may_use_sympy(confined: Programs) -> None:
    ran = await confined.run("from sympy import Rational\nprint(Rational(1, 3) + Rational(1, 6))")
    assert ran.output == "1/2\n", ran.error


async def test_without_bubblewrap_the_kernel_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    if not landlock.usable_abi(landlock.OLDEST_ALONE_ABI):
        pytest.skip("needs a kernel with landlock")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    opened = Programs()
    try:
        assert (await opened.run("print(1)")).confined_by == "landlock"
        assert says(await opened.walls(), "landlock seccomp no bubblewrap")
    finally:
        await opened.close()


@pytest.mark.system
async def test_with_bubblewrap_it_is_the_first_choice() -> None:
    need("bwrap")
    opened = Programs()
    try:
        assert (await opened.run("print(3)")).confined_by == "bubblewrap"
    finally:
        await opened.close()


@pytest.fixture
def made_up_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package below /tmp, which inside the sandbox is the scratch folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        package = Path(folder) / "made_up"
        package.mkdir()
        (package / "__init__.py").write_text("NUMBER = 7")
        Path(folder).chmod(0o755)  # root's programs run as a user without rights
        monkeypatch.syspath_prepend(folder)
        yield package.name


@pytest.mark.system
async def test_a_package_below_tmp_can_be_imported(made_up_package: str) -> None:
    need("bwrap")
    async with open_untested(packages=(made_up_package,)) as sandbox:
        ran = await sandbox.run("import made_up, os\nprint(made_up.NUMBER, os.listdir('/tmp'))")
    assert ran.stdout == b"7 []\n", ran.stderr


async def test_where_no_wall_holds_nothing_runs_and_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(landlock, "usable_abi", lambda oldest=4: 0)
    assert says(confinement_problem(), 'bubblewrap 6.2 programs = "unconfined" [sandbox]')
    opened = Programs()
    with pytest.raises(SandboxError, match=facts('bwrap 6.2 programs = "unconfined" [sandbox]')):
        await opened.run("print(1)")
    await opened.close()


async def test_walls_that_an_attack_gets_through_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaky(runner: object) -> list[str]:
        return ["signal its parent"]

    monkeypatch.setattr(programs, "attack_at_once", leaky)
    opened = Programs()
    with pytest.raises(SandboxError, match=facts("signal its parent")):
        await opened.run("print(1)")
    await opened.close()


async def test_unconfined_takes_the_users_word_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone.landlock, "usable_abi", lambda oldest=4: 0)
    opened = Programs("unconfined")
    try:
        ran = await opened.run("import os\nprint(os.path.exists('/etc'))")
        assert (ran.output, ran.confined_by) == ("True\n", "unconfined")
        assert says(await opened.walls(), "unconfined")
    finally:
        await opened.close()
