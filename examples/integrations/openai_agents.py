"""The OpenAI Agents SDK: an agent with a tool, conducted.

pip install -r requirements-agents.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python openai_agents.py
"""

import asyncio
import os

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["DIRIGENT_BASE_URL"], api_key=os.environ["DIRIGENT_API_KEY"])
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)  # it would send every run to OpenAI; Dirigent keeps its own trace
    agent = Agent(
        name="Forecaster",
        instructions="Answer briefly.",
        model=os.environ.get("DIRIGENT_MODEL", "dirigent-ultra"),
        tools=[weather],
    )
    for api in ("chat_completions", "responses"):
        set_default_openai_api(api)
        print(f"{api}:", (await Runner.run(agent, "How cold is it in Oslo?")).final_output)


if __name__ == "__main__":
    asyncio.run(main())
