"""A hook of mkdocs: writes the list of public names into docs/api.md while the pages are built.

The names come from `speclib._HOME`, in its order, so that they are listed in one place only. The file is read, not
imported: the pages need neither torch nor a model.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "speclib" / "__init__.py"
MARK = "<!-- the public names -->"


def public_names() -> dict[str, str]:
    """Public name → the module of speclib that holds it, as `speclib._HOME` says."""
    for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["_HOME"]:
            return ast.literal_eval(node.value)
    raise ValueError(f"{SOURCE} has no _HOME: the API page takes the public names from it")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text; in api.md the mark is replaced by a heading per module and a directive per name."""
    if page.file.src_uri != "api.md":
        return markdown
    if MARK not in markdown:
        raise ValueError(f"docs/api.md has no line {MARK}: that is where the public names go")
    modules: dict[str, list[str]] = {}
    for name, module in public_names().items():
        modules.setdefault(module, []).append(name)
    lines = []
    for module, names in modules.items():
        lines += [f"## speclib.{module}", ""]
        for name in names:
            lines += [f"::: speclib.{module}.{name}", ""]
    return markdown.replace(MARK, "\n".join(lines))
