"""F7 shows what lookup did: its rounds are those of the real loop, and its marks are where the tokens are."""

from __future__ import annotations

import itertools
import re
import time

import plotly.graph_objects as go
import pytest
from boards import controls

from speclib.decode import Round, Stats, Stop, decode
from speclib.drafters import LookupDrafter, lookup_draft
from speclib.figures import lookup
from speclib.figures.lookup import lookup_html
from speclib.figures.lookup_board import LEFTMOST, RECENT, LookupBoard
from speclib.figures.lookup_kinds import kinds_figure
from speclib.figures.lookup_rounds import leftmost_draft, locate, rounds_of, tokens_per_round
from speclib.figures.lookup_step import PHASES, lookup_step, steps
from speclib.rows import Run, by_kind
from speclib.toy import TableLM

WORDS = ["one", "two", "three", "nine", "one", "two"]


def table():
    return TableLM(4, seed=5, sharpness=2)


def greedy(prompt, max_new):
    return [t for r in decode(table(), None, prompt, stop=Stop(max_new)) for t in r.tokens]


def token_text(i):
    return f" t{i}" if i else " <b>&"


def tokens(page):
    """The tokens of a page with what they are."""
    return [(text, kind) for kind, text in re.findall(r'<span class="(\w+)"[^>]*>(.*?)</span>', page)]


def labels(page):
    """The small words below the tokens, row by row."""
    return re.findall(r"<small[^>]*>(.*?)</small>", page)


def lines(page):
    """The rows of a page, each with the widths of its tokens and with what is below them: (from, to) of each."""
    for row in re.findall(r'<div class="line">(.*?)</div>', page):
        below = re.findall(r'<small style="left: ([\d.]+)px">(.*?)</small>', row)
        wide = [float(x) for x in re.findall(r'<span [^>]*style="width: ([\d.]+)px"', row)]
        yield row, wide, [(float(x), float(x) + lookup.SMALL * len(text)) for x, text in below]


def sentence(page):
    return re.sub(r"<br>", " ", re.search(r'<div class="head"[^>]*>(.*?)</div>', page)[1])


# --- the rounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("max_ngram", [1, 2, 4])
@pytest.mark.parametrize("max_new", [1, 2, 24])
def test_replayed_rounds_are_those_of_the_loop(k, max_ngram, max_new):
    prompt = [0, 1, 2, 0, 1]
    rounds = list(decode(table(), LookupDrafter(max_ngram), prompt, k=k, stop=Stop(max_new)))
    seen = rounds_of(prompt, greedy(prompt, max_new), k, max_ngram)
    assert [(r.tokens, r.drafted, r.accepted, r.checked) for r in rounds] == [
        (list(r.tokens), r.drafted, r.accepted, r.checked) for r in seen
    ]
    assert tokens_per_round(seen) == pytest.approx(Stats(rounds).mean_accepted_length)


def test_every_outcome_occurs_in_these_rounds():
    seen = [r for k in (1, 2, 5) for r in rounds_of([0, 1, 2, 0, 1], greedy([0, 1, 2, 0, 1], 24), k, 2)]
    assert {r.last for r in seen} == {"fix", "bonus", "plain"}


def test_locate_finds_where_lookup_draft_copies_from():
    text, most = [], 0
    for i in range(60):
        text.append((i * i) % 5)
        for max_ngram in (1, 3):
            found = locate(text, max_ngram)
            proposal = lookup_draft(text, 4, max_ngram)
            assert (found is None) == (proposal == [])
            if found:
                assert text[found.start : found.start + found.n] == text[-found.n :]
                assert proposal == text[found.start + found.n :][:4]
                most = max(most, found.n)
    assert most == 3


def test_the_leftmost_match_is_another_one_and_only_for_comparison():
    text = [7, 1, 8, 1, 9, 1]
    assert locate(text, 3).start == 3 and locate(text, 3, leftmost=True).start == 1
    assert lookup_draft(text, 2) == [9, 1] and leftmost_draft(text, 2) == [8, 1]
    assert leftmost_draft([1, 2], 2) == [] == leftmost_draft([], 2)
    new = [9, 1, 9, 1, 9, 1]
    recent, left = rounds_of(text, new, 2, 1), rounds_of(text, new, 2, 1, leftmost_draft)
    assert tokens_per_round(recent) > tokens_per_round(left)
    assert left[0].found.start == 1 and [t for r in left for t in r.tokens] == new


# --- the figure ---------------------------------------------------------------------------------------------


def test_the_end_the_match_and_what_followed_are_marked():
    page = lookup_html(WORDS, 2, 0, ["three", "nine"])
    assert tokens(page) == [
        ("one", "match"), ("two", "match"), ("three", "source"), ("nine", "source"), ("one", "suffix"),
        ("two", "suffix"), ("three", "draft"), ("nine", "draft"),
    ]  # fmt: skip
    assert labels(page) == ["match", "what followed", "last 2", "? draft", "? draft"]


def test_a_verdict_is_told_in_words_and_struck_through():
    page = lookup_html(WORDS, 2, 0, ["three", "nine", "one"], 1, "fix", "four", copied={4})
    assert tokens(page)[-4:] == [
        ("three", "kept"), ("<s>nine</s>", "rejected"), ("<s>one</s>", "unchecked"), ("four", "fix"),
    ]  # fmt: skip
    assert labels(page)[-4:] == ["✓ kept", "✗ rejected", "– unchecked", "+ fix"]
    full = lookup_html(WORDS, 2, 0, ["three", "nine"], 2, "bonus", "one")
    assert [kind for _, kind in tokens(full)[-3:]] == ["kept", "kept", "bonus"] and labels(full)[-1] == "★ bonus"


def test_a_miss_and_a_plain_step():
    assert "nothing: a miss" in lookup_html(WORDS[:3], 0, None)
    plain = lookup_html(WORDS[:3], 0, None, (), 0, "plain", "nine")
    assert tokens(plain)[-1] == ("nine", "plain") and labels(plain) == ["· plain"]


def test_the_end_of_the_text_wins_where_it_overlaps_the_match():
    page = lookup_html(["a", "a", "a", "a"], 3, 0, ["a"])
    assert [kind for _, kind in tokens(page)] == ["match", "suffix", "suffix", "suffix", "draft"]
    assert labels(page)[:2] == ["match", "last 3"]


@pytest.mark.parametrize("length", [1, 30, 150, 400])
@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.8, 0.97])
def test_long_texts_show_the_match_and_the_end_within_the_frame(length, where):
    words = [f"word{i}" for i in range(length)]
    match = int(where * (length - 2)) if length > 2 else None
    page = lookup_html(words, 1, match, words[:9], 9, "bonus", "x")
    shown = [w for w, kind in tokens(page) if kind in ("text", "match", "source", "suffix")]
    assert words[-1] in shown and (match is None or {words[match], words[match + 1]} <= set(shown))
    assert ("⋯" in page) == (len(shown) < length)
    strip = page.index('class="part proposed"')
    assert len(list(lines(page[:strip]))) <= lookup.ROWS and len(list(lines(page[strip:]))) <= 2
    for _, wide, below in lines(page):
        assert sum(wide) + lookup.GAP * (len(wide) - 1) <= lookup.INNER
        assert all(right <= left for (_, right), (left, _) in itertools.pairwise(below))  # no word covers another


def test_a_token_is_as_wide_as_its_letters_whatever_they_are_in_html():
    plain, marked = (next(lines(lookup_html([w, "x"], 1, None)))[1] for w in ("a", "&lt;"))
    assert plain == marked


def test_every_step_of_a_generation_can_be_drawn_and_says_its_round():
    prompt = [0, 1, 2, 0, 1]
    text = [*prompt, *greedy(prompt, 24)]
    for k, n in ((1, 1), (5, 4)):
        rounds = rounds_of(prompt, text[5:], k, n)
        heights = set()
        for step in range(steps(rounds)):
            page = lookup_step(text, rounds, step, token_text, n)
            number, phase = divmod(step, 2)
            assert sentence(page).startswith(f"<b>Round {number + 1} of {len(rounds)} · {PHASES[phase]}.</b>")
            assert "<b>&" not in page.split("</style>")[1]  # a token's text is no markup
            heights.add(re.search(r"min-height: (\d+)px\"", page)[1])
            r = rounds[number]
            strip = [kind for _, kind in tokens(page)[-len(r.drafts) - phase :]] if r.drafts else []
            if phase:
                assert strip.count("kept") == r.accepted
            else:
                assert strip == ["draft"] * len(r.drafts)
        assert len(heights) == 1  # the page below does not jump
    assert f"AL {tokens_per_round(rounds):.2f}" in page


def test_the_sentence_says_how_far_back_and_what_was_not_found():
    text = [1, 2, 3, 9, 7, 2, 3, 9, 8]
    page = lookup_step(text, rounds_of(text[:7], text[7:], 2, 4), 0, token_text, 4)
    assert "The last 2 tokens stood in the text before, 4 places back (of 3 … 4 there is no match)" in sentence(page)
    miss = lookup_step([1, 2, 3, 4], rounds_of([1, 2], [3, 4], 2, 3), 0, token_text, 3)
    assert "Not even the last token" in sentence(miss)
    last = lookup_step([1, 1, 1], rounds_of([1, 1], [1], 2, 3), 0, token_text, 3)
    assert "Only one token is left" in sentence(last)


# --- the board ----------------------------------------------------------------------------------------------


@pytest.fixture
def written():
    return []


@pytest.fixture
def board(written):
    def write(prompt):
        written.append(prompt)
        ids = [int(c) for c in prompt if c in "0123"]
        return ids, greedy(ids, 24)

    return LookupBoard(write, token_text, "0 1 2 0 1", k=4, max_ngram=2)


def test_the_text_is_written_once_and_settings_find_other_rounds(board, written):
    assert written == ["0 1 2 0 1"]
    shown = set()
    for n in (1, 5, 2):
        for k in (1, 9, 4):
            for match in (LEFTMOST, RECENT):
                board.n.value, board.k.value, board.match.value = n, k, match
                assert board.step.max == steps(board.rounds) - 1
                assert board.page.value == lookup_step(
                    [*board._texts["0 1 2 0 1"][0], *board._texts["0 1 2 0 1"][1]],
                    board.rounds,
                    board.step.value,
                    token_text,
                    n,
                )
                shown.add((len(board.rounds), str(tokens(board.page.value))))
    assert len(shown) > 3 and written == ["0 1 2 0 1"]


def test_a_setting_keeps_the_place_in_the_text(board):
    board.step.value = board.step.max
    place = board.rounds[-1].start
    for k in (1, 9, 2):
        board.k.value = k
        now = board.rounds[board.step.value // 2]
        assert now.start <= place < now.start + len(now.tokens)
        place = now.start


def test_steps_change_the_live_figure(board):
    board.step.value = 0
    texts = set()
    for step in range(board.step.max + 1):
        board.step.value = step
        texts.add(sentence(board.page.value))
    assert board.error.value == ""
    assert len(texts) == steps(board.rounds)


def test_another_prompt_begins_at_its_first_round_and_an_empty_one_is_refused(board, written):
    board.step.value = board.step.max
    board.prompt.value = "3 2 3 2"
    assert written[-1] == "3 2 3 2" and board.step.value == 0
    before = board.page.value
    with pytest.raises(ValueError, match="the prompt is empty"):
        board.prompt.value = "  "
    assert "the prompt is empty" in board.error.value and board.page.value == before
    board.prompt.value = "0 1 2 0 1"
    assert board.error.value == "" and len(written) == 2


def test_the_readers_function_drives_the_figure():
    def nothing(seq, K, max_ngram=3):
        return []

    board = LookupBoard(lambda prompt: ([0, 1, 0], [1, 0, 1, 0]), token_text, "x", draft=nothing)
    assert len(board.rounds) == 4 and all(not r.drafts for r in board.rounds)


def test_every_control_has_a_label(board):
    assert {"prompt", "n-gram", "K", "step", "back", "next", "Play"} <= set(controls(board))


def test_a_drag_is_answered_in_time():
    ids = [(i * 7919) % 97 for i in range(400)]
    new = ids[100:196]
    board = LookupBoard(lambda prompt: (ids, new), token_text, "x", k=4)
    started = time.perf_counter()
    for k in (1, 9):
        for n in (1, 5):
            board.k.value, board.n.value = k, n
    assert (time.perf_counter() - started) / 8 < 1  # some 20 ms on an idle machine


# --- drafters by kind of text -------------------------------------------------------------------------------


def raced(seconds_of, ks=(2,)):
    """Runs as `race` gives them, with times that are made up: by kind and drafter, seconds per round."""
    for kind, drafters in seconds_of.items():
        for name, (seconds, kept) in drafters.items():
            for k in (0,) if name == "plain" else ks:
                rounds = [Round([1] * (kept + 1), kept, kept, None, "", 0.0, seconds) for _ in range(4)]
                yield Run(f"{kind}-1", kind, name, k, Stats(rounds))


def said(fig):
    return fig["layout"]["annotations"][0]["text"]


def test_bars_are_the_rows_speedups_and_a_record_is_drawn_beside_them():
    chat, rename = {"plain": (1.0, 0), "lookup": (1.25, 0)}, {"plain": (1.0, 0), "lookup": (1.0, 2)}
    here = by_kind(raced({"chat": chat, "rename": rename}))
    fig = kinds_figure(here)
    go.Figure(fig)
    bars, words, diamonds = fig["data"]
    assert bars["x"] == pytest.approx([0.8, 3.0]) and diamonds["x"] == [None, None]
    assert words["text"] == ["0.80× · AL 1.00", "3.00× · AL 3.00"]
    assert fig["layout"]["yaxis"]["ticktext"] == ["chat · lookup", "rename · lookup"]
    assert "recorded" not in said(fig)
    then = by_kind(raced({"rename": {"plain": (2.0, 0), "lookup": (2.0, 3)}}, ks=(2, 4)))
    fig = kinds_figure(here, then)
    assert fig["data"][2]["x"] == [None, pytest.approx(4.0)] and "recorded, 1 prompts" in said(fig)
    other_k = by_kind(raced({"rename": {"plain": (2.0, 0), "lookup": (2.0, 3)}}, ks=(4,)))
    assert kinds_figure(here, other_k)["data"][2]["x"] == [None, None]
