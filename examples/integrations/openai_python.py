"""OpenAI's own Python client: chat, a stream, a tool, a structured answer, and what the run cost.

pip install openai
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python openai_python.py
"""

import json
import os

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ.get("DIRIGENT_MODEL", "dirigent-ultra")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str
    country: str


def weather(city: str) -> str:
    return f"4 degrees in {city}"


def main() -> None:
    client = OpenAI(base_url=os.environ["DIRIGENT_BASE_URL"], api_key=os.environ["DIRIGENT_API_KEY"])
    print("chat:", chat(client))
    print("stream:", stream(client))
    print("tool:", tool(client))
    print("structured:", structured(client))
    print("run:", what_it_cost(client))


def chat(client: OpenAI) -> str | None:
    done = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Say hello."}])
    return done.choices[0].message.content


def stream(client: OpenAI) -> str:
    pieces = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], stream=True
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def tool(client: OpenAI) -> str | None:
    """Several steps of a plan may each want a tool, so ask until an answer comes."""
    messages = [{"role": "user", "content": "How cold is it in Oslo?"}]
    while True:
        message = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            said = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def structured(client: OpenAI) -> City | None:
    question = [{"role": "user", "content": "What is the capital of Norway?"}]
    return client.chat.completions.parse(model=MODEL, messages=question, response_format=City).choices[0].message.parsed


def what_it_cost(client: OpenAI) -> str:
    """Limits go into the field `dirigent`; what the run was stands in the reply's headers."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello."}],
        extra_body={"dirigent": {"max_cost_usd": 0.05}},
    )
    return f"trace {raw.headers['x-dirigent-trace-id']}, {raw.headers['x-dirigent-cost-usd']} USD"


if __name__ == "__main__":
    main()
