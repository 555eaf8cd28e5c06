"""Prices: what a model costs, from the tables that come with the `genai-prices` package.

Looked up once when a pool is built and kept on the worker's card. Nothing is ever fetched: the tables are as
new as the installed package, and a price in the configuration goes before them.

A card holds one rate per kind of token, so three things are flattened. Where a model is dearer above some input
length (Gemini 2.5 Pro above 200,000 tokens), the base rate is taken: longer inputs cost more than is counted.
Of the two times a cache can be written for (Anthropic), the shorter is counted, which is what is written by default.
Where it is dearer at some hours (DeepSeek), the dearest hour is taken, so that a cost cap holds at any time.
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
    """USD per million tokens, or None where it is not known.

    `provider` is a name such as "openai" or the address of its API; with an address that belongs to no known
    provider (a server of one's own) the price is unknown, whatever the model is called. Without a provider
    the model's own maker is taken.
    """
    if not model:
        return None
    today = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
    hours = (today + timedelta(hours=hour) for hour in range(24))
    prices = [price for hour in hours if (price := _at(hour, model, provider)) is not None]
    return max(prices, key=lambda price: (price.output, price.input), default=None)


def _at(hour: datetime, model: str, provider: str) -> Price | None:
    import genai_prices  # 200 ms and more: only when a price is wanted

    where: dict[str, Any] = {"provider_api_url" if "://" in provider else "provider_id": provider or None}
    try:
        found = genai_prices.calc_price(
            genai_prices.Usage(input_tokens=1), model, genai_request_timestamp=hour, **where
        )
    except LookupError:
        return None
    return _flat(found.model_price)


def _flat(rates: ModelPrice) -> Price | None:
    """One rate a kind of token. A table that lacks input or output does not price a chat model."""
    known = {kind: _base(getattr(rates, f"{kind}_mtok")) for kind in KINDS}
    if known["input"] is None or known["output"] is None:
        return None
    return Price(known["input"], known["output"], known["cache_read"], known["cache_write"])


KINDS = ("input", "output", "cache_read", "cache_write")


def _base(rate: Any) -> float | None:
    """A rate, or the lowest tier of one that rises with the input's length."""
    return None if rate is None else float(getattr(rate, "base", rate))
