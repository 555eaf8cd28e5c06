"""Prices for recorded models that have no price of their own in the price tables.

Open models have none: a host's does instead, looked up in `genai-prices` under the host's name for the model, so that
package sources and dates it. Together's is taken where it has one, since prices of one host compare; else that of a
host that serves the very model, or its nearest variant, which the note then names. What no table holds is assumed, and
says so: a price of late 2024 from memory, or a host's rate for a model of that size. Prices order the models on a cost
axis; no bill should be made from them. A planner that compares costs (`cheapest`, `escalate`) depends on them.
"""

from __future__ import annotations

from dirigent.worker import Price
from dirigent.workers.prices import price_of

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
    "Phi-3-mini-4k-instruct": ("azure", "phi-3-mini-128k-instruct", "the variant with the longer context"),
}
"""Recorded model -> provider and model in the price tables, and how that model differs."""

ASSUMED: dict[str, tuple[Price, str]] = {
    "deepseek-v2.5-0908": (Price(0.14, 0.28), "DeepSeek's price of late 2024"),
    "mathstral-7B": (Price(0.25, 0.25), "Mistral AI's rate for its 7B model"),
    "codegemma-7b": (Price(0.2, 0.2), "Together AI's rate for 4-8B models"),
    "llama3-chatqa-1.5-8b": (Price(0.2, 0.2), "Together AI's rate for 4-8B models"),
    "llama3-chatqa-1.5-70b": (Price(0.9, 0.9), "Together AI's rate for 41-80B models"),
    "llama-3.1-nemotron-51b-instruct": (Price(0.9, 0.9), "Together AI's rate for 41-80B models"),
}


def recorded_price(model: str) -> tuple[Price | None, str]:
    """A model's price and where it is from; None where nobody knows."""
    if (price := price_of(model)) is not None:
        return price, "genai-prices"
    if model in HOSTED:
        provider, hosted, differs = HOSTED[model]
        if (price := price_of(hosted, provider=provider)) is not None:
            return price, f"genai-prices: {provider}, {hosted}" + (f" ({differs})" if differs else "")
    if model in ASSUMED:
        price, rate = ASSUMED[model]
        return price, f"assumed: {rate}"
    return None, "unknown"
