"""Training sends no telemetry, and libraries do not write into its log."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_libraries_send_no_telemetry() -> None:
    program = (
        "from dirigent_gym.train.run import silence_libraries; silence_libraries(); "
        "import huggingface_hub.constants as c; print(c.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
