"""Held-out parts stay out of training, the mix is as stated, and every seed gives the same questions again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.tasks import Task
from dirigent_gym.questions import assert_disjoint, describe, generate, split
from dirigent_gym.questions.frames import DECOYS, FANS, SEQUENCES
from dirigent_gym.questions.phrasing import LEADS, direct, templates
from dirigent_gym.questions.skills import OPERATIONS
from dirigent_gym.questions.split import (
    held_out_combination,
    held_out_pairs,
    held_out_triples,
    skill_pairs,
    skill_triples,
)
from dirigent_gym.questions.tables import PLANETS
from dirigent_gym.questions.warmstart import warm_start


@pytest.fixture(scope="module")
def test_set() -> list[Task]:
    return generate("test", 1_000, seed=1)


def share(tasks: list[Task], **tags: str) -> float:
    return sum(all(task.tags.get(k) == v for k, v in tags.items()) for task in tasks) / len(tasks)


def test_no_test_text_occurs_in_any_training_text(train: list[Task], test_set: list[Task]) -> None:
    warm = [lesson.question for lesson in warm_start(300, seed=1)]
    assert_disjoint([*(t.question for t in train), *warm], [t.question for t in test_set])


def test_a_shared_text_is_found_and_named() -> None:
    with pytest.raises(ConfigError, match="the capital of Peru"):
        assert_disjoint(["Please find the capital of Peru. Then stop."], ["Find the capital of Peru."])


def test_the_mix_of_the_test(test_set: list[Task]) -> None:
    depths = Counter(task.depth for task in test_set)
    assert [depths[d] / len(test_set) for d in (1, 2, 3, 4)] == pytest.approx([0.3, 0.35, 0.25, 0.1], abs=0.01)
    assert share(test_set, shape="fan") == pytest.approx(0.2, abs=0.01)
    assert share(test_set, shape="check") == pytest.approx(0.1, abs=0.01)


def test_training_has_no_depth_4_and_no_held_out_combination(train: list[Task]) -> None:
    assert max(task.depth for task in train) == 3
    assert share(train, combination="held_out") == 0
    for task in train:
        assert task.sketch is not None
        skills = task.sketch.skills
        assert task.tags["shape"] != "chain" or not held_out_combination(skills)


def test_the_test_has_both_seen_and_held_out_combinations(test_set: list[Task]) -> None:
    deep = [task for task in test_set if task.tags["shape"] == "chain" and task.depth in (2, 3)]
    assert 0.25 < share(deep, combination="held_out") < 0.75


def test_a_fifth_of_the_pairs_and_two_fifths_of_the_triples_are_held_out() -> None:
    assert len(held_out_pairs()) / len(skill_pairs()) == pytest.approx(0.2, abs=0.02)
    assert len(held_out_triples()) / len(skill_triples()) == pytest.approx(0.4, abs=0.02)


def test_every_skill_is_still_seen_before_and_after_others() -> None:
    seen = set(skill_pairs()) - held_out_pairs()
    assert {a for a, _ in seen} == {a for a, _ in skill_pairs()}
    assert {b for _, b in seen} == {b for _, b in skill_pairs()}


def test_entities_that_start_test_questions_start_no_training_question(train: list[Task], test_set: list[Task]) -> None:
    def starts(tasks: list[Task]) -> set[str]:
        steps = [task.sketch.steps[0] for task in tasks if task.sketch]
        return {f"{OPERATIONS[s.operation].takes[0]} {s.key[0]}" for s in steps if not s.key[0].isdigit()}

    assert starts(test_set)
    assert not starts(train) & starts(test_set)


def test_values_that_start_test_questions_are_the_tests_own_but_in_one_half_of_some_swaps(test_set: list[Task]) -> None:
    def is_own(task: Task) -> bool:
        steps = [step for step in task.sketch.steps if not step.access] if task.sketch else []
        return all(split._home(OPERATIONS[step.operation], step.key[0]) == "test" for step in steps)

    others = [task for task in test_set if not is_own(task)]
    assert {(task.tags.get("pair_kind"), task.depth) for task in others} == {("swap", 2)}
    assert len({task.tags["pair"] for task in others}) == len(others)  # one of two
    assert len(others) / len(test_set) < 0.03  # as docs/gym.md says


def test_training_uses_no_held_out_wording(train: list[Task]) -> None:
    held_out_leads = [lead.text for lead in LEADS if lead.home == "test"]
    held_out_frames = [f.opening.split("{")[0].strip() for f in SEQUENCES if f.home == "test"]
    for task in train:
        assert not any(task.question.startswith(words) for words in (*held_out_leads, *held_out_frames))
        assert task.sketch is not None
        first = task.sketch.steps[0]
        held_out = {direct(t, first.key) for t in templates(first.operation) if t.home == "test"}
        assert first.subtask not in held_out


PLAIN = {
    "the",
    "and",
    "then",
    "now",
    "what",
    "that",
    "you",
    "out",
    "for",
    "two",
    "with",
    "all",
    "please",
    "about",
    "are",
}


def marking_words(texts: Iterable[str]) -> set[str]:
    """The words that mark a frame: without slots, and without those that any English sentence has."""
    return set(re.findall(r"[a-z]{3,}", re.sub(r"\{.\}", " ", " ".join(texts)).lower())) - PLAIN


def test_frames_for_training_alone_are_many_and_share_no_marking_word_with_a_held_out_one() -> None:
    frames = [((f.opening, *f.later, f.closing), f.home) for f in SEQUENCES]
    frames += [((f.text,), f.home) for f in FANS]
    frames += [((f.text,), f.home) for f in DECOYS]
    frames += [((f.text,), f.home) for f in LEADS]
    held_out = marking_words(text for texts, home in frames if home == "test" for text in texts)
    training = marking_words(text for texts, home in frames if home in ("train", "dev") for text in texts)
    assert sum(home == "train" for _, home in frames) >= 200
    assert {"consider", "neighbour", "determine"} <= held_out
    assert not held_out & training


def test_development_asks_about_half_in_wordings_that_only_it_has(train: list[Task], test_set: list[Task]) -> None:
    dev = generate("dev", 600, seed=1)
    leads = tuple(f"{lead.text} the " for lead in LEADS if lead.home == "dev")

    def has_own(task: Task) -> bool:
        steps = task.sketch.steps if task.sketch else ()
        own = (direct(t, s.key) == s.subtask for s in steps for t in templates(s.operation) if t.home == "dev")
        return any(own) or task.question.startswith(leads)

    assert 0.4 < share(dev, wording="new") < 0.9
    assert all(task.tags["wording"] == "new" for task in dev if has_own(task))
    assert sum(map(has_own, dev)) > len(dev) / 4
    assert not any(map(has_own, (*train, *test_set)))
    assert share(train, wording="known") == share(test_set, wording="new") == 1


def test_the_test_asks_in_no_frame_made_for_training(train: list[Task], test_set: list[Task]) -> None:
    texts = [frame.text for frame in FANS if frame.home == "train"] + [
        decoy.text for decoy in DECOYS if decoy.home == "train"
    ]
    marks = [max(re.split(r"\{.\}", text), key=len).strip() for text in texts]

    def asked_so(tasks: list[Task]) -> int:
        return sum(any(mark in task.question for mark in marks if len(mark) > 8) for task in tasks)

    assert asked_so(train) > len(train) / 20
    assert not asked_so(test_set)


def test_a_fifth_of_the_test_is_in_minimal_pairs(test_set: list[Task]) -> None:
    pairs = Counter(task.tags["pair"] for task in test_set if "pair" in task.tags)
    assert set(pairs.values()) == {2}
    assert sum(pairs.values()) / len(test_set) >= 0.2
    assert share(test_set, pair_kind="swap") >= 0.05


def test_a_swapped_pair_has_the_same_operations_in_another_order(test_set: list[Task]) -> None:
    swapped: dict[str, list[Task]] = {}
    for task in test_set:
        if task.tags.get("pair_kind") == "swap":
            swapped.setdefault(task.tags["pair"], []).append(task)
    assert swapped
    for a, b in swapped.values():
        assert sorted(a.kind.split(">")) == sorted(b.kind.split(">"))
        assert a.kind != b.kind
        assert a.answer != b.answer


def test_a_decoy_changes_neither_plan_nor_answer(test_set: list[Task]) -> None:
    pairs: dict[str, list[Task]] = {}
    for task in test_set:
        if task.tags.get("pair_kind") == "decoy":
            pairs.setdefault(task.tags["pair"], []).append(task)
    for a, b in pairs.values():
        plain, decoyed = (a, b) if "decoy" in b.tags else (b, a)
        assert plain.question in decoyed.question
        assert plain.sketch == decoyed.sketch
        assert decoyed.sketch is not None
        assert decoyed.tags["decoy"] not in decoyed.sketch.skills


def test_the_same_seed_gives_the_same_and_another_seed_something_else() -> None:
    assert generate("test", 60, seed=2) == generate("test", 60, seed=2)
    again, other = ({t.question for t in generate("test", 60, seed=s)} for s in (2, 3))
    assert len(again & other) < 10


def test_questions_do_not_repeat(train: list[Task]) -> None:
    assert len({task.question for task in train}) == len(train)


def test_depths_can_be_chosen() -> None:
    assert {task.depth for task in generate("train", 50, seed=1, depths=(1, 2))} == {1, 2}
    with pytest.raises(ConfigError, match=facts("train [4]")):
        generate("train", 5, seed=1, depths=(4,))


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="validation"):
        generate("validation", 5, seed=1)  # type: ignore[arg-type]


def test_the_novel_split_always_needs_the_skill_that_training_never_shows(train: list[Task]) -> None:
    assert all("planets" in task.tags["skills"] for task in generate("novel", 100, seed=1))
    assert not any("planets" in task.tags["skills"] for task in train)
    assert not any(planet in task.question for task in train for planet in PLANETS)


@pytest.mark.parametrize(("n", "seed"), [(200, 3), (250, 7), (300, 3)])
def test_a_skill_that_one_question_in_ten_begins_with_is_found_however_long_it_takes(n: int, seed: int) -> None:
    tasks = generate("novel", n, seed=seed)
    assert len({task.question for task in tasks}) == n
    assert Counter(task.depth for task in tasks)[1] == round(n * 0.3 / 0.7)  # of chains, which have 70% of the mix


def test_the_error_for_too_many_questions_names_the_possible_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MAX_TRIES", 1)  # so that the first question drawn twice is taken for the end
    with pytest.raises(ConfigError) as raised:
        generate("novel", 700, seed=1)
    said = re.match(
        r"novel has about (\d+) different questions that are a chain of depth 1, and 700 in all would take 300; "
        r"ask for (\d+) or fewer, or for other depths",
        str(raised.value),
    )
    assert said is not None, raised.value
    found, fewer = int(said[1]), int(said[2])
    assert 0 < found < 300
    assert fewer == 700 * found // 300
    assert len(generate("novel", fewer, seed=1)) == fewer


def test_describe_prints_the_mix(test_set: list[Task]) -> None:
    text = describe(test_set)
    assert "1000 tasks" in text
    assert "1 30.0%, 2 35.0%, 3 25.0%, 4 10.0%" in text
