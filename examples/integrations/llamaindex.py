"""LlamaIndex: its chat model, and an agent with a tool.

pip install -r requirements-llamaindex.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python llamaindex.py
"""

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


async def main() -> None:
    model = OpenAILike(
        model=os.environ.get("DIRIGENT_MODEL", "dirigent-ultra"),
        api_base=os.environ["DIRIGENT_BASE_URL"],
        api_key=os.environ["DIRIGENT_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=128_000,
    )
    print("complete:", await model.acomplete("Say hello."))
    agent = FunctionAgent(tools=[weather], llm=model, system_prompt="Answer briefly.")
    print("agent:", await agent.run("How cold is it in Oslo?"))


if __name__ == "__main__":
    asyncio.run(main())
