"""AG2: an agent with a tool.

pip install -r requirements-ag2.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python ag2_agent.py
"""

import asyncio
import os

from ag2 import Agent, tool
from ag2.config import OpenAIConfig


@tool
def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


async def main() -> None:
    config = OpenAIConfig(
        model=os.environ.get("DIRIGENT_MODEL", "dirigent-ultra"),
        base_url=os.environ["DIRIGENT_BASE_URL"],
        api_key=os.environ["DIRIGENT_API_KEY"],
    )
    agent = Agent("forecaster", prompt="Answer briefly.", config=config, tools=[weather])
    print("agent:", (await agent.ask("How cold is it in Oslo?")).body)


if __name__ == "__main__":
    asyncio.run(main())
