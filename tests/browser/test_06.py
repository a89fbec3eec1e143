"""Notebook 06 in the browser: F7 is stepped through, and every control finds other rounds for the same text."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .lab import Board, Lab

PAGE = ".sl-look"
FIRST = {"n-gram": ["Home", "ArrowRight", "ArrowRight"], "K": ["Home", *["ArrowRight"] * 5]}


@pytest.fixture(scope="module")
def board(lab: Lab) -> Board:
    lab.read("06_lookup")
    return lab.paged(PAGE)


def shown(board: Board) -> Locator:
    return board.box.locator(PAGE)


def foot(board: Board) -> str:
    return shown(board).locator(".foot").inner_text()


def tokens(board: Board) -> list[str]:
    return shown(board).locator(".line span").all_inner_texts()


def below(board: Board) -> list[str]:
    """The small words below the tokens."""
    return shown(board).locator("small").all_inner_texts()


def press(board: Board, label: str, *keys: str) -> None:
    board.key(label, *keys)
    board.settle()


def button(board: Board, name: str) -> Locator:
    # By its text: an icon is part of a button's accessible name.
    return board.box.locator("button", has_text=re.compile(rf"^\s*{name}$"))


def match(board: Board, which: str) -> None:
    board.box.locator(".widget-toggle-button", has_text=which).click()
    board.settle()


def ask(board: Board, prompt: str) -> None:
    """Write a prompt, leave its box, and wait for the answer."""
    box = board.control("prompt").locator("textarea")
    box.fill(prompt)
    box.press("Tab")
    board.settle()


def test_every_control_has_a_label_and_a_hint(board: Board):
    assert {"prompt", "n-gram", "K", "match", "step"} <= set(board.labels())
    for name in ("back", "next", "Play", "most recent", "leftmost"):
        expect(button(board, name)).to_be_visible()
        assert button(board, name).get_attribute("title")
    for label in ("n-gram", "K", "step"):
        assert board.control(label).locator(".widget-label").get_attribute("title")
    fits = "all => all.every(e => e.scrollWidth <= e.clientWidth)"
    assert board.box.locator(".widget-label:visible, .widget-toggle-button").evaluate_all(fits)


def test_steps_go_from_proposal_to_verdict(board: Board):
    press(board, "step", "Home")
    assert board.round()[0::2] == (1, "look up")
    outcomes = set()
    for _ in range(10):
        number, _, phase = board.round()
        words = below(board)
        if phase == "look up":
            drafts = words.count("? draft")
            assert (drafts == 0) == ("nothing: a miss" in shown(board).inner_text())
            assert drafts == 0 or {"match", "what followed"} & set(words)
        else:
            kept, rejected = words.count("✓ kept"), words.count("✗ rejected") + words.count("– unchecked")
            assert kept + rejected == drafts
            end = words[-1]
            assert end == ("· plain" if not drafts else "★ bonus" if kept == drafts else "+ fix")
            outcomes.add(end)
        button(board, "next").click()
        board.settle()
        assert board.round()[:1] == (number + (phase == "check"),)
    assert len(outcomes) >= 2
    button(board, "back").click()
    board.settle()
    assert board.round()[2] == "check"


def test_the_step_slider_reaches_both_ends_by_key_and_by_mouse(board: Board):
    press(board, "step", "End")
    number, rounds, phase = board.round()
    assert number == rounds and phase == "check"
    last = tokens(board)
    board.drag("step", -0.5)
    board.settle()
    assert board.round() == (1, rounds, "look up") and tokens(board) != last
    board.drag("step", 1.5)
    board.settle()
    assert board.round() == (rounds, rounds, "check") and tokens(board) == last


@pytest.mark.parametrize("label", ["n-gram", "K"])
def test_a_setting_finds_other_rounds_for_the_same_text(board: Board, label: str):
    press(board, "step", "End")
    start, tokens = foot(board), re.search(r"(\d+) tokens", foot(board))[1]
    seen = {}
    for move in ("Home", "End", -0.5, 1.5):
        board.key(label, move) if isinstance(move, str) else board.drag(label, move)
        board.settle()
        seen[move] = (board.readout(label), foot(board))
        assert f"{tokens} tokens" in foot(board)  # the text stays
    assert seen["Home"] == seen[-0.5] and seen["End"] == seen[1.5]
    assert seen["Home"][0] == "1" != seen["End"][0] and seen["Home"][1] != seen["End"][1]
    press(board, label, *FIRST[label])
    assert foot(board) == start


def test_k_is_the_most_that_is_proposed(board: Board):
    for key, most in (("Home", 1), ("End", 9)):
        press(board, "K", key)
        press(board, "step", "Home", *["ArrowRight"] * 8)
        drafted = below(board).count("? draft")
        for _ in range(4):
            if drafted == most:
                break
            press(board, "step", "ArrowRight", "ArrowRight")
            drafted = below(board).count("? draft")
        assert drafted == most
    press(board, "K", *FIRST["K"])


def test_the_leftmost_match_can_be_chosen_for_comparison(board: Board):
    press(board, "n-gram", "Home")
    press(board, "step", "Home")
    start = foot(board)
    match(board, "leftmost")
    assert foot(board) != start
    match(board, "most recent")
    assert foot(board) == start
    press(board, "n-gram", *FIRST["n-gram"])


def test_play_plays_and_pauses(board: Board):
    press(board, "step", "Home")
    button(board, "Play").click()
    for _ in range(100):
        board.page.wait_for_timeout(200)
        if board.round()[0] >= 2:
            break
    assert board.round()[0] >= 2
    button(board, "Pause").click()
    expect(button(board, "Play")).to_be_visible()
    board.settle()
    before = board.readout("step")
    board.page.wait_for_timeout(2_500)
    assert board.readout("step") == before


def test_another_prompt_and_an_empty_one(board: Board):
    box = board.control("prompt").locator("textarea")
    first, before = box.input_value(), tokens(board)
    ask(board, "Tell me about yourself.")
    assert board.round()[0] == 1 and tokens(board) != before
    assert "␣yourself" in tokens(board)
    then = tokens(board)
    ask(board, "  ")
    expect(board.box.get_by_role("alert")).to_contain_text("the prompt is empty")
    assert tokens(board) == then
    ask(board, first)
    expect(board.box.get_by_role("alert")).to_have_count(0)


def test_a_drag_answers_quickly(board: Board, capsys: pytest.CaptureFixture[str]):
    press(board, "step", "Home")
    times = sorted(board.latency("step", key, PAGE) for key in ["ArrowRight", "ArrowLeft"] * 8)
    with capsys.disabled():
        print(f"\nstep to changed page: median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert statistics.median(times) < 1000


def test_stills(lab: Lab, board: Board, stills: Path):
    press(board, "step", "Home", *["ArrowRight"] * 15)
    board.control("prompt").locator("textarea").evaluate("box => { box.scrollTop = 0; }")
    for theme, ending in (("JupyterLab Dark", "_dark.png"), ("JupyterLab Light", ".png")):
        lab.theme(theme)
        board.box.scroll_into_view_if_needed()
        board.box.locator(".widget-vbox").first.screenshot(path=stills / ("06_lookup" + ending), scale="css")
        assert (stills / ("06_lookup" + ending)).stat().st_size > 10_000
