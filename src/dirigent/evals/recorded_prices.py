"""Prices for recorded models that have no price of their own in the price tables.

Open models have none: a host's does instead, looked up in `genai-prices` under the host's name for the model, so that
package sources and dates it. Together's is taken where it has one, since prices of one host compare; else that of a
host that serves the very model, or its nearest variant, which the note then names. A price that its maker published
and the tables no longer hold stands here with the page it was on. What nobody sold by itself is assumed, and says so:
a host's rate for a model of that size. Prices order the models on a cost axis; no bill should be made from them. A
planner that compares costs (`cheapest`, `escalate`) depends on them.
"""

from __future__ import annotations

from dirigent.workers.prices import price_of
from dirigent.workers.worker import Price

HOSTED: dict[str, tuple[str, str, str]] = {
    "Llama-3.1-405B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-405B-Instruct-Turbo", "its Turbo variant"),
    "Llama-3.1-70B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo", "its Turbo variant"),
    "Llama-3.1-8B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "its Turbo variant"),
    "llama-3.1-8b-instruct": ("together", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "its Turbo variant"),
    "Qwen1.5-72B-Chat": ("together", "Qwen/Qwen1.5-72B", "the base model"),
    "qwen2.5-7b-instruct": ("huggingface_together", "Qwen/Qwen2.5-7B-Instruct", ""),
    "mistral-7b-instruct-v0.3": ("ovhcloud", "Mistral-7B-Instruct-v0.3", ""),
    "gemma-2-9b-it": ("groq", "gemma2-9b-it", ""),
    "llama-3.3-nemotron-super-49b-v1": ("openrouter", "llama-3.3-nemotron-super-49b-v1", ""),
    "jamba-1.5-large": ("openrouter", "ai21/jamba-1-5-large", ""),
    "Mistral-Large-2": ("mistral", "mistral-large", ""),
    "mathstral-7B": ("mistral", "open-mistral-7b", "the model it was made from"),
    "Phi-3-mini-4k-instruct": ("azure", "phi-3-mini-128k-instruct", "the variant with the longer context"),
}
"""Recorded model -> provider and model in the price tables, and how that model differs."""

PUBLISHED: dict[str, tuple[Price, str]] = {
    "deepseek-v2.5-0908": (
        Price(0.14, 0.28, cached_input=0.014),
        "DeepSeek's page of the time, platform.deepseek.com/api-docs/quick_start/pricing",
    ),
}
"""What a maker asked while it served the model."""

_SMALL = (Price(0.2, 0.2), "Together AI's rate for 4.1-8B models, as LiteLLM's price list has it")
_LARGE = (Price(0.9, 0.9), "Together AI's rate for 41.1-80B models, as LiteLLM's price list has it")

ASSUMED: dict[str, tuple[Price, str]] = {
    "codegemma-7b": _SMALL,
    "llama3-chatqa-1.5-8b": _SMALL,
    "llama3-chatqa-1.5-70b": _LARGE,
    "llama-3.1-nemotron-51b-instruct": _LARGE,
}
"""Models that NVIDIA's catalogue let people try, and for which no price a token was found."""


def recorded_price(model: str) -> tuple[Price | None, str]:
    """A model's price and where it is from; None where nobody knows."""
    if (price := price_of(model)) is not None:
        return price, "genai-prices"
    if model in HOSTED:
        provider, hosted, differs = HOSTED[model]
        if (price := price_of(hosted, provider=provider)) is not None:
            return price, f"genai-prices: {provider}, {hosted}" + (f" ({differs})" if differs else "")
    if model in PUBLISHED:
        return PUBLISHED[model]
    if model in ASSUMED:
        price, rate = ASSUMED[model]
        return price, f"assumed: {rate}"
    return None, "unknown"
