"""A block is trimmed once, at the earliest end; ids and text agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_tokenizer

from speclib.stopping import Stop, Trimmer

# One token a byte, so that characters and stop strings span tokens as often as they can.
TOKENIZER = tiny_tokenizer(merges=())
EOS = TOKENIZER.eos_token_id


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def through(stop, blocks):
    """All ids and all text that a trimmer lets through, and why it ended."""
    trimmer, tokens, text = Trimmer(stop), [], ""
    for block in blocks:
        kept, shown, reason = trimmer.trim(block)
        tokens, text = tokens + kept, text + shown
        if reason:
            return tokens, text, reason
    return tokens, text, None


@pytest.mark.parametrize(
    ("stop", "block", "kept", "reason"),
    [
        (Stop(10), [1, 2, 3], [1, 2, 3], None),
        (Stop(3), [1, 2, 3], [1, 2, 3], "length"),
        (Stop(2), [1, 2, 3], [1, 2], "length"),
        (Stop(10, eos=2), [1, 2, 3], [1, 2], "eos"),
        (Stop(10, eos=0), [1, 0, 3], [1, 0], "eos"),  # id 0 is an EOS like any other
        (Stop(10, eos=[7, 1]), [2, 1, 7], [2, 1], "eos"),
        (Stop(10, eos=None), [1, 2], [1, 2], None),
        (Stop(10, eos=[]), [1, 2], [1, 2], None),
        (Stop(2, eos=2), [1, 2], [1, 2], "eos"),  # at the last token of the budget the EOS is the reason
        (Stop(2, eos=3), [1, 2, 3], [1, 2], "length"),  # the length comes first
    ],
)
def test_the_earliest_end_trims_the_block(stop, block, kept, reason):
    tokens, _, why = Trimmer(stop).trim(block)
    assert (tokens, why) == (kept, reason)


@pytest.mark.parametrize("blocks", [["abcSTOPdef"], ["abcS", "TOPdef"], ["abc", "S", "T", "O", "P"], list("abcSTOP")])
def test_a_stop_string_is_found_across_tokens_and_blocks(blocks):
    tokens, text, reason = through(Stop(99, strings="STOP", tokenizer=TOKENIZER), map(ids, blocks))
    assert (text, reason) == ("abc", "stop")
    assert TOKENIZER.decode(tokens) == "abcSTOP"  # the ids end with the token that completed it


def test_the_earliest_of_several_stop_strings_counts():
    stop = Stop(99, strings=["xyz", "b"], tokenizer=TOKENIZER)
    assert through(stop, [ids("aabxyz")])[1:] == ("aa", "stop")
    # "abcd" begins earlier, "c" is complete earlier: text that nobody has written yet cannot decide.
    stop = Stop(99, strings=["abcd", "c"], tokenizer=TOKENIZER)
    assert through(stop, [ids("abcd")])[1:] == ("ab", "stop")


def test_of_two_stop_strings_that_end_together_the_longer_cuts():
    for strings in (["bc", "abc"], ["abc", "bc"]):
        assert through(Stop(99, strings=strings, tokenizer=TOKENIZER), [ids("xabc")])[1:] == ("x", "stop")


def test_what_could_become_a_stop_string_is_held_back_and_given_out_when_it_does_not():
    trimmer = Trimmer(Stop(99, strings="STOP", tokenizer=TOKENIZER))
    assert trimmer.trim(ids("aS"))[1] == "a"
    assert trimmer.trim(ids("TO"))[1] == ""
    assert trimmer.trim(ids("Y"))[1] == "STOY"


def test_what_is_held_back_is_given_out_at_the_end():
    assert through(Stop(5, strings="STOP", tokenizer=TOKENIZER), [ids("abSTO")]) == (ids("abSTO"), "abSTO", "length")
    stop = Stop(99, eos=EOS, strings="STOP", tokenizer=TOKENIZER)
    assert through(stop, [[*ids("abST"), EOS, 1]]) == ([*ids("abST"), EOS], "abST", "eos")


def test_a_character_is_given_out_whole():
    for text in ("a😀b", "世界", "é"):
        trimmer = Trimmer(Stop(99, tokenizer=TOKENIZER))
        parts = [trimmer.trim([t])[1] for t in ids(text)]
        assert "".join(parts) == text and "�" not in "".join(parts)


@given(
    st.text("abc世😀", max_size=12),
    st.lists(st.integers(1, 5), max_size=10),
    st.lists(st.text("abc世", min_size=1, max_size=3), max_size=3),
)
def test_text_is_the_ids_text_up_to_the_stop_string(text, cuts, strings):
    stop, rest, blocks = Stop(99, strings=strings, tokenizer=TOKENIZER), ids(text), []
    for cut in cuts:
        blocks, rest = [*blocks, rest[:cut]], rest[cut:]
    tokens, shown, reason = through(stop, [b for b in [*blocks, rest] if b])
    decoded = TOKENIZER.decode(tokens)
    if reason == "stop":
        ended = [s for s in strings if decoded.endswith(s)]
        assert shown == min((decoded[: -len(s)] for s in ended), key=len)
        assert not any(s in decoded[:-1] for s in strings)
    else:
        assert decoded == text and not any(s in text for s in strings)
        assert text.startswith(shown)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_new": -1}, "max_new"),
        ({"strings": ""}, "empty"),
        ({"strings": ["a", ""], "tokenizer": TOKENIZER}, "empty"),
        ({"strings": "a"}, "tokenizer"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Stop(**settings)


def test_one_stop_serves_many_generations():
    stop = Stop(99, strings="STOP", tokenizer=TOKENIZER)
    assert through(stop, [ids("abST")])[2] is None
    assert through(stop, [ids("OP")])[2] is None  # nothing is left of the one before
