"""What every checker is held to: right answers pass, each wrong one is told in a sentence, a stub is handed over."""

import pytest

from speclib.exercises import Todo, attempt


def held_to(exercises):
    """The three tests of a file. exercises: name → (check, right answers, name of a wrong one → (it, what is said))."""
    wrong_ones = [(name, variant) for name, (_, _, wrong) in exercises.items() for variant in wrong]

    @pytest.mark.parametrize("name", exercises)
    def test_right_answers_pass(name):
        check, right, _ = exercises[name]
        for fn in right:
            check(fn)

    @pytest.mark.parametrize("name, variant", wrong_ones, ids=[f"{n}: {v}" for n, v in wrong_ones])
    def test_a_wrong_answer_is_rejected_with_a_sentence(name, variant):
        check, _, wrong = exercises[name]
        fn, says = wrong[variant]
        with pytest.raises(AssertionError, match=f"(?s)^With .*({says})") as found:
            check(fn)
        assert len(str(found.value)) > 40

    @pytest.mark.parametrize("name", exercises)
    def test_an_exercise_that_is_not_done_is_handed_over(name):
        check, (reference, *_), _ = exercises[name]

        def mine(*args):
            raise Todo

        assert attempt(mine, check, reference) is reference

    return (
        test_right_answers_pass,
        test_a_wrong_answer_is_rejected_with_a_sentence,
        test_an_exercise_that_is_not_done_is_handed_over,
    )
