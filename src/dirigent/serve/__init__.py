"""The HTTP face: an OpenAI-compatible endpoint over `Conductor.run`. It translates and observes, nothing else.

Read in the order a request travels: `app.py` (the table of routes), `gate.py` (who may come in), `chat.py`
(one request), `wire.py` and `translate.py` (its shape), `catalogue.py` (which models there are), `models.py` (which
conductor answers), `conducting.py` (the run, kept), `stream.py` (the run, watched). `responses*.py` and `messages*.py`
are the same in two other formats: they put a request into chat's words and a trace into their own. Around a request:
`extension.py` (wishes in headers), `idempotency.py` (once, however often it is sent), `guardrails.py` and `checked.py`
(what may pass), `overrides.py` (the operator's rules). Beside it: `feedback.py`, `usage.py`, `retention.py`,
`telemetry.py`.
starlette, uvicorn, jsonschema-rs and prometheus-client come with the extra: pip install 'dirigent[serve]'.
"""
