"""Frames that only training and development use: no repeats, development's apart, each with one meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import asdict
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent_gym.questions import frames as gym_frames
from dirigent_gym.questions.frames import DECOYS, FANS, SEQUENCES, SequenceFrame
from dirigent_gym.questions.phrasing import LEADS
from dirigent_gym.questions.recognition import Reading, recognise
from dirigent_gym.questions.split import generate
from dirigent_gym.questions.training_frames import FILE, Frames, read_frames, training_frames

SHARED = ("everywhere", "test")
PAGE = Path(__file__).parents[3] / "docs" / "gym.md"


def texts(frames: Frames) -> list[str]:
    """All that a question may say of them, without marks and capitals: what a sequence opens with counts as one."""
    said = [*frames.leads.orders, *frames.leads.asks, *frames.fans, *frames.decoys]
    said += [f"{sequence.opening} {' '.join(sequence.later)} {sequence.closing}" for sequence in frames.sequences]
    return [" ".join(re.findall(r"\{.\}|[\w']+", text.casefold())) for text in said]


def shared_texts() -> set[str]:
    frames = [*(f.text for f in FANS if f.home in SHARED), *(f.text for f in DECOYS if f.home in SHARED)]
    return {*frames, *(lead.text for lead in LEADS if lead.home in SHARED)}


def test_no_wording_is_there_twice() -> None:
    found = training_frames()
    said = Counter([*texts(found["train"]), *texts(found["dev"])])
    assert [text for text, times in said.items() if times > 1] == []


def test_no_training_frame_is_shared_with_the_test() -> None:
    for frames in training_frames().values():
        own = {*frames.leads.orders, *frames.leads.asks, *frames.fans, *frames.decoys}
        assert not own & shared_texts()


def test_an_opening_or_a_closing_of_development_is_not_one_of_training() -> None:
    train, dev = training_frames()["train"], training_frames()["dev"]
    for part in (openings, closings):
        assert part(dev)
        assert not part(dev) & part(train)
    assert not any(
        lead.startswith(kept)
        for lead in (*train.leads.orders, *train.leads.asks)
        for kept in (*dev.leads.orders, *dev.leads.asks)
    )


def openings(frames: Frames) -> set[str]:
    return {sequence.opening for sequence in frames.sequences}


def closings(frames: Frames) -> set[str]:
    return {sequence.closing for sequence in frames.sequences if sequence.closing}


def test_training_has_many_and_many_that_close_with_words_that_ask_for_nothing() -> None:
    train = training_frames()["train"]
    assert len(train.leads.orders) + len(train.leads.asks) >= 60
    assert len(train.sequences) >= 60
    assert len(closings(train)) >= 30
    assert sum(not re.search(r"\{.\}\W*$", sequence.opening) for sequence in train.sequences) >= 12
    assert len(train.fans) >= 55
    assert len(train.decoys) >= 25


def test_every_home_has_its_frames_where_questions_are_put() -> None:
    for home, frames in training_frames().items():
        assert {lead.text for lead in LEADS if lead.home == home} == {*frames.leads.orders, *frames.leads.asks}
        assert {lead.text for lead in LEADS if lead.home == home and lead.mood == "ask"} == {*frames.leads.asks}
        assert [fan.text for fan in FANS if fan.home == home] == [*frames.fans]
        assert [decoy.text for decoy in DECOYS if decoy.home == home] == [*frames.decoys]
        assert [told.opening for told in SEQUENCES if told.home == home] == [s.opening for s in frames.sequences]


def test_the_page_about_the_gym_counts_them_right() -> None:
    train, dev = training_frames()["train"], training_frames()["dev"]
    leads = [len(frames.leads.orders) + len(frames.leads.asks) for frames in (train, dev)]
    sequences, fans, decoys = (
        [len(kind) for kind in kinds]
        for kinds in ((train.sequences, dev.sequences), (train.fans, dev.fans), (train.decoys, dev.decoys))
    )
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert says(page, f"{sum(leads)} {sum(sequences)} {sum(fans)} {sum(decoys)}")
    assert says(page, f"{leads[1]} {sequences[1]} {fans[1]} {decoys[1]}")


CLAUSES = {"noun": "the capital of Peru", "order": "name the capital of Peru.", "ask": "what is the capital of Peru?"}
LATER = {"noun": "the number of letters in it", "order": "count its letters.", "ask": "how many letters are in it?"}


def test_the_words_before_a_clause_do_not_hide_it() -> None:
    for frames in training_frames().values():
        for sequence in frames.sequences:
            opening = before_and_with(sequence.opening, CLAUSES[sequence.opening_mood])
            assert recognise(opening) == (Reading("facts.capital", key=("Peru",)),), opening
            for later in sequence.later:
                said = before_and_with(later, LATER[sequence.later_mood])
                assert recognise(said) == (Reading("letters.length", refers=True),), said
        for said in [before_and_with(fan, CLAUSES["noun"]) for fan in frames.fans] + [
            f"{lead} {CLAUSES['noun']}" for lead in (*frames.leads.orders, *frames.leads.asks)
        ]:
            assert recognise(said) == (Reading("facts.capital", key=("Peru",)),), said


def before_and_with(frame: str, clause: str) -> str:
    return re.split(r"\{.\}", frame)[0] + clause


def test_no_closing_and_no_decoy_is_an_operation() -> None:
    for frames in training_frames().values():
        for text in (*closings(frames), *frames.decoys):
            assert recognise(text) == (), text


WHOLE = FILE.read_text(encoding="utf-8")


def later_nouns(text: str, later: str) -> str:
    """The file with this one frame for what comes later in its first sequence, to be filled with noun phrases."""
    text = text.replace('later_mood = "order"', 'later_mood = "noun"', 1)
    return re.sub(r"(?<=noun\"\n)later = \[.*?\]", f'later = ["{later}"]', text, count=1, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "[", "frames.toml"),
        (lambda text: text.split("[dev]")[0], "frames.toml dev"),
        (lambda text: text.replace("decoys = [", "decoy = [", 1), "frames.toml decoy"),
        (lambda text: text.replace('opening_mood = "noun"', 'opening_mood = "verb"', 1), "frames.toml verb"),
        (lambda text: re.sub(r"later = \[.*", "later = []", text, count=1), "frames.toml 1"),
        (lambda text: text.replace("{a}", "{x}", 1), "frames.toml '{x}{b}' {a}"),
        (lambda text: text.replace("Now {c}", "Now it", 1), "frames.toml '' {c} {C}"),
        (lambda text: text.replace("{c}", "{C}", 1), "frames.toml '{C}' {c}"),
        (lambda text: text.replace("{w}", "{w} {w}", 1), "frames.toml {w} {W}"),
        (lambda text: text.replace('"Show me"', '"Show {x}"'), "frames.toml Show {x}"),
        (lambda text: text.replace("{a}", "{ {a}", 1), "frames.toml {a}"),
        (lambda text: text.replace("{b}", "{b} {", 1), "frames.toml '{'"),
        (lambda text: text.replace("{w}", "} {w}", 1), "frames.toml '}'"),
        (lambda text: text.replace('"Show me"', '"Show me }"'), "frames.toml Show me '}'"),
        (
            lambda text: later_nouns(text, "{C}."),
            "frames.toml {C} {c}",
        ),
        (
            lambda text: later_nouns(text, "Now find {c}"),
            "frames.toml Now find {c}",
        ),
        (lambda text: text.replace("{c}.", "{c}", 1), "frames.toml"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    text = WHOLE.split("\n\n", 1)[1]  # without the words at its head, which name the slots
    file = tmp_path / "frames.toml"
    file.write_text(text, encoding="utf-8")
    assert read_frames(file) == training_frames()
    file.write_text(change(text), encoding="utf-8")
    with pytest.raises(ConfigError, match=facts(message)):
        read_frames(file)


def test_noun_phrases_may_come_later_where_the_frame_makes_sentences_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "frames.toml"
    file.write_text(later_nouns(WHOLE, "Next, find {c}."), encoding="utf-8")
    frame = read_frames(file)["train"].sequences[0]
    assert (frame.later_mood, frame.later) == ("noun", ("Next, find {c}.",))
    monkeypatch.setattr(gym_frames, "SEQUENCES", (SequenceFrame(**asdict(frame)),))
    told = [task.question for task in generate("train", 60, seed=3, shapes=("chain",), depths=(2,))]
    later = [question.partition("Next, find ")[2] for question in told if "Next, find " in question]
    assert len(later) > 10
    assert all(re.match("[a-z0-9]", text) and text.endswith(".") for text in later)
