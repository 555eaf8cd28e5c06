"""The HTTP face: an OpenAI-compatible endpoint over `Conductor.run`. It translates and observes, nothing else.

Read in the order a request travels: `app.py` (the table of routes), `gate.py` (who may come in), `chat.py`
(one request), `wire.py` and `translate.py` (its shape), `models.py` (which conductor answers), `conducting.py`
(the run, kept), `stream.py` (the run, watched). starlette, uvicorn, jsonschema-rs and prometheus-client come
with the extra: pip install 'dirigent[serve]'.
"""
