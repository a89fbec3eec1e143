"""What stands before every route: the key, and how large and how slow a body may be."""

from __future__ import annotations

import asyncio
import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speclib.serve.errors import ApiError

BODY_LIMIT = 1 << 20
BODY_SECONDS = 30.0


class Guard:
    """Reads a request's body before anyone else does, and turns away what is too large, too slow or has no key.

    key: what clients of /v1 must send as bearer token; None lets everyone in.
    """

    def __init__(self, app: ASGIApp, key: str | None = None):
        self._app = app
        self._wanted = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await asyncio.wait_for(_read(receive), BODY_SECONDS)
            self._check_key(scope)
        except TimeoutError:
            late = f"the body did not arrive within {BODY_SECONDS:.0f} s"
            return await ApiError(408, late, headers={"connection": "close"}).response()(scope, receive, send)
        except ApiError as error:
            return await error.response()(scope, receive, send)
        if body is None:
            return None  # the client is gone
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        return await self._app(scope, replay, send)

    def _check_key(self, scope: Scope) -> None:
        if self._wanted is None or not scope["path"].startswith("/v1"):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        # In constant time, so that nobody finds the key letter by letter.
        if not hmac.compare_digest(given, self._wanted):
            word = "this server wants its API key: send it as the bearer token (api_key of the openai client)"
            raise ApiError(401, word, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


async def _read(receive: Receive) -> bytes | None:
    """The whole body, None if the client left. ApiError 413: too large; what was sent is read, up to 16 times that."""
    parts, size, more = [], 0, True
    # A server that answers before it has read is seen by many clients as a broken connection, not as an answer.
    while more and size <= 16 * BODY_LIMIT:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
        if size <= BODY_LIMIT:
            parts.append(message.get("body", b""))
        else:
            parts.clear()
    if size > BODY_LIMIT:
        raise ApiError(
            413, f"the body is larger than {BODY_LIMIT >> 20} MiB: send less", headers={"connection": "close"}
        )
    return b"".join(parts)
