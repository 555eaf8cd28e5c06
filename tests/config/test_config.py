"""The config file: its settings, and how every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.facts import facts, says

from dirigent.config.file import (
    BUILT_IN_PROFILES,
    Config,
    Profile,
    choose_profile,
    config_path,
    load_config,
    parse_config,
)
from dirigent.config.presets import presets
from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.workers.worker import Price

ISSUE_EXAMPLE = """
[[worker]]
name = "gpt-5"
kind = "openai"                 # openai | anthropic | gemini | local | recorded | scripted
model = "gpt-5"
base_url = "https://api.example.com/v1"
api_key_env = "OPENAI_API_KEY"
about = "strong at code and maths"
region = "us"
price = { input = 1.25, output = 10.0 }   # USD per million tokens

[profile.ultra]
planner = "language"            # language | conductor | single | moa | reflect | vote ...
planner_worker = "gpt-5"
max_steps = 5
max_rounds = 2
deadline_s = 900
max_cost_usd = 2.0
"""

FILE = Path("dirigent.toml")


def parsed(text: str) -> Config:
    return parse_config(text, path=FILE).config


def test_the_documented_shape_is_read_field_for_field() -> None:
    config = parsed(ISSUE_EXAMPLE)
    worker = config.worker[0]
    assert (worker.name, worker.kind, worker.region) == ("gpt-5", "openai", "us")
    assert worker.price == Price(input=1.25, output=10.0)
    profile = config.profile["ultra"]
    assert profile.limits() == Limits(max_rounds=2, deadline_s=900.0, max_cost_usd=2.0)
    assert (profile.planner, profile.planner_worker) == ("language", "gpt-5")


def test_an_empty_file_has_the_built_in_profiles() -> None:
    config = parsed("")
    assert choose_profile(config) == ("ultra", BUILT_IN_PROFILES["ultra"])
    assert choose_profile(config, "mini")[1].max_steps == 1


def test_a_preset_fills_the_settings_that_a_worker_leaves_open() -> None:
    worker = parsed('[[worker]]\npreset = "gpt-5"\nabout = "mine"').worker[0]
    assert (worker.name, worker.kind, worker.model) == ("gpt-5", "openai", "gpt-5")
    assert worker.base_url == "https://api.openai.com/v1"
    assert worker.api_key_env == "OPENAI_API_KEY"
    assert worker.about == "mine"


def test_the_vendors_key_is_offered_at_the_vendors_address_only() -> None:
    at_home = parsed('[[worker]]\nname = "a"\nkind = "openai"\nmodel = "m"').worker[0]
    elsewhere = parsed(
        '[[worker]]\nname = "a"\nkind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:8000/v1/"'
    ).worker[0]
    assert at_home.api_key_env == "OPENAI_API_KEY"
    assert elsewhere.api_key_env == ""
    assert elsewhere.base_url == "http://127.0.0.1:8000/v1"


def test_googles_second_variable_counts_where_it_alone_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "not-a-real-key")
    assert parsed('[[worker]]\npreset = "gemini-2.5-pro"').worker[0].api_key_env == "GOOGLE_API_KEY"


def worker(body: str) -> str:
    return f'[[worker]]\nname = "w"\n{body}'


OPENAI = 'kind = "openai"\nmodel = "m"\n'

WRONG_FILES = {
    "no toml": ("[[worker]\nname", "dirigent.toml TOML"),
    "a misspelt limit": (
        "[profile.ultra]\nmax_step = 3",
        "max_step [profile.ultra] max_steps dirigent.toml 2",
    ),
    "a misspelt table": (
        "[[workers]]\nname = 'w'",
        "workers worker",
    ),
    "a misspelt table of tables": (
        worker(OPENAI) + "[profiles.ultra]\nmax_steps = 2",
        "profiles profile dirigent.toml 5",
    ),
    "a misspelt worker key": (
        worker(OPENAI + 'base_ulr = "http://x/v1"'),
        "base_ulr [[worker]] w base_url dirigent.toml 5",
    ),
    "a misspelt inner key": (
        worker(OPENAI + "price = { input = 1, outptu = 2 }"),
        "outptu [[worker]] w output dirigent.toml 5",
    ),
    "an unknown time-out": (
        worker(OPENAI + "timeout = { conect_s = 1 }"),
        "conect_s [[worker]] w connect_s",
    ),
    "a table for an array": (
        '[worker]\nname = "w"',
        "worker [[worker]]",
    ),
    "a text for a number": (
        '[profile.ultra]\n\nmax_steps = "five"',
        "max_steps [profile.ultra] five dirigent.toml 3",
    ),
    "a fraction for a count": (
        "[profile.a]\nmax_steps = 2.5",
        "max_steps [profile.a] 2.5",
    ),
    "a number for a text": (
        worker("kind = 3"),
        "kind [[worker]] w 3",
    ),
    "an unknown kind": (worker('kind = "opnai"'), "opnai openai"),
    "a flag for a number": (
        "[profile.a]\nmax_rounds = true",
        "max_rounds [profile.a] true",
    ),
    "too many steps": (
        "[profile.a]\nplanner = 'single'\nmax_steps = 99",
        "max_steps 1 32 99 [profile.a] dirigent.toml 3",
    ),
    "no deadline at all": ("[profile.a]\ndeadline_s = 0", "deadline_s 0"),
    "a deadline that never comes": ("[profile.a]\ndeadline_s = inf", "deadline_s 0 inf"),
    "an infinite cap": ("[profile.a]\nmax_cost_usd = inf", "max_cost_usd 0 inf"),
    "a negative cap": ("[profile.a]\nmax_cost_usd = -1", "max_cost_usd 0 -1.0"),
    "no kind": (worker('model = "m"'), "[[worker]] w kind openai anthropic"),
    "no name": ("[[worker]]\n" + OPENAI, "[[worker]] name dirigent.toml 1"),
    "no model": (worker('kind = "openai"'), "[[worker]] w model openai"),
    "an unusable name": (
        '[[worker]]\nname = "my model"\n' + OPENAI,
        "my model",
    ),
    "a name twice": (
        worker(OPENAI) + worker(OPENAI),
        "w dirigent.toml 5",
    ),
    "a literal key": (
        worker(OPENAI + 'api_key = "abc"'),
        "api_key [[worker]] w",
    ),
    "a key in the wrong place": (
        worker(OPENAI + 'about = "sk-proj-aaaaaaaaaaaa1111bbbbbbb"'),
        "dirigent.toml 5",
    ),
    "a key for a variable": (
        worker(OPENAI + 'api_key_env = "my key"'),
        "api_key_env",
    ),
    "no address": (
        worker(OPENAI + 'base_url = "localhost:8000"'),
        "base_url [[worker]] w",
    ),
    "an address with half a bracket": (
        worker(OPENAI + 'base_url = "http://[::1/v1"'),
        "base_url [[worker]] w",
    ),
    "an impossible port": (
        worker(OPENAI + 'base_url = "http://127.0.0.1:99999/v1"'),
        "base_url [[worker]] w",
    ),
    "a price below nothing": (
        worker(OPENAI + "price = { input = -1, output = 2 }"),
        "input 0 -1 [[worker]] w",
    ),
    "a price that is no number": (
        worker(OPENAI + "price = { input = 0, output = nan }"),
        "output 0 nan",
    ),
    "a price that is no table": (worker(OPENAI + "price = 3"), "price [[worker]] w 3"),
    "half a price, which would make the other half free": (
        worker(OPENAI + "price = { input = 1 }"),
        "price [[worker]] w output dirigent.toml 5",
    ),
    "repairs below nothing": ("[profile.a]\nrepairs = -1", "repairs 0 -1 [profile.a]"),
    "no room for a plan": ("[profile.a]\nplanner_output_tokens = 0", "planner_output_tokens 0"),
    "a planner too hot": ("[profile.a]\ntemperature = 3", "temperature 0 2 3 [profile.a]"),
    "a password in the address": (
        worker(OPENAI + 'base_url = "http://u:p@h/v1"'),
        "base_url",
    ),
    "another kind's key": (
        worker(OPENAI + 'replies = ["a"]'),
        "replies [[worker]] w scripted openai",
    ),
    "nothing to say": (
        worker('kind = "scripted"'),
        "[[worker]] w replies scripted",
    ),
    "no recording": (worker('kind = "recorded"\nmodel = "m"'), "[[worker]] w path"),
    "an unknown preset": ('[[worker]]\npreset = "gpt5"', "gpt5 gpt-5"),
    "an unknown planner": (
        '[profile.a]\nplanner = "langage"',
        "langage [profile.a] language dirigent.toml 2",
    ),
    "an unknown planning worker": (
        worker(OPENAI) + '[profile.a]\nplanner_worker = "v"',
        "planner_worker [profile.a] v dirigent.toml 6",
    ),
    "an unknown worker": (
        worker(OPENAI) + '[profile.a]\nworkers = ["w", "ww"]',
        "workers [profile.a] ww w dirigent.toml 6",
    ),
    "a key of the whole file below a table": (
        worker(OPENAI + 'default_profile = "mini"'),
        "default_profile [[worker]] w dirigent.toml 5",
    ),
    "a rule about an unknown key": (
        worker(OPENAI)
        + '[[override]]\nname = "o"\nkey = "k"\npin = "w"\n[[override]]\nname = "p"\nkey = "k"\ndeny = ["v"]',
        "deny [[override]] p v dirigent.toml 12",
    ),
    "an unknown default": (
        'default_profile = "mni"\n[profile.mini]',
        "mni mini dirigent.toml 1",
    ),
    "no rest": (worker(OPENAI + "breaker_rest_s = 0"), "breaker_rest_s 0 [[worker]] w"),
    "too many retries": (worker(OPENAI + "retries = 9"), "retries 0 2 9 [[worker]] w"),
    "no time at all": (worker(OPENAI + "timeout = { total_s = 0 }"), "total_s 0"),
    "a list of numbers": (
        worker(OPENAI + "skills = [1]"),
        "skills [[worker]] w",
    ),
    "an unknown dialect": (
        "[profile.a]\ndialect = 'yaml'",
        "lists lines json yaml",
    ),
    "an unknown ability": (worker(OPENAI + "abilities = { image = true }"), "image images"),
}


@pytest.mark.parametrize(("text", "said"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_a_wrong_file_is_refused_in_words_that_name_the_fix(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert says(str(caught.value), said)


def test_a_literal_key_is_never_repeated() -> None:
    key = "sk-" + "a1b2" * 8
    for text in (f'api_key = "{key}"', f'base_url = "{key}"', f'api_key_env = "{key}"'):
        with pytest.raises(ConfigError) as caught:
            parsed(worker(OPENAI + text))
        assert key not in str(caught.value)


def test_words_with_a_keys_first_letters_are_no_key() -> None:
    about = "task-by-task-and-risk-based-9000-questions-of-every-kind"
    assert parsed(worker(OPENAI + f'about = "{about}"')).worker[0].about == about


def test_lines_are_right_after_multi_line_strings_and_comments() -> None:
    text = "# [profile.a]\n" + worker(OPENAI) + 'system = """\n[profile.x]\nmodle = 1\n"""\nmodle = "x"'
    with pytest.raises(ConfigError, match=facts("modle model 10")):
        parsed(text)


def test_the_profile_is_the_named_one_else_the_default_else_ultra_else_the_only_one() -> None:
    mini, ultra, own = Profile(max_steps=1), Profile(), Profile(max_steps=2)
    all_three = {"mini": mini, "ultra": ultra, "own": own}
    assert choose_profile(Config(profile=all_three), "own") == ("own", own)
    assert choose_profile(Config(profile=all_three, default_profile="mini")) == ("mini", mini)
    assert choose_profile(Config(profile=all_three)) == ("ultra", ultra)
    assert choose_profile(Config(profile={"own": own})) == ("own", own)
    with pytest.raises(ConfigError, match=facts("own mini --profile default_profile")):
        choose_profile(Config(profile={"own": own, "mini": mini}))
    with pytest.raises(ConfigError, match=facts("ulta ultra")):
        choose_profile(Config(profile=all_three), "ulta")


def test_the_file_is_the_option_else_the_variable_else_the_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRIGENT_CONFIG", raising=False)
    assert config_path() is None
    (tmp_path / "dirigent.toml").write_text("")
    assert config_path() == Path("dirigent.toml")
    monkeypatch.setenv("DIRIGENT_CONFIG", "other.toml")
    assert config_path() == Path("other.toml")
    assert config_path(Path("third.toml")) == Path("third.toml")


def test_a_file_that_is_not_there_or_not_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("none.toml dirigent init")):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=facts("bytes.toml")):
        load_config(tmp_path / "bytes.toml")


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "bom.toml").write_text("[profile.own]\nmax_steps = 2", encoding="utf-8-sig")
    assert load_config(tmp_path / "bom.toml").config.profile["own"].max_steps == 2


def test_a_workers_place_is_its_file_and_line() -> None:
    loaded = parse_config("\n\n" + worker(OPENAI), path=FILE)
    assert loaded.place(loaded.config.worker[0]) == "dirigent.toml (line 3)"


@pytest.mark.parametrize("name", presets().preset)
def test_every_preset_makes_a_whole_worker(name: str) -> None:
    config = parsed(f'[[worker]]\npreset = "{name}"')
    made = config.worker[0]
    assert made.about
    assert made.model
    assert made.api_key_env
    assert made.base_url.startswith("https://")


def test_the_seven_workers_of_the_paper_are_there() -> None:
    paper = [
        "gemini-2.5-pro", "claude-sonnet-4", "gpt-5", "qwen3-32b", "gemma-3-27b",
        "qwen3-32b-thinking", "r1-distill-qwen-32b",
    ]  # fmt: skip
    assert list(presets().preset)[:7] == paper


def test_starters_are_presets_of_their_provider() -> None:
    for name, provider in presets().provider.items():
        assert provider.starters
        assert {presets().preset[starter].provider for starter in provider.starters} == {name}
