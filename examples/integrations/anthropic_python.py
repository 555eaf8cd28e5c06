"""Anthropic's own Python client, over `POST /v1/messages`: a message, a stream, a tool, and a tool runner.

pip install anthropic
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python anthropic_python.py
"""

import os

from anthropic import Anthropic, beta_tool

MODEL = os.environ.get("DIRIGENT_MODEL", "dirigent-ultra")
WEATHER = {
    "name": "weather",
    "description": "The weather in a city, now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


def main() -> None:
    # Anthropic's clients put /v1 before their paths themselves.
    client = Anthropic(
        base_url=os.environ["DIRIGENT_BASE_URL"].removesuffix("/v1"), api_key=os.environ["DIRIGENT_API_KEY"]
    )
    hello = [{"role": "user", "content": "Say hello."}]
    print("message:", client.messages.create(model=MODEL, max_tokens=500, messages=hello).content[0].text)
    with client.messages.stream(model=MODEL, max_tokens=500, messages=hello) as events:
        print("stream:", "".join(events.text_stream))
    print("tool:", tool(client))
    asked = [{"role": "user", "content": "How cold is it in Oslo?"}]
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, messages=asked, tools=[beta_tool(weather, name="weather")]
    )
    print("tool runner:", runner.until_done().content[0].text)


def tool(client: Anthropic) -> str:
    """Several steps of a plan may each want a tool, so ask until an answer comes."""
    messages = [{"role": "user", "content": "How cold is it in Oslo?"}]
    while True:
        message = client.messages.create(model=MODEL, max_tokens=500, messages=messages, tools=[WEATHER])
        if message.stop_reason != "tool_use":
            return message.content[0].text
        uses = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": weather(**use.input)} for use in uses]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


if __name__ == "__main__":
    main()
