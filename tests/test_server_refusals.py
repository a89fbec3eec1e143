"""What the server does not do it says by name, as OpenAI's error object with a 4xx; nothing a client sends is a 5xx."""

import dataclasses
import json
import socket
from collections import Counter

import httpx
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from serving import client_of, tiny_pair, user

from speclib import serve
from speclib.serve import api, guard

POSITIONS = 64  # requests that name no length are over soon


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tiny_pair(tmp_path_factory.mktemp("pair"), positions=POSITIONS)


@pytest.fixture(scope="module")
def server(pair):
    with serve.background(pair) as server:
        yield server


def post(server, body, path="/chat/completions", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(server.base_url + path, content=data, headers={"content-type": "application/json"} | headers)


def refused(answer, status=400):
    """The error of an answer, which has OpenAI's four fields."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


CHAT = {"messages": user("hi"), "max_tokens": 3}
NEUTRAL = [{name: value} for name, value in api.REFUSED.items()] + [{name: None} for name in api.REFUSED]
UNSUPPORTED = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "response_format": {"type": "json_object"},
    "logit_bias": {"5": 10},
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content", "content": "hi"},
    "reasoning_effort": "low",
    "verbosity": "low",
    "web_search_options": {},
    "moderation": {},
    "best_of": 3,
    "echo": True,
    "suffix": "bye",
}


def test_every_refused_name_is_tried():
    assert set(UNSUPPORTED) == set(api.REFUSED)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(server, name):
    for body, path in ((CHAT, "/chat/completions"), ({"prompt": "hi", "max_tokens": 3}, "/completions")):
        error = refused(post(server, body | {name: UNSUPPORTED[name]}, path))
        assert error["param"] == name and name in error["message"] and error["code"] == "unsupported_parameter"


def test_what_asks_for_nothing_or_changes_nothing_is_let_through(server):
    harmless = {name: "x" for name in api.IGNORED}
    for more in [*NEUTRAL, harmless, {"temperature": None, "stop": None, "seed": None, "stream": None}]:
        assert post(server, CHAT | more).status_code == 200, more


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"temprature": 1}, "temprature", "there is no parameter 'temprature'"),
        ({"speculation": {"draft": 1}}, "speculation.draft", "there is no parameter 'draft'"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_k": 1.5}, "top_k", "valid integer"),
        ({"top_k": -2}, "top_k", "-1"),
        ({"min_p": 2}, "min_p", "less than or equal to 1"),
        ({"frequency_penalty": 3}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "-2"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "1"),
        ({"n": 17}, "n", "16"),
        ({"n": True}, "n", "valid integer"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a", ""]}, "stop.1", "at least 1"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
        ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more", "no parameter 'more'"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"speculation": {"drafter": "oracle"}}, "speculation.drafter", "choose model, lookup"),
        ({"speculation": {"k": -1}}, "speculation.k", "0"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type", "'text'"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": []}]}, "messages.0.tool_calls", "tool_calls"),
        ({"messages": user("\ud800")}, "messages.0.content", "surrogate"),
        ({"stop": "\ud800"}, "stop", "surrogate"),
        ({"max_tokens": 9999}, None, f"do not fit into {POSITIONS} positions"),
        ({"messages": user("hi" * 100), "max_tokens": None}, None, "do not fit"),
    ],
)
def test_what_is_wrong_is_named(server, more, param, says):
    error = refused(post(server, CHAT | more))
    assert error["param"] == param and says in error["message"], error


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "prompt is empty"),
        ([], "at least 1"),
        ([[]], "at least 1"),
        ([320], "0 … 319"),
        ([-1], "0 … 319"),
        (["a", 1], "prompt"),
        (["a"] * 17, "16"),
        ({"a": 1}, "prompt"),
    ],
)
def test_prompts_that_are_none_are_refused(server, prompt, says):
    error = refused(post(server, {"prompt": prompt, "max_tokens": 1}, "/completions"))
    assert says in error["message"], error


def test_more_texts_than_a_request_may_have_are_refused(server):
    error = refused(post(server, {"prompt": ["a"] * 5, "n": 4, "max_tokens": 1}, "/completions"))
    assert "16 texts" in error["message"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}", b'{"top_p":NaN}'],
)
def test_bodies_that_are_no_object_are_refused(server, data):
    refused(post(server, data))


def test_names_that_cannot_be_repeated_are_refused(server):
    refused(post(server, CHAT | {"\ud800": 1}))
    refused(post(server, CHAT | {"model": "\ud800"}))
    assert refused(post(server, CHAT | {"model": "gpt-9"}), 404)["code"] == "model_not_found"


def test_other_paths_and_methods_are_refused(server):
    assert "/nope" in refused(httpx.get(server.url + "/nope"), 404)["message"]
    assert "GET" in refused(httpx.get(server.base_url + "/chat/completions"), 405)["message"]


def test_the_openai_client_raises_its_own_errors(server):
    client = client_of(server)
    with pytest.raises(openai.BadRequestError, match="tools is not supported"):
        client.chat.completions.create(model=server.model, messages=user("hi"), tools=UNSUPPORTED["tools"])
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here"):
        client.chat.completions.create(model="gpt-9", messages=user("hi"))


def test_large_bodies_are_refused_however_they_are_sent(server):
    fits = b" " * (guard.BODY_LIMIT - 100) + json.dumps(CHAT).encode()
    assert post(server, fits).status_code == 200
    for size in (guard.BODY_LIMIT + 1, 4 * guard.BODY_LIMIT):
        assert "1 MiB" in refused(post(server, b" " * size), 413)["message"]
    chunks = (b" " * 65536 for _ in range(32))  # its length is not announced
    assert "1 MiB" in refused(httpx.post(server.base_url + "/completions", content=chunks), 413)["message"]


def test_a_body_that_does_not_come_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert s.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_the_key_is_asked_for_where_there_is_one(pair):
    with serve.background(pair, api_key="s3cret") as server:
        right = client_of(server, api_key="s3cret")
        assert right.models.list().data
        assert right.completions.create(model=server.model, prompt="hi", max_tokens=1).choices
        for wrong in ("s3cre", "s3cret2", "S3CRET"):
            with pytest.raises(openai.AuthenticationError, match="API key"):
                client_of(server, api_key=wrong).models.list()
        for headers in ({}, {"authorization": "s3cret"}, {"authorization": b"Bearer \xff"}):
            answer = httpx.get(server.base_url + "/models", headers=headers)
            assert refused(answer, 401)["code"] == "invalid_api_key" and answer.headers["www-authenticate"] == "Bearer"
        assert httpx.get(server.url + "/health").status_code == 200  # not a client of the model


def test_a_pair_without_a_draft_refuses_what_needs_one(pair):
    lone = dataclasses.replace(pair, folders=(pair.folders[0], None), no_draft="alas")
    with serve.background(lone, drafter="lookup") as server:
        assert post(server, CHAT).status_code == 200
        error = refused(post(server, CHAT | {"speculation": {"drafter": "model"}}))
        assert error["param"] == "speculation.drafter" and "alas" in error["message"]


@pytest.mark.parametrize(
    ("settings_", "says"),
    [({"drafter": "oracle"}, "no drafter"), ({"k": -1}, "k and queue"), ({"queue": -1}, "k and queue"),
     ({"time_limit": 0}, "time limit"), ({"api_key": ""}, "API key"), ({"port": 70_000}, "another"),
     ({"host": "no.such.host.invalid"}, "another host")],
)  # fmt: skip
def test_a_server_that_cannot_be_is_refused_before_it_starts(pair, settings_, says):
    with pytest.raises(ValueError, match=says):
        serve.background(pair, **settings_)


def test_a_port_that_is_taken_is_named(pair, server):
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1"):
        serve.background(pair, port=port)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"])
def test_nothing_that_the_schema_allows_or_forbids_is_a_5xx(server, path, mode):
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    assert {"/v1/chat/completions", "/v1/completions"} <= set(schema)
    operation = schema[path]["POST" if "completions" in path else "GET"]
    statuses = Counter()

    @settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        answer = case.call()
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=[not_a_server_error])

    if operation.body or mode is GenerationMode.POSITIVE:  # a GET without parameters cannot be sent wrongly
        send()
        assert sum(statuses.values()) and (200 in statuses) == (mode is GenerationMode.POSITIVE)
