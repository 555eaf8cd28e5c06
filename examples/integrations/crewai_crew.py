"""CrewAI: a crew of one agent with a tool.

pip install -r requirements-crewai.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python crewai_crew.py
"""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")  # read while it is imported

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("weather")
def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


def main() -> None:
    model = os.environ.get("DIRIGENT_MODEL", "dirigent-ultra")
    # `openai/` tells CrewAI which wire to speak; the rest is the model's name.
    llm = LLM(
        model=f"openai/{model}",
        base_url=os.environ["DIRIGENT_BASE_URL"],
        api_key=os.environ["DIRIGENT_API_KEY"],
    )
    agent = Agent(role="Forecaster", goal="Tell the weather", backstory="You are brief.", llm=llm, tools=[weather])
    task = Task(description="How cold is it in Oslo?", expected_output="one sentence", agent=agent)
    print("crew:", Crew(agents=[agent], tasks=[task], verbose=False).kickoff())


if __name__ == "__main__":
    main()
