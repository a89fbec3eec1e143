"""What the server's tests share: a tiny pair, a model that writes a given text, and the answer given alone."""

import threading
import time

import httpx
import openai
import torch
from tiny import save

from speclib import chat, pairs
from speclib.context import as_context, check_feed
from speclib.decode import Stats, decode
from speclib.distributions import Rng, Sampling
from speclib.stopping import Stop

END_OF_PROMPT = 2  # </s>, with which the tiny template asks for an answer


def tiny_pair(folder, positions=512):
    """Two random Llamas with a tokenizer of single bytes; the draft has the target's layers, so much is kept."""
    names = [save(folder / name, seed=seed, positions=positions) for name, seed in (("target", 0), ("draft", 1))]
    pair = pairs.load(",".join(names), dtype=torch.float32)
    # Half-way between target and draft: drafts that are kept sometimes.
    with torch.no_grad():
        for mine, yours in zip(pair.draft.parameters(), pair.target.parameters(), strict=True):
            mine.lerp_(yours, 0.8)
    return pair


class Script:
    """A language model that writes a text behind the prompt, over and over, at `pause` seconds a pass.

    wrong: at every such place it says something else, as a draft does.
    """

    max_length, size = 4096, 0

    def __init__(self, vocab, ids, pause=0.0, wrong=0):
        self.vocab_size, self._ids, self.pause, self._wrong = vocab, ids, pause, wrong
        self.tokens, self.passes = [], 0

    def feed(self, ids, rows=None):
        check_feed(self, ids, rows)
        time.sleep(self.pause)
        self.passes += 1
        self.tokens += ids
        begin = self.tokens.index(END_OF_PROMPT) + 1 if END_OF_PROMPT in self.tokens else len(self.tokens)
        rows = rows or len(ids)
        logits = torch.zeros(rows, self.vocab_size)
        for row, end in enumerate(range(len(self.tokens) - rows + 1, len(self.tokens) + 1)):
            at = max(0, end - begin)
            right = self._ids[at % len(self._ids)]
            logits[row, 5 if self._wrong and at % self._wrong == 1 else right] = 100.0
        return logits

    def rollback(self, length):
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]


def script_pair(folder, text, pause=0.0, eos=None):
    """A pair whose target writes a text, a byte a token, and whose draft errs at every third place."""
    pair = tiny_pair(folder)
    ids = pair.tokenizer.encode(text, add_special_tokens=False)
    target, draft = Script(320, ids, pause), Script(320, ids, wrong=3)
    vars(pair).update(target=target, draft=draft, eos_ids=frozenset() if eos is None else frozenset([eos]))
    return pair


def alone(pair, prompt, max_new, *, drafter="model", k=3, seed=None, eos=True, strings=(), **sampling):
    """The rounds of the request, without a server. prompt: ids, or what a user says."""
    ids = pair.chat_ids(prompt) if isinstance(prompt, str) else prompt
    stop = Stop(max_new, eos=pair.eos_ids if eos else None, strings=strings, tokenizer=pair.tokenizer)
    guess, sampling = chat.make_drafter(drafter, pair), Sampling(**sampling)
    rounds = decode(as_context(pair.target), guess, ids, k=k, sampling=sampling, stop=stop, rng=Rng(seed))
    return Stats(list(rounds))


def text_of(stats):
    return "".join(r.text for r in stats.rounds)


def client_of(server, **more):
    return openai.OpenAI(base_url=server.base_url, **{"api_key": "none", "max_retries": 0} | more)


def user(text):
    return [{"role": "user", "content": text}]


def metrics(server):
    """name{labels but the model's} → number."""
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    pairs_ = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.replace(f'model_name="{server.model}"', "").replace("{}", ""): float(n) for name, n in pairs_}


def wait_until(true, seconds=30.0):
    """Wait, without spinning, for something that another thread does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def idle(server):
    found = metrics(server)
    return not found["speclib:num_requests_running"] and not found["speclib:num_requests_waiting"]


def server_threads():
    return [t for t in threading.enumerate() if t.name.startswith("speclib")]
