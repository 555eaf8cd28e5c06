"""Policies that ship: `policies/NAME` is a folder as `dirigent learn` writes it.

`dirigent.learn.policy.packaged` finds them through the entry point of the group `dirigent.weights`.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
