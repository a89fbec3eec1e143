"""The bench on a real connection: its flags, its record, its one-line errors, and what it leaves when interrupted."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from scripted_server import DONE, ROLE, delta, usage
from tiny import save

from speclib import bench_record, cli, records, scoreboard

STREAM = (ROLE, delta("one two "), delta("three four five "), delta("six"), delta("", "stop"), usage(7), DONE)


class Handler(BaseHTTPRequestHandler):
    """Answers with STREAM, a chunk every 2 ms; cuts the line in the third real request if told so."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        told = self.server.told
        pages = {"/v1/models": json.dumps({"data": [{"id": m} for m in told["models"]]}), "/metrics": self.metrics()}
        body = pages.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def metrics(self):
        n = len(self.server.told["asked"])
        return "".join(
            f'vllm:spec_decode_num_{name}_total{{engine="0"}} {float(count)}\n'
            for name, count in (("draft_tokens", 1000 + 4 * n), ("accepted_tokens", 500 + 3 * n))
        )

    def do_POST(self):
        told = self.server.told
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        warm = body["messages"][0]["content"] == "Say hello."
        told["ports"].add(self.client_address[1])
        if not warm:
            told["asked"].append((body, self.headers))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i, piece in enumerate(STREAM):
            if told["cut"] and not warm and len(told["asked"]) == 3 and i == 3:
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(0.002)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server, and the course's folder of records and its scoreboard moved to where they may be written."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(scoreboard, "PATH", tmp_path / "SCOREBOARD.md")
    monkeypatch.delenv("SPECLIB_DEBUG", raising=False)
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.daemon_threads = True
    served.told = {"asked": [], "models": ["tiny"], "cut": False, "ports": set()}
    served.base_url = f"http://127.0.0.1:{served.server_port}/v1"
    served.out = tmp_path / "results"
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def run(monkeypatch, server, *arguments, out=True):
    where = ["--base-url", server.base_url, *(["--out", str(server.out)] if out else [])]
    monkeypatch.setattr(sys, "argv", ["speclib", "bench", *where, *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_flags_of_the_lesson_make_a_record_and_a_row(monkeypatch, capsys, server, tmp_path):
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('{"id": "a", "kind": "chat", "prompt": "Hi"}\n{"id": "b", "kind": "code", "prompt": "f(x)"}\n')
    code = run(
        monkeypatch, server, "--target", "spark-spec", "--model", "tiny", "--precision", "bf16",
        "--prompts", str(prompts), "--concurrency", "1,2", "--n", "3", "--max-tokens", "7", "--ignore-eos",
        "--change", "a | new draft", "--served-with", "eagle:3",
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "spark-spec, concurrency 2:" in out and "tokens/s in all" in out and "acceptance rate 0.75" in out
    (path,) = server.out.glob("*.json")
    assert re.fullmatch(r"bench-.+-tiny-spark-spec-bf16\.json", path.name)
    found = records.read(path, "bench")
    assert found["machine"]["cores"] and found["complete"] and found["prompts"] == "two.jsonl"
    (row,) = found["rows"]
    assert (row["target"], row["drafter"], row["k"], row["change"]) == ("spark-spec", "eagle", 3, "a | new draft")
    one, two = row["levels"]
    assert (one["concurrency"], two["concurrency"]) == (1, 2)
    assert one["requests"]["prompt"] == ["a", "b", "a"] and one["tokens"] == 21 and one["errors"] == {}
    # Six tokens behind the first chunk, which counts as one.
    assert one["requests"]["tokens"] == [6, 6, 6] and all(s > 0 for s in one["requests"]["seconds"])
    assert one["acceptance"]["drafted"] == 12 and one["acceptance"]["alpha_hat"] is None
    text = scoreboard.PATH.read_text(encoding="utf-8")
    assert (
        text == scoreboard.table([found]) and "| spark-spec | bf16 | eagle, 3 |" in text and "a \\| new draft" in text
    )
    assert len(server.told["ports"]) == 3  # a connection for each user, kept from answer to answer
    assert all(body["ignore_eos"] and body["model"] == "tiny" for body, _ in server.told["asked"])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_python_m_takes_the_same_flags(monkeypatch, capsys, server):
    arguments = ["--target", "x", "--json", "--concurrency", "1", "--n", "1", "--out", str(server.out / "other")]
    monkeypatch.setattr(sys, "argv", ["bench.py", "--base-url", server.base_url, *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("speclib.bench", run_name="__main__")
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out)
    (path,) = (server.out / "other").glob("*.json")
    assert printed == json.loads(path.read_text()) and printed["model"] == "tiny"
    assert not scoreboard.PATH.exists()  # records elsewhere are not the course's


def test_a_line_that_is_cut_is_told_and_the_rest_goes_on(monkeypatch, capsys, server):
    server.told["cut"] = True
    assert run(monkeypatch, server, "--target", "x", "--concurrency", "1", "--n", "5", "--no-scoreboard") == 0
    assert "1 of 5 failed, cut off" in capsys.readouterr().out
    (path,) = server.out.glob("*.json")
    level = records.read(path, "bench")["rows"][0]["levels"][0]
    assert level["errors"] == {"cut off": 1} and level["requests"]["error"] == [None, None, "cut off", None, None]
    assert len(server.told["asked"]) == 5 and level["tokens"] == 28
    assert not scoreboard.PATH.exists()


def test_a_tokenizer_counts_the_first_chunk(monkeypatch, server, tmp_path):
    folder = save(tmp_path / "model")
    count = bench_record.counter(folder)
    assert count("one two ") > 2
    assert run(monkeypatch, server, "--target", "x", "--concurrency", "1", "--n", "1", "--tokenizer", folder) == 0
    (path,) = server.out.glob("*.json")
    level = records.read(path, "bench")["rows"][0]["levels"][0]
    assert level["requests"]["tokens"] == [max(0, 7 - count("one two "))]
    assert bench_record.counter("smol")("one two ") == 3
    with pytest.raises(ValueError, match=r"no tokenizer: .*nowhere"):
        bench_record.counter("nowhere/nothing")


def test_the_key_comes_from_the_named_variable(monkeypatch, capsys, server):
    arguments = ("--target", "x", "--concurrency", "1", "--n", "1", "--api-key-env", "MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    assert run(monkeypatch, server, *arguments) == 2
    assert "MY_KEY holds no key" in capsys.readouterr().err
    monkeypatch.setenv("MY_KEY", "sk-secret")
    assert run(monkeypatch, server, *arguments) == 0
    assert server.told["asked"][0][1]["authorization"] == "Bearer sk-secret"
    (path,) = server.out.glob("*.json")
    assert "secret" not in path.read_text() + capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--target", "x", "--concurrency", "1,x"], "1,4,16"),
        (["--target", "x", "--n", "0"], "n must be at least 1"),
        (["--target", "plain"], "row 0"),
        (["--target", "x", "--prompts", "nowhere.jsonl"], "cannot be read"),
        (["--target", "x", "--tokenizer", "nowhere/nothing"], "no tokenizer"),
        (["--target", "x", "--speculation", "model"], "NAME:K"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_sent(monkeypatch, capsys, server, arguments, says):
    assert run(monkeypatch, server, *arguments) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert not server.told["asked"] and not server.out.exists()


def test_several_models_or_none_are_told(monkeypatch, capsys, server):
    server.told["models"] = ["one", "two"]
    assert run(monkeypatch, server, "--target", "x", "--n", "1") == 2
    assert "has 2 models: choose one with --model, such as ['one', 'two']" in capsys.readouterr().err
    server.base_url = "http://127.0.0.1:9/v1"
    assert run(monkeypatch, server, "--target", "x", "--n", "1") == 2
    assert "does not say which models it has" in capsys.readouterr().err


def test_an_interrupted_run_is_written_and_says_so(monkeypatch, capsys, server):
    measure = bench_record.bench.run

    def interrupted(*arguments, **more):
        def stop(run):
            if sum(len(t) for of in run.traces.values() for t in of.values()) == interrupted.after:
                raise KeyboardInterrupt

        return measure(*arguments, **more, on_request=stop)

    monkeypatch.setattr(bench_record.bench, "run", interrupted)
    interrupted.after = 2
    assert run(monkeypatch, server, "--target", "x", "--concurrency", "1,2", "--n", "3") == 130
    (path,) = server.out.glob("*.json")
    found = records.read(path, "bench")
    assert not found["complete"] and [len(x["requests"]["prompt"]) for x in found["rows"][0]["levels"]] == [2]
    assert "not complete" in scoreboard.PATH.read_text(encoding="utf-8")
    assert "interrupted" in capsys.readouterr().out

    def at_once(*arguments, **more):
        return bench_record.Run([], {}, why="interrupted")

    monkeypatch.setattr(bench_record.bench, "run", at_once)
    assert run(monkeypatch, server, "--target", "y") == 130
    assert "nothing is written" in capsys.readouterr().err and len(list(server.out.glob("*.json"))) == 1


def test_the_commit_is_marked_where_files_differ_but_not_for_records(tmp_path):
    assert bench_record.commit(tmp_path) == ""

    def git(*arguments):
        own = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "one")
    short = bench_record.commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{7,}", short)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text("{}")
    (tmp_path / "SCOREBOARD.md").write_text("")
    assert bench_record.commit(tmp_path) == short
    (tmp_path / "a.py").write_text("2")
    assert bench_record.commit(tmp_path) == short + "+"
