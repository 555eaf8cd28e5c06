"""The gym's specialists and their conductor as configuration text.

A machine without a configuration runs on the same kind of text that `dirigent init` writes, so this module writes TOML
rather than workers: the user can read and change the text that runs. The conductor reads the cards, so they and the
prices are, word for word, those that it was trained with.

The module knows the roster and the packaged adapters; `build.py` knows how to build a worker.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import msgspec

from dirigent.config.file import Loaded, parse_config
from dirigent.config.worker_config import DEFAULT_WEIGHTS, WorkerConfig
from dirigent.workers.adapters import packaged
from dirigent_gym.questions.specialists import ROSTER, UNKNOWN, Specialist

CONDUCTOR = "conductor"
REPLY_TOKENS = 24
"""No answer of the gym is longer; a longer reply is cut."""
PLAN_TOKENS = 256


def toml_text() -> str:
    """The pool of all installed adapters, for a machine without configuration."""
    return gym_toml(packaged())


def gym_toml(adapters: Collection[str]) -> str:
    """The pool and profiles of these adapters; empty without a conductor or with fewer than two specialists."""
    present = [specialist for specialist in ROSTER if specialist.name in adapters]
    if CONDUCTOR not in adapters or len(present) < 2:
        return ""
    names = ", ".join(_quoted(specialist.name) for specialist in present)
    tables = [_specialist_table(specialist) for specialist in present]
    return "\n".join([HEADER, *tables, CONDUCTOR_TABLE, PROFILES.format(names=names, plan_tokens=PLAN_TOKENS)])


@cache
def specialist_config(specialist: Specialist) -> WorkerConfig:
    """Parses the pool's text for one specialist, for callers that open it outside that pool."""
    (worker,) = parse_config(_specialist_table(specialist)).config.worker
    return worker


def advice(answer: str, loaded: Loaded) -> str:
    """Returns advice if the packaged workers answered `unknown`; empty for any other answer, and for any pool that has
    another worker."""
    adapters = {"", *packaged()}
    only_packaged = all(
        w.kind == "local" and w.weights == DEFAULT_WEIGHTS and w.adapter in adapters for w in loaded.config.worker
    )
    if answer.strip().rstrip(".").lower() != UNKNOWN or not only_packaged:
        return ""
    init = "dirigent init" if loaded.path is None else f"dirigent init --force --path {loaded.path}"
    return (
        f'note: the packaged workers answer "{UNKNOWN}" beyond their few skills (capitals, letters, sums, dates, '
        f"Roman numerals …); for other questions set a key, such as OPENAI_API_KEY, and run `{init}`"
    )


HEADER = """\
# The embedded default: a trained conductor and its specialists, LoRA adapters that ship with the package, all on
# one SmolLM2-135M-Instruct on this CPU (98 MB, brought by `dirigent pool pull`). `adapter` is the name of one that
# ships, or a path. Each specialist masters one skill and says "unknown" to the rest. The prices are notional: nothing
# is billed, but the conductor was trained to weigh them, and reports call them notional.
"""

CONDUCTOR_TABLE = """\
[[worker]]
name = "conductor"
kind = "local"
adapter = "conductor"
merged = true                   # quicker plans, for 145 MB in the cache and 0.4 GB of memory
about = "Writes the plans; it gets no step."

# The base without an adapter, for questions that are no specialist's skill.
[[worker]]
name = "smol"
kind = "local"
about = "A small general model."
temperature = 0
max_output_tokens = 200
"""

PROFILES = """\
[profile.ultra]
planner = "conductor"
planner_worker = "conductor"
workers = [{names}]
planner_output_tokens = {plan_tokens}
fallback = "none"               # its plans are held to a grammar; there is no other worker to ask
deadline_s = 300

[profile.mini]                   # the same conductor, held to one step
planner = "conductor"
planner_worker = "conductor"
workers = [{names}]
max_steps = 1
planner_output_tokens = {plan_tokens}
fallback = "none"
deadline_s = 60
"""


def _specialist_table(specialist: Specialist) -> str:
    price = specialist.price
    lines = [
        "[[worker]]",
        f"name = {_quoted(specialist.name)}",
        'kind = "local"',
        f"adapter = {_quoted(specialist.name)}",
        f"about = {_quoted(specialist.about)}",
        f"skills = [{', '.join(_quoted(skill) for skill in specialist.skills)}]",
        f"price = {{ input = {price.input:g}, output = {price.output:g} }}",
        # The noisy specialist must guess anew each time: greedy decoding would make all its candidates the same.
        f"temperature = {1 if specialist.noise else 0}",
        f"max_output_tokens = {REPLY_TOKENS}",
        "subtask_only = true",
    ]
    if specialist.noise:
        lines.append("extra = { top_k = 0, top_p = 1.0, min_p = 0.0 }    # its errors were measured without these cuts")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a part of TOML's."""
    return msgspec.json.encode(text).decode()
