"""Fixtures for every test: the local model's weights, and a count of skipped tests."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from dirigent.errors import ConfigError
from dirigent.paths import home
from dirigent.workers.weights import fetch

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# Some tests import these libraries before `dirigent_gym.train` can say it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# Tests without a configuration run on the small pool: the embedded model is 1.1 GB.
os.environ["DIRIGENT_POOL"] = "small"

# An example that is slow on a busy machine is no failure; a test that hangs has a time limit of its own.
hypothesis.settings.register_profile("dirigent", deadline=None)
hypothesis.settings.load_profile("dirigent")

WEIGHTS_CACHE = home() / "weights"
"""Taken before any test changes the environment: the file is fetched once for all runs, not once a run."""

STDERR = pytest.StashKey[int]()
"""The real one: while a test runs it is captured."""

TRAIN = "/train/"
"""In the path of every test of training."""


@pytest.fixture(scope="session")
def weights_path() -> Path:
    """SmolLM2-135M-Instruct, checked."""
    try:
        return asyncio.run(fetch("smollm2-135m", cache=WEIGHTS_CACHE))
    except ConfigError as error:
        pytest.skip(f"needs the local weights: {error}")


@pytest.fixture
def wait_until() -> Callable[..., Awaitable[None]]:
    """Waits for something to come true; fails loudly if it does not in time."""

    async def wait(true: Callable[[], bool], *, within_s: float = 10.0) -> None:
        end = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < end, f"did not come true within {within_s:g} s"
            await asyncio.sleep(0.01)

    return wait


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Where tests run side by side, a file stays in one process, and all of `train/`, which shares a trained model."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TRAIN if TRAIN in file else file

        def _assign_work_unit(self, node: WorkerController) -> None:
            """The slowest tests begin first, so that the run does not wait for them at the end."""
            if TRAIN in self.workqueue:
                self.workqueue.move_to_end(TRAIN, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail the run if any test was skipped")
    parser.addoption("--teardown-s", type=float, default=120.0, help="longest time to clean up after one test")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What cleans up after a failed test may hang as well, and pytest-timeout no longer looks then: this says where it
    hangs and ends the process."""
    limit_s: float = item.config.getoption("--teardown-s")
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[STDERR])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    skipped = _skipped(session.config)
    if skipped and session.config.getoption("--no-skips") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"skipped: {_skipped(config)}")


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter is not None else 0
