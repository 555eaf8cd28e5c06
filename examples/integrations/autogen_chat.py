"""AutoGen: an assistant with a tool.

pip install -r requirements-autogen.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python autogen_chat.py
"""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


async def main() -> None:
    client = OpenAIChatCompletionClient(
        model=os.environ.get("DIRIGENT_MODEL", "dirigent-ultra"),
        base_url=os.environ["DIRIGENT_BASE_URL"],
        api_key=os.environ["DIRIGENT_API_KEY"],
        # AutoGen knows OpenAI's models by name; the abilities of any other must be stated.
        model_info=ModelInfo(
            vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
        ),
    )
    agent = AssistantAgent("forecaster", model_client=client, tools=[weather], reflect_on_tool_use=True)
    result = await agent.run(task="How cold is it in Oslo?")
    print("assistant:", result.messages[-1].content)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
