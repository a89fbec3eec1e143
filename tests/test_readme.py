"""The README's own drafter: what is shown there runs, is exact, and guesses."""

import re
from pathlib import Path

import pytest

from speclib import records, scoreboard
from speclib.decode import GREEDY, decode
from speclib.distributions import Sampling
from speclib.exactness import largest_difference, sequence_distribution, target_distribution
from speclib.stopping import Stop
from speclib.toy import TableLM

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())  # wherever its lines end


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


def on_zen3(kind, dtype, name="zen3"):
    return records.read(records.RESULTS / f"{kind}-{name}-smol-{dtype}.json", kind)


@pytest.mark.parametrize(
    ("name", "dtype", "mkl"),
    [("zen3", "float32", "AUTO"), ("zen3-mkl-default", "float32", None), ("zen3", "bfloat16", "AUTO")],
)
def test_without_bf16_instructions_its_figures_are_those_of_the_records(name, dtype, mkl):
    record = on_zen3("sweep", dtype, name)
    ks, speedups = zip(*((row["K"], f"{row['speedup']:.2f}") for row in record["rows"] if row["K"]), strict=True)
    said = f"K = {', '.join(map(str, ks))} gave {', '.join(speedups[:-1])} and {speedups[-1]} ×"
    assert (record["dtype"], record["machine"]["mkl_cbwr"]) == (dtype, mkl)
    assert said in WORDS


def test_it_says_which_precision_writes_fastest_there():
    (bf16, *_), (fp32, *drafted) = (on_zen3("sweep", dtype)["rows"] for dtype in ("bfloat16", "float32"))
    plain, slow = bf16["tokens_per_second"], fp32["tokens_per_second"]
    best = max(row["tokens_per_second"] for row in drafted)
    assert f"wrote {plain:.1f} tokens/s plainly; in fp32 it had written {slow:.1f}, and {best:.1f} with" in WORDS
    assert slow < best < plain
    passes = [on_zen3("verify-cost", dtype)["models"]["target"]["verify"][-1] for dtype in ("bfloat16", "float32")]
    assert [one["n"] for one in passes] == [64, 64]
    assert f"took {passes[0]['median'] / passes[1]['median']:.1f} times as long" in WORDS


def test_it_shows_what_make_lab_opens():
    start = README[README.index("## Start") : README.index("## The notebooks")]
    assert re.search(r"`make lab` opens JupyterLab.+without a display it prints the\s+address", start, re.DOTALL)
    assert re.search(r"!\[[^\]]+\]\(docs/stills/01_distributions\.png\)", start)


def test_the_section_for_the_spark_says_what_is_different_there():
    spark = README[README.index("## On a DGX Spark") : README.index("## Licence")]
    for word in ("aarch64", "CUDA", "SPECLIB_PAIR=llama", "gated", "memory"):
        assert word in spark, word


@pytest.mark.parametrize("name", ["NOTICE", "README.md", "SCOREBOARD.md", "docs/performance.md"])
def test_whoever_reads_figures_reads_of_the_4_bits(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.search(r"4-bit(?:(?!\n\n).)*Q4_1(?:(?!\n\n).)*dequantise", text, re.DOTALL)


def test_the_table_of_figures_says_so_itself():
    table = README[README.index("## What comes out") : README.index("| target on the scoreboard")]
    assert "4-bit" in table and "Q4_1" in table


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
