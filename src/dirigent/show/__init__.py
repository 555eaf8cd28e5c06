"""Plans and runs in the terminal: drawn afterwards, or live while they happen.

Drawings are `rich` texts: `print_drawing` gives them colour on a terminal and plain characters elsewhere.
Every word a model wrote is made harmless first (`words.py`): a reply cannot move the cursor or hide what
follows it. Reads plans and traces, knows nothing of where they come from.
"""

from dirigent.show.drawing import cost_text, draw_plan, draw_summary, draw_trace, fitting, print_drawing, width_of
from dirigent.show.live import LiveRun
from dirigent.show.words import escape, one_line, seconds_text, usd_text

__all__ = [
    "LiveRun",
    "cost_text",
    "draw_plan",
    "draw_summary",
    "draw_trace",
    "escape",
    "fitting",
    "one_line",
    "print_drawing",
    "seconds_text",
    "usd_text",
    "width_of",
]
