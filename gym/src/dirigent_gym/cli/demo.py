"""`dirigent demo`: the embedded default, shown: a real small model on this machine's CPU answers through
plans.

The command `make demo` runs. Needs no key and ignores any config file; it uses the pool of a machine without keys and
model servers.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dirigent.cli.output import carry_out


def demo(
    ask: Annotated[bool, typer.Option(help="Take your own questions afterwards, on a terminal.")] = True,
) -> None:
    """Answer a few questions with a small model on this machine's CPU, then yours. Needs no key.

    Example:  dirigent demo
    """

    async def work() -> int:
        from dirigent_gym.cli.demonstration import demonstrate

        return await demonstrate(interactive=ask)

    carry_out(work)
