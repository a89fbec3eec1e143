"""What a request that cannot be served is told: OpenAI's error object, one clear sentence that names the thing."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
# Whoever sends the same request again after one of these gets the same answer; the openai client listens to the header.
FINAL = {"x-should-retry": "false"}
NO_OBJECT = "the body is no JSON object: send one, with content-type application/json"


class ApiError(Exception):
    """A refusal: the HTTP status, a sentence, and where it applies the parameter and OpenAI's code for it."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, headers
        kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        # A name that a client sends may hold half a surrogate pair, which no answer in UTF-8 can repeat.
        message, param = _sendable(message), None if param is None else _sendable(param)
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler of `ApiError`."""
    return error.response()


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler of what Starlette refuses by itself: unknown paths, other methods, bodies that are no JSON."""
    what = {
        404: f"there is no {request.url.path} here: see /openapi.json for what there is",
        405: f"{request.url.path} does not take {request.method}",
        400: NO_OBJECT,
    }.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, what, headers=error.headers).response()


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler of bodies that do not fit: the first thing that is wrong, named."""
    return explain(error).response()


async def on_bug(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler of everything else; the traceback is in the server's log."""
    return ApiError(500, "the server failed at this request; its log says why").response()


def explain(error: RequestValidationError) -> ApiError:
    """pydantic's findings as one refusal."""
    errors = error.errors()
    # Of a union each branch has its say: what counts is the one that found the right type, or looked deepest inside.
    same = (e for e in errors if e["loc"][1:2] == errors[0]["loc"][1:2])
    first = max(same, key=lambda e: (not e["type"].endswith("_type"), len(e["loc"])))
    path = [str(part) for part in first["loc"][1:] if isinstance(part, int) or str(part).isidentifier()]
    branches = ("str", "int", "float", "bool")
    param = ".".join(p for i, p in enumerate(path) if not (i and p in branches)) or None
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "refused":
        return ApiError(400, message, first["ctx"]["param"], "unsupported_parameter")
    if param is None:
        return ApiError(400, NO_OBJECT)
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        return ApiError(400, f"there is no parameter {name!r}", param or name, "unknown_parameter")
    if first["type"] == "value_error":
        return ApiError(400, f"{param}: {message}", param)
    return ApiError(400, f"{param}: {message[:1].lower()}{message[1:]}", param)


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event with a JSON object."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
