"""The routes. They read a request, put it in line, and send the rounds on as they come; the loop does the rest."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from speclib import chat
from speclib.pairs import Pair
from speclib.serve import errors
from speclib.serve.api import ChatRequest, CompletionRequest
from speclib.serve.engine import Engine, Job, Piece, Work
from speclib.serve.errors import FINAL, ApiError, event
from speclib.serve.guard import Guard
from speclib.serve.metrics import Metrics
from speclib.serve.reading import Reader
from speclib.serve.reply import Reply

SLOW_READER = 30.0  # seconds that a client may take to read a chunk


class ErrorObject(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorObject


REFUSED_WITH = (400, 401, 404, 408, 413, 422, 429, 503)  # 422 is FastAPI's own word, and never said
REFUSALS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in REFUSED_WITH}
STREAMED = {200: {"description": "The answer, or with stream a chunk per round.", "content": {"text/event-stream": {}}}}


def create_app(
    pair: Pair,
    *,
    drafter: str = "model",
    k: int = 4,
    queue: int = 32,
    time_limit: float = 300.0,
    api_key: str | None = None,
) -> FastAPI:
    """The server as an ASGI app; its weights are loaded and its worker thread runs when this returns.

    pair: as `pairs.load`; its target's label is the model's name. drafter, k: for requests that do not choose. queue:
    how many requests may wait. time_limit: seconds for a request, waiting included. api_key: None lets everyone in.
    ValueError: no such drafter, k < 0, a queue or time limit that lets nothing through. PairError: no draft.
    """
    if k < 0 or queue < 0 or time_limit <= 0 or api_key == "":
        raise ValueError("k and queue must be at least 0, the time limit above 0, and the API key not empty")
    chat.make_drafter(drafter, pair)  # an unknown one, or one that this pair lacks, is refused now
    model, begun = pair.labels[0], int(time.time())
    metrics = Metrics(model)
    engine = Engine(pair, queue, metrics)
    reader = Reader(pair, drafter, k, engine.max_length, engine.vocab_size)
    # One thread: prompts are read beside the loop, and the tokenizer is never used by two at once.
    reading = ThreadPoolExecutor(1, "speclib-reader")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.close()
        reading.shutdown()

    app = FastAPI(title="speclib", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.engine = engine
    app.add_middleware(Guard, key=api_key)
    app.add_exception_handler(ApiError, errors.on_api_error)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_exception_handler(RequestValidationError, errors.on_invalid)
    app.add_exception_handler(Exception, errors.on_bug)

    async def answer(request: ChatRequest | CompletionRequest) -> Response:
        if request.model not in (None, model):
            word = f"there is no model {request.model!r} here: this server has {model!r}"
            raise ApiError(404, word, "model", "model_not_found")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_limit
        try:
            work = await loop.run_in_executor(reading, reader.read, request)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return Answer(engine, work, Reply(request, work, model, pair.tokenizer), request, deadline)

    @app.post("/v1/chat/completions", responses=STREAMED | REFUSALS)
    async def chat_completions(request: ChatRequest) -> Response:
        return await answer(request)

    @app.post("/v1/completions", responses=STREAMED | REFUSALS)
    async def completions(request: CompletionRequest) -> Response:
        return await answer(request)

    @app.get("/v1/models", responses={401: {"model": ErrorBody}})
    async def models() -> dict[str, Any]:
        card = {
            "id": model,
            "object": "model",
            "created": begun,
            "owned_by": "speclib",
            "max_model_len": engine.max_length,
        }
        return {"object": "list", "data": [card]}

    @app.get("/health", responses={503: {"model": ErrorBody}})
    async def health() -> dict[str, str]:
        if not engine.alive:
            raise ApiError(503, "the server is being stopped, or its worker has ended")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


class _Gone(Exception):
    """The client has closed the connection."""


class Answer(Response):
    """Puts work in line when it is sent, and follows it.

    Until the first round is there, all that goes wrong is told by the status; in a stream that has begun, by an event.
    """

    def __init__(
        self, engine: Engine, work: Work, reply: Reply, request: ChatRequest | CompletionRequest, deadline: float
    ):
        self._engine, self._work, self._reply, self._request = engine, work, reply, request
        self._deadline = deadline
        super().__init__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patiently(message: Message) -> None:
            try:
                await asyncio.wait_for(send(message), SLOW_READER)
            except TimeoutError:
                raise _Gone from None

        with contextlib.suppress(_Gone):
            async with contextlib.aclosing(self._pieces(receive)) as pieces:
                if self._request.stream:
                    await self._stream(pieces, patiently)
                else:
                    body = self._reply.whole([piece async for piece in pieces])
                    await JSONResponse(body)(scope, receive, patiently)

    async def _stream(self, pieces: AsyncIterator[Piece], send: Send) -> None:
        async def tell(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        first = await anext(pieces)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await tell(event(self._reply.chunk(first)))
            async for piece in pieces:
                await tell(event(self._reply.chunk(piece)))
            options = self._request.stream_options
            if options and options.include_usage:
                await tell(event(self._reply.usage_chunk()))
            await tell(b"data: [DONE]\n\n", more=False)
        except ApiError as error:
            await tell(event(error.body), more=False)

    async def _pieces(self, receive: Receive) -> AsyncIterator[Piece]:
        """The rounds as they come. The work ends with this iterator, whatever ends it."""
        loop = asyncio.get_running_loop()
        came: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

        def put(item: Piece | Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(came.put_nowait, item)

        async def notice() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            came.put_nowait(_Gone())

        job = Job(self._work, put)
        self._engine.submit(job)
        noticing = asyncio.create_task(notice())
        try:
            while True:
                try:
                    item = await asyncio.wait_for(came.get(), max(0.0, self._deadline - loop.time()))
                except TimeoutError:
                    word = "the request's time is over: ask for fewer tokens, or when fewer ask"
                    raise ApiError(408, word, code="request_timeout", headers=FINAL) from None
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            noticing.cancel()
            self._engine.cancel(job, ApiError(499, "the client is gone"))
