"""From a request to the work of the loop: prompts as token ids, settings checked, before it takes a place in line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speclib import chat
from speclib.distributions import Sampling
from speclib.pairs import Pair
from speclib.serve.api import CHOICES, ChatRequest, CompletionRequest, Message
from speclib.serve.engine import Work
from speclib.serve.errors import ApiError
from speclib.stopping import Stop


@dataclass(frozen=True)
class Reader:
    """What a server reads requests with.

    drafter, k: for requests that do not say. max_length, vocab_size: the target's.
    """

    pair: Pair
    drafter: str
    k: int
    max_length: int
    vocab_size: int

    def read(self, request: ChatRequest | CompletionRequest) -> Work:
        """The work that a request asks for. ApiError 400: what cannot be, named."""
        if isinstance(request, ChatRequest):
            prompts = [self._chat(request.messages)]
        else:
            prompts = [self._ids(p) if isinstance(p, str) else p for p in request.prompts]
        if len(prompts) * request.n > CHOICES:
            word = f"{len(prompts)} prompts with n = {request.n} are more than {CHOICES} texts: ask for fewer"
            raise ApiError(400, word, "n")
        longest = max(len(p) for p in prompts)
        most = self.max_length - longest if request.most is None else request.most
        for prompt in prompts:
            self._check(prompt, most)
        asked = request.speculation
        drafter, k = asked.drafter or self.drafter, self.k if asked.k is None else asked.k
        self._check_drafter(drafter)
        stop = Stop(
            most,
            eos=None if request.ignore_eos else self.pair.eos_ids,
            strings=request.stop,
            tokenizer=self.pair.tokenizer,
        )
        sampling = Sampling(
            temperature=request.temperature,
            top_k=request.top_k if request.top_k > 0 else None,
            top_p=request.top_p,
            min_p=request.min_p,
            frequency=request.frequency_penalty,
            presence=request.presence_penalty,
        )
        texts = [p for p in prompts for _ in range(request.n)]
        return Work(texts, sampling, stop, drafter, 0 if drafter == "none" else k, request.seed, request.alternatives)

    def _chat(self, messages: list[Message]) -> list[int]:
        """The ids of a conversation in the target's chat template, up to where the answer begins."""
        tokenizer, label = self.pair.tokenizer, self.pair.labels[0]
        if not tokenizer.chat_template:
            raise ApiError(400, f"{label} has no chat template: use /v1/completions", "messages")
        turns = [{"role": "system" if m.role == "developer" else m.role, "content": m.text} for m in messages]
        try:
            ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        except Exception as error:  # a template refuses what it will, with any exception
            raise ApiError(400, f"the chat template of {label} refuses these messages: {error}", "messages") from None
        # transformers 5 returns a mapping where 4 returned the ids.
        return [int(i) for i in (ids["input_ids"] if isinstance(ids, Mapping) else ids)]

    def _ids(self, text: str) -> list[int]:
        return self.pair.tokenizer.encode(text)

    def _check(self, prompt: list[int], most: int) -> None:
        if not prompt:
            raise ApiError(400, "the prompt is empty: give at least one token", "prompt")
        bad = next((i for i in prompt if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise ApiError(400, f"token id {bad} is not in 0 … {self.vocab_size - 1}", "prompt")
        if most < 1 or len(prompt) + most > self.max_length:
            raise ApiError(
                400,
                f"a prompt of {len(prompt)} tokens and {max(most, 1)} new ones do not fit into {self.max_length} "
                "positions: shorten the prompt or lower max_tokens",
                code="context_length_exceeded",
            )

    def _check_drafter(self, drafter: str) -> None:
        if drafter not in chat.DRAFTERS:
            known = ", ".join(chat.DRAFTERS)
            raise ApiError(400, f"there is no drafter {drafter!r}: choose {known}", "speculation.drafter")
        if "model" in drafter and self.pair.folders[1] is None:
            raise ApiError(400, f"this pair has no draft model: {self.pair.no_draft}", "speculation.drafter")
