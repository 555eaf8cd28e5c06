"""The outcome of a training run, and the reason for which it ends early."""

from __future__ import annotations

import msgspec

GGUF_FILE = "conductor.gguf"


class Stop(msgspec.Struct):
    """Why a run is to end before its last step. Once it is set, the run ends after the present step."""

    reason: str = ""


class Change(msgspec.Struct, frozen=True):
    """A recipe that was changed during the run; `recipes.json` has all of them whole."""

    from_update: int
    what: str


class Result(msgspec.Struct, frozen=True):
    """How far a run came, and what it wrote."""

    recipe: str
    out: str
    step: int
    steps: int
    stopped: str = ""
    """Why it ended before its last step."""
    adapter: str = ""
    gguf: str = ""
    """The same adapter as llama.cpp loads it."""
    no_gguf: str = ""
    """Why there is none."""
    start: dict[str, float] = {}
    """The warm start, measured."""
    dev: dict[str, float] = {}
    """The last measurement on the development questions."""
    ceiling: float = 0.0
    """Accuracy of the right plans; 0 where tasks do not know theirs."""
    seconds: float = 0.0
    spent_usd: float = 0.0
    """What the workers of a pool have cost, in all parts of the run."""
    changes: tuple[Change, ...] = ()
    """How its recipe changed between its parts; none: it had one recipe."""
    notes: tuple[str, ...] = ()
    """What was said when it began: where it went on, what was damaged."""

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    @property
    def summary(self) -> str:
        right = f"{self.start.get('accuracy_greedy', 0.0):.1%} -> {self.dev.get('accuracy', 0.0):.1%}"
        most = f", ceiling {self.ceiling:.1%}" if self.ceiling else ""
        spent = f"; workers cost ${self.spent_usd:.4g}" if self.spent_usd else ""
        reached = f"step {self.step}/{self.steps}; right on dev {right}{most}{spent}"
        as_gguf = f"as GGUF: {self.gguf}" if self.gguf else f"no GGUF: {self.no_gguf}"
        return f"{reached}\nadapter: {self.adapter}; {as_gguf}"
