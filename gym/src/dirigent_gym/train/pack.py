"""Fill the package's folder of adapters: PEFT folders -> GGUF files and their cards.

    python -m dirigent_gym.train.pack --specialists adapters --conductor FOLDER --warm-start FOLDER
        --recipe gym-gpu --commit HASH [--date 2026-11-15] [--figures figures.json]
        [--into gym/src/dirigent_gym/weights] [--base FILE.gguf] [--claims TEXT]

`adapters` holds one PEFT folder a specialist. `figures.json` maps a name to its measured figures: `{"facts": {"own":
0.996}}`. `--claims` says which claims the figures of the conductor and its warm start may support, if their training
taught more than the language of plans; reports print it under their tables, after the planner's name. Adapters that are
not named keep their files and cards. At the end the program lists the adapters that may not ship (too large, no card)
and exits with 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.export import ModelShapes, default_base, export_adapter, read_base
from dirigent.workers.adapters import CARDS, Card, Role, faults, read_cards
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.weights import FOLDER

BASE_NAME = "smollm2-135m"

DATA: Mapping[Role, str] = {
    "specialist": "Generated questions of one skill of the gym with exact answers, and others' questions answered "
    "'unknown' (dirigent_gym.questions.examples).",
    "conductor": "The warm start, then reinforcement learning on generated gym questions of the training split, "
    "rewarded by the graded answers of executed plans.",
    "warm-start": "Generated plans with workers and access drawn at random, of the lessons that the recipe names "
    "(dirigent_gym.questions.warmstart).",
}


class Origin(msgspec.Struct, frozen=True):
    """Where this batch of adapters comes from."""

    recipe: str
    commit: str
    figures: dict[str, dict[str, int | float]] = {}
    date: str = ""
    claims: str = ""
    """The claims that figures of planners in this batch may support; specialists have no such line."""


def pack(folders: Mapping[str, Path], into: Path, *, base: ModelShapes, origin: Origin) -> dict[str, Card]:
    """Export each PEFT folder under its name, then write the cards of all adapters in `into`."""
    cards = read_cards(into)
    for name, folder in folders.items():
        done = export_adapter(folder, into / f"{name}.gguf", base=base)
        role = role_of(name)
        cards[name] = Card(
            role=role,
            base=BASE_NAME,
            data=DATA[role],
            recipe=origin.recipe,
            commit=origin.commit,
            date=origin.date,
            rank=done.rank,
            alpha=done.alpha,
            size_bytes=done.size_bytes,
            sha256=done.sha256,
            figures=origin.figures.get(name, {}),
            claims="" if role == "specialist" else origin.claims,
        )
    (into / CARDS).write_text(cards_text(cards), encoding="utf-8")
    return cards


def role_of(name: str) -> Role:
    if name == "conductor":
        return "conductor"
    return "warm-start" if name == "warm-start" else "specialist"


def cards_text(cards: Mapping[str, Card]) -> str:
    """The cards as TOML, sorted by name."""
    tables = ["# Model cards of the adapters in this folder, written by `python -m dirigent_gym.train.pack`.\n"]
    for name, card in sorted(cards.items()):
        values = {key: value for key, value in msgspec.to_builtins(card).items() if key not in ("figures", "claims")}
        if card.claims:
            values["claims"] = card.claims
        figures = ", ".join(f"{_value(key)} = {_value(value)}" for key, value in card.figures.items())
        lines = [f"{key} = {_value(value)}" for key, value in values.items()]
        tables.append("\n".join([f"[adapter.{_value(name)}]", *lines, f"figures = {{ {figures} }}"]) + "\n")
    return "\n".join(tables)


def _value(value: object) -> str:
    """A value as TOML. Strings and numbers are written alike in JSON and in TOML."""
    return msgspec.json.encode(value).decode()


def main() -> None:
    args = _arguments()
    try:
        folders = _folders(args)
        figures = json.loads(args.figures.read_text()) if args.figures else {}
        origin = Origin(args.recipe, args.commit, date=args.date, figures=figures, claims=_claims(args, folders))
        cards = pack(folders, args.into, base=read_base(args.base or default_base()), origin=origin)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    for name in folders:
        print(f"{name:<12} {cards[name].size_bytes / 1e6:6.2f} MB  rank {cards[name].rank}")
    wrong = faults(args.into)
    if wrong:
        raise SystemExit("error: " + "\n       ".join(wrong))


def _folders(args: argparse.Namespace) -> dict[str, Path]:
    """Name -> PEFT folder. Other folders beside those of the roster's specialists are ignored."""
    folders: dict[str, Path] = {}
    if args.specialists is not None:
        names = [specialist.name for specialist in ROSTER]
        folders = {name: args.specialists / name for name in names if (args.specialists / name).is_dir()}
        if not folders:
            raise ConfigError(f"{args.specialists} has no folder of a specialist; they are: {', '.join(names)}")
    trained = {"conductor": args.conductor, "warm-start": args.warm_start}
    folders |= {name: folder for name, folder in trained.items() if folder is not None}
    if not folders:
        raise ConfigError("nothing to pack: give --specialists, --conductor or --warm-start")
    return folders


def _claims(args: argparse.Namespace, folders: Mapping[str, Path]) -> str:
    """The claims in one line, because they become part of a sentence. Raises ConfigError if no card would show them."""
    claims = " ".join(args.claims.split())
    if claims and all(role_of(name) == "specialist" for name in folders):
        raise ConfigError(f"--claims {claims!r} is about a planner: pack it with --conductor or --warm-start")
    return claims


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dirigent_gym.train.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--specialists", type=Path, help="a folder with one PEFT folder a specialist")
    parser.add_argument("--conductor", type=Path, help="the PEFT folder of the trained conductor")
    parser.add_argument("--warm-start", type=Path, help="the PEFT folder of the conductor before RL")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--commit", required=True, help="of this repository, when they were trained")
    parser.add_argument("--date", default=date.today().isoformat(), help="the day they were made (default: today)")
    parser.add_argument("--figures", type=Path, help="JSON: name -> figure -> number")
    parser.add_argument(
        "--claims", default="", help="the claims that figures may support: 'starts from ..., and claims ... only'"
    )
    parser.add_argument("--into", type=Path, default=FOLDER)
    parser.add_argument("--base", type=Path, help="GGUF of the base (default: the fetched smollm2-135m)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
