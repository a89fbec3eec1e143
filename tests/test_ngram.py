"""The table of n-grams: it counts what it says, backs off, and leaves the output exact."""

import pytest
import torch

from speclib.decode import decode
from speclib.distributions import Rng, Sampling
from speclib.drafters import NgramDrafter, ngram
from speclib.exactness import largest_difference, sequence_distribution, target_distribution
from speclib.stopping import Stop
from speclib.toy import TableLM

GREEDY = Sampling(temperature=0)


def shard(rows, answers_from=3):
    """Chats [rows, length] whose target always knows the next token with 0.75 and thinks of token 0 with 0.25."""
    tokens = torch.tensor(rows, dtype=torch.int32)
    following = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
    ids = torch.stack([following, torch.zeros_like(following)], -1)
    mode = torch.full_like(tokens, 2)
    mode[:, :answers_from] = 0
    return {"tokens": tokens, "ids": ids, "p": torch.tensor([0.75, 0.25]).expand(*ids.shape).half(), "mode": mode}


def test_the_longest_known_ending_speaks():
    table = ngram.count([shard([[1, 2, 3, 4, 5, 6], [7, 2, 3, 5, 6, 9], [8, 8, 3, 5, 5, 5]])])
    drafter = NgramDrafter(table, 10)

    def after(*text):
        return drafter.propose(list(text), 1, GREEDY, Rng(0)).tokens

    assert after(1, 2, 3) == [4] and after(7, 2, 3) == [5]
    assert after(9, 9, 3) == [5]  # as two of three did
    assert after(9) == []  # never followed by anything
    assert drafter.propose([1, 2, 3], 3, GREEDY, Rng(0)).tokens == [4, 5, 6]
    q = drafter.propose([1, 2, 3], 1, Sampling(), Rng(0)).q
    assert q.shape == (1, 10) and q[0, 4] == pytest.approx(0.75) and q[0, 0] == pytest.approx(0.25)
    # Only what stands in answers is counted: position 3 is the first to be predicted.
    assert after(1, 2) == []


def test_the_most_frequent_contexts_stay():
    table = ngram.count([shard([[1, 2, 3, 4, 3, 4, 3, 4]])], contexts=2)
    assert sorted(table["keys"].tolist()) == sorted([ngram.pack([3]), ngram.pack([4])]) or len(table["keys"]) == 2
    assert len(table["ids"]) == len(table["p"]) == 2


def test_texts_of_different_length_have_different_keys():
    keys = [ngram.pack(ids) for ids in ([0], [0, 0], [0, 0, 0], [1], [0, 1], [151_999] * 3)]
    assert len(set(keys)) == len(keys) and max(keys) < 2**63


def test_a_folder_gives_the_table_back(tmp_path):
    with pytest.raises(ValueError, match="no table of n-grams in"):
        NgramDrafter.load(tmp_path, 10)
    ngram.save(ngram.count([shard([[1, 2, 3, 4, 5]])]), tmp_path)
    assert NgramDrafter.load(tmp_path, 10).propose([1, 2, 3], 2, GREEDY, Rng(0)).tokens == [4, 5]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.5), Sampling(top_k=1), Sampling(0.0), Sampling(frequency=1.0), Sampling(banned=(0, 1))],
    ids=["T=1", "T=0.5", "top-k", "greedy", "penalty", "banned"],
)
@pytest.mark.parametrize("k", [1, 3])
def test_the_output_stays_exact(k, sampling):
    target = TableLM(3, seed=1)
    table = ngram.count([shard([[0, 1, 2, 1, 0, 1, 1, 1], [1, 1, 0, 1, 2, 1, 1, 0]])])

    def run(rng):
        target.rollback(0)
        drafter = NgramDrafter(table, 3)
        rounds = decode(target, drafter, [0, 1], k=k, sampling=sampling, stop=Stop(4), rng=rng)
        return [t for r in rounds for t in r.tokens]

    wanted = target_distribution(target, [0, 1], sampling, 4)
    assert largest_difference(sequence_distribution(run), wanted) < 1e-6
