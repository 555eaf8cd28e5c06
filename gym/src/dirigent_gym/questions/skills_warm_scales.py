"""More warm-only skills: operations with a parameter, a list to pick from, and two results to bring together.

`skills_warm.py` has one value a phrase; these have the other shapes a clause can take, so that whoever learns from
them learns where clauses end rather than one pattern. No worker has them and no entity is the gym's.
"""

from __future__ import annotations

from itertools import permutations

from dirigent_gym.questions.operation import operation

_NOTES = ("do", "re", "mi", "fa", "so", "la", "ti")
_QUEUES = (
    "Ann, Ben, Cleo",
    "Dora, Emil, Finn, Gus",
    "Hugo, Iris, Jon, Kim, Lea",
    "Max, Nora, Otto, Pia, Quin, Rosa",
    "Sam, Tess, Ulla, Vito",
)
_STACKS = tuple(str(n) for n in range(2, 11))
_CORNERS = {"triangle": 3, "square": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
_FEELINGS = ("angry", "sad", "happy", "calm", "proud", "lively")
_BRIGHT = ("happy", "calm", "proud", "lively")


def _at(note: str, steps: int) -> str:
    return _NOTES[_NOTES.index(note) + steps]


def _child(place: str, queue: str) -> str:
    return queue.split(", ")[int(place) - 1]


def _place(child: str, queue: str) -> int:
    return queue.split(", ").index(child) + 1


SCALES = (
    operation(
        "scales.up",
        takes="note",
        gives="note",
        keys=[(note, str(k)) for i, note in enumerate(_NOTES) for k in range(1, len(_NOTES) - i)],
        solve=lambda x, k: _at(x, int(k)),
        nouns=(
            "the note {k} steps above {x}",
            "the tone {k} steps up the scale from {x}",
            "the result of raising {x} by {k} tones",
            "the note that sits {k} tones over {x}",
        ),
        orders=("Go {k} steps up the scale from {x}.", "Raise {x} by {k} tones.", "Climb {k} tones from {x}."),
        asks=("Which note is {k} steps above {x}?", "Where do {k} tones up from {x} lead?"),
    ),
    operation(
        "scales.down",
        takes="note",
        gives="note",
        keys=[(note, str(k)) for i, note in enumerate(_NOTES) for k in range(1, i + 1)],
        solve=lambda x, k: _at(x, -int(k)),
        nouns=(
            "the note {k} steps below {x}",
            "the tone {k} steps down the scale from {x}",
            "the result of lowering {x} by {k} tones",
            "the note that sits {k} tones under {x}",
        ),
        orders=("Go {k} steps down the scale from {x}.", "Lower {x} by {k} tones.", "Sink {k} tones from {x}."),
        asks=("Which note is {k} steps below {x}?", "Where do {k} tones down from {x} lead?"),
    ),
    operation(
        "scales.degree",
        takes="note",
        gives="number",
        keys=[(note,) for note in _NOTES],
        solve=lambda x: _NOTES.index(x) + 1,
        nouns=("the step that {x} has in the scale", "the degree of {x}", "the scale step of {x}"),
        orders=("Turn {x} into its scale step.", "Say which step of the scale {x} is."),
        asks=("Which step of the scale is {x}?", "Which degree does {x} have?"),
    ),
    operation(
        "scales.tone",
        takes="number",
        gives="note",
        keys=[(str(i + 1),) for i in range(len(_NOTES))],
        solve=lambda x: _NOTES[int(x) - 1],
        nouns=("the note on step {x} of the scale", "the tone of degree {x}", "the note sung on degree {x}"),
        orders=("Sing the note on step {x} of the scale.", "Turn degree {x} into its note."),
        asks=("Which note is on step {x} of the scale?", "Which tone has degree {x}?"),
    ),
    operation(
        "scales.higher",
        takes="note note",
        gives="note",
        keys=list(permutations(_NOTES, 2)),
        solve=lambda x, y: max(x, y, key=_NOTES.index),
        nouns=(
            "the higher sung of {x} and {y}",
            "whichever of {x} and {y} sounds higher",
            "the brighter of {x} and {y}",
        ),
        orders=("Sing the higher of {x} and {y}.", "Say which of {x} and {y} sounds higher."),
        asks=("Which of {x} and {y} sounds higher?", "Which one is sung higher, {x} and {y} compared?"),
    ),
    operation(
        "queues.child",
        takes="number",
        gives="child",
        keys=[(str(i + 1), queue) for queue in _QUEUES for i in range(len(queue.split(", ")))],
        solve=_child,
        nouns=(
            "the child in place {x} of the queue {k}",
            "whoever waits in place {x} of the queue {k}",
            "the child that stands at place {x} in the queue {k}",
        ),
        orders=("Call the child in place {x} of the queue {k}.", "Name who waits at place {x} in the queue {k}."),
        asks=("Which child is in place {x} of the queue {k}?", "Who waits at place {x} in the queue {k}?"),
    ),
    operation(
        "queues.place",
        takes="child",
        gives="number",
        keys=[(child, queue) for queue in _QUEUES for child in queue.split(", ")],
        solve=_place,
        nouns=(
            "the place that {x} has in the queue {k}",
            "the place of {x} in the queue {k}",
            "where {x} stands in the queue {k}",
        ),
        orders=("Find the place of {x} in the queue {k}.", "Say where {x} stands in the queue {k}."),
        asks=("Which place does {x} have in the queue {k}?", "Where does {x} stand in the queue {k}?"),
    ),
    operation(
        "bricks.taller",
        takes="number number",
        gives="number",
        keys=list(permutations(_STACKS, 2)),
        solve=lambda x, y: max(int(x), int(y)),
        nouns=("the taller stack out of {x} and {y} bricks", "the stack that towers when {x} and {y} bricks are piled"),
        orders=(
            "Pile {x} and {y} as bricks and keep the taller stack.",
            "Stack {x} and {y} as bricks; keep the taller.",
        ),
        asks=("Which stack is taller, of {x} and {y} bricks?", "Of {x} and {y} as bricks, which stack is taller?"),
    ),
    operation(
        "shapes.pointier",
        takes="shape shape",
        gives="shape",
        keys=list(permutations(_CORNERS, 2)),
        solve=lambda x, y: max(x, y, key=_CORNERS.__getitem__),
        nouns=("the shape with more corners out of {x} and {y}", "the richer in corners of {x} and {y}"),
        orders=("Draw {x} and {y} and keep the one with more corners.", "Pick out of {x} and {y} by the most corners."),
        asks=("Which of {x} and {y} has more corners?", "Who wins on corners, {x} and {y} compared?"),
    ),
    operation(
        "feelings.match",
        takes="feeling feeling",
        gives="harmony",
        keys=list(permutations(_FEELINGS, 2)),
        solve=lambda x, y: "match" if (x in _BRIGHT) == (y in _BRIGHT) else "clash",
        nouns=("whether {x} and {y} match or clash", "the verdict on {x} and {y} as a match or clash"),
        orders=("Judge whether {x} and {y} match or clash.", "Say if {x} and {y} would match or clash."),
        asks=("Do {x} and {y} match or clash?", "Would {x} and {y} match or clash?"),
    ),
)
