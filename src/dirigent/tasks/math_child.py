"""The child process of `mathematics.py`: one JSON line in, one out. It is killed when it takes too long.

A line is a pair of answers, `[gold, answer]`; the reply says whether they are the same: `true` or `false`. Memory is
limited, since a tower of powers fills it quicker than a clock notices. Knows nothing of tasks.
"""

from __future__ import annotations

import functools
import json
import logging
import resource
import sys
from typing import Any

MEMORY_BYTES = 4 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify warns that its own clock is off; ours is the parent's
    import math_verify  # noqa: F401  # two seconds: before the first comparison's time runs

    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            same = _same(gold, answer)
        except Exception:  # whatever a parser stumbles over is not the same
            same = False
        print(json.dumps(same), flush=True)


def _same(gold: str, answer: str) -> bool:
    from math_verify import verify

    return any(
        left and right and verify(left, right, timeout_seconds=None)
        for left, right in zip(_forms(gold), _forms(answer), strict=True)
    )


@functools.lru_cache(maxsize=512)
def _forms(text: str) -> tuple[Any, Any]:
    """As LaTeX and as plain text: an answer field does not say which it holds."""
    from math_verify import parse

    bare = text.strip().strip("$").strip()
    return parse(f"${bare}$", parsing_timeout=None), parse(text, parsing_timeout=None)


if __name__ == "__main__":
    main()
