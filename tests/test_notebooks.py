"""The notebooks are in order, the lint rejects what is not, and docstrings point to sections that exist."""

from __future__ import annotations

import ast
import base64
import copy
import importlib.util
import re
import struct
import zlib
from pathlib import Path

import nbformat
import pytest
import torch
from tiny import save, tiny_llama

from speclib import pairs, weights

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "01_distributions", "02_verify_cost", "03_greedy", "04_sampling_proof", "05_sweep", "06_lookup",
    "07_serve_and_bench",
)  # fmt: skip
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def test_there_are_notebooks_and_each_has_its_name():
    assert NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} <= set(NAMES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_in_order(path):
    assert tool.lint(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_has_the_parts_that_every_notebook_has(path):
    nb = nbformat.read(path, as_version=4)
    found = headings(nb)
    for part in ("The idea", "Predict before you run", "Measure", "Break it", "Explain it back"):
        assert part in found
    assert found[-1] == "What speclib keeps from here"
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    questions = text[text.index("## Explain it back") :].count("<details>")
    assert questions >= 5
    assert text.count("<details>") == text.count("</details>")
    code = [c.source for c in nb.cells if c.cell_type == "code"]
    assert 25 <= len(code) <= 45
    assert any("raise Todo" in c for c in code)
    assert not any(re.search(r"manual_seed|random\.seed|^\s*global ", c, re.M) for c in code)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_the_notebook_says_what_it_takes_and_stands_between_two_others(number):
    nb = nbformat.read(ROOT / "notebooks" / f"{NAMES[number]}.ipynb", as_version=4)
    first, last = (" ".join(cell.source.split()) for cell in (nb.cells[0], nb.cells[-1]))
    assert re.match(rf"# {number + 1:02} · .+ \*About \d+ minutes, exercises included\. No step needs a GPU\.\*", first)
    assert "At the end of this notebook you can" in first and "](attachment:" in first
    before, after = NAMES[max(0, number - 1)], NAMES[min(number + 1, len(NAMES) - 1)]
    if number:
        assert "Before this: [" in first and f"]({before}.ipynb)" in first and "**Before:** [" in last
    if number < len(NAMES) - 1:
        assert f"**Next:** [`{after}`]({after}.ipynb)" in last


def png_of(rows: bytes, level: int, cut: int) -> bytes:
    """A grey PNG, 64 wide, its pixels compressed at a level and cut into two chunks."""
    pixels = zlib.compress(rows, level)
    head = struct.pack(">IIBBBBB", 64, len(rows) // 65, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", pixels[:cut]), (b"IDAT", pixels[cut:]), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_pictures_are_packed_and_stay_the_same():
    rows = b"".join(b"\0" + bytes((i * j) % 7 for j in range(64)) for i in range(50))
    small = tool.packed(png_of(rows, 1, 40))
    assert small == png_of(rows, 9, 10_000).replace(struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT")), b"")
    assert len(small) < len(png_of(rows, 1, 40)) and tool.packed(small) == small


def good() -> nbformat.NotebookNode:
    """A notebook that the lint finds nothing wrong with."""
    cells = []
    for i in range(tool.LEAST_COMPARED):
        cell = nbformat.v4.new_code_cell(f"print({i})", id=f"cell-{i}", execution_count=i + 1)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{i}\n")]
        cells.append(cell)
    metadata = {"kernelspec": dict(tool.KERNEL), "language_info": dict(tool.LANGUAGE)}
    nb = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    resigned(nb)
    return nb


def linted(nb, tmp_path) -> list[str]:
    path = tmp_path / "some.ipynb"
    nbformat.write(nb, path)
    return tool.lint(path)


def test_the_lint_accepts_a_good_notebook(tmp_path):
    nb = good()
    assert linted(nb, tmp_path) == []
    figure(nb)
    assert linted(nb, tmp_path) == []


def resigned(nb):
    nb.metadata["speclib"] = {"sources": tool.sources(nb), "outputs": tool.kinds(nb)}


def figure(nb, kind=tool.LIVE[0], **more):
    """A cell behind the others with a figure, which nbval does not compare; its output."""
    cell = nbformat.v4.new_code_cell("figure", id="figure", execution_count=len(nb.cells) + 1)
    cell.metadata["tags"] = [tool.UNTOUCHED]
    data = {kind: {}, "image/png": "eA==", "text/plain": "a figure"} | more
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    nb.cells.append(cell)
    resigned(nb)
    return cell.outputs[0]


def figure_gone(nb):
    figure(nb)
    nb.cells[-1].outputs = []


def picture_gone(nb):
    del figure(nb).data["image/png"]


def plotly_without_a_picture(nb):
    del figure(nb, tool.LIVE[1]).data["image/png"]
    resigned(nb)


def figure_without_words(nb):
    del figure(nb).data["text/plain"]
    resigned(nb)


def state_in_an_output(nb):
    figure(nb, **{"application/vnd.jupyter.widget-state+json": {"state": {}}})


def all_uncompared_gone(nb):
    for cell in nb.cells[-2:]:
        cell.metadata["tags"] = [tool.UNTOUCHED]
    resigned(nb)
    for cell in nb.cells[-2:]:
        cell.outputs = []


def too_large(nb):
    nb.cells[0].outputs[0].text = "x" * tool.MOST_BYTES


def other_kernel(nb):
    nb.metadata.kernelspec.name = "venv-py311"


def other_kernel_title(nb):
    nb.metadata.kernelspec.display_name = "My Python"


def widget_state(nb):
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


def stale_source(nb):
    nb.cells[3].source = "print(33)"


def stale_tag(nb):
    nb.cells[3].metadata["tags"] = [tool.UNTOUCHED]


def never_made(nb):
    del nb.metadata["speclib"]


def cell_not_run(nb):
    nb.cells[5].execution_count = None


def run_twice(nb):
    nb.cells[5].execution_count = 99


def raises(nb):
    nb.cells[0].metadata["tags"] = ["raises-exception"]
    resigned(nb)


def error(nb):
    nb.cells[0].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]


def warning(nb):
    nb.cells[0].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="slow\n"))


def long_cell(nb):
    nb.cells[0].source = "\n".join(["x = 1"] * (tool.MOST_LINES + 1))
    resigned(nb)


def nothing_compared(nb):
    for cell in nb.cells:
        cell.metadata["tags"] = [tool.UNTOUCHED]
    resigned(nb)


def outputs_cleared(nb):
    for cell in nb.cells:
        cell.outputs = []


def only_pictures(nb):
    for cell in nb.cells:
        cell.outputs = [nbformat.v4.new_output("display_data", data={"image/png": "eA=="})]


@pytest.mark.parametrize("spoil, word", [
    (too_large, "bytes"), (other_kernel, "kernel"), (other_kernel_title, "kernel"), (widget_state, "widget state"),
    (stale_source, "changed after"), (stale_tag, "changed after"), (never_made, "changed after"),
    (cell_not_run, "not all run"), (run_twice, "not all run"), (raises, "raises-exception"),
    (error, "ended in an error"), (warning, "stderr"), (long_cell, "lines"), (nothing_compared, "compares only 0"),
    (outputs_cleared, "compares only 0"), (only_pictures, "compares only 0"), (figure_gone, "taken away"),
    (all_uncompared_gone, "taken away"), (picture_gone, "taken away"), (picture_gone, "without a picture"),
    (plotly_without_a_picture, "without a picture"), (figure_without_words, "without a picture"),
    (state_in_an_output, "widget state"),
])  # fmt: skip
def test_the_lint_rejects(spoil, word, tmp_path):
    nb = good()
    spoil(nb)
    assert any(word in fault for fault in linted(nb, tmp_path))


def test_lint_speaks_and_returns_1_on_a_fault(tmp_path, monkeypatch, capsys):
    nb = good()
    widget_state(nb)
    nbformat.write(nb, tmp_path / "some.ipynb")
    monkeypatch.setattr(tool, "NOTEBOOKS", tmp_path)
    assert tool.main(["lint"]) == 1
    assert capsys.readouterr().out.startswith("some: it holds widget state")
    with pytest.raises(SystemExit) as left:
        tool.main(["lint", "absent"])
    assert left.value.code == 2
    assert "there are: some" in capsys.readouterr().err


def test_outputs_runs_the_notebook_and_leaves_it_in_order(tmp_path, monkeypatch):
    """Also with a solved shell, a stray kernel name and widget state from a reader's session."""
    nb = good()
    nb.cells[0].source = "import os\nprint(os.environ.get('SPECLIB_SOLUTIONS'))\nprint('one\\ntwo')"
    nb.metadata.kernelspec.name = "venv-py311"
    widget_state(nb)
    path = tmp_path / "some.ipynb"
    nbformat.write(nb, path)
    monkeypatch.setattr(tool, "NOTEBOOKS", tmp_path)
    monkeypatch.setenv("SPECLIB_SOLUTIONS", "1")
    assert tool.main(["outputs", "some"]) == 0
    made = nbformat.read(path, as_version=4)
    assert made.cells[0].outputs == [{"output_type": "stream", "name": "stdout", "text": "None\none\ntwo\n"}]
    assert [c.metadata for c in made.cells] == [{}] * len(made.cells)
    first = path.read_bytes()
    assert tool.main(["outputs", "some"]) == 0
    assert path.read_bytes() == first


def test_outputs_puts_the_newest_still_into_the_file(tmp_path, monkeypatch):
    nb = good()
    nb.cells.insert(0, nbformat.v4.new_markdown_cell("![](attachment:a.png)", id="top"))
    nb.cells[0]["attachments"] = {"a.png": {"image/png": "b2xk"}}
    new = png_of(bytes(65), 9, 3)
    (tmp_path / "a.png").write_bytes(new)
    nbformat.write(nb, tmp_path / "some.ipynb")
    monkeypatch.setattr(tool, "STILLS", tmp_path)
    tool.make_outputs(tmp_path / "some.ipynb")
    got = nbformat.read(tmp_path / "some.ipynb", 4).cells[0].attachments["a.png"]["image/png"]
    assert base64.b64decode(got) == tool.packed(new)


def test_outputs_leaves_the_file_alone_when_a_cell_fails(tmp_path):
    nb = good()
    nb.cells[2].source = "1 / 0"
    path = tmp_path / "some.ipynb"
    nbformat.write(nb, path)
    before = path.read_bytes()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        tool.make_outputs(path)
    assert path.read_bytes() == before


# --- the notebooks on other machines, with another pair -----------------------------------------------------


def shaken(model, by: float):
    """A draft that is often right: the model, its weights a little off."""
    model = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for weight in model.parameters():
            weight += by * torch.randn(weight.shape)
    return model


@pytest.fixture
def another_pair(tmp_path, monkeypatch):
    """The pair that notebooks load: two tiny Llamas from folders. Its value is the folder of a third, a wider one."""
    target = save(tmp_path / "target", seed=1)
    draft = save(tmp_path / "draft", seed=1)
    with weights.quiet():
        shaken(tiny_llama(seed=1, vocab=320), 0.03).save_pretrained(draft)
    wide = save(tmp_path / "wide", seed=2, vocab=384)
    monkeypatch.setenv("SPECLIB_PAIR", f"{target},{draft}")
    monkeypatch.setenv("SPECLIB_SOLUTIONS", "1")
    return Path(wide)


def worked_through(name: str, **more: str) -> dict:
    """A notebook's code cells run from the top, as one program, with fewer draws. more: a name → what it is set to."""
    names: dict = {}
    for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            source = re.sub(r"\b[23]_000\b", "400", cell.source)
            for one, value in more.items():
                source = re.sub(rf"^{one} = .*", f"{one} = {value}", source, flags=re.M)
            exec(compile(source, cell.id, "exec"), names)
    return names


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_03_compares_in_both_precisions_whichever_the_machine_is_fast_in(dtype, another_pair, monkeypatch):
    monkeypatch.setenv("SPECLIB_DTYPE", dtype)
    found = worked_through("03_greedy")
    assert str(found["pair"].dtype) == f"torch.{dtype}"
    assert (found["exact"].dtype, found["rough"].dtype) == (torch.float32, torch.bfloat16)
    assert (found["rough"] if dtype == "bfloat16" else found["exact"]) is found["pair"]
    assert found["second_family"]() is None and found["in_rough"]


@pytest.mark.filterwarnings("ignore:the draft .* is larger than its target")  # both are tiny, and of one size or nearly
def test_03_takes_a_second_family_where_there_is_one_and_loads_it_once(another_pair, monkeypatch):
    preset = pairs.Preset(pairs.PRESETS["qwen"].target, weights.Folder(another_pair, str(another_pair)))
    monkeypatch.setitem(pairs.PRESETS, "qwen", preset)
    found = worked_through("03_greedy")
    assert found["second_family"]().config.vocab_size == 384
    assert found["second_family"].cache_info().misses == 1
    assert found["foreign"].parts_at is None and all(d < 320 for r in found["foreign"].rounds for d in r.drafts)


@pytest.fixture
def no_second_target(monkeypatch):
    """A machine in fp32 without memory for a target in bf16, too."""
    load = pairs.load

    def refuse(*args, dtype=None, **more):
        if dtype == torch.bfloat16:
            raise pairs.PairError("there is no memory for it")
        return load(*args, dtype=dtype, **more)

    monkeypatch.setenv("SPECLIB_DTYPE", "float32")
    monkeypatch.setattr(pairs, "load", refuse)


def test_03_says_that_there_is_no_memory_for_a_second_target(another_pair, no_second_target, capsys):
    worked_through("03_greedy")
    printed = capsys.readouterr().out
    assert "there is no memory for it" in printed and "No text parted in these runs" in printed


def test_04_says_so_too_and_both_of_its_switches_can_be_turned_off(another_pair, no_second_target, capsys):
    found = worked_through("04_sampling_proof", switch="False")
    assert found["switch"] is False and found["by_enumeration"] < 1e-9
    printed = capsys.readouterr().out
    assert "there is no memory for it" in printed and printed.count("no number would do") == 2


def test_figures_run_what_the_reader_wrote():
    for name, call in (
        ("03_greedy", "record(spec_greedy, *models"),
        ("03_greedy", "tokens, stats = spec_greedy(*models"),
        ("04_sampling_proof", "toy_board(accept_or_fix, residual"),
        ("04_sampling_proof", "accept_or_fix(p, q, rng.draw(q), rng)"),
    ):
        nb = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        assert any(call in c.source for c in nb.cells if c.cell_type == "code"), call


LINK = re.compile(r"Taught in notebook (\S+), section '([^']+)'")


def headings(nb) -> list[str]:
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    return re.findall(r"^## (.+)$", text, re.M)


def docstrings():
    for path in sorted((ROOT / "speclib").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"
                yield where, " ".join(ast.get_docstring(node).split())


LINKS = [(where, *link) for where, text in docstrings() for link in LINK.findall(text)]


def test_links_are_written_in_the_form_that_is_followed():
    assert len(LINKS) >= 10
    assert sum(text.count("Taught in notebook") for _, text in docstrings()) == len(LINKS)


@pytest.mark.parametrize("where, name, section", LINKS, ids=[where for where, *_ in LINKS])
def test_the_docstring_points_to_a_section_that_exists(where, name, section):
    assert name in NAMES
    path = ROOT / "notebooks" / f"{name}.ipynb"
    if path.exists():
        assert section in headings(nbformat.read(path, as_version=4))
