"""Notebook 07 in the browser: the chat beside itself, the load that grows, the dragged batch, and the server's end."""

from __future__ import annotations

import re
import statistics
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .lab import NOTEBOOK, Board, Lab

OUTPUT, BATCH = ".jp-OutputArea-output", ".sl-chart"


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Lab:
    lab.read("07_serve_and_bench", {"(1, 16) if in_fp32 else (1, 4, 16), n=16": "(1, 4), n=4"})
    return lab


@pytest.fixture(scope="module")
def chat(notebook: Lab) -> Board:
    """The same question twice."""
    return notebook.paged(".sl-answers")


@pytest.fixture(scope="module")
def load(notebook: Lab) -> Board:
    """F8, as it was measured."""
    box = notebook.page.locator(OUTPUT, has=notebook.page.locator(".js-plotly-plot")).first
    box.scroll_into_view_if_needed()
    expect(box.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
    return Board(notebook.page, box)


@pytest.fixture(scope="module")
def batch(notebook: Lab) -> Board:
    """The batch whose users are dragged."""
    return notebook.paged(BATCH)


def columns(chat: Board) -> list[Locator]:
    return chat.box.locator(".sl-answers > div").all()


def ask(chat: Board) -> tuple[str, str]:
    """Press Ask, wait for the end of both answers, and return the two texts."""
    chat.box.get_by_role("button", name="Ask").click()
    expect(columns(chat)[1].locator(".foot")).to_contain_text("waiting")
    expect(chat.box.locator(".sl-verdict")).to_be_visible(timeout=90_000)
    return tuple(column.locator(".text").inner_text() for column in columns(chat))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=10) as response:
            return response.status == 200
    except urllib.error.URLError:
        return False


def test_every_control_has_a_label_and_the_labels_fit(chat: Board, batch: Board):
    assert {"prompt", "drafter", "K", "tokens"} <= set(chat.labels())
    assert {"models", "machine", "users", "K", "α", "c"} <= set(batch.labels())
    for name in ("Ask", "Stop"):
        expect(chat.box.get_by_role("button", name=name)).to_be_visible()
    for one in (chat, batch):
        fits = "all => all.every(e => e.scrollWidth <= e.clientWidth)"
        assert one.box.locator(".widget-label:visible, button:visible").evaluate_all(fits)


def test_the_chat_was_asked_when_the_cell_ran_and_marks_what_was_kept(chat: Board):
    plain, fast = columns(chat)
    assert plain.locator(".text .kept").count() == 0
    assert fast.locator(".text .kept").count() > 0
    passes = [int(re.search(r"in (\d+) passes", c.locator(".foot").inner_text())[1]) for c in (plain, fast)]
    assert 0 < passes[1] < passes[0]


def test_k_and_length_go_to_both_ends_by_key_and_by_mouse(chat: Board):
    chat.key("tokens", "Home")
    chat.key("K", "Home")
    assert (chat.readout("K"), chat.readout("tokens")) == ("1", "8")
    ask(chat)
    assert "K = 1" in columns(chat)[1].inner_text()
    chat.drag("K", 1.5)
    chat.page.wait_for_timeout(300)
    assert chat.readout("K") == "8"
    texts = ask(chat)
    assert "K = 8" in columns(chat)[1].inner_text() and all(texts)
    assert re.search(r"[1-8] tokens in [1-8] passes", columns(chat)[0].inner_text())


def test_another_drafter_and_another_prompt(chat: Board):
    chat.box.locator("select").select_option("lookup")
    chat.control("prompt").locator("input").fill("Repeat this: the sea is calm, the sea is calm.")
    chat.control("prompt").locator("input").press("Enter")
    ask(chat)
    assert "lookup, K = 8" in columns(chat)[1].inner_text()
    chat.control("prompt").locator("input").fill("   ")
    chat.control("prompt").locator("input").press("Enter")
    chat.box.get_by_role("button", name="Ask").click()
    expect(chat.box.get_by_role("alert")).to_contain_text("the prompt is empty")
    chat.control("prompt").locator("input").fill("Tell me a story about the sea.")
    chat.control("prompt").locator("input").press("Enter")
    chat.box.locator("select").select_option("model")


def test_stop_leaves_a_long_answer(chat: Board):
    chat.key("tokens", "End")
    assert chat.readout("tokens") == "128"
    chat.box.get_by_role("button", name="Ask").click()
    expect(columns(chat)[0].locator(".foot")).to_contain_text("writing", timeout=30_000)
    chat.box.get_by_role("button", name="Stop").click()
    expect(columns(chat)[0].locator(".foot")).to_contain_text("left early")
    before = columns(chat)[0].locator(".text").inner_text()
    chat.page.wait_for_timeout(1_500)
    assert columns(chat)[0].locator(".text").inner_text() == before
    expect(chat.box.get_by_role("alert")).to_have_count(0)
    chat.key("tokens", "Home", *["PageUp"] * 2)
    ask(chat)  # the server has not been left with the old request


def test_the_load_has_every_point(load: Board):
    traces = load.plot.evaluate("gd => gd.data.length")
    assert traces == 6  # TTFT, TPOT and tokens/s of two rows
    for i in range(traces):
        assert load.trace(i, "x") == [1, 4]
        assert all(y > 0 for y in load.trace(i, "y"))
    assert "4 users at once" in load.sentences()[0]


def test_the_batch_is_dragged_from_end_to_end(batch: Board):
    def sentence() -> str:
        batch.settle()
        return batch.box.locator(f"{BATCH} .head").inner_text()

    batch.key("users", "Home")
    alone = sentence()
    batch.drag("users", 1.5)
    crowd = sentence()
    assert alone.startswith("1 user in a batch") and re.match(r"\d{3,} users in a batch", crowd)
    best = [int(re.search(r"best K = (\d+)", s)[1]) if "best K" in s else 0 for s in (alone, crowd)]
    assert best[0] > best[1]
    for label in ("K", "α", "c"):
        seen = []
        for key in ("Home", "End"):
            batch.key(label, key)
            seen.append(sentence())
        assert seen[0] != seen[1] or "no draft pays" in seen[0]
        batch.drag(label, 0.4)
    batch.key("users", "Home")
    for box, count in zip(batch.box.locator("select").all(), (2, 3), strict=True):
        options = box.locator("option").all_inner_texts()
        assert len(options) == count
        for option in [*options, options[0]]:
            box.select_option(option)
            assert "in a batch" in sentence()
    expect(batch.box.get_by_role("alert")).to_have_count(0)
    batch.key("users", "Home")


def test_a_drag_answers_quickly(batch: Board, capsys: pytest.CaptureFixture[str]):
    times = sorted(batch.latency("α", key, BATCH) for key in ["ArrowRight", "ArrowLeft"] * 10)
    with capsys.disabled():
        print(f"\nα: median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms")
    # The course asks for 100 ms; a machine that also does other things must not fail here.
    assert statistics.median(times) < 1000


def test_stills(notebook: Lab, chat: Board, load: Board, batch: Board, stills: Path):
    chat.control("prompt").locator("input").fill("Write a Python function that adds two numbers.")
    chat.control("prompt").locator("input").press("Enter")
    chat.key("K", "Home", *["ArrowRight"] * 3)
    chat.key("tokens", *["PageUp"] * 2)
    ask(chat)
    for theme, end in (("JupyterLab Dark", "_dark"), ("JupyterLab Light", "")):
        notebook.theme(theme)
        for name, board in (("chat", chat), ("load", load), ("batch", batch)):
            board.box.scroll_into_view_if_needed()
            path = stills / f"07_{name}{end}.png"
            board.box.locator(".widget-vbox").first.screenshot(path=path, scale="css")
            assert path.stat().st_size > 10_000
    load.box.scroll_into_view_if_needed()
    notebook.page.screenshot(path=stills / "07_serve_and_bench.png")


def test_the_server_ends_with_its_kernel(notebook: Lab):
    said = "".join(o.get("text", "") for o in notebook.outputs() if o["output_type"] == "stream")
    url = re.search(r"is served at (http://127\.0\.0\.1:\d+)/v1", said)[1]
    assert answers(url)
    notebook.page.evaluate(f"{NOTEBOOK}.sessionContext.session.kernel.restart()")
    for _ in range(100):
        if not answers(url):
            return
        notebook.page.wait_for_timeout(200)
    pytest.fail("the port still answers 20 s after the kernel was restarted")
