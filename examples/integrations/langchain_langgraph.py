"""LangChain's chat model, and a LangGraph agent with a tool on top of it.

pip install -r requirements-langchain.txt
DIRIGENT_BASE_URL=http://127.0.0.1:8000/v1 DIRIGENT_API_KEY=dg_… python langchain_langgraph.py
"""

import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


@tool
def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"4 degrees in {city}"


def main() -> None:
    model = ChatOpenAI(
        model=os.environ.get("DIRIGENT_MODEL", "dirigent-ultra"),
        base_url=os.environ["DIRIGENT_BASE_URL"],
        api_key=os.environ["DIRIGENT_API_KEY"],
    )
    print("chat:", model.invoke("Say hello.").content)
    print("stream:", "".join(piece.content for piece in model.stream("Say hello.")))

    # An agent made by LangChain (itself a graph) ...
    agent = create_agent(model, tools=[weather])
    state = agent.invoke({"messages": [{"role": "user", "content": "How cold is it in Oslo?"}]})
    print("agent:", state["messages"][-1].content)

    # ... and a graph of one's own: each node is a whole conducted run.
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    state = graph.compile().invoke({"messages": [{"role": "user", "content": "Say hello."}]})
    print("graph:", state["messages"][-1].content)


if __name__ == "__main__":
    main()
