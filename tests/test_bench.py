"""The bench says exactly what a scripted server did, whatever it did, and keeps what is done."""

from __future__ import annotations

import _thread
import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import scripted_server as scripted
from scripted_server import DONE, ROLE, Scripted, answer, delta, sse, usage

from speclib import bench, bench_background, bench_client
from speclib.bench import Load, Prompt, Row, Server
from speclib.bench_record import lines, record

PROMPTS = [Prompt(f"{kind}-{i}", kind, f"{kind} number {i}") for kind in ("chat", "code") for i in range(3)]
PLAIN = [Row("plain", "none")]
TWO = bench.rows_of("fast", "model:4", against_plain=True)


@pytest.fixture(autouse=True)
def wound_clock(monkeypatch):
    monkeypatch.setattr(bench_background.asyncio, "new_event_loop", scripted.Wound)


def measure(script, rows=PLAIN, at_once=1000, count=None, on_request=None, **load):
    load = {"concurrency": (1,), "n": 1} | load
    transport = Scripted(script, at_once)
    server = Server("http://test/v1", "tiny", transport=transport, clock=scripted.clock)
    return bench.run(server, rows, PROMPTS, Load(**load), count=count, on_request=on_request), transport


def words(text):
    return len(text.split())


def test_one_token_a_chunk():
    run, transport = measure(lambda body, i: answer(11))
    s = run.summaries()["plain"][1]
    assert s["ttft"]["p50"] == pytest.approx(0.5)  # not the 0.2 of the role
    assert s["tpot"]["p50"] == s["inter_token"]["p99"] == s["seconds_per_token"] == pytest.approx(0.1)
    assert s["tokens_per_second"] == s["tokens_per_second_each"]["p50"] == pytest.approx(11 / 1.5)
    assert (s["requests"], s["tokens"], s["errors"], s["tokens_from"]) == (1, 11, {}, {"usage": 1})
    body = transport.asked[0]
    assert body["stream"] and body["stream_options"] == {"include_usage": True} and "ignore_eos" not in body
    assert body["max_tokens"] == 128 and "speculation" not in body
    assert run.complete


def test_three_tokens_a_chunk_counted_by_a_tokenizer():
    s = measure(lambda body, i: answer(11, each=3), count=words)[0].summaries()["plain"][1]
    assert s["tokens"] == 33 and s["ttft"]["p50"] == pytest.approx(0.5)
    assert s["tpot"]["p50"] == s["inter_token"]["p50"] == pytest.approx(1.0 / 30)
    assert s["inter_token"]["p99"] == pytest.approx(1.0 / 30)  # not the 0.1 of a chunk
    assert s["tokens_per_second"] == pytest.approx(33 / 1.5) and s["first_chunk"] == {"counted": 1}


def test_three_tokens_a_chunk_without_a_tokenizer_take_the_first_chunk_for_one():
    run, _ = measure(lambda body, i: answer(11, each=3))
    s = run.summaries()["plain"][1]
    assert s["tpot"]["p50"] == pytest.approx(1.0 / 32) and s["inter_token"] is None
    assert s["first_chunk"] == {"taken for one token": 1} and any("--tokenizer counts it" in x for x in lines(run))


def test_chunks_whose_tokens_the_server_names_need_no_tokenizer():
    def shown(text, tokens, finish=None):
        return delta(text, finish, speculation={"drafted": 4, "accepted": 1, "tokens": tokens})

    def script(body, i):
        # The second brings no text yet, and its token comes with the third.
        chunks = [shown("a b ", ["a", "b"]), shown("", ["½"]), shown("cd", ["½", "d"]), shown("e", ["e"], "stop")]
        told = {"drafted": 16, "checked": 8, "accepted": 2, "rounds": 4}
        return [(0.3, chunks[0]), *((0.2, c) for c in chunks[1:]), (0.0, usage(6, speculation=told)), (0.0, DONE)]

    rows = bench.rows_of("fast", "model:4")
    run, transport = measure(script, rows, count=lambda text: 99)
    (trace,) = run.traces["fast"][1]
    assert [c.tokens for c in trace.content] == [2, 3, 1]
    s = run.summaries()["fast"][1]
    assert s["tpot"]["p50"] == pytest.approx(0.6 / 4)
    assert s["inter_token"]["mean"] == pytest.approx(0.6 / 4) and s["inter_token"]["p99"] == pytest.approx(
        0.2, rel=0.02
    )
    assert s["acceptance"] == {
        "drafted": 16, "checked": 8, "accepted": 2, "rounds": 4,
        "alpha_hat": 0.25, "acceptance_rate": 0.125, "accepted_length": 1.5,
    }  # fmt: skip
    assert transport.asked[0]["speculation"] == {"drafter": "model", "k": 4, "show": True}


@pytest.mark.parametrize("count, who, speed", [(words, "chunks", 11 / 1.5), (None, "nobody", None)])
def test_without_usage_a_tokenizer_counts_or_nobody(count, who, speed):
    run, _ = measure(lambda body, i: answer(11, counts=False), count=count)
    s = run.summaries()["plain"][1]
    assert s["tokens_from"] == {who: 1} and s["ttft"]["p50"] == pytest.approx(0.5)
    assert s["tokens_per_second"] == (speed and pytest.approx(speed))
    assert (s["tpot"] is None) == (count is None)
    assert any(f"tokens counted by: {who}" in line for line in lines(run))


def test_usage_of_another_shape_is_no_count():
    pieces = [(0.1, delta("a b")), (0.0, sse({"choices": [], "usage": {"completion_tokens": None}})), (0.0, DONE)]
    assert measure(lambda body, i: pieces)[0].summaries()["plain"][1]["tokens_from"] == {"nobody": 1}


def test_usage_in_the_last_chunk_of_text_counts_too():
    last = sse({"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}})
    s = measure(lambda body, i: [(0.1, delta("a")), (0.3, last)])[0].summaries()["plain"][1]
    assert s["tokens"] == 2 and s["tpot"]["p50"] == pytest.approx(0.3) and not s["errors"]


FAULTS = {
    "HTTP 500": (500, "the worker died"),
    "HTTP 429": (429, '{"error": {"message": "the queue is full"}}'),
    "cut off": [(0.1, ROLE), (0.1, delta("a")), (0.1, httpx.ReadError("reset by peer"))],
    "no connection": httpx.ConnectError("refused"),
    "timeout": [(0.1, delta("a")), (0.1, httpx.ReadTimeout("slow"))],
    "error in the stream": [(0.1, delta("a")), (0.1, sse({"error": {"message": "out of memory"}}))],
    "not understood": [(0.1, delta("a")), (0.1, sse(b'{"choices": ['))],
    "empty": [(0.1, ROLE), (0.1, delta("", "stop")), (0.0, DONE)],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failure_is_counted_by_kind_and_in_nothing_else(kind):
    def script(body, i):
        return FAULTS[kind] if i == 1 else answer(11)

    run, transport = measure(script, n=3)
    s = run.summaries()["plain"][1]
    assert s["errors"] == {kind: 1} and s["requests"] == 3
    assert s["tokens"] == 22 and s["ttft"]["p99"] == pytest.approx(0.5) and s["tpot"]["p50"] == pytest.approx(0.1)
    assert len(transport.asked) == 3  # tried once, and the next one was sent all the same
    failed = run.traces["plain"][1][1]
    assert failed.detail and any(f"1 of 3 failed, {kind}: {failed.detail}" in line for line in lines(run))


def test_what_goes_wrong_behind_the_end_of_the_answer_does_not_matter():
    run, _ = measure(lambda body, i: [*answer(11), (0.1, httpx.ReadError("reset by peer"))])
    assert not run.summaries()["plain"][1]["errors"]


def test_a_stream_that_just_ends_is_cut_off():
    run, _ = measure(lambda body, i: [(0.1, delta("a")), (0.1, delta("b"))])
    assert run.summaries()["plain"][1]["errors"] == {"cut off": 1}


def test_events_may_come_in_pieces_together_and_hold_any_separator():
    text = "a\u2028b\u0085c\r d"
    data = ROLE + delta(text) + delta("e", "stop") + usage(9)
    split = [(0.1, data[i : i + 7]) for i in range(0, len(data), 7)]
    run, _ = measure(lambda body, i: [*split, (0.1, b": a comment\r\ndata: [DONE]\r\n\r\n")])
    (trace,) = run.traces["plain"][1]
    assert [c.text for c in trace.content] == [text, "e"] and trace.tokens == 9 and trace.error is None


def test_users_send_again_as_soon_as_they_have_their_answer():
    run, transport = measure(lambda body, i: answer(11), concurrency=(4,), n=8)
    s = run.summaries()["plain"][4]
    assert transport.most == 4 and s["seconds"] == pytest.approx(3.0)
    assert s["tokens_per_second"] == pytest.approx(88 / 3.0)
    assert s["tokens_per_second_each"]["p50"] == pytest.approx(11 / 1.5)
    assert transport.warm_ups == 4


def test_a_server_that_writes_one_answer_at_a_time_is_no_quicker_for_many():
    run, _ = measure(lambda body, i: answer(11), at_once=1, concurrency=(1, 4), n=4)
    one, four = (run.summaries()["plain"][c] for c in (1, 4))
    assert four["tokens_per_second"] == pytest.approx(one["tokens_per_second"], rel=0.01)
    assert four["tpot"]["p50"] == pytest.approx(0.1)
    assert four["ttft"]["p99"] > 4.9 and one["ttft"]["p99"] == pytest.approx(0.5)


def test_at_one_user_rows_take_turns_and_above_they_follow_each_other():
    def script(body, i):
        return answer(6, gap=0.25 if body["speculation"]["drafter"] == "none" else 0.1)

    run, transport = measure(script, TWO, n=4, concurrency=(1, 2))
    who = [body["speculation"]["drafter"] for body in transport.asked]
    assert who[:8] == ["model", "none", "none", "model", "model", "none", "none", "model"]
    assert who[8:] == ["model"] * 4 + ["none"] * 4
    texts = [body["messages"][0]["content"] for body in transport.asked]
    assert texts[0:8:2] == texts[1:8:2] == ["chat number 0", "code number 0", "chat number 1", "code number 1"]
    assert bench.gain(run, "plain", "fast") == pytest.approx((2.5, 2.5, 2.5))
    assert any("fast is 2.50 × plain (2.50 to 2.50, 95 %)" in line for line in lines(run))
    s = run.summaries()
    assert s["plain"][1]["seconds"] == pytest.approx(4 * 1.75) and s["fast"][1]["seconds"] == pytest.approx(4 * 1.0)
    assert s["plain"][2]["seconds"] == pytest.approx(2 * 1.75)


def test_prompts_repeat_only_when_they_are_used_up():
    _, transport = measure(lambda body, i: answer(2), n=7)
    texts = [body["messages"][0]["content"] for body in transport.asked]
    assert len(set(texts[:6])) == 6 and texts[6] == texts[0]


def test_what_is_asked_for_is_sent():
    _, transport = measure(lambda body, i: answer(2), max_tokens=7, ignore_eos=True, temperature=0.7)
    body = transport.asked[0]
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (7, True, 0.7)


def test_the_key_is_sent_and_shown_nowhere():
    transport = Scripted(lambda body, i: answer(3))
    server = Server("https://api.example.com/v1", "big", "sk-secret", transport=transport, clock=scripted.clock)
    run = bench.run(server, PLAIN, PROMPTS, Load((1,), 2))
    assert {h["authorization"] for h in transport.headers} == {"Bearer sk-secret"}
    written = record(run, server, Load((1,), 2), prompts="short.jsonl", precision="fp8")
    assert "secret" not in json.dumps(written) + repr(server)
    assert written["machine"] == {"host": "api.example.com"}  # of this machine nothing, since it did not do the work


@pytest.mark.parametrize("fault", [httpx.ConnectError("refused"), (404, "no model 'tiny'")])
def test_a_server_that_does_not_answer_is_named_before_anything_counts(fault):
    class Refusing(Scripted):
        async def handle_async_request(self, request):
            if isinstance(fault, Exception):
                raise fault
            return httpx.Response(fault[0], text=fault[1])

    server = Server("http://test/v1", "tiny", transport=Refusing(None), clock=scripted.clock)
    with pytest.raises(ValueError, match=r"http://test/v1 did not answer a first request \(.*(refused|no model)"):
        bench.run(server, PLAIN, PROMPTS, Load((1,), 2))


def test_a_server_that_ignores_the_speculation_asked_for_gets_no_such_row():
    class Deaf(Scripted):
        async def handle_async_request(self, request):
            body = json.loads(request.content)
            body.pop("speculation")
            return await super().handle_async_request(httpx.Request("POST", request.url, json=body))

    server = Server("http://test/v1", "tiny", transport=Deaf(lambda b, i: answer(3)), clock=scripted.clock)
    with pytest.raises(ValueError, match="took no notice of the speculation that fast asks for"):
        bench.run(server, TWO, PROMPTS, Load((1,), 2))


# --- interrupted --------------------------------------------------------------------------------------------


def test_an_interrupt_while_drawing_keeps_what_is_done():
    def stop(run):
        if len(run.traces["plain"][1]) == 2:
            raise KeyboardInterrupt

    before = threading.active_count()
    run, _ = measure(lambda body, i: answer(11), n=50, on_request=stop, concurrency=(1, 4))
    assert not run.complete and len(run.traces["plain"][1]) == 2 and run.traces["plain"][4] == []
    assert threading.active_count() == before
    assert run.summaries()["plain"][1]["tokens"] == 22 and 4 not in run.summaries()["plain"]
    assert list(lines(run))[-1].startswith("interrupted")


def test_an_interrupt_while_waiting_keeps_what_is_done_and_ends_the_request():
    ended, waiting = [], threading.Event()

    class Stuck(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield ROLE
            waiting.wait(10)
            _thread.interrupt_main()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

    class Transport(Scripted):
        async def handle_async_request(self, request):
            if len(self.asked) == 2:
                return httpx.Response(200, stream=Stuck())
            return await super().handle_async_request(request)

    server = Server("http://test/v1", "tiny", transport=Transport(lambda b, i: answer(11)), clock=scripted.clock)

    def seen(run):
        if len(run.traces["plain"][1]) == 2:
            waiting.set()

    run = bench.run(server, PLAIN, PROMPTS, Load((1,), 9), on_request=seen)
    assert not run.complete and len(run.traces["plain"][1]) == 2 and ended == [True]


def test_a_server_that_goes_away_between_two_levels_leaves_what_is_done():
    class Dying(Scripted):
        async def handle_async_request(self, request):
            if len(self.asked) == 3:
                raise httpx.ConnectError("refused")
            return await super().handle_async_request(request)

    server = Server("http://test/v1", "tiny", transport=Dying(lambda b, i: answer(11)), clock=scripted.clock)
    run = bench.run(server, PLAIN, PROMPTS, Load((1, 4), 3))
    assert not run.complete and run.summaries()["plain"][1]["tokens"] == 33 and 4 not in run.summaries()["plain"]
    assert list(lines(run))[-1].startswith("http://test/v1 did not answer")


def test_slower_than_plain_and_repeats_are_said():
    def script(body, i):
        return answer(6, gap=0.1 if body["speculation"]["drafter"] == "none" else 0.25)

    run, _ = measure(script, TWO, n=7)
    said = "\n".join(lines(run))
    assert "fast is 0.40 × plain" in said and "so fast is slower than plain" in said
    assert "each prompt was sent up to 2 times" in said and "by kind: chat 10.0, code 10.0" in said
    assert "sent up to" not in "\n".join(lines(measure(script, TWO, n=6)[0]))


def test_dropping_the_requests_ends_them():
    transport = Scripted(lambda body, i: answer(11))
    server = Server("http://test/v1", "tiny", transport=transport, clock=scripted.clock)
    before = threading.active_count()
    requests = bench.level(server, PLAIN, PROMPTS, Load((4,), 1000), 4)
    row, trace = next(requests)
    assert row is PLAIN[0] and trace.tokens == 11 and threading.active_count() == before + 1
    del requests
    assert threading.active_count() == before and len(transport.asked) < 1000


def test_requests_can_be_followed_inside_a_running_loop():
    async def notebook():
        seen = []
        run, _ = measure(lambda body, i: answer(11), n=3, on_request=lambda run: seen.append(run.summaries()))
        return run, seen

    def in_a_loop():
        loop = asyncio.SelectorEventLoop()
        try:
            return loop.run_until_complete(notebook())
        finally:
            loop.close()

    # In a thread, since a browser's tests leave a loop behind in this one.
    with ThreadPoolExecutor(1) as pool:
        run, seen = pool.submit(in_a_loop).result()
    assert run.complete and [s["plain"][1]["requests"] for s in seen] == [1, 2, 3]


def test_an_error_of_the_callers_own_comes_through():
    def broken(run):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(lambda body, i: answer(2), n=5, on_request=broken)


# --- what is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("x", "model", None), "'model' is neither none nor NAME:K"),
        (("x", "model:0", None), "'model:0' is neither"),
        (("x", ":4", None), "':4' is neither"),
        (("x", "model:4", "model:4"), "not both"),
        (("x", None, "eagle:4", True), "--against-plain needs --speculation"),
        (("x", "none", None, True), "--against-plain needs --speculation"),
        (("plain", None, None), "row 0"),
        (("plain", "model:4", None), "row 0"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        bench.rows_of(*arguments)


def test_rows():
    assert bench.rows_of("vllm", None, "eagle:3") == [Row("vllm", "eagle", 3)]
    assert bench.rows_of("hosted") == [Row("hosted")]
    fast, plain = bench.rows_of("fast", "lookup:8", against_plain=True)
    assert (fast.drafter, fast.k, plain.label, plain.drafter) == ("lookup", 8, "plain", "none")
    assert plain.extra == {"speculation": {"drafter": "none", "show": True}}


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"concurrency": ()}, "concurrency"), ({"concurrency": (1, 0)}, "concurrency"),
        ({"concurrency": (1, 1)}, "twice"), ({"n": 0}, "n must"),
        ({"max_tokens": 0}, "max_tokens must"), ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)  # fmt: skip
def test_a_load_that_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Load(**wrong)


@pytest.mark.parametrize("text", ["", "1,,4", "1;4", "four"])
def test_concurrency_that_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="1,4,16"):
        bench.numbers(text)
    assert bench.numbers("1, 4,16") == (1, 4, 16)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "", "ftp://x/v1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="is no address"):
        _ = Server(url, "tiny").url


@pytest.mark.parametrize(
    "url, local",
    [("http://localhost:8000/v1", True), ("http://127.0.0.1/v1", True), ("http://[::1]:1/v1", True),
     ("http://spark.local/v1", False), ("https://api.example.com/v1", False), ("http://192.168.1.4:8000/v1", False)],
)  # fmt: skip
def test_which_addresses_are_this_machine(url, local):
    assert Server(url, "tiny").local == local


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(ValueError, match="label of its own"):
        measure(lambda body, i: answer(2), PLAIN * 2)


def test_the_counters_of_vllm_are_summed_over_engines():
    page = """# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 1.2e+03
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 300.0
vllm:spec_decode_num_draft_tokens_created{engine="0"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 500.0
"""
    assert bench_client.read_counters(page) == {"drafted": 1500, "accepted": 600}
    assert bench_client.read_counters("vllm:num_requests_running 3.0") == {}
