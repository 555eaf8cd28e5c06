"""What every test may ask for: the local model's weights, and an honest count of what was skipped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from dirigent.errors import ConfigError
from dirigent.home import home
from dirigent.workers.weights import fetch

# An example that is slow on a busy machine is no failure; a test that hangs has a time limit of its own.
hypothesis.settings.register_profile("dirigent", deadline=None)
hypothesis.settings.load_profile("dirigent")

WEIGHTS_CACHE = home() / "weights"
"""Taken before any test changes the environment: the file is fetched once for all runs, not once a run."""


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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run side by side, a file stays in one process, and all of `train/`, which shares a trained model."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        train = "train" in item.path.relative_to(config.rootpath).parts
        item.add_marker(pytest.mark.xdist_group("train" if train else str(item.path)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail the run if any test was skipped")


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
