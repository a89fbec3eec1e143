"""A reader's number: that it is one, and, where it is wrong, what it would be the answer to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from speclib.exercises import answer

CLOSE = 1e-6  # relative: as near as rounding in another order comes


def number(case: str, fn: Callable[..., Any], *args: Any) -> float:
    """What a reader's function gives, as a float. AssertionError, naming the case, when it is not one number."""
    got = answer(case, fn, *args)
    try:
        return float(got)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{case}, your function should return one number, not {got!r}.") from error


def judge_number(
    case: str,
    got: float,
    expected: float,
    reasons: dict[float, str],
    otherwise: str,
    *,
    close: float = CLOSE,
    slack: float = 0.0,
    unit: str = "",
) -> None:
    """AssertionError unless got is expected; it says why where another number is told in `reasons`.

    close, slack: how far off counts as equal, relative and absolute. unit: follows the expected number.
    """

    def near(value: float) -> bool:
        return math.isclose(got, value, rel_tol=close, abs_tol=slack)

    if near(expected):
        return
    why = next((text for value, text in reasons.items() if near(value)), otherwise)
    raise AssertionError(f"{case}, it is {expected:.4g}{unit}, but yours is {got:.4g}: {why}.")
