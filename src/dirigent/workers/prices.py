"""Prices: the cost of a model, from the tables of the `genai-prices` package.

A price is looked up once, when a pool is built, and stored on the worker's card. Nothing is fetched: the tables are as
new as the installed package, and a price in the configuration wins.

A card has one rate for each kind of token, so three details are simplified. If a model costs more above some input
length (Gemini 2.5 Pro above 200,000 tokens), the base rate is used: longer inputs cost more than is counted. Anthropic
writes its cache for one of two periods: the rate of the shorter one, the default, is used. If a model costs more at
some hours (DeepSeek), the rate of the most expensive hour is used, so that a cost cap holds at any time.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dirigent.workers.worker import Price

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice


@functools.cache
def price_of(model: str, *, provider: str = "") -> Price | None:
    """Return the price in USD per million tokens; None if it is unknown.

    `provider` is a name such as "openai", or the address of its API. If the address belongs to no known provider (such
    as your own server), the price is unknown under any model's name. Without a provider, the model's maker counts.
    """
    if not model:
        return None
    today = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
    hours = (today + timedelta(hours=hour) for hour in range(24))
    prices = [price for hour in hours if (price := _at(hour, model, provider)) is not None]
    return max(prices, key=lambda price: (price.output, price.input), default=None)


def _at(hour: datetime, model: str, provider: str) -> Price | None:
    import genai_prices  # takes 200 ms and more, so only if a price is needed

    where: dict[str, Any] = {"provider_api_url" if "://" in provider else "provider_id": provider or None}
    try:
        found = genai_prices.calc_price(
            genai_prices.Usage(input_tokens=1), model, genai_request_timestamp=hour, **where
        )
    except LookupError:
        return None
    return _flat(found.model_price)


def _flat(rates: ModelPrice) -> Price | None:
    """Return one rate for each kind of token; None if the table has no rate for input or output."""
    known = {kind: _base(getattr(rates, f"{kind}_mtok")) for kind in KINDS}
    if known["input"] is None or known["output"] is None:
        return None
    return Price(known["input"], known["output"], known["cache_read"], known["cache_write"])


KINDS = ("input", "output", "cache_read", "cache_write")


def _base(rate: Any) -> float | None:
    """Return the rate; the lowest tier if the rate rises with the length of the input."""
    return None if rate is None else float(getattr(rate, "base", rate))
