"""The formulas: from α, K and c to tokens per round, speedup, and the best K.

They take each draft to be kept independently with the same probability α. Real acceptances hang together
(easy stretches, hard ones), so this is a good average and not a law; `sweep.py` puts measurements beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# What one pass over K + 1 tokens costs, in passes over one: None (1 for every K), a number, a measured curve
# with v[K] at K, or a function of K.
Verify = None | float | Sequence[float] | NDArray[np.float64] | Callable[[Any], Any]


def expected_tokens(alpha: ArrayLike, K: ArrayLike) -> Any:
    """Tokens that a round commits on average: 1 + α + … + α^K = (1 − α^(K+1)) / (1 − α).

    alpha: in [0, 1]. K ≥ 0, whole. Numbers or arrays that broadcast; returns their shape (K + 1 at α = 1).
    ValueError: a value out of range.
    Source: Leviathan et al. 2023, section 3.1, equation 1. Taught in notebook 05_sweep, section 'Tokens per round'.
    """
    a, k = _checked(alpha, K)
    with np.errstate(divide="ignore", invalid="ignore"):
        # expm1 and log keep the digits that 1 − α^(K+1) loses when α is close to 1.
        out = np.where(a < 1, np.expm1((k + 1) * np.log(a)) / (a - 1), k + 1)
    return _plain(np.where(a == 0, 1.0, out))


def speedup(alpha: ArrayLike, K: ArrayLike, c: ArrayLike, v: Verify = None) -> Any:
    """How many times faster than plain decoding: expected tokens ÷ (K·c + v(K)).

    c ≥ 0: cost of one draft step; v: cost of one pass over K + 1 tokens; both in target steps on one token.
    v None is 1 for every K, as in the paper. alpha, K, c may be arrays that broadcast.
    ValueError: a value out of range; a measured v that does not reach K.
    Source: Leviathan et al. 2023, section 3.3, theorem 3.8 (with v = 1).
    Taught in notebook 05_sweep, section 'The speedup'.
    """
    tokens = expected_tokens(alpha, K)
    cost = np.asarray(c, dtype=float)
    if not (cost >= 0).all():
        raise ValueError(f"c must be at least 0, not {c}")
    k = np.asarray(K)
    return _plain(tokens / (k * cost + _verify(v, k)))


def best_k(alpha: float, c: float, v: Verify = None, k_max: int = 16) -> int:
    """The K in 0 … k_max with the largest speedup, the smallest of them where several tie; 0 is plain decoding.

    A measured v with n entries limits K to n − 1.
    Source: Leviathan et al. 2023, section 3.4. Taught in notebook 05_sweep, section 'The best K'.
    """
    ks = np.arange(_reach(v, k_max) + 1)
    return int(np.argmax(speedup(alpha, ks, c, v)))


def break_even_c(alpha: float, v: Verify = None, k_max: int = 16) -> float:
    """The dearest draft that still breaks even at its best K ≥ 1; below 0 when even a free one loses.

    With v = 1 it is α: a single draft costs c and brings α tokens.
    Source: Leviathan et al. 2023, section 3.3, corollary 3.9.
    Taught in notebook 05_sweep, section 'Drag it: the calculator'.
    """
    ks = np.arange(1, _reach(v, k_max) + 1)
    return float(((expected_tokens(alpha, ks) - _verify(v, ks)) / ks).max())


def _checked(alpha: ArrayLike, K: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, k = np.asarray(alpha, dtype=float), np.asarray(K, dtype=float)
    if not ((a >= 0) & (a <= 1)).all():
        raise ValueError(f"alpha must be in [0, 1], not {alpha}")
    if not ((k >= 0) & (k == np.floor(k))).all():
        raise ValueError(f"K must be a whole number of at least 0, not {K}")
    return a, k


def _verify(v: Verify, k: NDArray[Any]) -> Any:
    if v is None or isinstance(v, int | float):
        return 1.0 if v is None else v
    if callable(v):
        return v(k)
    curve = np.asarray(v, dtype=float)
    if k.max() >= len(curve):
        raise ValueError(f"v was measured for K up to {len(curve) - 1}, and K = {int(k.max())} is asked for")
    return curve[k]


def _reach(v: Verify, k_max: int) -> int:
    measured = v is not None and not isinstance(v, int | float) and not callable(v)
    reach = min(k_max, len(v) - 1) if measured else k_max
    if reach < 1:
        raise ValueError(f"there is no K ≥ 1 to choose: k_max is {k_max}, and v must hold more than v[0]")
    return reach


def _plain(x: Any) -> Any:
    """A number for numbers, an array for arrays."""
    return float(x) if np.ndim(x) == 0 else x
