"""OpenAI's Responses API through its own Python client: an answer, a stream, a tool, and a follow-up.

pip install openai
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python openai_responses.py
"""

import json
import os

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ.get("DIRIGENT_MODEL", "dirigent-ultra")
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city, now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: str
    country: str


def weather(city: str) -> str:
    return f"4 degrees in {city}"


def main() -> None:
    client = OpenAI(base_url=os.environ["DIRIGENT_BASE_URL"], api_key=os.environ["DIRIGENT_API_KEY"])
    first = client.responses.create(model=MODEL, input="Say hello.")
    print("answer:", first.output_text)
    again = client.responses.create(model=MODEL, input="Again, please.", previous_response_id=first.id)
    print("follow-up:", again.output_text)
    print("kept:", client.responses.retrieve(first.id).status)
    print("stream:", stream(client))
    print("tool:", tool(client))
    parsed = client.responses.parse(model=MODEL, input="What is the capital of Norway?", text_format=City)
    print("structured:", parsed.output_parsed)


def stream(client: OpenAI) -> str:
    events = client.responses.create(model=MODEL, input="Say hello.", stream=True)
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def tool(client: OpenAI) -> str:
    """Several steps of a plan may each want a tool, so ask until an answer comes."""
    response = client.responses.create(model=MODEL, input="How cold is it in Oslo?", tools=[WEATHER])
    while calls := [item for item in response.output if item.type == "function_call"]:
        results = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": weather(**json.loads(call.arguments)),
            }
            for call in calls
        ]
        response = client.responses.create(
            model=MODEL, input=results, tools=[WEATHER], previous_response_id=response.id
        )
    return response.output_text


if __name__ == "__main__":
    main()
