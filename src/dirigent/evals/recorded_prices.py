"""Prices for recorded models that the price tables no longer, or never, held.

Open models have no price of their own. The figures are assumptions: what a host charged for them per million tokens in
late 2024, written down from memory and not checked against its price list; models nobody priced alone carry a host's
rate for models of that size. They order the models on a cost axis; no bill should be made from them. A planner that
compares costs (`cheapest`, `escalate`) depends on them.
"""

from __future__ import annotations

from dirigent.worker import Price
from dirigent.workers.prices import price_of

BY_HAND: dict[str, tuple[Price, str]] = {
    "Llama-3.1-405B-Instruct": (Price(3.5, 3.5), "Together AI, late 2024; assumed"),
    "Llama-3.1-70B-Instruct": (Price(0.88, 0.88), "Together AI, late 2024; assumed"),
    "Llama-3.1-8B-Instruct": (Price(0.18, 0.18), "Together AI, late 2024; assumed"),
    "llama-3.1-8b-instruct": (Price(0.18, 0.18), "Together AI, late 2024; assumed"),
    "Mistral-Large-2": (Price(2.0, 6.0), "Mistral AI, late 2024; assumed"),
    "deepseek-v2.5-0908": (Price(0.14, 0.28), "DeepSeek, late 2024; assumed"),
    "jamba-1.5-large": (Price(2.0, 8.0), "AI21, late 2024; assumed"),
    "Phi-3-mini-4k-instruct": (Price(0.13, 0.52), "Azure, late 2024; assumed"),
    "Qwen1.5-72B-Chat": (Price(0.9, 0.9), "Together AI, late 2024; assumed"),
    "mathstral-7B": (Price(0.25, 0.25), "Mistral AI's rate for its 7B model, late 2024; assumed"),
    "gemma-2-9b-it": (Price(0.3, 0.3), "Together AI, late 2024; assumed"),
    "qwen2.5-7b-instruct": (Price(0.3, 0.3), "Together AI, late 2024; assumed"),
    "mistral-7b-instruct-v0.3": (Price(0.2, 0.2), "Together AI, late 2024; assumed"),
    "codegemma-7b": (Price(0.2, 0.2), "Together AI's rate for 4-8B models, late 2024; assumed"),
    "llama3-chatqa-1.5-8b": (Price(0.2, 0.2), "Together AI's rate for 4-8B models, late 2024; assumed"),
    "llama3-chatqa-1.5-70b": (Price(0.9, 0.9), "Together AI's rate for 41-80B models, late 2024; assumed"),
    "llama-3.1-nemotron-51b-instruct": (Price(0.9, 0.9), "Together AI's rate for 41-80B models, late 2024; assumed"),
    "llama-3.3-nemotron-super-49b-v1": (Price(0.9, 0.9), "Together AI's rate for 41-80B models, late 2024; assumed"),
}


def recorded_price(model: str) -> tuple[Price | None, str]:
    """A model's price and where it is from; None where nobody knows."""
    if (price := price_of(model)) is not None:
        return price, "genai-prices"
    return BY_HAND.get(model, (None, "unknown"))
