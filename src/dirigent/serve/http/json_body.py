"""The former names of what is in `body.py` now; imported by `serve/apis` only."""

from dirigent.serve.http.body import MAX_BODY_BYTES, check_depth, decoded

__all__ = ["MAX_BODY_BYTES", "check_depth", "decoded"]
