"""The HTTP face: an OpenAI-compatible endpoint over `Conductor.run`. It translates and observes runs.

    http/    the door: routes, keys, bounds on requests, errors, idempotency, the server itself
    apis/    the three formats: chat, responses, and anthropic (messages)
    runs/    one run: started, watched as a stream, resumed, or in the background
    policy/  models, the operator's rules, guardrails, checks of answers against JSON schemas

Read in the order a request travels: `http/app.py` (the routes), `http/auth.py` (keys), `apis/chat/route.py` (one
request), `runs/start.py` (its run), `runs/stream.py` (its run, watched).
starlette, uvicorn, jsonschema-rs and prometheus-client come with the extra: pip install 'dirigent[serve]'.
"""
