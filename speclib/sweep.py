"""Plain and speculative decoding in turns on the same prompts: the one loop that everything measured comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from speclib.context import as_context
from speclib.decode import GREEDY, Stats, decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import Drafter
from speclib.rows import PEER, PLAIN, Row, Run, bootstrap, by_kind, table, verify_seconds
from speclib.stopping import Stop

# What belongs together for the reader, in one place; it is written in two files only to be read in one sitting.
__all__ = [
    "PEER",
    "PLAIN",
    "Row",
    "Run",
    "bootstrap",
    "by_kind",
    "prompts_of",
    "race",
    "table",
    "verify_seconds",
    "ways",
]

WARM_UP = 16  # tokens of each way that are not counted, before anything is

Peer = Callable[[list[int], int, int], Stats]  # a prompt's ids, K, most tokens → the rounds of one generation


def prompts_of(file: Path | str) -> list[dict[str, str]]:
    """A file of prompts, one JSON object a line: id, kind, prompt. ValueError, naming the line, where it is not."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: name a file of prompts, such as prompts/short.jsonl") from error
    found = []
    for i, line in enumerate(lines, 1):
        if line.strip():
            try:
                one = json.loads(line)
                found.append({key: str(one[key]) for key in ("id", "kind", "prompt")})
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f'line {i} of {file} is not {{"id": …, "kind": …, "prompt": …}}') from error
    if not found:
        raise ValueError(f"{file} holds no prompt: write one JSON object with id, kind and prompt a line")
    if len({one["id"] for one in found}) < len(found):
        raise ValueError(f"{file} uses an id twice: results are told apart by it")
    return found


def ways(drafters: Iterable[str], ks: Iterable[int], peers: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Every (drafter, K) that `race` goes through for a prompt, plain first; a peer's own plain decoding has K = 0."""
    ks = list(ks)
    of_peers = [(name, k) for name in peers for k in ([0] if name.endswith(f" {PLAIN}") else ks)]
    return [(PLAIN, 0), *((name, k) for name in drafters for k in ks), *of_peers]


def race(
    pair: Any,
    prompts: Sequence[Mapping[str, str]],
    drafters: Mapping[str, Drafter],
    ks: Iterable[int] = range(1, 9),
    new: int = 128,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    done: Collection[str] = (),
    warm: bool = True,
    peers: Mapping[str, Peer] | None = None,
) -> Iterator[Run]:
    """Generate from each prompt plainly and with each drafter at each K, in turns; yields each `Run` once measured.

    pair: whatever has target, eos_ids and chat_ids. prompts: id, kind, prompt, as `prompts_of` reads them. drafters: by
    name. new: tokens per run, fewer where the text ends. seed: of every run. done: ids of prompts to leave out, with
    their turn. warm: begin with `WARM_UP` tokens of each way that are not counted. peers: `speclib.peers.peers`.
    The order within a prompt is shifted by one from prompt to prompt, so that no way always follows the same one, or
    always comes first. No run pays for reading the prompt: target and drafter have it in their caches before.
    ValueError: bad settings, a prompt that does not fit; before anything runs.
    Taught in notebook 05_sweep, section 'In turns'.
    """
    ks, peers = list(ks), peers or {}
    target = as_context(pair.target)
    ids = [pair.chat_ids(prompt["prompt"]) for prompt in prompts]
    _check(drafters, ks, new, prompts, ids, target.max_length)
    device = getattr(pair.target, "device", "cpu")
    order = ways(drafters, ks, peers)

    def measure(name: str, k: int, text: list[int], most: int = new) -> Stats:
        if name in peers:
            return peers[name](text, k, most)
        stop = Stop(most, eos=pair.eos_ids)
        rng = Rng(seed, device=device)
        return Stats(list(decode(target, drafters.get(name), text, k=k, sampling=sampling, stop=stop, rng=rng)))

    def go() -> Iterator[Run]:
        todo = [(i, prompt) for i, prompt in enumerate(prompts) if prompt["id"] not in done]
        if warm and todo:  # the first passes of each width allocate and choose kernels
            for name, k in order:
                measure(name, k, ids[todo[0][0]], min(new, WARM_UP))
        for i, prompt in todo:
            for name in drafters:  # two tokens, so that every drafter has read the prompt
                measure(name, 1, ids[i], min(new, 2))
            for name, k in order[i % len(order) :] + order[: i % len(order)]:
                yield Run(prompt["id"], prompt["kind"], name, k, measure(name, k, ids[i]))

    return go()


def _check(
    drafters: Mapping[str, Drafter],
    ks: list[int],
    new: int,
    prompts: Sequence[Mapping[str, str]],
    ids: list[list[int]],
    positions: int,
) -> None:
    if not prompts:
        raise ValueError("there are no prompts: give at least one")
    if not ks or min(ks) < 1 or len(set(ks)) < len(ks):
        raise ValueError(f"each K must be at least 1 and there once, not {ks}: plain decoding is measured anyway")
    if new < 1:
        raise ValueError(f"new must be at least 1, not {new}")
    if bad := [name for name in drafters if name == PLAIN or name.startswith(PEER)]:
        raise ValueError(f"a drafter cannot be called {bad[0]!r}, which means something else here: rename it")
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    if len(ids[longest]) + new > positions:
        raise ValueError(
            f"prompt {prompts[longest]['id']!r} of {len(ids[longest])} tokens and {new} new ones do not fit into the "
            f"target's {positions} positions: ask for fewer"
        )
