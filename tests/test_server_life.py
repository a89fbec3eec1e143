"""Who waits, who leaves, what takes too long, and how a server ends: nothing goes on for nobody, nothing is left."""

import gc
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from serving import (
    alone,
    client_of,
    idle,
    metrics,
    script_pair,
    server_threads,
    text_of,
    tiny_pair,
    user,
    wait_until,
)

from speclib import serve
from speclib.serve import app, engine

WAITING, RUNNING = "speclib:num_requests_waiting", "speclib:num_requests_running"
LONG = {"messages": user("hi"), "max_tokens": 3000}
PAUSE = 0.01


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """It would write for half a minute and more."""
    return script_pair(tmp_path_factory.mktemp("pair"), "abcdefgh", pause=PAUSE)


def ask(server, **more):
    return httpx.post(server.base_url + "/chat/completions", json=LONG | more, timeout=60)


def begun(server, **more):
    """A stream whose first chunk has come."""
    client = client_of(server)
    stream = client.chat.completions.create(model=server.model, stream=True, **LONG | more)
    next(iter(stream))
    return stream


def test_a_client_that_leaves_its_stream_is_noticed_within_a_round(pair):
    with serve.background(pair) as server:
        stream = begun(server)
        stream.close()
        at = pair.target.passes
        wait_until(lambda: idle(server))
        # A few rounds while the news is on its way, of the 600 that the text has.
        assert pair.target.passes - at < 100
        assert metrics(server)['speclib:request_success_total{finished_reason="abort",}'] == 1


def test_a_client_that_leaves_without_a_stream_is_noticed_too(pair):
    with serve.background(pair) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.base_url + "/chat/completions", json=LONG, timeout=0.3)
        at = pair.target.passes
        wait_until(lambda: idle(server))
        assert pair.target.passes - at < 100


def test_the_line_is_bounded_and_those_who_leave_it_make_room(pair):
    with serve.background(pair, queue=1) as server, ThreadPoolExecutor(1) as pool:
        stream = begun(server)
        waiting = pool.submit(ask, server, max_tokens=4)
        wait_until(lambda: metrics(server)[WAITING] == 1)
        full = ask(server)
        assert full.status_code == 429 and 1 <= int(full.headers["retry-after"]) <= 60
        assert full.json()["error"]["code"] == "queue_full" and "1 requests are waiting" in full.text
        with pytest.raises(openai.RateLimitError):
            client_of(server).chat.completions.create(model=server.model, **LONG)
        assert httpx.get(server.url + "/health").json() == {"status": "ok"}  # busy is not ill
        stream.close()
        assert waiting.result(timeout=60).json()["choices"][0]["message"]["content"] == "abcd"

        # One that waits and leaves is gone at once, though the running one goes on.
        stream = begun(server)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.base_url + "/chat/completions", json=LONG, timeout=0.3)
        wait_until(lambda: metrics(server)[WAITING] == 0)
        assert metrics(server)[RUNNING] == 1
        stream.close()


def test_no_one_need_wait_when_no_one_is_there(pair):
    with serve.background(pair, queue=0) as server:
        for _ in range(3):
            assert ask(server, max_tokens=4).status_code == 200
            wait_until(lambda: idle(server))
        stream = begun(server)
        assert ask(server).status_code == 429
        stream.close()


def test_a_request_has_its_time_waiting_included(pair):
    with serve.background(pair, time_limit=1.0) as server, ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, server)
        wait_until(lambda: metrics(server)[RUNNING] == 1)
        late = ask(server, max_tokens=4)
        for answer in (late, other.result(timeout=60)):
            if answer is late and answer.status_code == 200:
                continue  # the first ended early enough for it
            assert answer.status_code == 408 and answer.json()["error"]["code"] == "request_timeout"
            assert answer.headers["x-should-retry"] == "false"
        # In a stream that has begun the status is sent already: the error comes as an event.
        with pytest.raises(openai.APIError, match="time is over"):
            list(client_of(server).chat.completions.create(model=server.model, stream=True, **LONG))
        wait_until(lambda: idle(server))


def test_a_client_that_does_not_read_is_let_go(pair, monkeypatch):
    monkeypatch.setattr(app, "SLOW_READER", 0.2)
    monkeypatch.setattr(pair.target, "pause", 0.0)
    with serve.background(pair) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect((host, int(port)))
            # Twenty alternatives a token make more than the buffers of both sides can hold.
            body = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":3000,"stream":true,"n":2,'
            body += '"logprobs":true,"top_logprobs":20}'
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            s.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            begin = time.monotonic()
            wait_until(lambda: metrics(server)[RUNNING] == 1)
            wait_until(lambda: idle(server), seconds=60)
            # It was cut off in the middle.
            s.settimeout(30)
            got = bytearray()
            try:
                while data := s.recv(1 << 16):
                    got += data
            except ConnectionError:
                pass
            assert got.startswith(b"HTTP/1.1 200") and b"[DONE]" not in got, time.monotonic() - begin


def test_a_failure_is_a_500_and_the_server_goes_on(pair, monkeypatch, caplog):
    def fails(*_, **__):
        raise ZeroDivisionError("a bug")

    with serve.background(pair) as server:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "decode", fails)
            answer = ask(server)
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" in caplog.text  # in the log, not in the answer
        assert "Zero" not in answer.text
        assert ask(server, max_tokens=4).status_code == 200


def test_a_server_beside_the_program_is_stopped_however_it_ends(pair):
    with pytest.raises(ZeroDivisionError), serve.background(pair) as server:
        stream = begun(server)
        raise ZeroDivisionError("a cell fails")
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        list(stream)
    assert not server_threads()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")
    server.stop()  # again: nothing happens

    # A cell that is run again forgets the server it had.
    server = serve.background(pair)
    first = server.url
    del server
    gc.collect()
    wait_until(lambda: not server_threads())
    with pytest.raises(httpx.ConnectError):
        httpx.get(first + "/health")


def test_a_chunk_is_sent_at_once():
    """asyncio sets TCP_NODELAY where a socket names its protocol; without it each waits 40 ms for the one before."""
    with serve.run.bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("chosen", [None, "2"])
def test_one_core_is_left_to_the_connections_and_no_other_thread_is_touched(tmp_path, monkeypatch, chosen):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    before, seen = torch.get_num_threads(), []
    pair = script_pair(tmp_path, "abcdefgh")
    feed = pair.target.feed
    monkeypatch.setattr(pair.target, "feed", lambda *a, **b: seen.append(torch.get_num_threads()) or feed(*a, **b))
    torch.set_num_threads(3)
    try:
        with serve.background(pair) as server:
            assert ask(server, max_tokens=4).status_code == 200
            assert set(seen) == {3 if chosen else 2}
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == 3
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_two_servers_do_not_share_their_counters(pair):
    with serve.background(pair) as one, serve.background(pair, drafter="none") as two:
        ask(one, max_tokens=8)
        wait_until(lambda: idle(one))
        assert metrics(one)["speclib:generation_tokens_total"] == 8
        assert metrics(two)["speclib:generation_tokens_total"] == 0


def test_a_stopped_server_tells_those_who_wait(pair):
    server = serve.background(pair)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, server)
        wait_until(lambda: metrics(server)[RUNNING] == 1)
        waiting = pool.submit(ask, server)
        wait_until(lambda: metrics(server)[WAITING] == 1)
        server.stop()
        for answer in (running.result(timeout=60), waiting.result(timeout=60)):
            assert answer.status_code == 503 and "being stopped" in answer.text and answer.headers["retry-after"]


def started(folder, *arguments):
    """`speclib serve` in a process of its own, and its address."""
    names = f"{folder / 'target'},{folder / 'draft'}"
    command = [sys.executable, "-m", "speclib.cli", "serve", "--pair", names, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert "Ctrl-C" in line, process.communicate()
    return process, re.search(r"http://127\.0\.0\.1:\d+", line).group()


def test_ctrl_c_lets_the_running_request_finish_and_leaves_no_traceback(tmp_path, monkeypatch):
    pair = tiny_pair(tmp_path, positions=8192)
    monkeypatch.setenv("SPECLIB_TEST_KEY", "s3cret")
    monkeypatch.setenv("SPECLIB_DTYPE", "float32")
    process, url = started(tmp_path, "--api-key-env", "SPECLIB_TEST_KEY", "--drafter", "lookup")
    try:
        client = openai.OpenAI(base_url=url + "/v1", api_key="s3cret", max_retries=0)
        text = client.chat.completions.create(model=pair.labels[0], messages=user("hi"), max_tokens=8, temperature=0)
        assert text.choices[0].message.content == text_of(alone(pair, "hi", 8, temperature=0.0))
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url + "/v1", api_key="guess", max_retries=0).models.list()
        more = {"temperature": 0, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(model=pair.labels[0], messages=user("hi"), stream=True, **more)
        chunks = iter(stream)
        next(chunks)
        process.send_signal(signal.SIGINT)
        # It has a few seconds; then its stream ends with an error, not in the middle of a line.
        try:
            last = list(chunks)[-1]
            assert last.choices[0].finish_reason == "length"
        except openai.APIError as error:
            assert "being stopped" in str(error)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "stopped\n", "")
    finally:
        process.kill()


def test_an_idle_server_ends_at_once(tmp_path):
    tiny_pair(tmp_path)
    process, url = started(tmp_path)
    try:
        with httpx.Client() as kept_open:
            kept_open.get(url + "/health")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "stopped\n", "")
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drafter", "oracle"), "no drafter 'oracle'"),
        (("--api-key-env", "SPECLIB_NO_SUCH"), "SPECLIB_NO_SUCH"),
        (("--engine", "tgi"), "no engine 'tgi'"),
        (("--host", "no.such.host.invalid"), "another host"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, arguments, says):
    from speclib import cli

    tiny_pair(tmp_path)
    names = f"{tmp_path / 'target'},{tmp_path / 'draft'}"
    monkeypatch.setattr(sys, "argv", ["speclib", "serve", "--pair", names, "--port", "0", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out and says in err and err.count("\n") == 1


def test_a_program_that_fails_takes_its_server_along(tmp_path):
    tiny_pair(tmp_path)
    code = (
        "from speclib import pairs, serve\n"
        f"pair = pairs.load({str(tmp_path / 'target')!r} + ',' + {str(tmp_path / 'draft')!r})\n"
        "server = serve.background(pair)\n"
        "print(server.url, flush=True)\n"
        "raise ZeroDivisionError\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and ended.stderr.count("Traceback") == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(ended.stdout.strip() + "/health")


def test_nothing_is_left_of_all_this():
    assert not server_threads()
