"""`speclib chat`: text as rounds come, a line of statistics, and one line for a bad input."""

import re
import sys

import pytest
import torch
from tiny import save

from speclib import chat, cli, pairs
from speclib.distributions import Sampling
from speclib.drafters import FallbackDrafter, LookupDrafter, ModelDrafter

GREEDY = Sampling(temperature=0.0)


@pytest.fixture
def pair_name(tmp_path):
    return f"{save(tmp_path / 'target')},{save(tmp_path / 'draft', seed=1)}"


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["speclib", "chat", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, *capsys.readouterr()


@pytest.mark.parametrize("drafter", chat.DRAFTERS)
def test_the_drafter_changes_the_rounds_and_not_the_text(pair_name, monkeypatch, capsys, drafter):
    status, out, err = run(monkeypatch, capsys, "hi", "--pair", pair_name, "--max-new", "12", "--drafter", drafter)
    text, line = out.rsplit("\n\n", 1)
    pair = pairs.load(pair_name)
    wanted = "".join(r.text for r in chat.answer(pair, "hi", None, 0, GREEDY, 12))
    assert (status, err, text) == (0, "", wanted)
    share = r"(–|\d\.\d\d)"
    figures = rf"AL \d\.\d\d · α̂ {share} · acceptance rate {share} · \d+ rounds"
    assert re.fullmatch(rf"12 tokens, \d+\.\d tokens/s · {figures}\n", line), line


def test_marks_stand_around_kept_drafts(pair_name, monkeypatch, capsys):
    folder = pair_name.split(",")[0]
    arguments = ("hi", "--pair", f"{folder},{folder}", "--max-new", "10", "--drafter", "model", "--k", "4", "--marks")
    _, out, _ = run(monkeypatch, capsys, *arguments)
    text = out.rsplit("\n\n", 1)[0]
    _, plain, _ = run(monkeypatch, capsys, *arguments[:-1])
    assert text.count("‹") == text.count("›") == 2  # two rounds of 4 + 1, all kept
    assert text.replace("‹", "").replace("›", "") == plain.rsplit("\n\n", 1)[0]


def test_a_seed_repeats_a_sampled_answer(pair_name):
    pair = pairs.load(pair_name)

    def text(seed):
        rounds = chat.answer(pair, "hi", LookupDrafter(), 4, Sampling(), 20, seed)
        return [t for r in rounds for t in r.tokens]

    assert text(1) == text(1) != text(2)


def test_an_interrupted_answer_still_ends_with_its_statistics(pair_name, capsys):
    pair = pairs.load(pair_name, dtype=torch.float32)

    def rounds():
        yield from list(chat.answer(pair, "hi", None, 0, GREEDY, 5))[:3]
        raise KeyboardInterrupt

    assert chat.show(pair, rounds(), marks=False) == 130
    assert "3 tokens, " in capsys.readouterr().out


def test_the_drafters_have_names(pair_name):
    pair = pairs.load(pair_name)
    assert isinstance(chat.make_drafter("model", pair), ModelDrafter)
    assert isinstance(chat.make_drafter("lookup", pair), LookupDrafter)
    both = chat.make_drafter("lookup+model", pair)
    assert isinstance(both, FallbackDrafter)
    assert isinstance(both.first, LookupDrafter) and isinstance(both.second, ModelDrafter)
    assert chat.make_drafter("none", pair) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hi", "--drafter", "oracle"], "no drafter 'oracle': choose model, lookup, lookup+model, none"),
        (["hi", "--k", "-1"], "K must be a whole number of at least 0"),
        (["hi", "--max-new", "9000"], "do not fit into the target's"),
        (["hi", "--temperature", "-1"], "temperature must be"),
        (["hi", "--top-p", "0"], "top_p must be"),
        (["  "], "a text that is not empty"),
    ],
)
def test_bad_input_is_one_line_and_status_2(pair_name, monkeypatch, capsys, arguments, says):
    status, out, err = run(monkeypatch, capsys, *arguments, "--pair", pair_name)
    assert status == 2 and not out and says in err and err.count("\n") == 1
