"""Make the notebooks' outputs for git, and check their state: `outputs [NAME …]`, `lint [NAME …]`."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import struct
import sys
import time
import zlib
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
STILLS = ROOT / "docs" / "stills"  # pictures of the page, taken by the browser tests
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python"}
MOST_BYTES = 400_000
MOST_LINES = 14
LEAST_COMPARED = 15  # cells whose output strict nbval compares; below this the comparison says too little
UNTOUCHED = "nbval-ignore-output"
LIVE = ("application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json")


def sources(nb: NotebookNode) -> str:
    """A hash of what the outputs were made from: the code cells with their tags, in order."""
    cells = [[c.source, sorted(c.metadata.get("tags", []))] for c in nb.cells if c.cell_type == "code"]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def kinds(nb: NotebookNode) -> str:
    """A hash of what sorts of output each code cell has, since nbval does not look at all of them."""
    cells = [
        [sorted(o.get("data", {})) or [o.output_type, o.get("name")] for o in c.outputs]
        for c in nb.cells
        if c.cell_type == "code"
    ]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def compared(nb: NotebookNode) -> int:
    """How many cells have an output that strict nbval compares: some text, and no tag against it."""

    def text(output: NotebookNode) -> bool:
        return bool(output.get("text") or any(k.startswith("text/") for k in output.get("data", {})))

    cells = [c for c in nb.cells if c.cell_type == "code" and UNTOUCHED not in c.metadata.get("tags", [])]
    return sum(any(text(o) for o in c.outputs) for c in cells)


def make_outputs(path: Path) -> float:
    """Run a notebook from the top and write it back with its outputs, pictures among them; seconds it took.

    An error in a cell is raised, and the file stays as it was.
    """
    nb = nbformat.read(path, as_version=4)
    nb.metadata.kernelspec = dict(KERNEL)
    # Exercises stand as a reader finds them, whatever this shell has set.
    env = {k: v for k, v in os.environ.items() if k != "SPECLIB_SOLUTIONS"} | {"SPECLIB_PICTURES": "1"}
    start = time.perf_counter()
    client = NotebookClient(nb, timeout=600, kernel_name="python3", store_widget_state=False)
    client.execute(cwd=str(path.parent), env=env)
    seconds = time.perf_counter() - start
    for cell in nb.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            _settle(cell)
        for name in cell.get("attachments", {}):
            # Inside the file, since JupyterLab shows nothing from above the folder that it was opened on.
            cell.attachments[name] = {"image/png": base64.b64encode(packed((STILLS / name).read_bytes())).decode()}
    made = {"sources": sources(nb), "outputs": kinds(nb)}
    nb.metadata = {"kernelspec": KERNEL, "language_info": LANGUAGE, "speclib": made}
    # Indented by one, with characters as they are: the form in which JupyterLab saves.
    text = nbformat.writes(nbformat.from_dict(nb), indent=1, ensure_ascii=False)
    beside = path.with_suffix(".tmp")
    beside.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    beside.replace(path)
    return seconds


def _settle(cell: NotebookNode) -> None:
    """Bring a cell's outputs into one form: neighbouring prints joined, ids of live widgets made constant."""
    merged: list[NotebookNode] = []
    for output in cell.outputs:
        previous = merged[-1] if merged else {}
        if output.output_type == "stream" and previous.get("name") == output.name:
            previous["text"] += output.text
        else:
            merged.append(output)
        view = output.get("data", {}).get(LIVE[0])
        if view:
            # Without a kernel no model has this id, so the page falls back on the picture; and it makes no
            # diff.
            view["model_id"] = hashlib.md5(cell.id.encode()).hexdigest()
        if picture := output.get("data", {}).get("image/png"):
            output["data"]["image/png"] = base64.b64encode(packed(base64.b64decode(picture))).decode()
    cell.outputs = merged


def packed(png: bytes) -> bytes:
    """The same picture in fewer bytes: a browser compresses its screenshots quickly rather than well."""
    parts, at = [], 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        parts.append((kind, png[at + 8 : at + 8 + size]))
        at += 12 + size
    pixels = zlib.compress(zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT")), 9)
    first = next(i for i, (kind, _) in enumerate(parts) if kind == b"IDAT")
    rest = [part for part in parts if part[0] != b"IDAT"]
    rest.insert(first, (b"IDAT", pixels))
    chunks = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in rest)
    return min(png, png[:8] + b"".join(chunks), key=len)


def lint(path: Path) -> list[str]:
    """What is wrong with a notebook file, one sentence each with its remedy; [] when it is in order."""
    found = []
    if (size := path.stat().st_size) >= MOST_BYTES:
        found.append(f"the file has {size:,} of at most {MOST_BYTES:,} bytes: make pictures fewer or smaller")
    nb = nbformat.read(path, as_version=4)
    if dict(nb.metadata.get("kernelspec", {})) != KERNEL:
        found.append("its kernel is not plain python3: run `make outputs`")
    code = [c for c in nb.cells if c.cell_type == "code"]
    data = [o.get("data", {}) for c in code for o in c.outputs]
    if "widgets" in nb.metadata or any("widgets" in c.metadata for c in nb.cells) or "widget-state" in str(data):
        found.append("it holds widget state: run `make outputs` instead of saving it from JupyterLab")
    if nb.metadata.get("speclib", {}).get("sources") != sources(nb):
        found.append("its code changed after its outputs were made: run `make outputs`")
    if nb.metadata.get("speclib", {}).get("outputs") != kinds(nb):
        found.append("outputs were taken away or put in after they were made: run `make outputs`")
    if [c.execution_count for c in code] != list(range(1, len(code) + 1)):
        found.append("its cells were not all run once, from the top: run `make outputs`")
    for number, cell in enumerate(code, 1):
        if "raises-exception" in cell.metadata.get("tags", []):
            found.append(f"code cell {number} is tagged raises-exception, which holds whether or not it raises")
        if any(o.output_type == "error" for o in cell.outputs):
            found.append(f"code cell {number} ended in an error")
        if any(o.get("name") == "stderr" for o in cell.outputs):
            found.append(f"code cell {number} wrote to stderr, which differs from machine to machine")
        if any(set(LIVE) & set(d) and not _still(d) for d in (o.get("data", {}) for o in cell.outputs)):
            found.append(f"code cell {number} has a figure without a picture for readers without a kernel")
        if (lines := len(cell.source.splitlines())) > MOST_LINES:
            found.append(f"code cell {number} has {lines} lines and may have {MOST_LINES}: split it")
    if (count := compared(nb)) < LEAST_COMPARED:
        found.append(f"nbval compares only {count} cells, of at least {LEAST_COMPARED}: tag fewer")
    return found


def _still(data: NotebookNode) -> bool:
    """Whether a page without a kernel has something to show, and text for one without pictures."""
    return "text/plain" in data and bool({"image/png", "text/html"} & set(data))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["outputs", "lint"])
    parser.add_argument("names", nargs="*", help="01_distributions …; all when left out")
    chosen = parser.parse_args(arguments)
    paths = [NOTEBOOKS / f"{name.removesuffix('.ipynb')}.ipynb" for name in chosen.names]
    paths = paths or sorted(NOTEBOOKS.glob("*.ipynb"))
    if missing := [p.stem for p in paths if not p.is_file()]:
        known = ", ".join(sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb")))
        parser.error(f"there is no notebook {missing[0]}; there are: {known}")
    faults = 0
    for path in paths:
        if chosen.command == "outputs":
            seconds = make_outputs(path)
            nb = nbformat.read(path, as_version=4)
            size, count = path.stat().st_size, compared(nb)
            print(f"{path.stem}: {seconds:.0f} s, {size:,} bytes, {count} cells compared")
        for fault in lint(path):
            faults += 1
            print(f"{path.stem}: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
