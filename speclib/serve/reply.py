"""From rounds to OpenAI's answers: whole or in chunks, with logprobs, usage and what became of the drafts."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from speclib.decode import Round, Stats
from speclib.serve.api import ChatRequest, CompletionRequest
from speclib.serve.engine import Chance, Piece, Work

BYTES = {c: b for b, c in bytes_to_unicode().items()}
LEAST = -9999.0  # what OpenAI writes for −inf, which JSON has no number for


class Reply:
    """One request's answer while it is being written.

    `chunk` turns a round into a chunk of the stream, `whole` all rounds into one body; both count what `usage` says.
    With `speculation.show`, chunks (or choices) carry `speculation`: drafted, accepted, and the tokens of the round as
    text, of which the first `accepted` were drafts. They are the round's own: where a stop string is looked for, the
    chunk's content may lag behind them, and only the tokens reach into the string that ended the text.
    """

    def __init__(
        self, request: ChatRequest | CompletionRequest, work: Work, model: str, tokenizer: PreTrainedTokenizerBase
    ):
        self._request, self._work, self._tokenizer = request, work, tokenizer
        self._chat = isinstance(request, ChatRequest)
        self._head = {
            "id": ("chatcmpl-" if self._chat else "cmpl-") + uuid.uuid4().hex,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._stats = Stats()
        self._begun: set[int] = set()
        self._streams = [DecodeStream(skip_special_tokens=True) for _ in work.prompts]
        self._offsets = [0] * len(work.prompts)

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The chunk of one round; the first of a text carries the role, the last the reason why it ended."""
        r = piece.round
        self._stats.rounds.append(r)
        body: dict[str, Any] = {}
        if self._chat:
            body["delta"] = {} if piece.index in self._begun else {"role": "assistant"}
            body["delta"]["content"] = r.text
        else:
            body["text"] = r.text
        self._begun.add(piece.index)
        body["logprobs"] = self._logprobs(piece.index, piece.chances)
        if self._request.speculation.show:
            body["speculation"] = self._shown(piece.index, r)
        return self._chunk([{"index": piece.index, **body, "finish_reason": _reason(r)}])

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream that asked for it: no choices, and the usage."""
        return self._chunk([]) | {"usage": self.usage()}

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        self._stats.rounds += [p.round for p in pieces]
        choices = []
        for index in range(len(self._work.prompts)):
            mine = [p for p in pieces if p.index == index]
            text = "".join(p.round.text for p in mine)
            body: dict[str, Any] = {"text": text}
            if self._chat:
                body = {"message": {"role": "assistant", "content": text, "refusal": None}}
            body["logprobs"] = self._logprobs(index, [c for p in mine for c in p.chances])
            if self._request.speculation.show:
                body["speculation"] = [self._shown(index, p.round) for p in mine]
            choices.append({"index": index, **body, "finish_reason": _reason(mine[-1].round)})
        return self._head | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """OpenAI's three counts, and `speculation`: how the drafts fared, over all texts of the request.

        The accepted_prediction_tokens of OpenAI's details stay out: they count a prediction that the client sends, and
        what of it was rejected is billed as completion. Drafts are nobody's completion.
        """
        rounds, stats = self._stats.rounds, self._stats
        # A prompt is counted once, however many texts were written to it.
        prompt = sum(len(p) for p in self._work.prompts[:: self._request.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(stats.tokens),
            "total_tokens": prompt + len(stats.tokens),
            "speculation": {
                "drafter": self._work.drafter,
                "k": self._work.k,
                "rounds": len(rounds),
                "drafted": sum(r.drafted for r in rounds),
                "checked": sum(r.checked for r in rounds),
                "accepted": sum(r.accepted for r in rounds),
                "alpha_hat": _number(stats.alpha_hat),
                "acceptance_rate": _number(stats.acceptance_rate),
                "mean_accepted_length": _number(stats.mean_accepted_length),
            },
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        body = self._head | {"object": kind, "choices": choices}
        if self._request.stream_options and self._request.stream_options.include_usage:
            body["usage"] = None
        return body

    def _shown(self, index: int, r: Round) -> dict[str, Any]:
        backend = self._tokenizer.backend_tokenizer
        texts = [self._streams[index].step(backend, t) or "" for t in r.tokens]
        return {"drafted": r.drafted, "accepted": r.accepted, "tokens": texts}

    def _logprobs(self, index: int, chances: list[Chance]) -> dict[str, Any] | None:
        """The log-probabilities of every committed token, the one that ends the text included."""
        if self._work.top is None:
            return None
        if self._chat:
            content = [
                self._entry(c.token, c.logprob) | {"top_logprobs": [self._entry(t, lp) for t, lp in c.top]}
                for c in chances
            ]
            return {"content": content, "refusal": None}
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for c in chances:
            name = token_name(self._tokenizer, c.token)[0]
            out["tokens"].append(name)
            out["token_logprobs"].append(max(c.logprob, LEAST))
            # The token that came is always listed, so there may be one more than were asked for.
            listed = [*c.top, (c.token, c.logprob)]
            out["top_logprobs"].append({token_name(self._tokenizer, t)[0]: max(lp, LEAST) for t, lp in listed})
            out["text_offset"].append(self._offsets[index])
            self._offsets[index] += len(name)
        return out

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        name, data = token_name(self._tokenizer, token)
        return {"token": name, "logprob": max(logprob, LEAST), "bytes": list(data)}


def token_name(tokenizer: PreTrainedTokenizerBase, token: int) -> tuple[str, bytes]:
    """A token as text and as bytes; a token that is a part of a character has its bytes spelt out as the text."""
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if "\ufffd" not in text:
        return text, text.encode()
    piece = tokenizer.convert_ids_to_tokens(token)
    if all(c in BYTES for c in piece):
        data = bytes(BYTES[c] for c in piece)
    elif piece.startswith("<0x"):  # SentencePiece's name of a byte
        data = bytes([int(piece[3:-1], 16)])
    else:
        return text, text.encode()
    return repr(data)[2:-1], data


def _reason(r: Round) -> str | None:
    return "length" if r.finish_reason == "length" else "stop" if r.finish_reason else None


def _number(value: float) -> float | None:
    return None if value != value else value
