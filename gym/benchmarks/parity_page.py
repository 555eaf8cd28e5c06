"""The page of parity and its record: the figures of each precision, and every reply that differs.

Needs neither torch nor llama.cpp: it reads the measurements from the JSON beside the page. This is a part of
`parity.py`, which measures; it is not a program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dirigent.errors import ConfigError

PLANNER_SHARE = 10
"""One prompt in this many is a conductor's; it is ten times as long as a specialist's."""

Precision = Literal["f16", "f32", "f32-all"]


class Difference(msgspec.Struct, frozen=True):
    """The position at which the first two replies that differ diverge."""

    prompt: int
    position: int
    torch: str
    llama: str
    gap: float
    """How much torch prefers its own token, in logits."""


class Agreement(msgspec.Struct, frozen=True):
    """One way of running the model, on all prompts."""

    mode: str
    same: int
    of: int
    differences: tuple[Difference, ...] = ()

    @property
    def widest_gap(self) -> float:
        return max((d.gap for d in self.differences), default=0.0)


class Templates(msgspec.Struct, frozen=True):
    """The numbers of prompts that both sides write alike, and read alike."""

    same_text: int
    same_ids: int
    of: int


class Subject(msgspec.Struct, frozen=True):
    """The subject of a comparison, common to all parts of a page."""

    adapter: str
    """The shipped adapter's name, if the exported file equals it byte for byte; otherwise the folder's name."""
    adapter_sha256: str
    """The hash of the exported file."""
    ships: bool
    base: str
    base_sha256: str
    """The hash of the file that is de-quantised."""
    prompts: int
    planner_prompts: int
    tokens: int
    seed: int


class Part(msgspec.Struct, frozen=True):
    """One precision, and the facts needed to measure it again."""

    subject: Subject
    templates: Templates
    agreements: tuple[Agreement, ...]
    changed: int
    """The number of replies that the adapter changes, in torch."""
    commit: str
    date: str
    seconds: float
    cores: int
    versions: dict[str, str]


Parts = dict[Precision, Part]


def write(parts: Parts, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1) + b"\n")
    out.with_suffix(".md").write_text(as_page(parts), encoding="utf-8")


def read(file: Path) -> Parts:
    """The parts that earlier runs wrote."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Parts)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} holds no comparison ({error}); measure one first, without --page") from None


def is_planners(index: int) -> bool:
    return index % PLANNER_SHARE == PLANNER_SHARE - 1


HOW = """\
The same weights twice: {base}, de-quantised and rounded to float16, in torch (which computes in float32) and as a GGUF
file in llama.cpp, with {adapter}, off, on, and merged into the base. {prompts} prompts of the gym ({planners} of them a
conductor's, the rest a specialist's), greedy, at most {tokens} tokens each. A reply is the same if all its tokens are.
If one differs, the gap is the number of logits by which torch prefers its own token to llama.cpp's at the first
difference. On an f16 base llama.cpp rounds to float16 all values that it multiplies with the weights, and its memory of
the prompt."""

CONTROLS = """ The other
two are controls, with the very same numbers, base and adapter, in files of float32: f32 rounds only within attention,
f32-all (memory in float32, flash attention off, which would round it when reading) nothing."""


def as_page(parts: Parts) -> str:
    """The page of the docs: the number of equal replies, each that differs, and the same replies at the other
    precision."""
    subject = next(iter(parts.values())).subject
    ships = "which ships byte for byte as exported here" if subject.ships else "which does not ship"
    how = HOW.format(
        base=f"`{subject.base}`",
        adapter=f"the adapter `{subject.adapter}`, {ships}",
        prompts=subject.prompts,
        planners=subject.planner_prompts,
        tokens=subject.tokens,
    )
    how += CONTROLS if set(parts) - {"f16"} else ""
    rows = [_row(precision, part, found) for precision, part in parts.items() for found in part.agreements]
    head = ["| base | adapter | same tokens | widest gap where they part |", "|---|---|---|---|"]
    return "\n".join(
        [
            "# Parity: torch and llama.cpp, token for token",
            "",
            how,
            "",
            *head,
            *rows,
            "",
            *(f"- {note}" for note in (*_notes(parts), *_control(parts))),
            "",
            *_differences(parts),
            *(_origin(precision, part) for precision, part in parts.items()),
            f"Adapter sha256 `{subject.adapter_sha256}`, base sha256 `{subject.base_sha256}`.",
            "",
        ]
    )


def _row(precision: Precision, part: Part, found: Agreement) -> str:
    gap = f"{found.widest_gap:.4f}" if found.differences else "–"
    return f"| {precision} | {found.mode} | {found.same} of {found.of} | {gap} |"


def _notes(parts: Parts) -> list[str]:
    """Templates and adapter do not depend on the storage of numbers, so equal lines are written once."""
    said: dict[str, list[str]] = {}
    for precision, part in parts.items():
        written = part.templates
        line = (
            f"the chat templates write the same text in {written.same_text} of {written.of} prompts and read the same "
            f"ids in {written.same_ids}; the adapter changes {part.changed} of {written.of} replies"
        )
        said.setdefault(line, []).append(precision)
    return [f"{', '.join(precisions)}: {line}." for line, precisions in said.items()]


def _control(parts: Parts) -> list[str]:
    """Compares replies that differ with rounding to the same replies without it."""
    if "f16" not in parts:
        return []
    rounded = _parted(parts["f16"])
    said = []
    for precision, part in parts.items():
        exact = _parted(part)
        both = len(rounded.keys() & exact.keys())
        if precision != "f16":
            said.append(
                f"Of the {len(rounded)} replies that differ on f16, {len(rounded) - both} are the same on {precision}; "
                f"others that differ there: {len(exact) - both}."
            )
    return said


def _parted(part: Part) -> Mapping[tuple[str, int], Difference]:
    return {(found.mode, one.prompt): one for found in part.agreements for one in found.differences}


def _differences(parts: Parts) -> list[str]:
    rows = [
        f"| {precision} | {mode} | {prompt}, {'conductor' if is_planners(prompt) else 'specialist'} | {d.position} "
        f"| {_token(d.torch)} | {_token(d.llama)} | {d.gap:.4f} |"
        for precision, part in parts.items()
        for (mode, prompt), d in _parted(part).items()
    ]
    if not rows:
        return []
    head = "| base | adapter | prompt | token | torch | llama.cpp | gap in logits |"
    return ["All that differ, prompts and tokens counted from 0:", "", head, "|---|---|---|---|---|---|---|", *rows, ""]


def _token(text: str) -> str:
    """The token as JSON, so that blanks and line ends are visible; a bar is escaped, because it would end the cell."""
    return f"`{json.dumps(text, ensure_ascii=False)}`".replace("|", "\\|")


def _origin(precision: Precision, part: Part) -> str:
    seen = ", ".join(f"{name} {number}" for name, number in part.versions.items())
    subject = part.subject
    sizes = f"--prompts {subject.prompts} --tokens {subject.tokens} --seed {subject.seed}"
    return (
        f"`python gym/benchmarks/parity.py --adapter FOLDER --precision {precision} {sizes}`, {part.date}, "
        f"{part.seconds / 60:.0f} minutes on {part.cores} cores; {seen}; commit `{part.commit or 'unknown'}`."
    )
