"""The adapters of the gym: specialists, the trained conductor and its warm start. `train/pack.py` fills this folder.

`dirigent.workers.adapters` finds them through the entry point of the group `dirigent.weights`.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
