"""Trains the controls of the shipped conductor in parallel on one GPU, and measures their lines for the table.

    python gym/benchmarks/controls.py                                             all of them
    python gym/benchmarks/controls.py rft direct --seconds 1500 --out runs        some, ended in time
    python gym/benchmarks/claims.py --add docs/results/claims.json --controls runs/controls.json

Each control is a run of its own, as with `dirigent train recipes/control-NAME.toml`, in OUT/control-NAME, with its
output in OUT/control-NAME.log. Controls that learn from rollouts begin at the packaged warm start, so that they differ
from the packaged conductor only in what they learn. A finished control is not trained again. An interrupted one
continues, except `direct` and `right-plans`, which are fitted in one piece. At the end the table of the packaged
conductor is measured with all controls in OUT, including those cut short, which it marks: OUT/controls.json. A failed
control does not stop the others; the last line names it. Small models leave most of a GPU idle, so several in parallel
take less time than one after the other, most of all with NVIDIA's MPS (`nvidia-cuda-mps-control -d`), under which their
kernels really run at the same time. `--at-once` bounds the GPU memory they take; a control that found too little begins
again once another has ended. Needs the extra `train`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
ROLES = {
    "rft": "rejection",
    "online-rft": "online-rejection",
    "direct": "direct",
    "shuffled": "shuffled",
    "format": "format-only",
    "right-plans": "right-plans",
}
"""Control -> its option in `claims.py`. The longest runs come first."""
LOOK_EVERY_S = 2.0
SHOW_EVERY_S = 30.0


class Control(msgspec.Struct):
    """A running control."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.seconds if args.seconds else None
    try:
        failed = train_all(args.names, args, deadline=deadline)
    except KeyboardInterrupt:
        sys.exit("stopped: interrupted. The same line again goes on")
    code = 0 if args.train_only else measure(measurable(args.out), args)
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; see {', '.join(str(log_of(args.out, name)) for name in failed)}")
    sys.exit(code)


def train_all(names: Sequence[str], args: argparse.Namespace, *, deadline: float | None) -> list[str]:
    """Train the unfinished controls, as many at once as memory allows. Returns the names of those that failed."""
    at_once = args.at_once
    waiting = [name for name in names if not ended(folder_of(args.out, name))]
    running: list[Control] = []
    hungry: set[str] = set()
    failed: list[str] = []
    shown = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once and (deadline is None or time.monotonic() < deadline):
                running.append(started(waiting.pop(0), args, deadline=deadline))
            if deadline is not None and time.monotonic() >= deadline:
                failed += [name for name in waiting if name in hungry]
                waiting.clear()
            time.sleep(LOOK_EVERY_S if running else 0)
            for control in [one for one in running if one.process.poll() is not None]:
                running.remove(control)
                say(control)
                if not control.process.returncode:  # a run that was cut in time ends with 0 too
                    continue
                if running and wants_memory(control):
                    at_once = len(running)  # until one of these returns its memory
                    waiting.append(control.name)
                    hungry.add(control.name)
                else:
                    failed.append(control.name)
            if time.monotonic() - shown > SHOW_EVERY_S:
                shown = time.monotonic()
                for control in running:
                    say(control)
    finally:
        for control in running:
            control.process.terminate()  # a run ends with a checkpoint
        for control in running:
            control.process.wait()
    return failed


def started(name: str, args: argparse.Namespace, *, deadline: float | None) -> Control:
    log = log_of(args.out, name)
    command = [sys.executable, "-m", "dirigent_gym.train.run", str(args.recipes / f"control-{name}.toml")]
    command += ["--out", str(folder_of(args.out, name)), "--resume"]
    if deadline is not None:
        command += ["--seconds", f"{max(0.0, deadline - time.monotonic()):.0f}"]
    with log.open("ab") as written:
        return Control(name, log, subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, cwd=ROOT))


def ended(folder: Path) -> bool:
    """Whether a run reached its last update; a control without updates has a result only then."""
    file = folder / "result.json"
    if not file.is_file():
        return False
    result = json.loads(file.read_bytes())
    return bool(result.get("step", 0) >= result.get("steps", 0))


def measurable(out: Path) -> dict[str, Path]:
    """Role -> folder of each control that has an adapter."""
    folders = {role: folder_of(out, name) for name, role in ROLES.items()}
    return {role: folder for role, folder in folders.items() if (folder / "adapter").is_dir()}


def measure(controls: dict[str, Path], args: argparse.Namespace) -> int:
    """Measures the table of the packaged conductor with these controls. Returns the exit code."""
    command = [sys.executable, str(ROOT / "gym" / "benchmarks" / "claims.py"), "--conductor", "conductor"]
    command += ["--warm-start", "warm-start", "--out", str(args.out / "controls.json")]
    command += ["--limit", str(args.limit)] if args.limit else []
    for role, folder in controls.items():
        command += [f"--{role}", str(folder)]
    return subprocess.run(command, check=False).returncode


def wants_memory(control: Control) -> bool:
    return "out of memory" in last_line(control.log).lower()


def say(control: Control) -> None:
    print(f"▸ {control.name:<12} {last_line(control.log)}", file=sys.stderr, flush=True)


def last_line(log: Path) -> str:
    """The last line of a run's log."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.rsplit("\r", 1)[-1].strip() for line in reversed(lines) if line.strip()), "")


def folder_of(out: Path, name: str) -> Path:
    return out / f"control-{name}"


def log_of(out: Path, name: str) -> Path:
    return out / f"control-{name}.log"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CONTROL", help=f"of {', '.join(ROLES)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the folder with their folders")
    parser.add_argument("--recipes", type=Path, default=ROOT / "gym" / "recipes", help="folder of control-NAME.toml")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="after this time no control begins, and running ones end with a checkpoint if they can",
    )
    parser.add_argument("--at-once", type=int, default=3, help="the number of controls that share the GPU")
    parser.add_argument("--train-only", action="store_true", help="do not measure the table")
    parser.add_argument("--limit", type=int, default=0, help="the most questions for any figure of the table")
    args = parser.parse_args()
    args.names, args.out = args.names or list(ROLES), args.out.resolve()
    if unknown := [name for name in args.names if name not in ROLES]:
        parser.error(f"no control is called {unknown[0]}; there are {', '.join(ROLES)}")
    if args.at_once < 1 or args.seconds < 0 or args.limit < 0:
        parser.error("--at-once is at least 1; --seconds and --limit are not negative")
    return args


if __name__ == "__main__":
    main()
