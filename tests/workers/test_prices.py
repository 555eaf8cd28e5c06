"""The tables of prices, and models outside them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from dirigent.workers.prices import _at, price_of
from dirigent.workers.worker import Price


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-5", "openai"),
        ("claude-sonnet-4", "anthropic"),
        ("gemini-2.5-pro", "google"),
        ("deepseek-chat", "deepseek"),
    ],
)
def test_current_models_have_a_price_by_name_alone_and_by_provider(model: str, provider: str):
    price = price_of(model)
    assert price is not None
    assert price == price_of(model, provider=provider)
    assert 0 < price.input < price.output
    assert price.cached_input is not None
    assert 0 < price.cached_input < price.input


def test_a_price_is_per_million_tokens():
    assert price_of("gpt-5") == Price(input=1.25, output=10.0, cached_input=0.125)


def test_writing_anthropics_cache_costs_a_quarter_more():
    price = price_of("claude-sonnet-4-5", provider="anthropic")
    assert price is not None
    assert price.cache_write_input == pytest.approx(1.25 * price.input)


def test_a_tiered_price_is_that_of_its_base_tier():
    assert price_of("gemini-2.5-pro") == Price(input=1.25, output=10.0, cached_input=0.125)


def test_a_price_that_changes_with_the_hour_is_that_of_the_dearest():
    hours = [_at(datetime(2026, 5, 1, hour, 45, tzinfo=UTC), "deepseek-chat", "") for hour in range(24)]
    outputs = {price.output for price in hours if price is not None}
    assert len(outputs) > 1, "the tables no longer price deepseek-chat by the hour: choose another model"
    price = price_of("deepseek-chat")
    assert price is not None
    assert price.output == max(outputs)


def test_an_address_names_the_provider():
    assert price_of("gpt-5", provider="https://api.openai.com/v1") == price_of("gpt-5")


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("SmolLM2-135M-Instruct", ""),
        ("", ""),
        ("gpt-5", "http://127.0.0.1:8000/v1"),
        ("gpt-5", "my-own-server"),
    ],
)
def test_a_model_outside_the_tables_has_no_price(model: str, provider: str):
    assert price_of(model, provider=provider) is None


def test_the_tables_are_loaded_only_when_a_price_is_wanted():
    code = "import sys, dirigent.workers.prices; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
