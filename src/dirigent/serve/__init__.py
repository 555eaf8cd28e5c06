"""The HTTP server: an OpenAI-compatible endpoint over `Conductor.run`. It translates and observes, nothing else.

    http/     the door: routes (`app.py`), keys, bodies, errors, idempotency, metrics
    apis/     chat, responses, anthropic: each reads its body into one `Asked`, and writes a run in its own words;
              `exchange.py` is the one way of a request between the two
    runs/     `asked.py` (a request in core types), `start.py` (from a request to a run), `handle.py` (a run that any
    number of observers may watch), `stream.py` (a run as events), `resume.py` and `takeover.py` (runs that continue
    later)
    policy/   models, the operator's rules, guardrails, JSON schema checks, retention
    service.py   the open resources of one server

starlette, uvicorn, jsonschema-rs and prometheus-client come with the extra: pip install 'dirigent[serve]'.
"""
