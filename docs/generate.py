"""Write docs/reference/{configuration,cli}.md, and every part of README.md and of docs/ that is between marks.

    python docs/generate.py            writes the pages
    python docs/generate.py --check    exits 1 if a page differs from the code or the results

Every key, its type and default come from the structs that `dirigent.config` reads; its meaning is the docstring below
it. The commands are shown by their own `--help`. docs/api.md gets its routes and statuses here, docs/baselines.md its
planners, and docs/how-it-learns.md the table of claims, the claims that were missed, and the curves as SVG files. The
measured figures of all pages come from docs/results (`figures.py`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from dirigent.config import file as config
from dirigent.config import presets, worker_config
from dirigent.config import server_settings as settings
from dirigent.planners import PLANNERS
from dirigent.workers import http, worker

sys.path.append(str(Path(__file__).parent))
from figures import embedded_front, with_figures

PAGE = Path(__file__).parent / "reference" / "configuration.md"
COMMANDS_PAGE = PAGE.with_name("cli.md")
API_PAGE = Path(__file__).parent / "api.md"
LEARNING_PAGE = Path(__file__).parent / "how-it-learns.md"
BASELINES_PAGE = Path(__file__).parent / "baselines.md"
RESULTS = Path(__file__).parent / "results"
PAGES_WITH_FIGURES = (
    RESULTS.parents[1] / "README.md",
    *sorted(RESULTS.parent.glob("*.md")),
    RESULTS.with_name("design") / "PLAN.md",
)

HEAD = """\
# Configuration

*Written by `docs/generate.py` from the code; change the docstrings there, not this page.*

One file, `dirigent.toml`: `--config` names it, else `DIRIGENT_CONFIG`, else the one in the current folder.
Without a file Dirigent runs on what it finds: keys in the environment, model servers on this machine, else the
embedded pool: one model of 1.5 billion parameters on the CPU in several [roles](../roles.md). `dirigent init` writes
that down as a file. A misspelt key is an error that names the
nearest one and its line.

```toml
[[worker]]
name = "gpt-5"
kind = "openai"                 # openai | anthropic | gemini | local | recorded | scripted
model = "gpt-5"
base_url = "https://api.example.com/v1"
api_key_env = "OPENAI_API_KEY"
about = "strong at code and maths"
region = "us"
price = { input = 1.25, output = 10.0 }   # USD per million tokens

[profile.ultra]
planner = "language"
planner_worker = "gpt-5"
max_steps = 5
max_rounds = 2
deadline_s = 900
max_cost_usd = 2.0
```

The profile of a run is `--profile`, else `default_profile`, else `ultra`, else the only one. A file without
profiles has two: `ultra` (up to 5 steps, 2 rounds, 900 s) and `mini` (one step, by the worker the planner
picks, 60 s).
"""

ENVIRONMENT = """\
## Environment

| variable | meaning |
|---|---|
| `DIRIGENT_CONFIG` | the config file |
| `DIRIGENT_HOME` | the folder of the store, the weights and the cache; default `~/.cache/dirigent` |
| `DIRIGENT_POOL` | `small`: without configuration, a model of 135 million parameters in place of 1.5 billion |
| `DIRIGENT_PEPPER` | the secret that API keys are hashed under; default: a file in that folder |
| the `url_env` of `[store]` | the store's address |
| the `api_key_env` of a worker | its key; keys never stand in the file |

## Exit codes

| code | meaning |
|---|---|
| 0 | answered |
| 1 | the run failed |
| 2 | usage or configuration |
| 130 | interrupted: upstream calls were cancelled and the trace kept |
"""

TABLES: tuple[tuple[str, str, type[msgspec.Struct]], ...] = (
    ("Top of the file", "", config.Config),
    ("`[[worker]]`", "One table a worker; their order is the pool's.", worker_config.WorkerConfig),
    ("`price`", "USD per million tokens, inside a worker.", worker.Price),
    ("`timeout`", "Inside a worker.", http.Timeouts),
    ("`abilities`", "Inside a worker: corrections to what it is taken to honour.", worker_config.Abilities),
    ("`[profile.NAME]`", "Who plans, over whom, within which limits.", config.Profile),
    ("`[store]`", "Where traces are kept.", config.StoreConfig),
    ("`[cards]`", "What was measured of the workers, for planners to read.", config.CardsConfig),
    ("`[serve]`", "How `dirigent serve` behaves; its options go before the file.", settings.ServeSettings),
    ("`[guardrails]`", "What the server lets in and out.", settings.Guardrails),
    ("`[[override]]`", "A rule that goes before the conductor; the first that fits counts.", settings.Override),
)


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(_section(*table) for table in TABLES), _planners(), _kinds(), _presets(), ENVIRONMENT]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _section(title: str, story: str, type_: type[msgspec.Struct]) -> str:
    said = _docstrings(type_)
    hints = typing.get_type_hints(type_)
    whole = worker_config.WorkerConfig.WHOLE_TABLES.get(title.strip("`"), ())
    rows = [
        f"## {title}",
        "",
        *([story, ""] if story else []),
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for field in msgspec.structs.fields(type_):
        default = "required" if field.required or field.name in whole else _default(field)
        meaning = " ".join(said.get(field.name, "").split()).replace("|", "\\|")
        rows.append(f"| `{field.name}` | {_type(hints[field.name])} | {default} | {meaning} |")
    return "\n".join(rows)


def _docstrings(type_: type[msgspec.Struct]) -> dict[str, str]:
    """The string below each field, of the struct and of those it extends."""
    found: dict[str, str] = {}
    for base in reversed(type_.__mro__):
        if base.__module__.split(".")[0] != "dirigent":
            continue
        tree = ast.parse(inspect.getsource(base)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(below):
                found[field.target.id] = typing.cast(Any, below).value.value
    return found


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value in ("", (), {}, None) or isinstance(value, msgspec.Struct):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _type(type_: Any) -> str:
    if isinstance(type_, types.UnionType) or typing.get_origin(type_) is typing.Union:
        return " or ".join(_type(a) for a in typing.get_args(type_) if a is not types.NoneType)
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Literal:
        return " \\| ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return "tables" if _is_struct(arguments[0]) else f"list of {_type(arguments[0])}s"
    if origin is dict:
        return "tables by name" if _is_struct(arguments[1]) else "table"
    if _is_struct(type_):
        return "table"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[type_]


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _planners() -> str:
    """The planners that a profile may name."""
    rows = [
        "## Planners",
        "",
        "Plugins of `dirigent.planners` may bring others. [Baselines](../baselines.md) lists those of evaluations too.",
        "",
        "| planner | its plan | the plan is written by |",
        "|---|---|---|",
    ]
    for spec in PLANNERS:
        if spec.make is not None:
            writer = f"a {spec.planned_by} (`planner_worker`)" if spec.planned_by else "code"
            rows.append(f"| `{spec.name}` | {spec.about} | {writer} |")
    return "\n".join(rows)


def _kinds() -> str:
    rows = [
        "## Kinds of workers",
        "",
        "Plugins of `dirigent.workers` may bring others.",
        "",
        "| kind | what it is |",
        "|---|---|",
    ]
    return "\n".join([*rows, *(f"| `{name}` | {about} |" for name, about in worker_config.KINDS.items())])


def baselines_page() -> str:
    """The page with its table of planners made anew."""
    from dirigent.evals.planners import FIGURES

    rows = ["| name | plan | needs |", "|---|---|---|"]
    for spec in PLANNERS:
        names = [] if spec.argument is not None and spec.argument.required else [spec.name]
        shown = ", ".join(f"`{name}`" for name in (*names, *spec.forms))
        rows.append(f"| {shown} | {spec.about} | {spec.needs} |")
    rows += [f"| `{name}` | {about} | – |" for name, about in FIGURES.items()]
    return between_marks(BASELINES_PAGE.read_text(encoding="utf-8"), "planners", "\n".join(rows))


def _presets() -> str:
    known = presets.presets()
    rows = [
        "## Presets",
        "",
        '`preset = "gpt-5"` fills what the worker leaves open. Prices come from genai-prices.',
        "",
        "| preset | model | served by | key | region | context | card |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, preset in known.preset.items():
        provider = known.provider[preset.provider]
        context = f"{preset.context_tokens:,}" if preset.context_tokens else "–"
        rows.append(
            f"| `{name}` | `{preset.model}` | {preset.provider} | `{provider.api_key_env[0]}` "
            f"| {provider.region or '–'} | {context} | {preset.about} |"
        )
    return "\n".join(rows)


COMMANDS_HEAD = """\
# Command line

*Written by `docs/generate.py` from the commands' own help.*

`--json` is always a flag: one object (or lines of them, for exports) goes to standard output and nothing else does;
progress and errors go to standard error.
"""


@functools.cache  # the commands of one program do not change, and their help takes a second
def commands_page() -> str:
    """Every command's help, groups first opened up."""
    from dirigent.cli import app

    parts = [COMMANDS_HEAD]
    for words in _command_names(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
        assert shown.exit_code == 0, shown.output
        text = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        text = text.replace("Usage: root", "Usage: dirigent")
        parts.append(f"## {' '.join(('dirigent', *words))}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _command_names(command: Any, words: tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(command, TyperGroup):
        return [words]
    context = typer.Context(command)
    inner = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [found for name, sub in inner if sub is not None for found in _command_names(sub, (*words, name))]


def api_page() -> str:
    """The page with its tables made anew."""
    from dirigent.serve.http.app import ENDPOINTS
    from dirigent.serve.http.openapi import STATUSES

    routes = ["| route | what it is for |", "|---|---|"]
    for endpoint in ENDPOINTS:
        said = " ".join((endpoint.handler.__doc__ or "").strip().splitlines()[0].split())
        routes.append(f"| `{endpoint.method} {endpoint.path.replace(':path}', '}')}` | {said} |")
    statuses = ["| status | meaning |", "|---|---|", *(f"| {number} | {said} |" for number, said in STATUSES.items())]
    text = API_PAGE.read_text(encoding="utf-8")
    for name, rows in (("routes", routes), ("statuses", statuses)):
        text = between_marks(text, name, "\n".join(rows))
    return text


def between_marks(text: str, name: str, inside: str) -> str:
    """The page with this text between `<!-- name -->` and `<!-- /name -->`."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    assert end, f"a page has lost its marks for {name}"
    return f"{before}{begin}{inside}\n{end}{after}"


NOT_MEASURED = "*Not measured yet.* `python gym/benchmarks/claims.py --conductor ADAPTER` measures it."
CURVES = {
    "what is right about plans": {
        "valid": "valid",
        "decomposition": "decomposition",
        "routing_given_decomposition": "routing, given it",
        "access_given_decomposition": "access, given it",
        "accuracy": "answer",
    },
    "steps": {"steps": "steps", "steps_needed": "steps needed", "steps_over_minimal": "over minimal, if right"},
    "variety": {
        "worker_entropy": "entropy of workers",
        "position_entropy": "entropy of positions",
        "zero_variance_groups": "groups all alike",
    },
    "plans by number of steps": {f"steps_{n}": f"{n} step{'s' if n > 1 else ''}" for n in range(1, 6)},
    "names and validity": {
        "routing_own_names": "routing, own names",
        "routing_other_names": "routing, other names",
        "accuracy": "answer",
        "accuracy_given_valid": "answer, given valid",
    },
    "tokens and cost": {"plan_tokens": "tokens, in tens", "cost": "cost, in calls"},
}
"""Plots of a training run: title -> figure of metrics.jsonl -> its name in the legend."""
SCALES = {"plan_tokens": 0.1}
"""Factors that let figures share an axis."""


def learning_page(results: Path) -> tuple[str, dict[str, str]]:
    """The page with the measured figures, and its drawings by file name."""
    from dirigent_gym.train.claims import Claim, as_table

    tables = {path.stem: json.loads(path.read_bytes()) for path in sorted(results.glob("claims*.json"))}
    lines = {name: msgspec.convert(found["table"], list[Claim]) for name, found in tables.items()}
    drawings = _drawings(results)
    shown = "\n\n".join(f"{_measured(tables[name])}\n\n{as_table(found).rstrip()}" for name, found in lines.items())
    images = "\n\n".join(f"![{file.removesuffix('.svg').replace('-', ' ')}](results/{file})" for file in drawings)
    text = LEARNING_PAGE.read_text(encoding="utf-8")
    text = between_marks(text, "claims", shown or NOT_MEASURED)
    text = between_marks(text, "curves", images or "*Not measured yet:* `--metrics` keeps the curves of a run.")
    short = "\n".join(_shortfalls(tables[name], found) for name, found in lines.items())
    return between_marks(text, "shortfalls", short or NOT_MEASURED), drawings


def _measured(found: dict[str, Any]) -> str:
    who = "specialists that answer by the tables" if found["workers"] == "exact" else "the trained specialists"
    seeds = f"mean of {found['seeds']} training seeds, with the spread" if found["seeds"] > 1 else "one training seed"
    commit = found["commit"] or "unknown"
    said = f"Over {who}; {seeds}; {found['sizes']['test']:,} held-out questions; commit `{commit}`, {found['date']}."
    cut = "; ".join(f"{role} at {far}" for role, far in found.get("cut", {}).items())
    return f"{said} Cut short: {cut}." if cut else said


def _shortfalls(found: dict[str, Any], lines: list[Any]) -> str:
    missed = [f"- **{claim.name}**" for claim in lines if claim.verdict == "MISSED"]
    gaps = [claim.name for claim in lines if claim.verdict == "not measured"]
    said = [f"Missed with `{found['workers']}` workers: {'' if missed else 'nothing.'}".rstrip()]
    said += ["", *missed, ""] if missed else [""]
    return "\n".join([*said, f"Not measured: {'; '.join(gaps) or 'nothing'}.", ""])


def _drawings(results: Path) -> dict[str, str]:
    """The curves of the runs with stored metrics, a line for each run."""
    from dirigent_gym.evals.curves import curves

    runs = [
        [row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if row.get("kind") == "train"]
        for path in sorted(results.glob("*metrics*.jsonl"))
    ]
    found = {}
    for title, figures in CURVES.items():
        lines = {
            said: [[(row["step"], row[name] * SCALES.get(name, 1)) for row in rows if name in row] for rows in runs]
            for name, said in figures.items()
        }
        if drawn := curves(lines, title=title):
            found[f"curves-{title.replace(' ', '-')}.svg"] = drawn
    return found


def main(arguments: list[str]) -> int:
    stale = 0
    learning, drawings = learning_page(RESULTS)
    if (RESULTS / "pays.json").is_file():
        drawings["front-embedded-pool.svg"] = embedded_front(RESULTS)
    pages = {PAGE: page(), COMMANDS_PAGE: commands_page(), API_PAGE: api_page(), LEARNING_PAGE: learning}
    pages[BASELINES_PAGE] = baselines_page()
    for path in PAGES_WITH_FIGURES:
        text = pages[path] if path in pages else path.read_text(encoding="utf-8")
        pages[path] = with_figures(text, RESULTS, page=path.name)
    for path, text in (pages | {RESULTS / name: drawn for name, drawn in drawings.items()}).items():
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what the code says: run  python docs/generate.py", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
