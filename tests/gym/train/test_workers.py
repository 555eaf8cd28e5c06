"""Workers in memory: asks are gathered into batches, remembered where that is safe, and answered exactly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Reply, Request, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.execution import execute
from dirigent.workers.worker import Worker
from dirigent_gym.questions import ROSTER, find_specialist, generate, plan_for
from dirigent_gym.train.workers import Counts, ExactWorkers, TorchWorkers, load_workers

NAMES = ("facts", "letters", "guesser")


def said(text: str, *, seed: int | None = None) -> Request:
    return Request((Message("user", text),), seed=seed)


async def test_exact_workers_answer_their_own_skill_and_leave_the_rest_alone() -> None:
    workers = ExactWorkers()
    assert (await workers["facts"].ask(said("What is the capital of Norway?"))).text == "Oslo"
    assert (await workers["letters"].ask(said("What is the capital of Norway?"))).text == "unknown"
    assert workers.take_counts() == Counts(asks=2)
    assert workers.take_counts() == Counts()


async def test_exact_workers_carry_out_the_right_plan_of_every_reliable_question() -> None:
    workers = ExactWorkers()
    for task in generate("dev", 40, seed=3):
        if task.tags["shape"] != "check":
            done = await execute(plan_for(task, ROSTER), workers, task.question, secret="gym")
            assert done.reply is not None
            assert done.reply.text.casefold() == task.answer.casefold()


async def test_exact_workers_are_misled_only_by_what_they_need_not_read_and_always_by_the_same() -> None:
    async def ends(workers: ExactWorkers, step: Step) -> list[str]:
        """What the step says after another one, for many first steps."""
        replies = []
        for n in range(1, 60):
            plan = Plan((Step("roman", f"the Roman numeral for {n}"), step))
            done = await execute(plan, workers, "a question", secret="gym")
            assert done.reply is not None
            replies.append(done.reply.text)
        return replies

    mild, harsh = ExactWorkers(), ExactWorkers(misled=0.3)
    for step in (Step("numbers", "the sum of 4 and 6"), Step("roman", "Read that Roman numeral as a number.", (0,))):
        assert await ends(harsh, step) == await ends(mild, step)
    reads_too_much = Step("numbers", "the sum of 4 and 6", (0,))
    replies = await ends(harsh, reads_too_much)
    assert set(await ends(mild, reads_too_much)) == {"10"}
    assert sum(reply != "10" for reply in replies) / len(replies) == pytest.approx(0.3, abs=0.2)
    assert await ends(harsh, reads_too_much) == replies


async def test_the_unreliable_worker_depends_on_the_seed_alone() -> None:
    workers = ExactWorkers()

    async def guesses(seeds: range) -> list[str]:
        asked = [workers["guesser"].ask(said("What is the square root of 144?", seed=seed)) for seed in seeds]
        return [reply.text for reply in await asyncio.gather(*asked)]

    first = await guesses(range(300))
    assert first == await guesses(range(300))
    assert sum(text == "12" for text in first) / 300 == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("unmet", [{"temperature": 0.5}, {"grammar": "root ::= x"}, {"stop": ("x",)}])
async def test_a_wish_that_cannot_be_met_is_refused_by_name(unmet: dict[str, Any]) -> None:
    request = Request((Message("user", "What is the capital of Norway?"),), **unmet)
    with pytest.raises(WorkerError, match=facts(f"facts {next(iter(unmet))}")) as caught:
        await ExactWorkers()["facts"].ask(request)
    assert caught.value.fault == "request"


async def test_a_price_is_charged_for_what_an_exact_worker_reads_and_writes() -> None:
    plan = Plan((Step("numbers", "What is 3 plus 4?"),))
    done = await execute(plan, ExactWorkers(), "x", secret="gym")
    assert done.steps[0].cost_usd > 0


# --- with a model in memory ---


@pytest.fixture(scope="module")
def base() -> tuple[Any, Any]:
    """A tiny random model and tokenizer."""
    pytest.importorskip("torch", reason="needs the train extra")
    from dirigent_gym.train.tiny import TinySettings, tiny_base

    texts = [task.question for task in generate("train", 100, seed=1)]
    return tiny_base(texts, settings=TinySettings(), seed=0)


@pytest.fixture(scope="module")
def adapters(base: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random, loud adapters, so that every worker says something else."""
    torch = pytest.importorskip("torch", reason="needs the train extra")
    from peft import LoraConfig, get_peft_model

    from dirigent_gym.train.tiny import TinySettings, tiny_base

    folder = tmp_path_factory.mktemp("adapters")
    # PEFT changes the model it is given, so it gets one of its own.
    model, _ = tiny_base([task.question for task in generate("train", 100, seed=1)], settings=TinySettings(), seed=0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["v_proj", "o_proj", "up_proj"], task_type="CAUSAL_LM")
    wrapped = get_peft_model(model, config, adapter_name=NAMES[0])
    for name in NAMES[1:]:
        wrapped.add_adapter(name, config)
    torch.manual_seed(5)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    wrapped.save_pretrained(str(folder))
    return folder


@pytest.fixture
def workers(base: tuple[Any, Any], adapters: Path) -> TorchWorkers:
    return load_workers(*base, [str(adapters)], specialists=[find_specialist(name) for name in NAMES], max_new_tokens=6)


async def ask(worker: Worker, text: str, *, seed: int | None = None) -> Reply:
    return await worker.ask(said(text, seed=seed))


async def test_asks_that_wait_together_are_answered_in_one_batch(workers: TorchWorkers) -> None:
    asked = [ask(workers[name], f"What is the capital of {place}?") for name in NAMES for place in ("Peru", "Chile")]
    replies = await asyncio.gather(*asked)
    assert workers.take_counts() == Counts(asks=6, batches=1, rows=6)
    assert len({reply.text for reply in replies}) > 2


async def test_plans_that_run_together_take_as_many_batches_as_the_deepest_has_steps(workers: TorchWorkers) -> None:
    def chain(place: str, length: int) -> Plan:
        steps = [Step("facts", f"What is the capital of {place}?")]
        steps += [Step("letters", f"Count its letters, {place}.", (i,)) for i in range(length - 1)]
        return Plan(tuple(steps))

    places = ["Peru", "Chile", "Cuba", "Fiji", "Japan", "Nepal"]
    plans = [chain(place, 1 + i % 3) for i, place in enumerate(places)]
    done = await asyncio.gather(*(execute(plan, workers, "x", secret="gym") for plan in plans))
    counts = workers.take_counts()
    assert (counts.batches, counts.rows) == (3, sum(len(plan.steps) for plan in plans))
    assert all(run.error is None and run.steps[-1].cost_usd > 0 for run in done)


async def test_the_same_answer_comes_alone_in_company_and_from_memory(
    workers: TorchWorkers, base: tuple[Any, Any], adapters: Path
) -> None:
    fresh = load_workers(*base, [str(adapters)], specialists=[find_specialist("facts")], max_new_tokens=6)
    alone = await ask(fresh["facts"], "What is the capital of Peru?")
    together, *_ = await asyncio.gather(
        ask(workers["facts"], "What is the capital of Peru?"),
        ask(workers["letters"], "How many letters does the longest of all the words in this sentence have?"),
    )
    assert alone == together == await ask(workers["facts"], "What is the capital of Peru?")
    assert together.usage.input_tokens > 0
    assert workers.take_counts() == Counts(asks=3, remembered=1, batches=1, rows=2)


async def test_equal_asks_under_way_share_one_row_and_what_is_remembered_counts(workers: TorchWorkers) -> None:
    replies = await asyncio.gather(*(ask(workers["facts"], "What is the currency of Chile?") for _ in range(4)))
    assert len(set(map(repr, replies))) == 1
    counts = workers.take_counts()
    assert counts == Counts(asks=4, remembered=3, batches=1, rows=1)
    assert counts.hit_rate == 0.75


async def test_memory_is_bounded_and_keeps_what_was_used_last(base: tuple[Any, Any], adapters: Path) -> None:
    facts = [find_specialist("facts")]
    workers = load_workers(*base, [str(adapters)], specialists=facts, max_new_tokens=2, most_remembered=2)
    for text in ("one", "two", "one", "three", "one", "two"):
        await ask(workers["facts"], text)
    assert workers.take_counts() == Counts(asks=6, remembered=2, batches=4, rows=4)


async def test_the_unreliable_worker_is_sampled_by_seed_and_never_remembered(workers: TorchWorkers) -> None:
    seeds = list(range(20))
    first = await asyncio.gather(*(ask(workers["guesser"], "Find the root of 144.", seed=seed) for seed in seeds))
    again = await asyncio.gather(*(ask(workers["guesser"], "Find the root of 144.", seed=seed) for seed in seeds))
    assert [reply.text for reply in first] == [reply.text for reply in again]
    assert len({reply.text for reply in first}) > 5
    assert workers.take_counts() == Counts(asks=40, batches=2, rows=40)


async def test_steps_of_one_plan_get_seeds_of_their_own(workers: TorchWorkers) -> None:
    plan = Plan(tuple(Step("guesser", "Find the root of 144.") for _ in range(5)))
    done = await execute(plan, workers, "x", options=Request((), seed=11), secret="gym")
    assert len({step.reply.text for step in done.steps if step.reply}) > 1


async def test_who_goes_away_does_not_take_the_answer_from_those_who_stay(workers: TorchWorkers) -> None:
    leaving = asyncio.create_task(ask(workers["facts"], "Name the symbol of gold."))
    staying = asyncio.create_task(ask(workers["facts"], "Name the symbol of gold."))
    await asyncio.sleep(0)
    leaving.cancel()
    assert isinstance(await staying, Reply)
    assert leaving.cancelled()


async def test_a_fault_of_the_model_reaches_everybody_who_waits_and_the_next_batch_works(
    workers: TorchWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(workers, "_tokenizer", None)
        results = await asyncio.gather(
            ask(workers["facts"], "one"), ask(workers["letters"], "two"), return_exceptions=True
        )
    assert [type(result) for result in results] == [AttributeError, AttributeError]
    assert isinstance(await ask(workers["facts"], "one"), Reply)


def test_workers_outlive_a_loop_that_was_left_in_the_middle(workers: TorchWorkers) -> None:
    async def leave() -> None:
        task = asyncio.create_task(ask(workers["facts"], "one"))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leave())
    assert isinstance(asyncio.run(ask(workers["facts"], "one")), Reply)


async def test_a_cut_reply_says_so(workers: TorchWorkers) -> None:
    replies = await asyncio.gather(*(ask(workers["guesser"], "Find it.", seed=seed) for seed in range(60)))
    finishes = {reply.finish: reply.usage.output_tokens for reply in replies}
    assert finishes["length"] == 6
    assert all(reply.usage != Usage() for reply in replies)


def test_a_specialist_without_an_adapter_is_named(base: tuple[Any, Any], adapters: Path) -> None:
    with pytest.raises(ConfigError, match=facts("roman")):
        load_workers(*base, [str(adapters)], specialists=[find_specialist("roman")])
