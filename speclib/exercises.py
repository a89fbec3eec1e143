"""Exercises that never stop a notebook: a stub that is not done hands over to the course's own answer."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.display import display

Fn = TypeVar("Fn", bound=Callable[..., Any])


class Todo(Exception):
    """Raised by the body of an exercise that the reader has not written yet."""


class Wrong(AssertionError):
    """An answer that is not right yet. A notebook shows its sentence, and where the reader's own code failed."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for it in place of the traceback, which would be the checker's source.
        return [f"Not right yet. {self}", *_place(self.__cause__)]


def _place(error: BaseException | None) -> list[str]:
    """The line of a notebook's cell in which an exception was raised, if it was in one."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    inside = [f for f in frames if "ipykernel" in f.filename or f.filename.startswith("<ipython")]
    return [f"  line {f.lineno} of your cell: {f.line}" for f in inside[-1:]]


def attempt(fn: Fn, check: Callable[[Fn], None], reference: Fn) -> Fn:
    """Judge the reader's function, and return the function that the notebook goes on with.

    fn: the reader's; a body that still raises `Todo` is not done, and the reference stands in. check: raises
    AssertionError, naming the case, when its argument is wrong: `Wrong` here, which a notebook shows as a sentence.
    reference: the course's answer. With `SPECLIB_SOLUTIONS=1` in the environment it is checked and returned, whatever
    fn is.
    """
    name = fn.__name__
    if os.environ.get("SPECLIB_SOLUTIONS") == "1":
        check(reference)
        print(f"{name}: the course's answer is used, and passes the check.")
        return reference
    try:
        check(fn)
    except Todo:
        print(f"{name}: not done yet, so the course's answer stands in. Come back whenever you like.")
        return reference
    except AssertionError as error:
        raise Wrong(str(error)) from error.__cause__
    print(f"{name}: right ✓ From here on the notebook uses yours.")
    return fn


def guess(value: Any) -> str:
    """A reader's guess as text for a printed line, as it was typed; "none yet" when it is None."""
    return "none yet" if value is None else str(value)


def answer(case: str, fn: Callable[..., Any], *args: Any) -> Any:
    """What a reader's function gives; whatever it raises, but Todo, becomes a sentence about the case.

    case: a phrase such as "with logits 1, 2, 3". AssertionError also when fn returns None, which is nearly
    always a forgotten `return`.
    """
    try:
        result = fn(*args)
    except Todo:
        raise
    except Exception as error:
        raise AssertionError(f"{case}, your function raised {type(error).__name__}: {error}") from error
    if result is None:
        raise AssertionError(f"{case}, your function returned None: is the `return` missing?")
    return result


def show_source(fn: Callable[..., Any]) -> None:
    """Display a function or class of speclib as it stands in its module, its docstring cut to the first line.

    Shown as a block of Markdown: JupyterLab and GitHub colour it for the reader's theme, and its text is the
    same on every machine.
    """
    code = _short_docstring(textwrap.dedent(inspect.getsource(fn))).rstrip()
    where = fn.__module__.replace(".", "/") + ".py"
    text = f"# {where}\n{code}"
    display({"text/markdown": f"```python\n{text}\n```", "text/plain": text}, raw=True)


def _short_docstring(code: str) -> str:
    lines = code.splitlines()
    nodes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    # From the bottom up, so that the line numbers above stay true.
    for node in sorted(nodes, key=lambda n: -n.lineno):
        doc = node.body[0]
        if ast.get_docstring(node) and doc.end_lineno > doc.lineno:
            indent = " " * doc.col_offset
            first = ast.get_docstring(node).splitlines()[0]
            lines[doc.lineno - 1 : doc.end_lineno] = [f'{indent}"""{first}"""']
    return "\n".join(lines)
