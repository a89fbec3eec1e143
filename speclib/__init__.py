"""Speculative decoding, faster and exact: the package that the course's notebooks arrive at.

The names below are loaded on first use, so that `import speclib` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from speclib import mkl

mkl.divide_evenly()

# Public name → the module that holds it. Where a function has its module's own name (decode), only the
# module can be had from here: `from speclib.decode import decode`.
_HOME = {
    "Rng": "distributions",
    "warp": "distributions",
    "overlap": "distributions",
    "slice_at": "distributions",
    "Sampling": "distributions",
    "Context": "context",
    "as_context": "context",
    "forward": "context",
    "residual": "accept",
    "accept_or_fix": "accept",
    "FallbackDrafter": "drafters",
    "ModelDrafter": "drafters",
    "LookupDrafter": "drafters",
    "lookup_draft": "drafters",
    "Stop": "stopping",
    "Stats": "decode",
    "spec_greedy": "decode",
    "spec_sample": "decode",
    "sequence_distribution": "exactness",
    "chi_square": "exactness",
    "TableLM": "toy",
    "Todo": "exercises",
    "attempt": "exercises",
    "guess": "exercises",
    "show_source": "exercises",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("speclib")
    if name in _HOME:
        return getattr(importlib.import_module(f"speclib.{_HOME[name]}"), name)
    try:
        return importlib.import_module(f"speclib.{name}")
    except ModuleNotFoundError as error:
        # A submodule that is there but lacks a package of its own must say so itself.
        if error.name != f"speclib.{name}":
            raise
        raise AttributeError(f"speclib has no {name!r}; it offers {', '.join(sorted(_HOME))}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
