"""A fingerprint covers the settings that shape a worker's answers, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent.config.file import parse_config
from dirigent.config.fingerprint import fingerprint
from dirigent.config.runtime import open_runtime
from dirigent.config.worker_config import WorkerConfig

BASE = {"name": "w", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}


def of(folder: Path, **settings: object) -> str:
    return fingerprint(WorkerConfig(**{**BASE, **settings}), folder=folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [{"model": "n"}, {"temperature": 0.7}, {"system": "Be brief."}, {"extra": {"top_k": 40}}, {"max_output_tokens": 9}],
)
def test_a_setting_that_shapes_answers_changes_it(tmp_path: Path, changed: dict[str, object]) -> None:
    assert of(tmp_path, **changed) != of(tmp_path)


@pytest.mark.parametrize(
    "changed", [{"name": "v"}, {"base_url": "http://127.0.0.1:2/v1"}, {"about": "x"}, {"retries": 0}]
)
def test_a_setting_that_does_not_leaves_it(tmp_path: Path, changed: dict[str, object]) -> None:
    assert of(tmp_path, **changed) == of(tmp_path)


def test_another_file_under_the_same_name_changes_it(tmp_path: Path) -> None:
    def local() -> str:
        return fingerprint(WorkerConfig(name="mine", kind="local", weights="w.gguf", adapter="a.gguf"), folder=tmp_path)

    (tmp_path / "w.gguf").write_bytes(b"x" * 3_000_000)
    (tmp_path / "a.gguf").write_bytes(b"adapter")
    first = local()
    assert local() == first
    (tmp_path / "a.gguf").write_bytes(b"Adapter")
    assert local() != first


async def test_every_worker_of_a_pool_has_its_own_on_its_card() -> None:
    pool = "".join(
        f'[[worker]]\nname = "{name}"\nkind = "scripted"\nreplies = ["{reply}"]\n'
        for name, reply in (("a", "yes"), ("b", "no"), ("c", "no"))
    )
    async with open_runtime(parse_config(pool)) as runtime:
        a, b, c = (info.fingerprint for info in runtime.pool.infos)
    assert a
    assert a != b
    assert b == c
