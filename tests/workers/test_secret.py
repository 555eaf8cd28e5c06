"""A secret shows only its mask, and live secrets are redacted wherever they appear."""

import copy
import gc
import json
import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.errors import ConfigError
from dirigent.workers.secret import Secret, may_hold_key, redact
from tests.facts import facts

KEY = "not-a-known-shape-42"


def test_a_secret_shows_only_its_mask():
    secret = Secret(KEY)
    shown = [repr(secret), str(secret), f"{secret:>5}", json.dumps({"key": secret}), "%s" % secret]  # noqa: UP031
    shown.append(msgspec.json.encode({"key": secret}, enc_hook=str).decode())
    assert all("***" in text and KEY not in text for text in shown)
    assert secret.reveal() == KEY


def test_a_secret_can_be_neither_pickled_nor_copied():
    secret = Secret(KEY)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(secret)


def test_two_secrets_are_never_equal_by_their_mask():
    assert Secret(KEY) != Secret("another-key-43")
    assert Secret(KEY) != "***"


@pytest.mark.parametrize("value", ["", "  \n", "two\nlines"])
def test_a_key_that_no_header_can_carry_is_refused(value):
    with pytest.raises(ConfigError, match=facts("key")):
        Secret(value)


def test_a_trailing_newline_is_dropped():
    assert Secret(KEY + "\n").reveal() == KEY


def test_live_secrets_are_redacted_by_value_and_forgotten_with_their_owner():
    secret = Secret(KEY)
    longer = Secret(KEY + "-and-more")
    assert redact(f"tried {KEY}, then {KEY}-and-more!") == "tried ***, then ***!"
    del secret, longer
    gc.collect()
    assert redact(f"tried {KEY}") == f"tried {KEY}"


def test_a_secret_is_found_in_its_json_form_too():
    secret = Secret('quo"ted-key')
    assert redact(json.dumps({"said": secret.reveal()})) == '{"said": "***"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key sk-proj-abcdefghijklmnop1234 refused", "key *** refused"),
        ("Authorization: Bearer abc.def-ghi_jkl123", "Authorization: Bearer ***"),
        ('{"x-api-key": "0123456789abcdef"}', '{"x-api-key": "***"}'),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuvw", "***"),
        (
            "the task-force-of-sixteen-people met; bearer of news",
            "the task-force-of-sixteen-people met; bearer of news",
        ),
    ],
)
def test_common_shapes_of_keys_are_redacted_and_ordinary_words_are_not(text, expected):
    assert redact(text) == expected


def test_placeholders_are_too_short_to_redact():
    placeholder = Secret("ollama")
    assert redact("ollama serves llama") == "ollama serves llama"
    assert placeholder.reveal() == "ollama"


PIECES = st.sampled_from(
    [
        *("sk-", "sk_", "pk-", "rk_", "xai-", "gsk_", "hf_", "ghp_", "key-", "dg_", "AIza", "Bearer ", "bearer\n"),
        *("x-api-key: ", "API_KEY=", "api-\u212aey: ", "ap\u0131_key=", '"api_key":"', "Ab1" * 6, "0" * 40),
        *("\\", '"', "\n", "\u2028", "é", "z", KEY, 'quo"ted-key\\42', "clé-secrète-42"),
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join), max_size=4))
def test_whatever_redaction_would_change_is_suspected_within_its_json_too(texts: list[str]):
    secrets = [Secret(value) for value in (KEY, 'quo"ted-key\\42', "clé-secrète-42")]
    texts += [json.dumps(text) for text in texts]  # a provider's JSON, quoted in a text
    changed = any(redact(text) != text for text in texts)
    assert may_hold_key(msgspec.json.encode({"texts": texts}).decode()) or not changed
    assert len(secrets) == 3, "they live until here"


@pytest.mark.parametrize("text", ["", "subtask_only and max_run_output_tokens", "a risk-averse person", "skeleton_key"])
def test_ordinary_words_are_not_suspected(text: str):
    assert not may_hold_key(msgspec.json.encode(text).decode())
