"""Models from the Hugging Face Hub: downloaded once, and what goes wrong there in one sentence."""

from __future__ import annotations

import errno

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors
from tiny import save

from speclib import pairs
from speclib.pairs import PairError

pytestmark = pytest.mark.usefixtures("plain_environment")


def http(kind, status):
    return kind("long\nstory", response=httpx2.Response(status, request=httpx2.Request("GET", "http://hub")))


def unreachable(cause):
    error = errors.LocalEntryNotFoundError("cannot find")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            http(errors.GatedRepoError, 403),
            "^meta-llama/Llama-3.1-8B-Instruct is gated: ask for access on its model page, then run `\\S*hf auth",
        ),
        (
            http(errors.RepositoryNotFoundError, 401),
            "no public meta-llama/.*check the spelling, or run `\\S*hf auth",
        ),
        (http(errors.HfHubHTTPError, 503), "HTTP 503: wait a little, then run `\\S*speclib fetch` again"),
        (unreachable(httpx2.ConnectError("no such host")), "out of reach .*check network and proxy"),
        (unreachable(errors.OfflineModeIsEnabled("offline")), "HF_HUB_OFFLINE is set: unset it"),
        (unreachable(http(errors.HfHubHTTPError, 500)), "HTTP 500"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "out of reach"),
        (httpx2.ReadTimeout("slow"), "out of reach"),
        (OSError(errno.ENOSPC, "No space left on device"), "is full: make room .*HF_HOME to another disk"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "is full: make room"),
        (PermissionError(errno.EACCES, "denied"), "cannot be written to: set HF_HOME"),
        (RuntimeError("something\nelse"), r"could not be downloaded \(something\): run"),
    ],
)
def test_what_goes_wrong_at_the_hub_is_one_sentence_with_the_remedy(monkeypatch, tmp_path, error, sentence):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *a, **k: None)
    for call in (pairs.fetch, pairs.load):
        with pytest.raises(PairError, match=sentence) as e:
            call("llama")
        assert "\n" not in str(e.value)


def test_a_hub_model_is_downloaded_once_and_never_by_status(monkeypatch, tmp_path):
    calls = []

    def download(repo, **kwargs):
        calls.append(repo)
        return save(tmp_path / repo)

    def look(repo, name):
        return str(tmp_path / repo / name) if (tmp_path / repo / name).exists() else None

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", look)
    state = pairs.status("qwen")
    assert not state.target_ready and "Qwen2.5-0.5B-Instruct is not fetched" in state.draft_detail
    assert state.target_remedy == state.draft_remedy and "speclib fetch qwen" in state.draft_remedy
    assert calls == []
    pairs.fetch("qwen")
    assert calls == ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"]
    pairs.fetch("qwen")
    assert pairs.load("qwen").labels == tuple(calls) and len(calls) == 2
    assert pairs.status("qwen").target_ready and pairs.status("qwen").draft_ready
    (tmp_path / calls[0] / "model.safetensors").unlink()
    assert not pairs.status("qwen").target_ready
