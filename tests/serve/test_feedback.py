"""Feedback: on one's own run, once; a score or a thumb."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dirigent.store.feedback import feedback_of
from dirigent.store.keys import Caller, create_key
from tests.serve.conftest import Answer, Server, Start


async def give(server: Server, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    return await server.request("POST", "/v1/feedback", json=body, headers=headers)


async def test_a_score_is_kept_with_its_comment_and_without_secrets(server: Server) -> None:
    id = (await server.chat()).object["dirigent"]["trace_id"]
    answer = await give(server, trace_id=id, score=0.25, comment="too long; my key is sk-abcdefghijklmnop1234")
    assert answer.object == {"trace_id": id, "score": 0.25, "object": "dirigent.feedback"}
    (kept,) = await feedback_of(server.service.store, id)
    assert (kept.key_id, kept.score, kept.comment) == ("local", 0.25, "too long; my key is ***")


async def test_a_thumb_is_a_score_and_a_completions_id_will_do(server: Server) -> None:
    for thumb, score in (("up", 1.0), ("down", 0.0)):
        id = (await server.chat()).object["id"]
        assert (await give(server, trace_id=id, thumb=thumb)).object["score"] == score


async def test_a_label_is_kept_and_the_score_is_whether_the_answer_is_the_same(server: Server) -> None:
    for label, score in (("Alpha says hello there.", 1.0), ("something else", 0.0)):
        id = (await server.chat()).object["dirigent"]["trace_id"]
        assert (await give(server, trace_id=id, label=label)).object["score"] == score
        (kept,) = await feedback_of(server.service.store, id)
        assert (kept.label, kept.score) == (label, score)


async def test_a_label_of_another_keys_run_or_of_none_is_refused(start: Start) -> None:
    server = await start(keys_required=True)
    made = [await create_key(server.service.store, Caller("")) for _ in range(2)]
    mine, other = ({"Authorization": f"Bearer {key.text}"} for key in made)
    id = (await server.chat(headers=mine)).object["dirigent"]["trace_id"]
    for headers, trace_id in ((other, id), (mine, "gone")):
        answer = await give(server, headers, trace_id=trace_id, label="x")
        assert (answer.status, answer.error["code"]) == (404, "trace_not_found")


async def test_one_of_score_thumb_and_label_is_given(server: Server) -> None:
    id = (await server.chat()).object["dirigent"]["trace_id"]
    for body in ({}, {"score": 1, "label": "x"}, {"thumb": "up", "label": "x"}):
        assert (await give(server, trace_id=id, **body)).status == 400


async def test_feedback_is_given_once(server: Server) -> None:
    id = (await server.chat()).object["dirigent"]["trace_id"]
    assert (await give(server, trace_id=id, thumb="up")).status == 200
    again = await give(server, trace_id=id, thumb="down")
    assert (again.status, again.error["code"]) == (409, "feedback_given")
    assert [kept.score for kept in await feedback_of(server.service.store, id)] == [1.0]


async def test_feedback_leaves_with_the_trace_by_the_command_that_exports(server: Server, tmp_path: Path) -> None:
    judged, other = [(await server.chat()).object["dirigent"]["trace_id"] for _ in range(2)]
    assert (await give(server, trace_id=judged, score=0.25, comment="too long")).status == 200
    config = tmp_path / "dirigent.toml"
    config.write_text(f'[store]\nurl = "{tmp_path / "serve.db"}"\n')
    exporting = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dirigent", "traces", "export", "--config", config),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await exporting.communicate()
    assert exporting.returncode == 0, said.decode()
    lines = {line["id"]: line for line in map(json.loads, out.splitlines())}
    (verdict,) = lines[judged]["feedback"]
    assert (verdict["key_id"], verdict["score"], verdict["comment"]) == ("local", 0.25, "too long")
    assert verdict["created_at"] >= lines[judged]["created_at"]
    assert lines[other]["feedback"] == []
    assert lines[other]["answer"] == "alpha says hello there"


async def test_another_keys_run_does_not_exist_not_even_for_an_admin(start: Start) -> None:
    server = await start(keys_required=True)
    headers = []
    for role in ("inference", "inference", "admin"):
        made = await create_key(server.service.store, Caller("", role=role))  # type: ignore[arg-type]
        headers.append({"Authorization": f"Bearer {made.text}"})
    id = (await server.chat(headers=headers[0])).object["dirigent"]["trace_id"]
    for other in headers[1:]:
        answer = await give(server, other, trace_id=id, thumb="up")
        assert (answer.status, answer.error["code"]) == (404, "trace_not_found")
    assert (await give(server, headers[0], trace_id=id, thumb="up")).status == 200
    assert (await give(server, headers[0], trace_id=id[:8], thumb="up")).status == 404


async def test_a_run_that_was_refused_before_its_first_call_may_be_judged_by_its_key_alone(start: Start) -> None:
    server = await start(keys_required=True)
    made = [await create_key(server.service.store, Caller("", budget_total_usd=1e-9)) for _ in range(2)]
    owner, other = ({"Authorization": f"Bearer {key.text}"} for key in made)
    id = (await server.chat(headers=owner)).headers["X-Dirigent-Trace-Id"]
    assert (await give(server, other, trace_id=id, thumb="down")).status == 404
    assert (await give(server, owner, trace_id=id, thumb="down")).status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "score"),
        ({"score": 1.5}, "score"),
        ({"score": 0.5, "thumb": "up"}, "score"),
        ({"thumb": "sideways"}, "thumb"),
        ({"thumb": "up", "comment": "x" * 4001}, "comment"),
        ({"thumb": "up", "stars": 5}, "stars"),
    ],
)
async def test_a_bad_body_is_a_400_that_names_the_field(server: Server, body: dict[str, Any], param: str) -> None:
    answer = await give(server, trace_id="x", **body)
    assert (answer.status, answer.error["param"]) == (400, param)
