"""Measured beside predicted: figures from rounds made by hand, the race on clocks that the models move, records."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from speclib import cli, pairs, rows, sweep, sweep_record, sweep_run
from speclib.decode import Round, Stats
from speclib.distributions import Sampling
from speclib.drafters import LookupDrafter, ModelDrafter
from speclib.figures.sweep import sweep_figure
from speclib.speedup import speedup
from speclib.sweep import Run, bootstrap, by_kind, prompts_of, race, table, verify_seconds, ways
from speclib.toy import FixedLM, TableLM

PROMPTS = Path(__file__).parent.parent / "prompts"


def rnd(tokens, drafted, accepted, draft, verify):
    return Round([7] * tokens, drafted, accepted, None, "", draft, verify)


def run(prompt, drafter, k, *rounds, kind="chat"):
    return Run(prompt, kind, drafter, k, Stats([rnd(*r) for r in rounds]))


def plain(prompt, *seconds, kind="chat"):
    return run(prompt, "plain", 0, *((1, 0, 0, 0.0, s) for s in seconds), kind=kind)


# Two prompts; K = 2; a plain step takes 1 s, but one was disturbed. Full rounds take 0.2 + 1.5 s, but one was.
BY_HAND = [
    plain("a", 1.0, 1.0, 1.0, 5.0),
    run("a", "model", 2, (3, 2, 2, 0.2, 1.5), (1, 2, 0, 0.2, 1.5)),
    plain("b", 1.0, 1.0, kind="code"),
    run("b", "model", 2, (2, 2, 1, 0.2, 2.7), (2, 1, 1, 0.1, 1.25), kind="code"),
]


def test_a_row_holds_what_its_rounds_say():
    of_plain, row = table(BY_HAND)
    assert (row.drafter, row.K, row.kind, row.prompts) == ("model", 2, "", 2)
    # Kept 2, 0, 1, 1 of 2, 2, 2, 1; the second draft behind the rejected first one of round 2 was never checked.
    assert row.alpha_hat == 4 / 6 and row.acceptance_rate == 4 / 7
    assert row.accepted_at == [3 / 4, 1 / 3]
    assert row.mean_accepted_length == 8 / 4
    seconds = 1.7 + 1.7 + 2.9 + 1.35
    assert row.tokens_per_second == pytest.approx(8 / seconds)
    assert row.c == pytest.approx(0.1) and row.v == pytest.approx(1.5)
    # 7 drafts, three passes over 3 tokens, one over 2: medians, which the disturbed pass does not move.
    assert row.predicted == pytest.approx(8 / (7 * 0.1 + 3 * 1.5 + 1.25))
    # Pooled seconds per token, disturbances and all.
    assert row.speedup == pytest.approx((10 / 6) / (seconds / 8))
    assert row.ratios == pytest.approx({"a": 2 / (3.4 / 4), "b": 1 / (4.25 / 4)})
    assert row.interval[0] < row.speedup < row.interval[1]
    assert (of_plain.drafter, of_plain.K, of_plain.speedup, of_plain.predicted) == ("plain", 0, 1.0, 1.0)
    assert of_plain.v == 1.0 and math.isnan(of_plain.c) and of_plain.interval == (1.0, 1.0)


def test_rows_of_a_kind_know_only_its_prompts():
    kinds = by_kind(BY_HAND)
    assert list(kinds) == ["chat", "code"]
    assert repr(kinds["code"]) == repr(table(BY_HAND, "code")) and kinds["code"][1].kind == "code"
    assert kinds["code"][1].alpha_hat == 1.0 * 2 / 3 and kinds["chat"][1].alpha_hat == 2 / 3
    assert kinds["code"][1].v == pytest.approx(2.7) and kinds["chat"][1].prompts == 1


def test_a_round_without_drafts_is_predicted_as_a_plain_step():
    """A lookup that finds nothing, twice; one draft, kept; and it never found K tokens."""
    runs = [
        plain("a", 1.0, 1.0),
        run("a", "lookup", 4, (1, 0, 0, 0.01, 1.0), (2, 1, 1, 0.02, 1.25), (1, 0, 0, 0.01, 1.02)),
    ]
    row = table(runs)[1]
    assert row.predicted == pytest.approx(4 / (1 + 1 + 0.02 + 1.25))
    assert row.c == pytest.approx(0.02) and math.isnan(row.v)
    assert row.accepted_at[0] == 1.0 and all(math.isnan(x) for x in row.accepted_at[1:])
    nothing = table([plain("a", 1.0), run("a", "lookup", 4, (1, 0, 0, 0.01, 1.0))])[1]
    assert nothing.predicted == 1.0 and math.isnan(nothing.c) and math.isnan(nothing.alpha_hat)


def test_passes_of_all_k_say_what_a_pass_costs():
    one, four = (1, 1, 0, 0.1, 1.25), (1, 4, 0, 0.4, 2.0)
    runs = [plain("a", 1.0), run("a", "model", 1, *[one] * 3), run("a", "model", 4, four, (1, 1, 0, 0.1, 9.0))]
    row = table(runs)[2]
    assert row.K == 4 and row.predicted == pytest.approx(2 / (5 * 0.1 + 2.0 + 1.25))
    assert verify_seconds(runs) == {1: 1.0, 2: 1.25, 5: 2.0}


def test_only_prompts_with_their_plain_run_count():
    runs = [run("a", "model", 1, (2, 1, 1, 0.1, 1.0)), *BY_HAND[2:]]
    assert [row.prompts for row in table(runs)] == [1, 1]
    assert table(runs)[-1].K == 2
    assert table([]) == [] == table(runs[:1]) and table(BY_HAND, "no such kind") == []


def test_of_a_peer_only_tokens_and_seconds_are_told():
    runs = [plain("a", 1.0), run("a", f"{rows.PEER} model", 2, (3, 2, 2, 0.0, 2.0), (1, 0, 0, 0.0, 2.0))]
    row = table(runs)[1]
    assert row.speedup == 1.0 and row.mean_accepted_length == 2.0 and row.accepted_at == []
    assert all(math.isnan(x) for x in (row.alpha_hat, row.acceptance_rate, row.c, row.v, row.predicted))
    # Its first round may have been all it had.
    assert len(table([*runs, plain("b", 1.0), run("b", f"{rows.PEER} model", 2)])) == 2
    assert rows.facts(row)["alpha_hat"] is None and json.dumps(rows.facts(row), allow_nan=False)


def test_the_bootstrap_is_the_same_for_the_same_values_and_says_how_sure():
    few, many = [1.0, 1.2, 1.3, 1.4, 1.6], [1.0, 1.2, 1.3, 1.4, 1.6] * 20
    low, high = bootstrap(few)
    assert (low, high) == bootstrap(few) and 1.0 <= low < 1.3 < high <= 1.6
    assert low < bootstrap(many)[0] <= 1.3 <= bootstrap(many)[1] < high
    assert bootstrap([2.0]) == (2.0, 2.0)
    sample = torch.randn(400, generator=torch.Generator().manual_seed(3)).numpy()
    low, high = bootstrap(sample, lambda drawn: drawn.mean(axis=1))
    assert high - low == pytest.approx(2 * 1.96 * sample.std() / 20, rel=0.1)


# --- the race -----------------------------------------------------------------------------------------------


class Clock:
    """Time that only models move; it stands in for the clock that `decode` reads."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("speclib.decode.time", made)
    return made


def timed(model, clock, step, token):
    """The model, whose passes take `step` and, for each id fed, `token` seconds; `fed` counts the ids of each."""
    model.fed, feed = [], model.feed

    def slow(ids, rows=None):
        clock.now += step + token * len(ids)
        model.fed.append(len(ids))
        return feed(ids, rows)

    model.feed = slow
    return model


class Toys:
    """A pair of table models; their prompts are short texts of digits."""

    eos_ids = frozenset()

    def __init__(self, target, draft):
        self.target, self.draft = target, draft

    def chat_ids(self, text):
        return [int(x) for x in text]


ASKED = [
    {"id": f"p{i}", "kind": ["even", "odd"][i % 2], "prompt": text} for i, text in enumerate(("0123", "3201", "11"))
]


@pytest.fixture
def toys(clock):
    target, draft = TableLM(4, 1, sharpness=2.0), TableLM(4, 1, sharpness=1.0)
    # A pass over k + 1 tokens is 1 + k/8 of one over 1; a draft's pass takes the same whatever it is fed.
    return Toys(timed(target, clock, 7.0, 1.0), timed(draft, clock, 0.5, 0.0))


def test_where_steps_always_take_the_same_time_predicted_is_measured(toys):
    drafters = {"model": ModelDrafter(toys.draft), "lookup": LookupDrafter()}
    found = table(race(toys, ASKED, drafters, (1, 2, 4), new=40, sampling=Sampling(1.0)))
    assert [(row.drafter, row.K) for row in found] == ways(drafters, (1, 2, 4))
    for row in found[1:]:
        assert row.predicted == pytest.approx(row.speedup, rel=1e-9)
        assert row.c == pytest.approx(0.5 / 8 if row.drafter == "model" else 0.0, abs=1e-9)
    for row in found[1:4]:
        assert row.v == pytest.approx(1 + row.K / 8) and 0.2 < row.alpha_hat < 1
    assert found[4].mean_accepted_length > 1.1 and found[0].tokens_per_second == pytest.approx(1 / 8)


def test_independent_acceptances_come_to_what_the_formula_says(clock):
    """On a pair whose α is the same after every text, the measured speedup is the lesson's, within its error."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])  # α = 0.7
    pair = Toys(timed(FixedLM(p), clock, 7.0, 1.0), timed(FixedLM(q), clock, 0.8, 0.0))
    asked = [{"id": str(i), "kind": "toy", "prompt": "0" * (i + 1)} for i in range(4)]
    found = list(
        race(pair, asked, {"model": ModelDrafter(pair.draft)}, (2,), new=300, sampling=Sampling(1.0), warm=False)
    )
    row = table(found)[1]
    assert row.alpha_hat == pytest.approx(0.7, abs=0.05)
    assert row.speedup == pytest.approx(speedup(0.7, 2, 0.1, 1.25), rel=0.05)


def test_the_order_within_a_prompt_moves_on_from_prompt_to_prompt(toys):
    drafters = {"model": ModelDrafter(toys.draft), "lookup": LookupDrafter()}
    found = list(race(toys, ASKED, drafters, (1, 3), new=8))
    order = ways(drafters, (1, 3))
    assert order == [("plain", 0), ("model", 1), ("model", 3), ("lookup", 1), ("lookup", 3)]
    for i, prompt in enumerate(ASKED):
        turns = found[5 * i : 5 * i + 5]
        assert {(one.prompt, one.kind) for one in turns} == {(prompt["id"], prompt["kind"])}
        assert [(one.drafter, one.K) for one in turns] == order[i:] + order[:i]
        assert all(len(one.stats.tokens) == 8 for one in turns)
    # What was done elsewhere is left out, and the others keep their turns.
    rest = list(race(toys, ASKED, drafters, (1, 3), new=8, done=["p0", "p2"]))
    assert [(one.prompt, one.drafter, one.K) for one in rest] == [("p1", *way) for way in order[1:] + order[:1]]


def test_no_run_pays_for_reading_a_prompt(toys):
    """Within a run, a pass of the target has the drafts and the token before them, and the draft's has one or two."""
    long = [{"id": str(i), "kind": "toy", "prompt": str(i) * 30} for i in range(2)]
    runs = race(toys, long, {"model": ModelDrafter(toys.draft)}, (1, 3), new=12)
    for i in range(6):
        one = next(runs)
        if i % 3:  # in front of the first of a prompt stand passes that are not counted
            assert max(toys.target.fed) <= one.K + 1 and max(toys.draft.fed, default=1) <= 2
        first = one.stats.rounds[0]
        assert first.seconds_draft == 0.5 * one.K and first.seconds_verify == 8.0 + one.K
        toys.target.fed.clear(), toys.draft.fed.clear()


def test_the_warm_up_is_not_counted(toys):
    def made(warm):
        toys.target.fed.clear()
        found = list(race(toys, ASKED[:1], {"lookup": LookupDrafter()}, (2,), new=8, warm=warm))
        return len(toys.target.fed), [(one.drafter, one.K) for one in found]

    (cold, found), (warm, same) = made(False), made(True)
    assert found == same == [("plain", 0), ("lookup", 2)] and warm > cold


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ks": ()}, "each K must be at least 1"), ({"ks": (0, 2)}, "each K must be at least 1"),
        ({"ks": (2, 2)}, "there once"), ({"new": 0}, "new must be at least 1"), ({"prompts": []}, "no prompts"),
        ({"drafters": {"plain": LookupDrafter()}}, "cannot be called 'plain'"),
        ({"drafters": {"transformers lookup": LookupDrafter()}}, "cannot be called"),
        ({"new": 1 << 30}, "prompt 'p0' of 4 tokens .* do not fit"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_runs(toys, change, says):
    given = {"prompts": ASKED, "drafters": {"lookup": LookupDrafter()}, "ks": (1,), "new": 8} | change
    with pytest.raises(ValueError, match=says):
        race(toys, **given)
    assert not toys.target.fed


# --- prompts ------------------------------------------------------------------------------------------------

FILES = {
    "short": {"chat": 5, "explanation": 5, "code": 5, "list": 5},
    "rename": {"rename": 10},
    "summarise": {"summarise": 10},
    "qa_over_text": {"qa_over_text": 10},
    "creative": {"creative": 10},
}


def test_the_prompts_are_many_distinct_and_of_their_kinds():
    found = {name: prompts_of(PROMPTS / f"{name}.jsonl") for name in FILES}
    assert {file.stem for file in PROMPTS.glob("*.jsonl")} == set(FILES)
    for name, least in FILES.items():
        counts = {
            kind: sum(one["kind"] == kind for one in found[name]) for kind in {one["kind"] for one in found[name]}
        }
        assert counts.keys() == least.keys() and all(counts[kind] >= n for kind, n in least.items()), name
    everything = [one for of in found.values() for one in of]
    assert len({one["prompt"] for one in everything}) == len({one["id"] for one in everything}) == len(everything)


def test_the_prompts_are_what_their_kinds_promise():
    for one in prompts_of(PROMPTS / "rename.jsonl"):
        head, code, end = one["prompt"].split("```")
        old, new = head.split("variable ")[1].split(" and ")[0].split(" to ")
        assert 8 <= len(code.strip().splitlines()) <= 20 and code.count(old) >= 3 and new not in code and end == ""
    for one in prompts_of(PROMPTS / "summarise.jsonl"):
        assert 80 <= len(one["prompt"].split("\n\n")[1].split()) <= 150
    for one in prompts_of(PROMPTS / "qa_over_text.jsonl"):
        assert one["prompt"].count("\n\n") == 2 and "\n\nQuestion: " in one["prompt"] and one["prompt"].endswith("?")


def test_the_prompts_fit_with_a_long_answer():
    pair = pairs.load("smol")
    longest = max(len(pair.chat_ids(one["prompt"])) for name in FILES for one in prompts_of(PROMPTS / f"{name}.jsonl"))
    assert longest + 512 <= 1024  # of the 2,048 positions of smol's draft


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"), ("", "holds no prompt"), ("{", "line 1 of"), ("[1]", "line 1 of"),
        ('{"id": "a", "kind": "b"}', "line 1 of"),
        ('{"id": "a", "kind": "b", "prompt": "c"}\n\n{"id": "a", "kind": "b", "prompt": "d"}', "an id twice"),
    ],
)  # fmt: skip
def test_a_bad_file_of_prompts_is_named(tmp_path, text, says):
    file = tmp_path / "some.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        prompts_of(file)
    assert "some.jsonl" in str(error.value)


# --- records and the command line ---------------------------------------------------------------------------


def test_a_record_gives_the_runs_back(toys):
    drafters = {"model": ModelDrafter(toys.draft), "lookup": LookupDrafter()}
    runs = list(race(toys, ASKED, drafters, (1, 4), new=30, sampling=Sampling(1.0)))
    runs += [run("p0", f"{rows.PEER} model", 3, (4, 3, 3, 0.0, 2.0), (2, 1, 1, 0.0, 1.0))]
    packed = json.loads(json.dumps([sweep_record.pack(one) for one in runs]))
    back = sweep_record.runs_of({"runs": packed})
    for one, other in zip(runs, back, strict=True):
        assert (one.prompt, one.kind, one.drafter, one.K) == (other.prompt, other.kind, other.drafter, other.K)
        for a, b in zip(one.stats.rounds, other.stats.rounds, strict=True):
            assert (len(a.tokens), a.drafted, a.accepted, a.finish_reason) == (
                len(b.tokens), b.drafted, b.accepted, b.finish_reason,
            )  # fmt: skip
        assert one.stats.seconds == pytest.approx(other.stats.seconds, abs=1e-4)
    assert [rows.facts(row) for row in table(back)] == [rows.facts(row) for row in table(runs)]


def test_a_record_of_a_whole_sweep_stays_small():
    """20 prompts × 8 K × 256 tokens, by model and lookup, with transformers beside them."""
    # A round in which one of K drafts is kept, as the default pair's are.
    size = 0
    for k in range(1, 9):
        own = run("explanation-1", "lookup", k, *[(2, k, 1, 0.001234, 0.023456)] * 128)
        peer = run("explanation-1", f"{rows.PEER} lookup", k, *[(2, k, 1, 0.0, 0.023456)] * 128)
        size += 2 * 20 * sum(len(json.dumps(sweep_record.pack(one), indent=3)) for one in (own, peer))
    size += 20 * len(json.dumps(sweep_record.pack(plain("explanation-1", *[0.023456] * 256)), indent=3))
    assert size < 1_000_000


class TinyPair(Toys):
    dtype, device, name = torch.float32, torch.device("cpu"), "toys"


@pytest.fixture
def sweeping(monkeypatch, tmp_path, toys):
    """`speclib sweep` on the toys with six short prompts, into a folder; returns a function of further arguments."""
    pair = TinyPair(toys.target, toys.draft)
    monkeypatch.setattr(pairs, "load", lambda name, **how: pair)
    file = tmp_path / "digits.jsonl"
    asked = [{"id": f"d{i}", "kind": f"kind{i % 2}", "prompt": "0123"[: i % 4 + 1]} for i in range(6)]
    file.write_text("\n".join(map(json.dumps, asked)))
    out = tmp_path / "results"

    def call(*more):
        given = ["--pair", "toys", "--prompts", file, "--new", 6, "--k", "1-2", "--out", out, "--name", "box", *more]
        monkeypatch.setattr("sys.argv", ["speclib", "sweep", *map(str, given)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code

    call.out, call.file = out, file
    return call


def test_the_command_writes_a_record_a_table_and_a_figure(sweeping, capsys):
    assert sweeping("--drafters", "model,lookup") == 0
    path = sweeping.out / "sweep-box-toys-digits-float32.json"
    record = json.loads(path.read_text())
    assert record["kind"] == "sweep" and record["machine"]["host"] == "box" and record["new"] == 6
    assert record["drafters"] == ["model", "lookup"] and record["k"] == [1, 2] and record["prompts"]["count"] == 6
    assert [(row["drafter"], row["K"]) for row in record["rows"]] == ways(("model", "lookup"), (1, 2))
    assert set(record["by_kind"]) == {"kind0", "kind1"} and len(record["runs"]) == 6 * 5
    assert [rows.facts(row) for row in table(sweep_record.runs_of(record))] == record["rows"]
    lines = list(csv.DictReader(path.with_suffix(".csv").open(encoding="utf-8")))
    assert len(lines) == 15 and float(lines[1]["speedup"]) == record["rows"][1]["speedup"]
    assert lines[1]["low"] and lines[6]["kind"] == "kind0" and lines[2]["accepted_at"].count(" ") == 1
    assert "Speedup over plain decoding" in path.with_suffix(".html").read_text(encoding="utf-8")
    shown = capsys.readouterr()
    assert str(path) in shown.out and "model, K = 2: " in shown.out and "predicted" in shown.out
    assert sorted(file.name for file in sweeping.out.iterdir()) == [
        "sweep-box-toys-digits-float32.csv", "sweep-box-toys-digits-float32.html", path.name,
    ]  # fmt: skip


def test_the_bar_knows_how_much_there_is_and_how_much_is_done(sweeping, monkeypatch):
    bars = []

    def bar(**given):
        bars.append(tqdm(**given, mininterval=0, ncols=120))
        return bars[-1]

    monkeypatch.setattr(sweep_run, "tqdm", bar)
    assert sweeping() == 0
    assert (bars[0].initial, bars[0].n, bars[0].total) == (0, 18, 18)


def test_a_temperature_stands_in_the_name(sweeping):
    assert sweeping("--temperature", 0.7) == 0
    record = json.loads((sweeping.out / "sweep-box-toys-digits-t0.7-float32.json").read_text())
    assert record["sampling"] == {"temperature": 0.7}


def test_an_interrupted_sweep_keeps_whole_prompts_and_goes_on(sweeping, monkeypatch, capsys):
    def interrupted(*given, **more):
        for i, one in enumerate(race(*given, **more)):
            if i == 8:  # two prompts of three turns are through, and two turns of the third
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(sweep, "race", interrupted)
    assert sweeping() == 130
    assert "2 of 6 prompts are kept" in capsys.readouterr().out
    assert not list(sweeping.out.glob("*.json"))
    kept = next((sweeping.out / "unfinished").iterdir())
    before = json.loads(kept.read_text())
    assert {packed["prompt"] for packed in before["runs"]} == {"d0", "d1"} and before["rows"]
    monkeypatch.setattr(sweep, "race", race)

    # Nothing that was measured is thrown away unasked, nor mixed with what was measured otherwise.
    assert sweeping() == 2
    assert "go on with it by --resume, or remove it" in capsys.readouterr().err
    assert sweeping("--resume", "--new", 7) == 2
    assert "has new = 6, and now it is 7" in capsys.readouterr().err
    monkeypatch.setattr(sweep_run.records, "machine", lambda device, name=None: before["machine"] | {"torch": "0.1"})
    assert sweeping("--resume") == 2
    assert "torch" in capsys.readouterr().err
    assert json.loads(kept.read_text()) == before
    monkeypatch.setattr(sweep_run.records, "machine", lambda device, name=None: dict(before["machine"]))

    assert sweeping("--resume") == 0
    record = json.loads((sweeping.out / "sweep-box-toys-digits-float32.json").read_text())
    assert record["runs"][:6] == before["runs"] and len(record["runs"]) == 18
    assert [packed["prompt"] for packed in record["runs"][::3]] == [f"d{i}" for i in range(6)]
    # The turns go on as if nothing had happened.
    assert [(p["drafter"], p["K"]) for p in record["runs"][6:9]] == [("model", 2), ("plain", 0), ("model", 1)]
    assert not kept.exists() and "8/18" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--k", "one"], "no list of K"), (["--k", "8-1"], "smaller number first"), (["--k", "0"], "at least 1"),
        (["--k", "1-"], "no list of K"), (["--new", "0"], "new must"), (["--drafters", "oracle"], "no drafter"),
        (["--drafters", "none"], "names no drafter"), (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--temperature", "-1"], "temperature"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(sweeping, capsys, more, says):
    assert sweeping(*more) == 2
    error = capsys.readouterr().err
    assert says in error and error.strip().count("\n") == 0 and not sweeping.out.exists()


def test_lists_of_k():
    assert sweep_run.numbers("1-3, 8,2") == [1, 2, 3, 8] and sweep_run.numbers("4") == [4]


def test_lines_tell_how_ours_stands_beside_the_peers():
    peer = f"{rows.PEER} model"
    runs = [*BY_HAND, run("a", peer, 2, (4, 3, 3, 0.0, 6.8)), run("b", peer, 2, (4, 3, 3, 0.0, 4.25))]
    found = list(sweep_run.lines(table(runs)))
    assert found[-1] == f"model, K = 2: 1.50 × the speed of {peer}, median over 2 prompts"
    assert found[0] == "plain: 0.6 tokens/s" and "predicted –" in found[2]


# --- drawn --------------------------------------------------------------------------------------------------


def test_the_figure_shows_measured_and_predicted():
    runs = [*BY_HAND, run("a", "model", 1, (2, 1, 1, 0.1, 1.2)), run("a", f"{rows.PEER} model", 2, (3, 2, 2, 0.0, 2.0))]
    found = table(runs)
    figure = sweep_figure(found)
    measured, predicted, peer, one = figure["data"]
    assert measured["y"] == [row.speedup for row in found[1:3]] and predicted["y"] == [r.predicted for r in found[1:3]]
    assert measured["error_y"]["array"] == [row.interval[1] - row.speedup for row in found[1:3]]
    assert predicted["marker"]["symbol"] == "circle-open" and one["y"] == [1, 1]
    assert peer["line"]["dash"] == "dash" and peer["marker"]["symbol"] == "circle"
    said = [a["text"] for a in figure["layout"]["annotations"]]
    assert {"plain", "model", f"{rows.PEER} model"} <= set(said)
    heights = sorted(a["y"] for a in figure["layout"]["annotations"][1:])
    assert all(b - a > 0.02 for a, b in itertools.pairwise(heights))
    with pytest.raises(ValueError, match="nothing to draw"):
        sweep_figure(found[:1])
