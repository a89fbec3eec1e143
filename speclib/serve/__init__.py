"""The pair behind an OpenAI-compatible API: `app` has the routes, `engine` the one thread that runs `decode`.

    POST /v1/chat/completions, /v1/completions    GET /v1/models, /health, /metrics, /openapi.json

`api` says what requests may hold, `reading` turns them into work, `reply` rounds into answers, `guard` keeps out what
is too large, too slow or has no key, `run` starts and stops it all. None of it decodes: every answer is `decode`'s.
"""

from speclib.serve.app import create_app
from speclib.serve.run import Background, background, serve

__all__ = ["Background", "background", "create_app", "serve"]
