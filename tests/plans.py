"""Random plans with the texts that break parsers; shared by the tests of plan, lists and grammar."""

from __future__ import annotations

from hypothesis import strategies as st

from dirigent.limits import Limits
from dirigent.plan.plan import Dialect, Plan, Step

NAMES = ("letters", "math", "gpt-5", "meta/llama-3.1:70b@eu")
LIMITS = Limits(max_steps=6)
DIALECTS: tuple[Dialect, ...] = ("lists", "lines", "json")

_PIECES = (
    *("`", "```json", "“", "”", "’", "'", '"', '"""', "\\", "\\n", "\\u0060", "\\|", "|", " | ", "<", "</"),
    *(
        "<think>",
        "</think>",
        "<THINK>",
        "model_id = [",
        "subtasks: [",
        'access_list = [["all"]]',
        "[",
        "]",
        "]]",
    ),
    *(
        "{",
        "}",
        '{"steps":[]}',
        "accept",
        "all",
        "- ",
        "* ",
        "• ",
        ",",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\x00",
        "\x0c",
    ),
    *("\x1c", "\x7f", "\x85", "\xa0", "\u2028", "\ufeff", "😀", "é", "漢字", "solve it", "0", "1.", "#"),
)

nasty_text = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
subtasks = nasty_text.map(str.strip).filter(bool)


@st.composite
def plans(draw: st.DrawFn, subtask: st.SearchStrategy[str] = subtasks, *, max_steps: int = LIMITS.max_steps) -> Plan:
    """Plans of one step or more over `NAMES`, with any access that a plan may have."""
    count = draw(st.integers(1, max_steps))
    steps = []
    for index in range(count):
        earlier = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append(Step(draw(st.sampled_from(NAMES)), draw(subtask), tuple(sorted(earlier))))
    return Plan(tuple(steps))
