"""Training: from a base model to adapters that ship."""

import os

# The libraries that training stands on tell their makers who uses them, from a thread of their own and whether or not
# there is a network. It is read when they are first imported, so it is said before.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
