"""The deletion job of a running server: at start, again and again, and never a reason to stop."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from dirigent.config.server_settings import ServeSettings
from dirigent.errors import StoreError
from dirigent.serve import service as retention
from dirigent.serve.service import pruning
from dirigent.store import Store
from dirigent.store.tables import now
from tests.serve.conftest import Start
from tests.store.samples import a_trace

OLD = (now() - timedelta(days=31)).isoformat()


async def test_a_server_deletes_old_runs_when_it_starts(start: Start) -> None:
    before = await start()
    await before.service.store.save(a_trace("old", created_at=OLD))
    await before.chat()
    server = await start(retention_days=30)
    async with asyncio.timeout(20):
        while len(rows := await server.service.store.list(limit=None)) > 1:
            pass
    assert [row.profile for row in rows] == ["worker/alpha"]


async def test_it_continues_after_a_failed_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    thrice = asyncio.Event()

    async def prune(store: Store, *, days: float | None) -> None:
        asked.append(days)
        if len(asked) == 3:
            thrice.set()
        if len(asked) == 1:
            raise StoreError("the disk is full")

    monkeypatch.setattr(retention, "prune", prune)
    async with Store.open(tmp_path / "x.db") as store:
        with caplog.at_level(logging.WARNING):
            async with pruning(store, ServeSettings(retention_days=7), every_s=0.001):
                await asyncio.wait_for(thrice.wait(), 20)
    assert asked[:3] == [7, 7, 7]
    assert "the disk is full" in caplog.text
