"""The README's own drafter: what is shown there runs, is exact, and guesses."""

import re
from pathlib import Path

from speclib import records, scoreboard
from speclib.decode import GREEDY, decode
from speclib.distributions import Sampling
from speclib.exactness import largest_difference, sequence_distribution, target_distribution
from speclib.stopping import Stop
from speclib.toy import TableLM

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def shown():
    """The class in the README's one block of Python."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    space: dict = {}
    exec(block, space)
    return space["AboveDrafter"]


def test_it_is_as_short_as_it_says():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(block.splitlines()) <= 30


def test_its_figures_are_those_of_the_records():
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([\d.]+) \| ([\d.]+) \|$", README, re.M)
    assert len(rows) == 6
    entries = {e.row["target"]: e for e in scoreboard.entries(records.read_all("bench")) if e.group[0] == "zen5"}
    for name, *speeds in rows:
        assert [f"{entries[name].level(users)['tokens_per_second']:.1f}" for users in (1, 16)] == speeds


def test_it_repeats_the_line_above():
    drafter = shown()(0)
    assert drafter.propose([5, 6, 0, 7, 8, 9, 0, 7], 4, GREEDY, None) == ([8, 9, 0], None)
    assert drafter.propose([5, 6, 0, 7, 8, 9, 0, 7], 1, GREEDY, None) == ([8], None)
    assert drafter.propose([5, 6, 0, 7], 4, GREEDY, None) == ([], None)
    assert drafter.propose([5, 0, 0, 7], 4, GREEDY, None) == ([], None)


def test_it_is_exact():
    target, prompt, drafted = TableLM(3, seed=2), [1, 2, 0, 1], []

    def run(rng):
        target.rollback(0)
        rounds = list(decode(target, shown()(0), prompt, k=2, sampling=Sampling(), stop=Stop(4), rng=rng))
        drafted.extend((r.drafted, r.accepted) for r in rounds)
        return [t for r in rounds for t in r.tokens]

    out = sequence_distribution(run)
    assert largest_difference(out, target_distribution(target, prompt, Sampling(), 4)) < 1e-9
    assert {(2, 0), (2, 1), (2, 2)} <= set(drafted)
