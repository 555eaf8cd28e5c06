"""The torture suite: a real server under load and faults, and three journals that must agree (`docs/torture.md`)."""
