"""The server through the official openai client: every parameter does what it says, and answers are `decode`'s."""

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
import torch
from serving import alone, client_of, metrics, script_pair, server_threads, text_of, tiny_pair, user

from speclib import pairs, serve
from speclib.chat import answer, make_drafter
from speclib.distributions import Sampling
from speclib.serve.reply import token_name

SAMPLED = {"seed": 5, "max_tokens": 24}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def server(pair):
    with serve.background(pair, drafter="model", k=3) as server:
        yield server
    assert not server_threads()


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def chat(client, server, text="hi", **parameters):
    return client.chat.completions.create(model=server.model, messages=user(text), **parameters)


def tokens(pair, ids):
    return [list(token_name(pair.tokenizer, i)[1]) for i in ids]


def came(choice):
    return [entry.bytes for entry in choice.logprobs.content]


def extra(**parameters):
    return {"extra_body": parameters}


HONOURED = [
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"top_p": 0.4}, {"top_p": 0.4}),
    (extra(top_k=3), {"top_k": 3}),
    (extra(min_p=0.3), {"min_p": 0.3}),
    ({"frequency_penalty": 1.5, "temperature": 0.3}, {"frequency": 1.5, "temperature": 0.3}),
    ({"presence_penalty": 1.9, "temperature": 0.3}, {"presence": 1.9, "temperature": 0.3}),
    ({"seed": 6}, {"seed": 6}),
    ({"seed": -(2**63)}, {"seed": 0}),  # seeds are taken modulo 2^63
    (extra(ignore_eos=True), {"eos": False}),
    (extra(speculation={"drafter": "none"}), {"drafter": "none", "k": 0}),
    (extra(speculation={"drafter": "lookup", "k": 2}), {"drafter": "lookup", "k": 2}),
    (extra(speculation={"k": 1}), {"k": 1}),
]


@pytest.mark.parametrize(("asked", "meant"), HONOURED, ids=[str(asked) for asked, _ in HONOURED])
def test_a_parameter_does_what_it_says_token_for_token(pair, server, client, asked, meant):
    wanted = alone(pair, "hi", 24, **{"seed": 5} | meant)
    reply = chat(client, server, logprobs=True, **SAMPLED | asked)
    assert came(reply.choices[0]) == tokens(pair, wanted.tokens)
    assert reply.choices[0].message.content == text_of(wanted)
    assert wanted.tokens != alone(pair, "hi", 24, seed=5).tokens or meant == {"eos": False}  # it changes something
    again = client.completions.create(
        model=server.model, prompt=pair.chat_ids("hi"), logprobs=0, **SAMPLED | asked
    ).choices[0]  # fmt: skip
    assert again.text == text_of(wanted) and len(again.logprobs.tokens) == len(wanted.tokens)


def test_top_k_off_is_written_in_two_ways(pair, server, client):
    wanted = text_of(alone(pair, "hi", 24, seed=5))
    for off in (0, -1):
        assert chat(client, server, **SAMPLED, **extra(top_k=off)).choices[0].message.content == wanted


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_the_length_is_never_overshot_and_the_newer_name_wins(server, client, limit):
    for parameters in ({"max_tokens": limit}, {"max_tokens": 20, "max_completion_tokens": limit}):
        reply = chat(client, server, temperature=0, **parameters, **extra(ignore_eos=True))
        assert reply.usage.completion_tokens == limit and reply.choices[0].finish_reason == "length"


def test_without_a_length_a_chat_fills_the_positions_and_a_completion_has_16_tokens(server, client):
    whole = chat(client, server, temperature=0, **extra(ignore_eos=True))
    assert whole.usage.total_tokens == 512 and whole.choices[0].finish_reason == "length"
    short = client.completions.create(model=server.model, prompt="hi", **extra(ignore_eos=True))
    assert short.usage.completion_tokens == 16


def test_a_stream_is_a_chunk_per_round_and_says_the_same(pair, server, client):
    wanted = alone(pair, "hi", 24, seed=5)
    chunks = list(chat(client, server, stream=True, stream_options={"include_usage": True}, **SAMPLED))
    *rounds, usage = chunks
    assert [c.choices[0].delta.content for c in rounds] == [r.text for r in wanted.rounds]
    assert [c.choices[0].delta.role for c in rounds] == ["assistant"] + [None] * (len(rounds) - 1)
    assert [c.choices[0].finish_reason for c in rounds] == [None] * (len(rounds) - 1) + ["length"]
    assert usage.choices == [] and all(c.usage is None for c in rounds)
    whole = chat(client, server, **SAMPLED)
    assert usage.usage == whole.usage and whole.choices[0].message.content == text_of(wanted)
    assert len({c.id for c in chunks}) == 1 and whole.id != usage.id
    plain = list(chat(client, server, stream=True, **SAMPLED))
    assert len(plain) == len(rounds) and all(c.choices for c in plain)  # nobody asked for the usage


def test_completions_stream_too(pair, server, client):
    wanted = alone(pair, pair.tokenizer.encode("hi"), 24, seed=5)
    chunks = list(client.completions.create(model=server.model, prompt="hi", stream=True, **SAMPLED))
    assert [c.choices[0].text for c in chunks] == [r.text for r in wanted.rounds]


def test_usage_tells_how_the_drafts_fared(pair, server, client):
    wanted = alone(pair, "hi", 24, seed=5)
    before = metrics(server)
    usage = chat(client, server, **SAMPLED).usage
    kept, drafted = (sum(getattr(r, name) for r in wanted.rounds) for name in ("accepted", "drafted"))
    assert 0 < kept < drafted
    assert usage.speculation == {
        "drafter": "model",
        "k": 3,
        "rounds": len(wanted.rounds),
        "drafted": drafted,
        "checked": sum(r.checked for r in wanted.rounds),
        "accepted": kept,
        "alpha_hat": wanted.alpha_hat,
        "acceptance_rate": wanted.acceptance_rate,
        "mean_accepted_length": wanted.mean_accepted_length,
    }
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(pair.chat_ids("hi")), 24)
    assert usage.total_tokens == usage.prompt_tokens + 24
    plain = chat(client, server, **SAMPLED, **extra(speculation={"drafter": "none"})).usage.speculation
    assert (plain["k"], plain["drafted"], plain["alpha_hat"], plain["mean_accepted_length"]) == (0, 0, None, 1.0)

    # What Prometheus reads counts the same, both requests together.
    after = metrics(server)
    grew = {name: after[name] - before.get(name, 0) for name in after}
    prefix = "speclib:spec_decode_num_"
    assert grew[prefix + "draft_tokens_total"] == drafted and grew[prefix + "accepted_tokens_total"] == kept
    assert grew[prefix + "drafts_total"] == sum(r.drafted > 0 for r in wanted.rounds)
    at = [n for name, n in grew.items() if name.startswith(prefix + "accepted_tokens_per_pos_total")]
    assert sum(at) == kept
    assert grew["speclib:generation_tokens_total"] == 48 and grew["speclib:e2e_request_latency_seconds_count"] == 2


def test_kept_drafts_can_be_shown(pair, server, client):
    wanted = alone(pair, "hi", 24, seed=5)
    show = extra(speculation={"show": True})
    rounds = [c.choices[0] for c in chat(client, server, stream=True, **SAMPLED, **show)]
    for choice, r in zip(rounds, wanted.rounds, strict=True):
        assert (choice.speculation["drafted"], choice.speculation["accepted"]) == (r.drafted, r.accepted)
        assert len(choice.speculation["tokens"]) == len(r.tokens)
        assert "".join(choice.speculation["tokens"]) == choice.delta.content
    whole = chat(client, server, **SAMPLED, **show).choices[0]
    assert whole.speculation == [choice.speculation for choice in rounds]


def test_logprobs_are_those_of_plain_decoding_before_anything_is_done_to_them(pair, server, client):
    parameters = {"temperature": 0.5, "frequency_penalty": 1.0, **SAMPLED}
    choice = chat(client, server, logprobs=True, top_logprobs=3, **parameters).choices[0]
    ids = alone(pair, "hi", 24, seed=5, temperature=0.5, frequency=1.0).tokens
    prompt = pair.chat_ids("hi")
    with torch.no_grad():
        logits = pair.target(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    plain = logits.log_softmax(-1)
    assert came(choice) == tokens(pair, ids)
    for entry, row, token in zip(choice.logprobs.content, plain, ids, strict=True):
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        best = row.topk(3)
        assert [t.logprob for t in entry.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-3)
        assert [t.bytes for t in entry.top_logprobs] == tokens(pair, best.indices.tolist())

    streamed = list(chat(client, server, stream=True, logprobs=True, top_logprobs=3, **parameters))
    assert [e for c in streamed for e in c.choices[0].logprobs.content] == choice.logprobs.content
    old = client.completions.create(model=server.model, prompt=prompt, logprobs=2, **parameters).choices[0].logprobs
    assert old.token_logprobs == [e.logprob for e in choice.logprobs.content]
    assert old.text_offset == [sum(map(len, old.tokens[:i])) for i in range(24)]
    for name, logprob, top in zip(old.tokens, old.token_logprobs, old.top_logprobs, strict=True):
        assert top[name] == logprob and len(top) in (1, 2, 3)  # two tokens without text share a name
    assert chat(client, server, **parameters).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_n_texts_have_seeds_in_a_row_and_share_one_prompt(pair, server, client, stream):
    wanted = [alone(pair, "hi", 24, seed=5 + i) for i in range(3)]
    reply = chat(client, server, n=3, stream=stream, **SAMPLED)
    if stream:
        texts = ["", "", ""]
        for chunk in reply:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    else:
        texts = [c.message.content for c in reply.choices]
        assert [c.index for c in reply.choices] == [0, 1, 2]
        assert reply.usage.completion_tokens == 72 and reply.usage.prompt_tokens == len(pair.chat_ids("hi"))
    assert texts == [text_of(w) for w in wanted] and len(set(texts)) == 3


def test_several_prompts_are_texts_or_ids(pair, server, client):
    encode = pair.tokenizer.encode
    for prompt in (["hi", "you"], [encode("hi"), encode("you")]):
        reply = client.completions.create(model=server.model, prompt=prompt, n=2, **SAMPLED)
        wanted = [text_of(alone(pair, encode(p), 24, seed=5 + i)) for i, p in enumerate(("hi", "hi", "you", "you"))]
        assert [c.text for c in reply.choices] == wanted
        assert reply.usage.prompt_tokens == len(encode("hi")) + len(encode("you"))


def test_a_conversation_goes_through_the_chat_template(pair, server, client):
    turns = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": "yes?", "refusal": None},
        {"role": "user", "content": "go on"},
    ]
    reply = client.chat.completions.create(model=server.model, messages=turns, **SAMPLED)
    ids = pair.tokenizer.encode("<s>be kind<s>hi<s>yes?<s>go on</s>", add_special_tokens=False)
    assert reply.choices[0].message.content == text_of(alone(pair, ids, 24, seed=5))


def test_the_same_seed_gives_the_same_text_whatever_else_runs(pair, server, client):
    """16 at once, of many kinds, three of them the same; nothing of one shows in another."""
    kinds = [
        ({"seed": 5}, {"seed": 5}),
        ({"seed": 5, "temperature": 0.6}, {"seed": 5, "temperature": 0.6}),
        ({"seed": 7, **extra(speculation={"drafter": "lookup+model", "k": 5})},
         {"seed": 7, "drafter": "lookup+model", "k": 5}),
        ({"seed": 5, "stop": "a"}, {"seed": 5, "strings": "a"}),
    ]  # fmt: skip
    wanted = [text_of(alone(pair, "hi", 40, **meant)) for _, meant in kinds]
    with ThreadPoolExecutor(16) as pool:
        asked = [kinds[i % 4][0] for i in range(16)]
        texts = list(pool.map(lambda p: chat(client, server, max_tokens=40, **p).choices[0].message.content, asked))
    assert texts == wanted * 4


def test_without_a_seed_texts_differ(server, client):
    assert len({chat(client, server, max_tokens=24).choices[0].message.content for _ in range(3)}) == 3


def test_the_model_has_a_name(pair, server, client):
    (model,) = client.models.list().data
    assert model.id == server.model == pair.labels[0]


def test_the_default_pair_answers_as_it_does_on_the_command_line():
    pair = pairs.load("smol", dtype=torch.float32)
    greedy = Sampling(temperature=0.0)
    rounds = answer(pair, "Name a colour.", make_drafter("model", pair), 4, greedy, 16)
    with serve.background(pair) as server:
        told = chat(client_of(server), server, "Name a colour.", temperature=0, max_tokens=16)
    assert told.model == "SmolLM2-135M-Instruct"
    assert told.choices[0].message.content == "".join(r.text for r in rounds)
    assert told.usage.speculation["accepted"] > 0


WRITTEN = "Hi 🙂🙃 東京 é. STOP, and on."


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    eos = 0  # <|endoftext|>
    pair = script_pair(tmp_path_factory.mktemp("script"), WRITTEN, eos=eos)
    pair.target._ids.append(eos)  # written behind the text
    with serve.background(pair, drafter="model", k=4) as server:
        yield server, client_of(server)


def streamed(client, server, **parameters):
    chunks = [c.choices[0] for c in chat(client, server, stream=True, **parameters)]
    return [c.delta.content for c in chunks], chunks[-1].finish_reason


def whole(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8])
def test_no_delta_holds_a_broken_character(scripted, k):
    server, client = scripted
    show = extra(speculation={"k": k, "show": True})
    rounds = [c.choices[0] for c in chat(client, server, stream=True, max_tokens=200, **show)]
    deltas = [c.delta.content for c in rounds]
    assert "".join(deltas) == WRITTEN and rounds[-1].finish_reason == "stop"
    assert not any("\ufffd" in d for d in deltas)
    # Rounds did end inside of characters: a token is a byte here.
    ends = accumulate(len(c.speculation["tokens"]) for c in rounds)
    assert not all(whole(WRITTEN.encode()[:end]) for end in ends)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("stop", ["STOP", ["nowhere", "OP, an", "STOP"], "東", "🙃 "])
def test_a_stop_string_never_leaks(scripted, k, stop):
    server, client = scripted
    strings = [stop] if isinstance(stop, str) else stop
    shown = WRITTEN[: min(WRITTEN.find(s) for s in strings if s in WRITTEN)]
    if isinstance(stop, list):
        shown = WRITTEN[: WRITTEN.find("STOP")]  # complete first, though "OP, an" is listed before it
    deltas, why = streamed(client, server, max_tokens=200, stop=stop, **extra(speculation={"k": k}))
    assert ("".join(deltas), why) == (shown, "stop")
    so_far = ""
    for delta in deltas:
        so_far += delta
        assert shown.startswith(so_far)
    whole = chat(client, server, max_tokens=200, stop=stop, **extra(speculation={"k": k}))
    assert whole.choices[0].message.content == shown and whole.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("k", [1, 4, 7])
def test_an_eos_inside_a_kept_block_ends_the_text(scripted, k):
    server, client = scripted
    size = len(WRITTEN.encode()) + 1  # a token a byte, and the EOS, which is committed and not shown
    reply = chat(client, server, max_tokens=200, **extra(speculation={"k": k}))
    assert reply.choices[0].message.content == WRITTEN and reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == size
    # Drafts behind the end do not count as drafted, nor as kept.
    told = reply.usage.speculation
    assert told["accepted"] + told["rounds"] in (size, size + 1)
    longer = chat(client, server, max_tokens=size + 9, **extra(ignore_eos=True, speculation={"k": k}))
    assert longer.usage.completion_tokens == size + 9 and longer.choices[0].finish_reason == "length"
    assert longer.choices[0].message.content.startswith(WRITTEN)


def test_a_length_inside_a_character_shows_what_is_whole(scripted):
    server, client = scripted
    deltas, why = streamed(client, server, max_tokens=5)
    assert ("".join(deltas), why) == ("Hi ", "length")
