"""Walk through the course in a browser as a new reader would: open, run all, move every control, try every exercise.

`python tools/walk.py` works on copies and writes results/walk-NAME-….json. Exit status 1: it found something wrong.
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import nbformat
import torch
import typer
from playwright.sync_api import Error, Locator, sync_playwright

from speclib import pairs, records

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import conftest as browsing  # noqa: E402
from browser.lab import NOTEBOOK, Lab, has_widget  # noqa: E402
from conftest import ALL_THREADS, BROWSERS  # noqa: E402

KERNEL, CELL = f"{NOTEBOOK}?.sessionContext?.session?.kernel", f"{NOTEBOOK}.content.widgets[i]"
IDLE = f"{KERNEL}?.status === 'idle'"
BUSY = "waiting …|writing …|generating …"  # what a board says while its kernel, between two steps, looks idle
FAULTS = ("findings", "errors", "console_errors")
STORED = r"image/png|vnd\.plotly|widget-view"
OUTPUTS = f"() => {NOTEBOOK}.content.widgets.map(cell => cell.model.outputs?.toJSON() ?? [])"
FIGURE = ".js-plotly-plot .main-svg, .jp-OutputArea-output img, .widget-html-content > *"
DRAWN = "box => Array.from(box.querySelectorAll('svg, .widget-html-content'), e => e.innerHTML).join()"
LABEL = "e => e.closest('.widget-inline-hbox')?.querySelector('.widget-label')?.innerText ?? ''"
# Beside this button, each of these may change nothing: it says what the button is to do, or finds the same match.
MAY_REST = {"Ask": {"prompt", "drafter", "K", "tokens"}, "Stop": {"draws"}, "leftmost": {"most recent | leftmost"}}
ATTEMPT = re.compile(r"^(\w+) = attempt\(\1, [\w.]+, ([\w.]+)\)", re.M)
# From a key on a slider to the first change of what is drawn; then on until all stands still and the kernel is idle.
KEY = f"""async (handle, key) => {{
  const box = handle.closest('.jp-Cell-outputArea'), drawn = () => ({DRAWN})(box);
  const before = drawn(), start = performance.now();
  let last = start, changed = null;
  const watch = new MutationObserver(() => {{
    last = performance.now();
    if (changed === null && drawn() !== before) changed = last - start;
  }});
  watch.observe(box, {{subtree: true, childList: true, attributes: true, characterData: true}});
  handle.dispatchEvent(new KeyboardEvent('keydown', {{key, bubbles: true}}));
  const done = now => now > start + 60000 || (now > last + 150 && (changed !== null || now > start + 2000)
    && {IDLE} && !/{BUSY}/.test(box.textContent));
  while (!done(performance.now())) await new Promise(next => setTimeout(next, 20));
  watch.disconnect();
  return changed > 2000 ? null : changed;
}}"""
# What the kernel says on the side, since exceptions in callbacks reach no cell. A reader has no solutions set.
LISTEN = f"""() => {{
  window.walk = [];
  {NOTEBOOK}.sessionContext.iopubMessage.connect((_, {{header, content}}) => {{
    if (header.msg_type === 'error') window.walk.push(`${{content.ename}}: ${{content.evalue}}`);
    // JupyterLab asks for widgets before the first cell has brought them in.
    if (content.name === 'stderr' && !/^No such comm/.test(content.text)) window.walk.push(`stderr: ${{content.text}}`);
  }});
  {KERNEL}.requestExecute({{code: "import os; os.environ.pop('SPECLIB_SOLUTIONS', None)", silent: true}});
}}"""
RUN = f"""async ([i, source]) => {{
  const panel = {NOTEBOOK};
  if (source) {CELL}.model.sharedModel.setSource(source);
  panel.content.activeCellIndex = i;
  await window.jupyterapp.commands.execute('notebook:run-cell');
}}"""
STOP = "async (go, stop) => { go.click(); await new Promise(next => setTimeout(next, 1000)); stop.click(); }"


class Walk:
    """One notebook in the browser, and what was found there."""

    def __init__(self, lab: Lab, path: Path):
        self.lab, self.page, self.name = lab, lab.page, path.stem
        self.cells = nbformat.read(path, as_version=4).cells
        self.found: dict[str, Any] = {x: [] for x in (*FAULTS, "controls", "exercises")}
        self.findings, self.errors, console = (self.found[x] for x in FAULTS)
        # JupyterLab puts a page's attachments in place after the browser has looked for them under their own names.
        known = lambda m: m.type != "error" or m.location["url"].startswith("attachment:")  # noqa: E731
        self.page.on("console", lambda m: known(m) or console.append(f"{m.text} {m.location['url'][:99]}"))
        self.page.on("pageerror", lambda error: console.append(str(error)))

    def go(self) -> None:
        """Do all that a reader does, in order."""
        start = time.monotonic()
        self.page.goto(f"{self.lab.address}/lab/tree/{self.name}.ipynb?token=browser-test&reset")
        self.page.wait_for_function(f"{NOTEBOOK}?.content?.widgets?.length >= {len(self.cells)}", timeout=90_000)
        first = next(i for i, c in enumerate(self.cells) if re.search(STORED, str(c.get("outputs"))))
        self.box(first).locator(FIGURE).first.wait_for(timeout=60_000)
        self.found["seconds_to_first_figure"] = time.monotonic() - start
        self.page.wait_for_function(IDLE, timeout=90_000)
        self.page.evaluate(LISTEN)
        start = time.monotonic()
        self.lab.run_all(900)
        self.found["seconds_to_run_all"] = time.monotonic() - start
        self.hear("run all")
        for i, outputs in enumerate(self.page.evaluate(OUTPUTS)):
            if has_widget(outputs):
                self.board(i)
        for i, cell in enumerate(self.cells):
            if cell.cell_type == "code" and (match := ATTEMPT.search(cell.source)):
                self.exercise(i, *match.groups())

    def box(self, index: int) -> Locator:
        """A cell's outputs, scrolled into view: what is far off need not be in the page."""
        self.page.evaluate(f"i => {NOTEBOOK}.content.scrollToItem(i, 'start')", index)
        self.page.evaluate(f"i => {CELL}.node.setAttribute('data-walk', i)", index)
        return self.page.locator(f'[data-walk="{index}"] .jp-Cell-outputArea')

    def hear(self, where: str) -> None:
        """Take down what the kernel has said on the side since."""
        self.errors += [f"{where}: {text.strip()}" for text in self.page.evaluate("() => window.walk.splice(0)")]

    def settle(self, box: Locator, where: str) -> str:
        """Wait until the kernel is idle and the board stands still, and see that nothing went wrong; what is drawn."""
        end, drawn, same = time.monotonic() + 60, "", 0
        while same < 3 and time.monotonic() < end:
            self.page.wait_for_timeout(200)
            before, drawn = drawn, box.evaluate(DRAWN)
            idle = self.page.evaluate(IDLE) and not re.search(BUSY, drawn)
            same = same + 1 if idle and drawn == before else 0
        wrong = ["not at rest after 60 s"] * (same < 3) + ["a traceback is shown"] * ("Traceback" in box.inner_text())
        self.findings += [f"{where}: {x}" for x in wrong + box.get_by_role("alert").all_inner_texts()]
        self.hear(where)
        return drawn

    def board(self, index: int) -> None:
        """Move every control of a live output."""
        box, moved = self.box(index), set()
        may_rest = {x for name, of in MAY_REST.items() if box.locator("button", has_text=name).count() for x in of}

        def row(label: str, kind: str, times: list[float | None]) -> None:
            ms = sorted(t for t in times if t)  # a change without a time is a 0
            changed, median, worst = len(times) - times.count(None), statistics.median(ms or [0]), max(ms, default=0)
            found = {"cell": index, "label": label, "kind": kind, "keys": len(times), "changed": changed}
            self.found["controls"].append(found | {"median_ms": median or None, "worst_ms": worst or None})
            if not changed and label not in may_rest:
                self.findings.append(f"cell {index}, {label}: this {kind} changes nothing")

        def drag() -> None:
            for handle in box.locator(".noUi-target:not([disabled]) .noUi-handle:visible").all():
                if (label := handle.evaluate(LABEL)) not in moved:
                    moved.add(label)
                    self.page.mouse.move(640, 3)  # away from the figure, so that no hover label comes or goes
                    place = handle.locator("xpath=..")
                    first = place.get_attribute("style")
                    row(label, "slider", [handle.evaluate(KEY, k) for k in ["ArrowRight"] * 8 + ["ArrowLeft"] * 8])
                    for _ in range(8):  # further left than at first, if it began near its right end
                        if place.get_attribute("style") != first:
                            handle.press("ArrowRight")
                    self.settle(box, f"cell {index}, {label}")

        self.settle(box, f"cell {index}")
        empty = box.locator(".js-plotly-plot:not(:has(.main-svg))").count()
        self.findings += [f"cell {index}: a figure stays empty"] * empty
        drag()
        for label, kind, moves in self.controls(box):
            times: list[float | None] = []
            for number, move in enumerate(moves, 1):
                before = box.evaluate(DRAWN)
                move()
                self.page.evaluate("() => document.activeElement.blur()")  # a field is read when it is left
                times.append(0.0 if self.settle(box, f"cell {index}, {label}, move {number}") != before else None)
                drag()  # what this choice brought into view
            row(label, kind, times)

    def controls(self, box: Locator) -> Iterator[tuple[str, str, list[Callable[[], Any]]]]:
        """The label and kind of every control but sliders, and what to do with it; at the end it stands as before."""
        for select in box.locator("select:visible").all():
            options = [*select.locator("option").all_inner_texts(), select.locator("option:checked").inner_text()]
            yield select.evaluate(LABEL), "select", [partial(select.select_option, label=o) for o in options]
        for tick in box.locator("input[type=checkbox]:enabled:visible").all():
            yield tick.locator("xpath=..").inner_text().strip(), "checkbox", [tick.click] * 2
        for group in box.locator(".widget-toggle-buttons:visible").all():
            buttons = [*group.locator("button").all(), group.locator("button.mod-active").element_handle()]
            yield " | ".join(b.inner_text().strip() for b in buttons[:-1]), "choice", [b.click for b in buttons]
        for play in box.locator(".widget-toggle-button:visible", has_text="Play").all():
            click = play.element_handle().click  # it is another name that pauses
            yield "Play", "toggle", [click, partial(self.page.wait_for_timeout, 1_500), click]
        buttons = box.locator("button.widget-button:visible").all()
        # Nothing lies before the first step, and Stop has something to do only while the other one works.
        for button in sorted(buttons, key=lambda b: "back" in b.inner_text()):
            label = button.inner_text().strip()
            stop = partial(buttons[0].evaluate, STOP, button.element_handle())
            yield label, "button", [stop if label == "Stop" else button.click]
        for field in box.locator("input[type=text]:visible, textarea:visible").all():
            yield field.evaluate(LABEL), "text", [partial(field.fill, x) for x in ("word", field.input_value())]

    def exercise(self, index: int, name: str, answer: str) -> None:
        """What the cell that judges an exercise says to the stub, to a wrong answer, and to the course's own."""
        stub = re.compile(rf"^def {name}\(.*?raise Todo", re.M | re.S)
        at = max(i for i, c in enumerate(self.cells[:index]) if c.cell_type == "code" and stub.search(c.source))
        source, row = self.cells[at].source, {"exercise": name, "cell": index}
        bodies = {"wrong": f"def {name}(*args, **more):\n    return None", "right": f"{name} = {answer}"}
        for kind in ("wrong", "right", "unfinished"):
            for i, text in ((at, stub.sub(bodies[kind], source) if kind in bodies else source), (index, "")):
                self.page.evaluate(RUN, [i, text])
            last = self.page.evaluate(OUTPUTS)[index][-1]
            shown = "\n".join(last.get("traceback", [])).count("\n")
            text = "".join(last.get("text", [])) or f"{last.get('ename')}: {last.get('evalue')}"
            row |= {kind: text.splitlines()[0], f"{kind}_traceback_lines": shown}
            fits = {"unfinished": "not done yet" in text, "right": "right ✓" in text, "wrong": "right ✓" not in text}
            if shown or not fits[kind]:
                self.findings.append(f"exercise {name}, {kind}, {shown} lines of traceback: {row[kind]}")
            if kind == "wrong":
                self.page.evaluate("() => window.walk.splice(0)")
        self.hear(f"exercise {name}")
        self.found["exercises"].append(row)

    def __str__(self) -> str:
        """The drags, one a line, and what is wrong."""
        seconds = ", ".join(f"{x.replace('_', ' ')} {of:.1f}" for x, of in self.found.items() if "seconds" in x)
        lines = [f"{self.name}: {seconds}"]
        lines += [f"  {kind.upper()} {' '.join(x.split())[:400]}" for kind in FAULTS for x in self.found[kind]]
        for c in (c for c in self.found["controls"] if c["kind"] == "slider"):
            ms = f"median {c['median_ms']:4.0f} ms, worst {c['worst_ms']:4.0f} ms" if c["changed"] else ""
            lines.append(f"  cell {c['cell']:2} {c['label']:14} {c['changed']:2} of {c['keys']} keys {ms}")
        return "\n".join(lines)


def main(
    name: Annotated[str | None, typer.Option(help="What the record calls this machine.")] = None,
    only: Annotated[str, typer.Option(help="Numbers of notebooks, such as 01,02; none: all.")] = "",
    write: Annotated[bool, typer.Option(help="Write the record.")] = True,
) -> None:
    """Walk, print what was found, keep the record."""
    torch.set_num_threads(ALL_THREADS)  # the tests' own setting is for tiny models
    device, found = pairs.default_device(), {}
    record = {"kind": "walk", "what": "course", "when": records.now(), "machine": records.machine(device, name)}
    record["dtype"] = str(pairs.default_dtype(device)[0]).removeprefix("torch.")
    # A reader has JupyterLab's own way with cells that are off screen.
    browsing.SETTINGS.pop("notebook-extension/tracker", None)
    paths = sorted(p for p in (ROOT / "notebooks").glob("*.ipynb") if not only or p.stem[:2] in only.split(","))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        factory = SimpleNamespace(mktemp=lambda title: Path(tempfile.mkdtemp(prefix=title, dir=folder)))
        chromium = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=chromium, args=browsing.FLAGS)
        with closing(browser), closing(browsing.lab_address.__wrapped__(factory)) as lab:
            address = next(lab)
            for path in paths:
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.set_default_timeout(20_000)
                walk = Walk(Lab(page, address), path)
                try:
                    walk.go()
                except Error as error:  # the next notebook can still be walked through
                    walk.findings.append(f"the walk broke off: {error}")
                page.evaluate(f"() => void {NOTEBOOK}?.sessionContext?.shutdown()")
                page.close()
                found[path.stem] = walk.found
                print(walk, flush=True)
    if write:
        print(records.write(record | {"notebooks": found}))
    raise typer.Exit(any(of[kind] for of in found.values() for kind in FAULTS))


if __name__ == "__main__":
    typer.run(main)
