"""The round stepper shows what happened: traces are those of the real loop, and the page says what the trace says."""

from __future__ import annotations

import base64
import html
import re

import pytest
import torch
from tiny import tiny_llama

from speclib.checks.greedy import Near
from speclib.context import Context
from speclib.decode import Stop, decode, spec_greedy
from speclib.drafters import LookupDrafter
from speclib.figures import live, page, style
from speclib.figures.paged import paged_rollback
from speclib.figures.stepper import COLUMNS, PHASES, kinds, stepper_html, steps
from speclib.figures.stepper_board import Stepper
from speclib.toy import TableLM
from speclib.watch import Foreign, Seen, Trace, record
from speclib.wrong import Ghosts

PROMPT = [0, 2, 5]
TABLE = {"seed": 3, "sharpness": 2}


def table():
    return TableLM(6, **TABLE)


def near():
    return Near(table(), 12, 1.0)


def plain(max_new=14, prompt=PROMPT):
    return [t for r in decode(table(), None, prompt, stop=Stop(max_new)) for t in r.tokens]


def trace(target=None, draft=None, max_new=14, k=4, eos=None, write=spec_greedy):
    draft = near() if draft is None else draft
    return record(write, target or table(), draft, PROMPT, max_new, k, eos, plain(max_new))


def token_text(i):
    return f" t{i}" if i else " <b>&"


def words(page):
    """What a reader sees of a page."""
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S))


# --- the trace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_a_trace_holds_the_rounds_of_decode(k):
    rounds = spec_greedy(table(), near(), PROMPT, 14, k)[1].rounds
    seen = trace(k=k)
    assert [(r.tokens, r.drafted, r.accepted, r.checked) for r in rounds] == [
        (list(r.tokens), r.drafted, r.accepted, r.checked) for r in seen.rounds
    ]
    assert seen.stats.alpha_hat == pytest.approx(spec_greedy(table(), near(), PROMPT, 14, k)[1].alpha_hat)
    assert seen.parts_at is None and seen.tokens == plain()


def test_a_trace_holds_what_both_caches_cover_at_each_moment():
    seen = trace()
    text = list(PROMPT)
    outcomes = set()
    for r in seen.rounds:
        assert r.start == len(text)
        before, scored, after = ([c.token for c in cache] for cache in r.target_cache)
        drafted, left = ([c.token for c in cache] for cache in r.draft_cache)
        assert before == text[:-1]
        assert scored == text + list(r.drafts)
        assert drafted == (text + list(r.drafts))[: len(drafted)]
        assert len(drafted) == len(text) + len(r.drafts) - 1 or not r.drafts
        text += r.tokens
        assert after == text[:-1]
        assert left == text[: len(left)] and len(left) >= len(after) - 1 - (not r.drafts)
        assert not any(c.ghost for cache in (*r.target_cache, *r.draft_cache) for c in cache)
        outcomes.add(r.last)
    assert outcomes >= {"fix", "bonus"}


def test_ghosts_are_in_the_trace_where_a_rollback_is_missing_and_never_in_the_first_pass():
    seen = trace(target=Ghosts(table()))
    assert not any(c.ghost for c in seen.rounds[0].target_cache[1])
    ghosts = [sum(c.ghost for c in r.target_cache[2]) for r in seen.rounds]
    rejected = [len(r.drafts) - r.accepted for r in seen.rounds]
    assert ghosts == [sum(rejected[: i + 1]) for i in range(len(rejected))]
    assert list(seen.rounds[0].tokens) == plain()[: len(seen.rounds[0].tokens)]
    assert seen.parts_at is not None and seen.parts_at >= len(seen.rounds[0].tokens)


def test_a_trace_knows_the_end_inside_a_block():
    eos = plain()[1]
    seen = record(spec_greedy, table(), table(), PROMPT, 14, 4, eos)
    assert seen.tokens == plain()[:2] and seen.rounds[-1].last == "end"
    assert seen.rounds[-1].drafted == seen.rounds[-1].accepted == 2
    assert seen.parts_at is None and seen.expected is None


def test_any_drafter_can_be_watched_also_without_a_draft_model():
    def lookup(target, draft, prompt_ids, max_new, K, eos):
        rounds = decode(target, LookupDrafter(), prompt_ids, k=K, stop=Stop(max_new, eos=eos))
        return [t for r in rounds for t in r.tokens], None

    seen = record(lookup, table(), None, [0, 2, 0, 2, 0], 12, 3)
    assert any(r.drafts for r in seen.rounds)
    assert all(cache == () for r in seen.rounds for cache in r.draft_cache)
    assert "draft’s cache" not in stepper_html(seen, 0, token_text)


def test_real_caches_are_watched_too():
    llama = tiny_llama(seed=1)
    seen = record(spec_greedy, Context(llama), Context(llama), [5, 6, 7], 20, 4)
    assert [r.accepted for r in seen.rounds] == [4] * 4
    assert all(r.last == "bonus" for r in seen.rounds)
    # After a full keep the draft has not read its own last token.
    assert [len(r.draft_cache[1]) - r.start - len(r.tokens) for r in seen.rounds] == [-2] * 4


def test_a_foreign_draft_costs_acceptance_and_never_the_text():
    inner = Context(tiny_llama(seed=1))
    foreign = Foreign(inner, seed=2)
    seen = record(spec_greedy, Context(tiny_llama(seed=1)), foreign, [5, 6, 7], 20, 4)
    right = record(spec_greedy, Context(tiny_llama(seed=1)), Context(tiny_llama(seed=1)), [5, 6, 7], 20, 4)
    assert seen.tokens == right.tokens
    assert seen.stats.alpha_hat < 0.3 < right.stats.alpha_hat == 1
    assert foreign.tokens != inner.tokens and len(foreign.tokens) == len(inner.tokens)


def test_a_draft_with_a_wider_vocabulary_can_be_watched():
    seen = record(spec_greedy, table(), TableLM(9, seed=5), PROMPT, 14, 4, None, plain())
    assert seen.parts_at is None and all(d < 6 for r in seen.rounds for d in r.drafts)


def test_a_foreign_draft_is_the_model_in_another_numbering():
    inner, seen = TableLM(6, seed=1), Foreign(TableLM(6, seed=1), seed=4)
    theirs = seen._theirs.tolist()
    assert sorted(theirs) == list(range(6))
    got = seen.feed([3, 0])
    wanted = inner.feed([theirs[3], theirs[0]])
    assert torch.equal(got, wanted[:, theirs])
    seen.rollback(1)
    assert seen.tokens == [3]


# --- the page -----------------------------------------------------------------------------------------------


def covered(r, phase, held):
    """What a strip says of what a cache holds: how many places, how many ghosts, and when it is as it should be."""
    ghosts = sum(cell.ghost for cell in held)
    if ghosts:
        return f"{len(held)}, {ghosts} ghost{'s' * (ghosts > 1)}"
    as_it_should_be = phase == 2 and len(held) == r.start + len(r.tokens) - 1
    return f"{len(held)} = text − 1" if as_it_should_be else f"{len(held)} places"


def test_the_palette_is_the_courses_and_the_page_draws_each_role_in_its_colour():
    colours = {"draft": "#E6A23C", "kept": "#2F6FDE", "rejected": "#D64550", "unchecked": "#D64550"}
    colours |= {"fix": "#2E9E6B", "bonus": "#2E9E6B"}
    assert {name: style.ROLES[name].colour for name in colours} == colours
    pages = "".join(stepper_html(trace(), step, token_text) for step in range(steps(trace())))
    for name, colour in colours.items():
        chips = re.findall(rf'<span class="tok {name}[^"]*"><b style="border-color: ([^;]+);', pages)
        assert set(chips) == {colour}, name


def test_every_step_of_every_kind_of_trace_can_be_drawn():
    for seen in (trace(), trace(target=Ghosts(table())), trace(k=1), trace(draft=table()), trace(max_new=1)):
        assert steps(seen) == len(PHASES) * len(seen.rounds)
        for step in range(steps(seen)):
            page = stepper_html(seen, step, token_text)
            number, phase = divmod(step, len(PHASES))
            assert f"Round {number + 1} of {len(seen.rounds)} · {PHASES[phase]}." in words(page)
            assert page.count("<div") == page.count("</div>") and page.count("<span") == page.count("</span>")
            assert "<b>&" not in page  # a token's text is no markup
            r = seen.rounds[number]
            strips = {"target": r.target_cache[phase]} | ({"draft": r.draft_cache[phase == 2]} if r.drafts else {})
            for name, held in strips.items():
                caption = covered(r, phase, held)
                assert f'aria-label="{name}’s cache, {caption}"' in page
                assert f"{name}’s cache<small>{caption}</small>" in page
            for row in re.findall(r'<div class="row".*?(?=<div class="row"|<div class="foot")', page, re.S):
                assert row.count('class="cell') <= COLUMNS + 1
    assert stepper_html(trace(), -5, token_text) == stepper_html(trace(), 0, token_text)
    assert stepper_html(trace(), 999, token_text) == stepper_html(trace(), steps(trace()) - 1, token_text)
    assert "No round" in stepper_html(Trace((0,), ()), 0, token_text)


def test_a_round_with_a_rejection_reads_draft_then_verdict_then_text():
    r = Seen(3, (1, 2, 3, 4), (1, 5), ((), ()), ((), (), ()))
    assert kinds(r, 0) == [(1, "draft"), (2, "draft"), (3, "draft"), (4, "draft")]
    assert kinds(r, 1) == [(1, "kept"), (2, "rejected"), (3, "unchecked"), (4, "unchecked"), (5, "fix")]
    assert kinds(r, 2) == [(1, "kept"), (5, "fix")]


def test_other_rounds_too():
    full = Seen(3, (1, 2), (1, 2, 9), ((), ()), ((), (), ()))
    assert kinds(full, 1) == [(1, "kept"), (2, "kept"), (9, "bonus")]
    ended = Seen(3, (1, 2, 3), (1, 2), ((), ()), ((), (), ()))
    assert kinds(ended, 1) == [(1, "kept"), (2, "kept"), (3, "unchecked")]
    alone = Seen(3, (), (7,), ((), ()), ((), (), ()))
    assert (kinds(alone, 0), kinds(alone, 1)) == ([], [(7, "plain")])


def test_the_sentences_count_what_is_drafted_kept_and_cut():
    seen = trace()
    for number, r in enumerate(seen.rounds):
        said = [words(stepper_html(seen, 3 * number + phase, token_text)) for phase in range(3)]
        if r.last == "fix":
            assert f"guesses {len(r.drafts)} token" in said[0]
            assert f"{r.accepted} kept, then the target says" in said[1]
            assert f"target's cache forgets {len(r.drafts) - r.accepted}," in said[2]
        elif r.last == "bonus":
            assert f"All {len(r.drafts)} kept" in said[1] and "forgets 0, the draft's 0" in said[2]


def test_no_meaning_is_carried_by_colour_alone():
    assert len({role.mark for role in style.ROLES.values()}) == len(style.ROLES)
    first = words(stepper_html(trace(), 0, token_text))
    assert first.count("draft") >= 4
    fixed = next(i for i, r in enumerate(trace().rounds) if r.last == "fix" and len(r.drafts) > 2)
    page = stepper_html(trace(), 3 * fixed + 1, token_text)
    for mark in ("✗ rejected", "– unchecked", "+ fix"):
        assert mark in words(page)
    assert "line-through" in page
    assert " cut " in words(stepper_html(trace(), 3 * fixed + 2, token_text))
    haunted = trace(target=Ghosts(table()))
    assert "ghost" in words(stepper_html(haunted, steps(haunted) - 1, token_text))


def test_the_verdict_names_the_token_and_the_round_where_the_text_goes_wrong():
    assert "✓ token for token" in re.sub(r"\s+", " ", words(stepper_html(trace(), 0, token_text)))
    haunted = trace(target=Ghosts(table()))
    text = words(stepper_html(haunted, 0, token_text))
    at = haunted.parts_at
    assert f"parts from plain greedy at token {at + 1}, in round" in text
    place, number = 0, int(re.search(r"in round (\d+)", text)[1])
    for r in haunted.rounds[: number - 1]:
        place += len(r.tokens)
    assert place <= at < place + len(haunted.rounds[number - 1].tokens)
    assert number >= 2
    assert "≠" in words(stepper_html(haunted, 3 * (number - 1) + 1, token_text))


# --- the board ----------------------------------------------------------------------------------------------


@pytest.fixture
def calls():
    return []


@pytest.fixture
def board(calls):
    def run(prompt, K, ghosts=False):
        calls.append((prompt, K, ghosts))
        if prompt == "bad":
            raise ValueError("a prompt that fails")
        return trace(target=Ghosts(table()) if ghosts else table(), k=K)

    return Stepper(run, token_text, "a prompt", switches={"ghosts": "skip the rollback"})


def test_steps_move_within_what_was_recorded_and_k_generates_anew(board, calls):
    assert calls == [("a prompt", 4, False)]
    pages = {board.page.value}
    for step in range(1, board.step.max + 1):
        board.step.value = step
        pages.add(board.page.value)
    assert len(pages) == board.step.max + 1 == steps(board.trace) and len(calls) == 1
    for k in (1, 8):
        board.k.value = k
        assert calls[-1] == ("a prompt", k, False)
        assert board.step.max == steps(board.trace) - 1 >= board.step.value
        assert board.page.value == stepper_html(board.trace, board.step.value, token_text)
    board.k.value = 4
    assert len(calls) == 3  # what was generated once is not generated again


def test_a_switch_shows_the_fault_and_takes_it_back(board, calls):
    assert "✓" in board.page.value and "ghost" not in words(board.page.value)
    board.switches["ghosts"].value = True
    board.step.value = board.step.max
    assert calls[-1] == ("a prompt", 4, True)
    assert "parts from plain greedy" in board.page.value and "ghost" in words(board.page.value)
    board.switches["ghosts"].value = False
    assert "✓" in board.page.value and "parts from" not in board.page.value


def test_buttons_step_and_stop_at_both_ends(board):
    back, on = (w for w in board.children[2].children if getattr(w, "description", "") in ("back", "next"))
    back.click()
    assert board.step.value == 0
    on.click()
    on.click()
    assert board.step.value == 2
    board.step.value = board.step.max
    on.click()
    assert board.step.value == board.step.max


def test_errors_are_seen_and_the_page_stays(board):
    before = board.page.value
    for prompt, word in (("", "the prompt is empty"), ("bad", "a prompt that fails")):
        with pytest.raises(ValueError, match=word):
            board.prompt.value = prompt
        assert word in board.error.value and board.page.value == before
    board.prompt.value = "fine"
    assert board.error.value == ""


def test_a_board_has_a_fixed_text_and_a_picture_only_on_demand(board, monkeypatch):
    monkeypatch.delenv(live.PICTURES, raising=False)
    data, _ = board._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and "image/png" not in data
    assert data["text/plain"].startswith("Figure:")
    monkeypatch.setenv(live.PICTURES, "1")
    monkeypatch.setattr(page, "picture", lambda html, width, height: html.encode())
    data, _ = board._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).decode() == board.page.value


def test_a_picture_is_a_png_of_the_asked_size(chromium_path):
    png = page.picture(stepper_html(trace(), 1, token_text), 770, 300)
    assert png[:4] == b"\x89PNG"
    assert [int.from_bytes(png[i : i + 4], "big") for i in (16, 20)] == [770, 300]


def test_the_paged_figure_shows_eight_covered_slots_and_a_block_handed_back():
    fig = paged_rollback()
    texts = fig["data"][0]["text"]
    assert len(texts) == len(fig["layout"]["shapes"]) == 8 + 12 + 12
    assert sum(t[:1] in ("t", "✓") for t in texts[-12:]) == 8
    assert any("back to the free blocks" in a["text"] for a in fig["layout"]["annotations"])
