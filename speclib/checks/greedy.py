"""Checkers and answers for the exercises of notebook 03_greedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from speclib import decode
from speclib.accept import judge_greedy
from speclib.checks.greedy_run import Run, counts
from speclib.context import Context, LanguageModel
from speclib.exercises import answer
from speclib.toy import TableLM

Walk = Callable[[Tensor, list[int]], tuple[int, int]]
SpecGreedy = Callable[..., tuple[list[int], dict[str, int]]]


def walk_answer(logits: Tensor, drafts: list[int]) -> tuple[int, int]:
    """How many drafts are kept, and the target's token behind them."""
    return judge_greedy(logits, drafts)


def spec_greedy_answer(
    target: LanguageModel, draft: LanguageModel, prompt_ids: list[int], max_new: int, K: int, eos: int | None = None
) -> tuple[list[int], dict[str, int]]:
    """The new tokens, and how many rounds there were, drafts accepted and drafts rejected."""
    tokens, stats = decode.spec_greedy(target, draft, prompt_ids, max_new, K, eos)
    return tokens, counts(stats)


def walk(fn: Walk) -> None:
    """AssertionError, naming the case, unless fn(logits, drafts) gives (kept, next token)."""
    for best, drafts, why in (
        (
            [3, 1, 4],
            [3, 5],
            "the first draft is row 0's argmax, the second is not row 1's, which says 1: that is the fix",
        ),
        ([3, 1, 4], [3, 1], "both are kept, and the last row, which judges nobody, brings the bonus"),
        ([3, 1, 4], [0, 1], "the first is rejected; the second is never looked at, although it equals row 1's argmax"),
        ([2, 2, 2, 2], [2, 0, 2], "a draft behind the first rejection is not kept, right or wrong"),
        ([5], [], "without drafts the only row gives the token: a plain step"),
        ([0, 4], [0], "token 0 is a token like any other"),
    ):
        logits = torch.zeros(len(best), 6)
        logits[range(len(best)), best] = 5.0
        expected = judge_greedy(logits, drafts)
        case = f"With drafts {drafts} and rows whose argmaxes are {best}"
        got = answer(case, fn, logits, list(drafts))
        try:
            kept, token = (int(x) for x in got)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{case}, return two whole numbers, kept and token, not {got!r}.") from error
        if (kept, token) != expected:
            raise AssertionError(f"{case}, it is {expected}, but yours is {(kept, token)}: {why}.")


# --- spec_greedy --------------------------------------------------------------------------------------------


class Near(TableLM):
    """A draft that often agrees with a table: the table's own rows, shaken."""

    def __init__(self, table: TableLM, seed: int, shake: float):
        super().__init__(table.vocab_size, seed)
        self._near, self._shake = table, shake

    def logits_after(self, text: tuple[int, ...]) -> Tensor:
        return self._near.logits_after(text) + self._shake * super().logits_after(text)


def spec_greedy(fn: SpecGreedy) -> None:
    """AssertionError, naming the case, unless fn speculates as `spec_greedy_answer` does.

    Judged by what comes out, and by what the two models are asked: in how many passes, with what in their caches.
    """
    case = "With the target as its own draft, K = 4 and max_new = 40"
    Run(case, TableLM(6, seed=3), TableLM(6, seed=3), [0, 2, 5], 40, 4, passes=8).judge(fn)
    for k in (1, 2, 4):
        target = TableLM(6, seed=3, sharpness=2)
        case = f"With table models, a draft that is often right, K = {k} and max_new = 14"
        Run(case, target, Near(target, 12, 1.0), [0, 2, 5], 14, k).judge(fn)
    case = "With a draft that is nearly always wrong, K = 3 and max_new = 10"
    Run(case, TableLM(6, seed=3, sharpness=2), TableLM(6, seed=4), [1, 4], 10, 3).judge(fn)
    for new, k in ((1, 4), (3, 5), (7, 4)):
        case = f"With the target as its own draft, K = {k} and max_new = {new}"
        Run(case, TableLM(6, seed=3), TableLM(6, seed=3), [0, 2, 5], new, k).judge(fn)
    case = "With a prompt of one token, K = 2 and max_new = 6"
    target = TableLM(6, seed=3, sharpness=2)
    Run(case, target, Near(target, 12, 1.0), [1], 6, 2).judge(fn)
    # The end falls on a kept draft, on the last of them, on the bonus, and on a fix.
    same, near = TableLM(9, seed=10), Near(TableLM(9, seed=10), 7, 0.8)
    for draft, at in ((same, 2), (same, 3), (same, 4), (near, 1)):
        run = Run("", TableLM(9, seed=10), draft, [0, 2], 12, 4)
        run.stop_at(run.new[at])
        run.case = f"With K = 4 and EOS = {run.eos}, which plain greedy says as token {at + 1}"
        run.judge(fn)
    case = "With a tiny Llama and real caches, K = 3 and max_new = 16"
    Run(case, Context(_llama(0.0)), Context(_llama(0.02)), [3, 1, 4, 1, 5], 16, 3).judge(fn)


@lru_cache
def _llama(shake: float) -> LlamaForCausalLM:
    """A tiny random Llama in fp32, whose logits differ clearly; shaken, it is a draft that is often right."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=48, initializer_range=0.4, eos_token_id=None, **sizes)).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight += shake * torch.randn(weight.shape)
    return model.requires_grad_(False)
