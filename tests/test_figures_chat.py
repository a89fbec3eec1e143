"""The side-by-side chat of notebook 07, against a server with a tiny pair."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import idle, metrics, script_pair, wait_until

from speclib import bench, serve
from speclib.figures.chat_board import ChatBoard

TEXT = "One <b>& two\u2029 three, four. "


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pair = script_pair(tmp_path_factory.mktemp("pair"), TEXT, pause=0.002)
    with serve.background(pair, drafter="model", k=3) as server:
        yield server


def run(coroutine):
    """In a thread of its own: the browser's tests leave a running loop in the process."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def address(server):
    return bench.Server(server.base_url, server.model)


def words(board):
    """What is to be read on the page of a board."""
    return re.sub(r"<[^>]*>", "", board.page.value.split("</style>")[1])


def test_both_answers_are_there_and_the_kept_drafts_are_marked(server):
    board = ChatBoard(address(server), "go", k=3, tokens=24)
    plain, fast = board.said.values()
    # A token is a byte, and one of the characters has three.
    assert ["".join(t for tokens, *_ in said.rounds for t in tokens) for said in (plain, fast)] == [TEXT[:22]] * 2
    assert [len(tokens) for tokens, *_ in plain.rounds] == [1] * 24
    assert {(drafted, kept) for _, drafted, kept in plain.rounds} == {(0, 0)}
    assert 0 < sum(kept for *_, kept in fast.rounds) < 24 and len(fast.rounds) < 24
    assert board.page.value.count('<span class="kept">') == sum(kept for *_, kept in fast.rounds) + 1  # and the key
    assert words(board).count("&lt;") == 2 and words(board).count("&amp;") == 2  # shown as they are
    assert "✓ the same text" in words(board)
    assert f"24 tokens in {len(fast.rounds)} passes" in words(board)
    assert 0 < plain.first <= plain.last


def test_ask_starts_over_and_stop_leaves_so_that_the_server_notices(server):
    board = ChatBoard(address(server), "go", tokens=8)
    board.tokens.max = 4000
    before = metrics(server)

    async def press():
        board.prompt.value, board.drafter.value, board.k.value, board.tokens.value = "again", "lookup", 5, 8
        board._pressed(None)
        await board.task
        assert board.said["speculative"].title == "speculative: lookup, K = 5"
        assert "✓ the same text" in words(board)
        board.tokens.value = 3000
        board._pressed(None)
        while not board.said["plain"].rounds:
            await asyncio.sleep(0.01)
        board._cancel()
        await asyncio.wait([board.task])
        assert "left early" in words(board) and "waiting" not in words(board)

    run(press())
    wait_until(lambda: idle(server))
    after = metrics(server)
    assert sum(n - before.get(name, 0) for name, n in after.items() if "_total" in name and "abort" in name) == 1


def test_what_the_server_refuses_is_said_and_an_empty_prompt_is_too(server):
    board = ChatBoard(address(server), "go", tokens=8)
    board.tokens.max = 10_000

    async def press(prompt, tokens):
        board.prompt.value, board.tokens.value = prompt, tokens
        board._pressed(None)
        await board.task

    run(press("go", 9000))
    assert words(board).count("do not fit into") == 2 and 'role="alert"' in board.page.value
    with pytest.raises(ValueError, match="the prompt is empty"):
        run(press("  ", 8))


def test_a_server_that_is_gone_is_named():
    board = ChatBoard(bench.Server("http://127.0.0.1:9/v1", "none"), "go")
    assert words(board).count("no answer from http://127.0.0.1:9/v1 (ConnectError): is the server running?") == 2
