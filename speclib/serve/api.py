"""What a request may say: OpenAI's parameters that are honoured here, and a refusal by name for the others.

Honoured: what the classes below list. Ignored, since they do not change the text: `IGNORED`. Refused by name:
`REFUSED`, unless they ask for nothing (`null`, or the value that the API takes when they are left out), and every name
that neither OpenAI nor this server knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

CHOICES = 16  # most texts of one request: one model writes them one after another
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "parallel_tool_calls"),
}
# With each, the value that asks for nothing.
REFUSED: dict[str, Any] = {
    "audio": None, "function_call": "none", "functions": [], "logit_bias": {}, "modalities": ["text"],
    "moderation": None, "prediction": None, "reasoning_effort": "none", "response_format": {"type": "text"},
    "tool_choice": "none", "tools": [], "verbosity": None, "web_search_options": None,
    "best_of": 1, "echo": False, "suffix": "",
}  # fmt: skip
OF_A_MESSAGE = {"name", "refusal", "annotations"}  # ignored in a message: templates do not show them


def refuse(name: str, sentence: str) -> PydanticCustomError:
    """What a validator raises about a parameter."""
    return PydanticCustomError("refused", "{sentence}", {"param": name, "sentence": sentence})


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair (\\ud800 … \\udfff): send whole characters") from None
    return text


Text = Annotated[str, AfterValidator(_whole)]
TokenIds = Annotated[list[int], Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class TextPart(_Body):
    """A part of a message's content; other kinds than text are refused."""

    type: Literal["text"]
    text: Text


class Message(_Body):
    """One turn. A developer's turn is a system's; tools are not supported."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_ignored(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if k not in OF_A_MESSAGE} if isinstance(data, dict) else data

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(_Body):
    """include_usage: a last chunk with no choices and the usage. include_obfuscation is ignored: nothing is padded."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Speculation(_Body):
    """speclib's own, in the extra body: how this request is guessed at. It changes the speed and never the text.

    drafter: model, lookup, lookup+model or none; k: drafts per round; left out, the server's. show: with each chunk
    (or, not streamed, with each choice) come the rounds: how many drafts, how many kept, and the tokens.
    """

    drafter: str | None = None
    k: int | None = Field(None, ge=0, le=64)
    show: bool = False


class _Request(_Body):
    model: Text | None = None
    temperature: float = Field(1.0, ge=0, le=1e6)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, description="Extra body. 0 and −1: no cut.")
    min_p: float = Field(0.0, ge=0, le=1, description="Extra body.")
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1)
    stop: Annotated[Text, Field(min_length=1)] | Annotated[
        list[Annotated[Text, Field(min_length=1)]], Field(max_length=16)
    ] = []  # fmt: skip
    n: int = Field(1, ge=1, le=CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = Field(False, description="Extra body: write on past the end of the text.")
    speculation: Speculation = Speculation()

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {k: v for k, v in data.items() if k not in IGNORED and not (k in REFUSED and v == REFUSED[k])}
        for name in kept:
            if name in REFUSED and kept[name] is not None:
                raise refuse(name, f"{name} is not supported by this server: leave it out")
        return kept

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> _Request:
        if self.stream_options and not self.stream:
            raise refuse("stream_options", "stream_options is for streams: leave it out, or set stream to true")
        return self


class ChatRequest(_Request):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="The newer name of max_tokens, which it beats.")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise refuse("top_logprobs", "top_logprobs needs logprobs: set it to true")
        return self

    @property
    def most(self) -> int | None:
        """How many tokens at most, if it says so."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        """How many tokens to list beside the one that came; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Request):
    """POST /v1/completions: one prompt or several, as texts or as token ids."""

    prompt: Text | TokenIds | Annotated[list[Text], Field(min_length=1, max_length=CHOICES)] | Annotated[
        list[TokenIds], Field(min_length=1, max_length=CHOICES)
    ]  # fmt: skip
    logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def most(self) -> int | None:
        """As of a chat; without a word, OpenAI writes 16 tokens."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """As of a chat."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or ids."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if single else self.prompt
