"""A conversation stays with the worker that has read it."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.limits import Limits
from dirigent.messages import Event, Message, Observe, Reply, Request, Tool, ToolCall, Usage, Warm, conversation, ignore
from dirigent.plan.planner import Brief, Planner
from dirigent.planners.fixed import Single
from dirigent.planners.learned import Learned, Prefer, leaving_usd
from dirigent.run.resume import RunState, with_results
from dirigent.run.trace import Trace
from dirigent.serve.runs.asked import Asked, Extension
from dirigent.serve.runs.conversation import Conversations, cache_names, conversation_names, run_name
from dirigent.workers.pool import Pool
from dirigent.workers.reader import Select
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price
from tests.planners.test_learned import Decided, Sure
from tests.serve.conftest import Server
from tests.stub_wires import StubReply

TOOLS = (Tool("look", {"type": "object"}),)


def asked(*texts: str, name: str | None = None, **more: object) -> Asked:
    question = tuple(Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts))
    return Asked(model="m", question=question, options=Request(()), dirigent=Extension(conversation=name), **more)  # type: ignore[arg-type]


# --- names ---


def test_a_conversation_has_its_given_name_first_and_its_beginning_last() -> None:
    names = conversation_names(asked("hi", name="s", goes_on_from=("run:r", "cache:c")), key_id="k")
    assert names[:3] == ("k/name:s", "k/run:r", "k/cache:c")
    assert names[3].startswith("k/text:")


def test_a_later_turn_of_a_conversation_has_the_name_of_its_first() -> None:
    first, later = asked("hi"), asked("hi", "hello", "and then?")
    assert conversation_names(first, key_id="k") == conversation_names(later, key_id="k")
    assert conversation_names(asked("ho"), key_id="k") != conversation_names(first, key_id="k")
    assert conversation_names(first, key_id="other") != conversation_names(first, key_id="k"), "no key shares another's"
    tools = msgspec.structs.replace(first, options=Request((), tools=TOOLS))
    assert conversation_names(tools, key_id="k") != conversation_names(first, key_id="k")


async def ran(*, worker: str = "a", tokens: int = 50) -> Trace:
    workers = [Scripted("x", name=name, usage=Usage(tokens, 5)) for name in ("a", "b")]
    return await Conductor(Single(worker), Pool(workers)).run("hi")


async def test_the_worker_that_read_the_conversation_is_warm_under_every_name_of_it() -> None:
    conversations, trace = Conversations(), await ran()
    conversations.note(("k/text:1", "k/cache:2"), trace, key_id="k")
    for name in ("k/text:1", "k/cache:2", f"k/{run_name(trace.id)}"):
        assert conversations.warm(("k/unknown", name)) == Warm(("a",), 50)
    assert conversations.warm(("other/text:1",)) is None


async def test_after_some_minutes_nothing_is_warm() -> None:
    conversations = Conversations(kept_s=0.0)
    conversations.note(("k/text:1",), await ran(), key_id="k")
    assert conversations.warm(("k/text:1",)) is None


async def test_old_conversations_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dirigent.serve.runs.conversation.MOST_CONVERSATIONS", 4)
    conversations, trace = Conversations(), await ran()
    for i in range(6):
        conversations.note((f"k/text:{i}",), trace, key_id="k")
    assert len(conversations) == 4
    assert conversations.warm(("k/text:0",)) is None
    assert conversations.warm(("k/text:5",)) is not None


def test_a_cache_key_is_a_name_and_none_is_none() -> None:
    assert (cache_names("x"), cache_names(None)) == (("cache:x",), ())


# --- what the policy makes of it ---


class Wavering:
    """A policy that wants another worker first in each turn."""

    def __init__(self) -> None:
        self.fingerprints = {"quick": "q", "strong": "s"}
        self._orders = itertools.cycle([("quick", "strong"), ("strong", "quick")])

    def plan_for(
        self, question: str, workers: Collection[str], *, prefer: Prefer, most_calls: int | None, at: str
    ) -> Decided:
        return Decided(next(self._orders))


def pool_of(quick: Price, strong: Price) -> Pool:
    workers = [
        Scripted("x", name="quick", fingerprint="q", price=quick),
        Scripted("x", name="strong", fingerprint="s", price=strong),
    ]
    return Pool([*workers, Select(Sure(0.9, 0.9))])


async def test_the_policy_keeps_the_worker_if_leaving_costs_more_and_notes_the_cost() -> None:
    pool = pool_of(Price(1, 4, cached_input=0.1), Price(2, 8, cached_input=0.2))
    brief = Brief(conversation("go on"), pool, Limits(), warm=Warm(("strong",), 100_000))
    draft = await Learned(Wavering()).draft(brief)
    assert draft.plan is not None
    assert draft.reason is not None
    assert [step.worker for step in draft.plan.steps] == ["strong", "quick", "select"]
    # Staying: 100,000 cached tokens at $0.20 and 300 written at $8; leaving: the same tokens afresh at $1, 300 at $4.
    assert draft.reason.switch_cost_usd == pytest.approx((0.1 + 0.0012) - (0.02 + 0.0024))
    assert "stays with strong, which has read the conversation: leaving costs $0.079 more" in draft.reason.why


async def test_the_policy_leaves_where_another_worker_is_cheaper_even_so() -> None:
    pool = pool_of(Price(0.01, 0.04), Price(10, 40, cached_input=1))
    brief = Brief(conversation("go on"), pool, Limits(), warm=Warm(("strong",), 10_000))
    draft = await Learned(Wavering()).draft(brief)
    assert draft.plan is not None
    assert draft.reason is not None
    assert draft.plan.steps[0].worker == "quick"
    assert draft.reason.switch_cost_usd is not None
    assert draft.reason.switch_cost_usd < 0
    assert "leaves strong" in draft.reason.why


async def test_without_a_price_the_policy_stays() -> None:
    workers = [Scripted("x", name=name, fingerprint=name[0]) for name in ("quick", "strong")]
    pool = Pool([*workers, Select(Sure(0.9, 0.9))])
    brief = Brief(conversation("go on"), pool, Limits(), warm=Warm(("strong",), 10))
    assert leaving_usd(brief, "strong", "quick") is None
    plan = (await Learned(Wavering()).draft(brief)).plan
    assert plan is not None
    assert plan.steps[0].worker == "strong"


# --- twenty turns with tools ---


class Caching(FromFunction):
    """Calls the tool, then answers; of its input it counts as cached what began an earlier request in the same way."""

    def __init__(self, name: str) -> None:
        self._seen: list[str] = []
        super().__init__(
            self._answer, name=name, fingerprint=name[0], abilities=frozenset({"tools"}), price=Price(1, 4, 0.1)
        )

    def _answer(self, request: Request) -> Reply:
        text = msgspec.json.encode([request.tools, *request.messages]).decode()
        cached = max((_common(text, earlier) for earlier in self._seen), default=0)
        self._seen.append(text)
        usage = Usage(len(text), 10, cached_input_tokens=cached)
        if request.messages[-1].role == "user":
            call = ToolCall(f"c{len(self._seen)}", "look", "{}")
            return Reply("", tool_calls=(call,), finish="tool_calls", usage=usage)
        return Reply(f"answer {len(self._seen)}", usage=usage)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return self._answer(request)  # with its own usage


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def cached_tokens(planner: Planner, *, turns: int = 20) -> tuple[int, int]:
    """The input tokens of a conversation with tools, and those of them that were cached."""
    pool = Pool([Caching("quick"), Caching("strong"), Select(Sure(0.9, 0.9))])
    conductor, conversations = Conductor(planner, pool, reassign=False), Conversations()
    messages: tuple[Message, ...] = (Message("system", "You are careful. " * 100),)
    read = cached = 0
    for turn in range(turns):
        messages += (Message("user", f"Question {turn}: " + "details " * 50),)
        request = Asked(model="m", question=messages, options=Request((), tools=TOOLS))
        names = conversation_names(request, key_id="k")
        options = msgspec.structs.replace(request.options, warm=conversations.warm(names))
        paused: list[RunState] = []

        def keep(event: Event, paused: list[RunState] = paused) -> None:
            if (state := getattr(event, "state", None)) is not None:
                paused.append(state)

        waiting = await conductor.run(messages, options=options, observe=keep)
        conversations.note(names, waiting, key_id="k")
        results = {call.id: Message("tool", "found " * 80) for call in waiting.tool_calls}
        trace = await conductor.run(messages, options=options, resume=with_results(paused[0], results))
        assert trace.status == "done"
        conversations.note(names, trace, key_id="k")
        messages += (*trace.steps[-1].tool_traffic, Message("assistant", trace.answer))
        read += trace.usage.input_tokens
        cached += trace.usage.cached_input_tokens
    return read, cached


async def test_twenty_turns_with_tools_are_cached_as_with_one_worker_alone() -> None:
    read_alone, alone = await cached_tokens(Single("quick"))
    read, learned = await cached_tokens(Learned(Wavering()))
    assert alone > 0.9 * read_alone, "the stub caches what a provider would"
    assert learned >= 0.9 * alone
    assert read == pytest.approx(read_alone, rel=0.1)


# --- through the server ---


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The warm workers that each run gets."""
    found: list[tuple[str, ...]] = []
    run = Conductor.run

    async def spy(self: Conductor, question: object, *, options: Request, **more: object) -> Trace:
        found.append(() if options.warm is None else options.warm.workers)
        return await run(self, question, options=options, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Conductor, "run", spy)
    return found


async def test_the_server_knows_a_conversation_by_header_cache_key_and_beginning(
    server: Server, seen: list[tuple[str, ...]]
) -> None:
    later = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "on"},
    ]
    await server.chat("one", model="mini")
    await server.chat(later, model="mini")
    await server.chat("two", model="mini", prompt_cache_key="c")
    await server.chat("three", model="mini", prompt_cache_key="c")
    await server.chat("four", model="mini", headers={"X-Dirigent-Conversation": "s"})
    await server.chat("five", model="mini", dirigent={"conversation": "s"})
    assert seen == [(), ("alpha",), (), ("alpha",), (), ("alpha",)]


async def test_the_server_finds_a_conversation_by_its_previous_response(
    server: Server, seen: list[tuple[str, ...]]
) -> None:
    body = {"model": "mini", "input": "hello"}
    first = (await server.request("POST", "/v1/responses", json=body)).object
    more = body | {"previous_response_id": first["id"], "instructions": "Now in French."}
    assert (await server.request("POST", "/v1/responses", json=more)).status == 200
    assert seen == [(), ("alpha",)]


async def test_a_reply_has_the_share_of_its_input_that_was_cached(server: Server) -> None:
    usage = Usage(100, 5, cached_input_tokens=80)
    server.stub.answer = lambda call: StubReply("hi", usage=usage)
    answer = await server.chat("hi", model="mini", dirigent={"trace": True})
    assert answer.object["dirigent"]["cached_share"] == 0.8
    assert answer.object["dirigent"]["steps"][0]["cached_input_tokens"] == 80
    assert answer.object["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
