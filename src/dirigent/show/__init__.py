"""Draw plans and runs in the terminal: after they end, or live.

Drawings are `rich` texts. `print_drawing` prints them with colour on a terminal and as plain characters elsewhere.
`words.py` first makes every word of a model harmless: a reply cannot move the cursor or hide what follows it. The
package reads plans and traces and does not know where they come from.
"""

from dirigent.show.drawing import cost_text, draw_plan, draw_summary, draw_trace, encodable, print_drawing, width_of
from dirigent.show.live import LiveRun
from dirigent.show.words import escape, one_line, seconds_text, usd_text

__all__ = [
    "LiveRun",
    "cost_text",
    "draw_plan",
    "draw_summary",
    "draw_trace",
    "escape",
    "encodable",
    "one_line",
    "print_drawing",
    "seconds_text",
    "usd_text",
    "width_of",
]
