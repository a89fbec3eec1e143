"""What a reader does in JupyterLab, as one verb each, for the browser tests of all notebooks."""

from __future__ import annotations

import re
import symtable
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from playwright.sync_api import Locator, Page, expect

NOTEBOOK = "window.jupyterapp?.shell?.currentWidget"
CELLS = f"{NOTEBOOK}.content.widgets.filter(cell => cell.model.type === 'code')"
VIEW = "application/vnd.jupyter.widget-view+json"
# Not awaited by the page's caller: a cell that hangs is to end in a time-out.
_RUN = f"""index => {{
  const panel = {NOTEBOOK}, done = () => {{ window.ran = true; }};
  window.ran = false;
  panel.content.activeCellIndex = panel.content.widgets.indexOf({CELLS}[index]);
  void window.jupyterapp.commands.execute('notebook:run-cell').then(done, done);
}}"""
# Traces may hold typed arrays; as JSON they would be objects.
TRACE = """(gd, [i, key]) => Array.from(gd.data[i][key], x => x)"""
# From a key or a click, or without a handle from the next move of the mouse, to the first change of what is drawn.
_LATENCY = """async (box, [handle, key]) => {
  const drawn = () => Array.from(box.querySelectorAll('DRAWN'), e => e.outerHTML).join();
  const before = drawn();
  let start = performance.now();
  const changed = new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error('nothing moved within 5 s')), 5000);
    const watch = new MutationObserver(() => {
      if (drawn() !== before) { watch.disconnect(); clearTimeout(timer); done(performance.now() - start); }
    });
    watch.observe(box, {subtree: true, childList: true, attributes: true});
  });
  const moved = () => { start = performance.now(); };
  if (key) handle.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  else if (handle) handle.click();
  else document.addEventListener('pointermove', moved, {capture: true, once: true});
  return await changed;
}"""
LINES = ".scatterlayer path.js-line"
# Three questions to the kernel, each answered behind all that was sent before it: what a widget still held back, since
# it had not heard of its last message, goes out between them. Then until no figure changes any more.
_SETTLE = f"""async () => {{
  const pause = ms => new Promise(done => setTimeout(done, ms));
  const drawn = () => Array.from(document.querySelectorAll('.js-plotly-plot path'), p => p.getAttribute('d')).join();
  for (let i = 0; i < 3; i++) {{ await pause(50); await {NOTEBOOK}.sessionContext.session.kernel.requestKernelInfo(); }}
  for (let before = null, i = 0; i < 100; i++) {{
    if (before === drawn()) return true;
    before = drawn();
    await pause(100);
  }}
  return false;
}}"""


class Lab:
    """JupyterLab in a page, with one notebook open at a time."""

    def __init__(self, page: Page, address: str):
        self.page, self.address = page, address

    def open(self, name: str) -> None:
        """Open a notebook, alone, and wait for its cells and its kernel."""
        self.page.goto(f"{self.address}/lab/tree/{name}.ipynb?token=browser-test&reset")
        self.page.wait_for_function(
            f"{NOTEBOOK}?.sessionContext?.session?.kernel?.status === 'idle' && {CELLS}.length", timeout=90_000
        )
        self.page.evaluate("window.jupyterapp.shell.collapseLeft()")

    def read(self, name: str, edits: dict[str, str] | None = None) -> None:
        """Open a notebook and run its live figures and what they stand on, cell by cell, as a reader does.

        edits: pieces of its code, and what is put in their place before. Every cell of all notebooks is run by nbval as
        it is, and in a browser by tools/walk.py: here it would be time only.
        """
        self.open(name)
        for piece, other in (edits or {}).items():
            self.edit(piece, other)
        cells = self.page.evaluate(f"{CELLS}.map(c => [c.model.sharedModel.source, c.model.outputs.toJSON()])")
        live = {i for i, (_, outputs) in enumerate(cells) if has_widget(outputs)}
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        for index in needed([source for source, _ in cells], live):
            self.run(index)

    def cell(self, piece: str) -> int:
        """The number of the one code cell that holds this piece of code."""
        sources = self.page.evaluate(f"{CELLS}.map(c => c.model.sharedModel.source)")
        (index,) = (i for i, source in enumerate(sources) if piece in source)
        return index

    def edit(self, piece: str, other: str) -> None:
        """Put other code in the place of a piece of code."""
        model = f"{CELLS}[{self.cell(piece)}].model.sharedModel"
        self.page.evaluate(f"([a, b]) => {model}.setSource({model}.source.replace(a, b))", [piece, other])

    def start(self, index: int) -> None:
        """Run one code cell, without waiting for it."""
        self.page.evaluate(_RUN, index)

    def finish(self, seconds: float = 600) -> None:
        """Wait until the cell that was started has ended, be it by an error or an interruption."""
        # Not at every frame, here and below: the page would draw while the kernel computes.
        self.page.wait_for_function("window.ran === true", timeout=1000 * seconds, polling=100)

    def interrupt(self) -> None:
        """Interrupt what runs, as the button does."""
        self.page.evaluate(f"{NOTEBOOK}.sessionContext.session.kernel.interrupt()")

    def run(self, index: int) -> None:
        """Run one code cell and wait until its figures are drawn. A cell that fails is raised."""
        self.start(index)
        self.finish()
        outputs = self.page.evaluate(f"{CELLS}[{index}].model.outputs.toJSON()")
        _raise_errors(outputs)
        if has_widget(outputs):
            self.page.evaluate(_SETTLE)
            plots = f"Array.from({CELLS}[{index}].node.querySelectorAll('.js-plotly-plot'))"
            self.page.wait_for_function(f"{plots}.every(gd => gd.data?.length)", timeout=60_000, polling=100)

    def run_all(self, seconds: float) -> None:
        """Clear what is stored, run every cell, and wait until each has run. A cell that fails is raised."""
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        # Not awaited: a cell that hangs is to end in the time-out below.
        self.page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        failed = f"{CELLS}.some(c => c.model.outputs.toJSON().some(o => o.output_type === 'error'))"
        idle = f"{NOTEBOOK}.sessionContext.session.kernel.status === 'idle'"
        self.page.wait_for_function(
            f"({CELLS}.every(c => c.model.executionCount) && {idle}) || {failed}", timeout=seconds * 1000, polling=200
        )
        _raise_errors(self.outputs())

    def outputs(self) -> list[dict[str, Any]]:
        """The outputs of all cells, in nbformat's form."""
        return self.page.evaluate(f"{CELLS}.flatMap(cell => cell.model.outputs.toJSON())")

    def theme(self, name: str) -> None:
        """Change JupyterLab's theme: 'JupyterLab Dark', 'JupyterLab Light'."""
        self.page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}})")
        dark = "false" if name.endswith("Dark") else "true"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{dark}'")
        self.page.wait_for_timeout(500)

    def board(self) -> Board:
        """The first live figure of the notebook, scrolled into view and drawn."""
        box = self.page.locator(".jp-OutputArea-output", has=self.page.locator(".noUi-handle")).first
        box.scroll_into_view_if_needed()
        expect(box.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
        return Board(self.page, box)

    def paged(self, shown: str, number: int = 0) -> Board:
        """A live figure that is a page of HTML, of those that show this, scrolled into view."""
        box = self.page.locator(".jp-OutputArea-output", has=self.page.locator(shown)).nth(number)
        box.scroll_into_view_if_needed()
        expect(box.locator(shown)).to_be_visible(timeout=30_000)
        return Board(self.page, box)


class Board:
    """A live figure with its controls."""

    def __init__(self, page: Page, box: Locator):
        self.page, self.box = page, box
        self.plot = box.locator(".js-plotly-plot")

    def labels(self) -> list[str]:
        """The visible labels of all controls but buttons, which carry their own."""
        return [label.strip() for label in self.box.locator(".widget-label:visible").all_inner_texts()]

    def control(self, label: str) -> Locator:
        """The control with this visible label."""
        name = self.page.locator(".widget-label").get_by_text(label, exact=True)
        return self.box.locator(".widget-inline-hbox", has=name)

    def readout(self, label: str) -> str:
        """What a slider shows as its value."""
        return self.control(label).locator(".widget-readout").inner_text().strip()

    def key(self, label: str, *keys: str) -> None:
        """Press keys on a slider's handle."""
        handle = self.control(label).locator(".noUi-handle")
        handle.scroll_into_view_if_needed()
        handle.focus()
        for key in keys:
            handle.press(key)

    def drag(self, label: str, to: float) -> None:
        """Drag a slider's handle with the mouse to a share of its track; beyond 0 … 1 is its end."""
        _, y, track = self._grip(label)
        self.page.mouse.move(track["x"] + to * track["width"], y, steps=12)
        self.page.mouse.up()

    def _grip(self, label: str) -> tuple[float, float, dict[str, float]]:
        """Take hold of a slider's handle with the mouse: where that is, and the box of its track."""
        control = self.control(label)
        control.scroll_into_view_if_needed()
        handle, track = control.locator(".noUi-handle").bounding_box(), control.locator(".noUi-base").bounding_box()
        x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        return x, y, track

    def settle(self) -> None:
        """Wait until the kernel has answered all that was done and the page has drawn it, however slow the machine."""
        assert self.page.evaluate(_SETTLE), "the figures did not come to rest within 10 s"

    def trace(self, index: int, key: str) -> list[Any]:
        """A trace's data in the page, such as trace(0, "x")."""
        return self.plot.evaluate(TRACE, [index, key])

    def sentences(self) -> list[str]:
        """The sentences above the plots."""
        return self.plot.evaluate("gd => gd.layout.annotations.map(a => a.text)")

    def round(self) -> tuple[int, int, str]:
        """Which round of how many a page shows, and its phase."""
        text = self.box.locator(".head").inner_text()
        found = re.match(r"Round (\d+) of (\d+) · ([a-z ]+)\.", text)
        assert found, text
        return int(found[1]), int(found[2]), found[3]

    def latency(self, label: str, key: str, drawn: str) -> float:
        """Milliseconds from a key on a slider to the first change of what is drawn: paths of an SVG, or a page."""
        handle = self.control(label).locator(".noUi-handle").element_handle()
        return self.box.evaluate(_LATENCY.replace("DRAWN", drawn), [handle, key])

    def click_latency(self, button: Locator, drawn: str) -> float:
        """Milliseconds from a click to the first change of what is drawn."""
        return self.box.evaluate(_LATENCY.replace("DRAWN", drawn), [button.element_handle(), None])

    def drag_latency(self, label: str, drawn: str) -> float:
        """Milliseconds from one move of the mouse, a slider's handle held, to the first change of what is drawn."""
        x, y, track = self._grip(label)
        inwards = 1 if x < track["x"] + track["width"] / 2 else -1
        # Kept in the page, since the mouse is moved from here while it waits.
        script = _LATENCY.replace("DRAWN", drawn)
        self.box.evaluate(f"box => {{ window.moved = ({script})(box, [null, null]); }}")
        self.page.mouse.move(x + inwards * track["width"] / 5, y)
        milliseconds = self.page.evaluate("window.moved")
        self.page.mouse.up()
        return milliseconds


def needed(sources: list[str], wanted: set[int]) -> list[int]:
    """The cells that are wanted, and those that bind a name which one of them uses, in order."""
    missing: set[str] = set()
    found = []
    for index in reversed(range(len(sources))):
        binds, uses = _names(sources[index])
        if index in wanted or binds & missing:
            found.append(index)
            missing = missing - binds | uses
    return found[::-1]


def _names(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell binds at its top level, and those of the notebook that it uses."""
    cell = symtable.symtable(TransformerManager().transform_cell(source), "cell", "exec")
    binds = {s.get_name() for s in cell.get_symbols() if s.is_assigned() or s.is_imported()}
    uses = {s.get_name() for s in cell.get_symbols() if s.is_referenced()}
    scopes = cell.get_children()
    for scope in scopes:
        uses |= {s.get_name() for s in scope.get_symbols() if s.is_global() and s.is_referenced()}
        scopes += scope.get_children()
    return binds, uses


def has_widget(outputs: list[dict[str, Any]]) -> bool:
    return any(VIEW in o.get("data", ()) for o in outputs)


def _raise_errors(outputs: list[dict[str, Any]]) -> None:
    errors = [o for o in outputs if o["output_type"] == "error"]
    assert not errors, "\n".join(errors[0]["traceback"])
