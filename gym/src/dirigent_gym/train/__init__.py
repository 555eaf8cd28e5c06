"""Training: from a base model to adapters that ship."""

import os

# The training libraries report their use to their makers from a thread of their own, with or without a network. They
# read this variable when they are first imported, so it is set before that.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
