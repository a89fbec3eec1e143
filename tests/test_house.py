"""The house rules: imports run one way, files stay short, nothing is there that no one calls, one word for a thing."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "speclib"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in FILES}


def imports(file, everywhere):
    """The package's modules that a file imports, at its top or also inside functions; not what only types need."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = set()

    def look(node, top):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.update({f"{child.module}.{alias.name}" for alias in child.names} | {child.module})
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not (inside and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)) or everywhere:
                look(child, top and not inside)

    look(tree, True)
    return {module for module in found if module in MODULES}


def test_imports_run_one_way():
    graph = {}
    for module, file in MODULES.items():
        graph[module] = {m for m in imports(file, everywhere=False) if m != module and not module.startswith(f"{m}.")}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, naming the ring
    assert set(order) == set(MODULES)


def test_the_loop_knows_no_drafter_but_the_default_and_no_figure_loads_a_model():
    assert not {m for m in imports(MODULES["speclib.decode"], True) if m.startswith("speclib.drafters.")}
    for module, file in MODULES.items():
        if module.startswith("speclib.figures"):
            assert "speclib.pairs" not in imports(file, True), module
        if module.startswith("speclib.serve"):
            assert "speclib.accept" not in imports(file, True), module


@pytest.mark.parametrize("module", MODULES)
def test_a_file_is_read_in_one_sitting(module):
    # The command line is a list of options, not a text that is read.
    most = 320 if module == "speclib.cli" else 280
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= most


# What the proofs of the tests need, and nobody else.
FOR_TESTS = {"speclib.toy.FixedLM", "speclib.wrong.WASTEFUL", "speclib.wrong.SEEDED"}


def test_one_file_alone_touches_the_cache_of_transformers():
    """The name of the argument and what `crop` counts are what its versions change."""
    moving = re.compile(r"\bcache=\w|past_key_values|\.crop\(")
    touched = {file.name for file in FILES if moving.search(file.read_text(encoding="utf-8"))}
    assert touched == {"context.py"}


def test_nothing_is_there_that_no_one_calls():
    """Every public function, class and constant of a module is named in another file, or at least twice in its own."""
    files = [*FILES, *(ROOT / "tools").glob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    words = {file: Counter(re.findall(r"\w+", file.read_text(encoding="utf-8"))) for file in files}
    unused = []
    for module, file in MODULES.items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = []
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            for name in names:
                decorated = getattr(node, "decorator_list", [])
                elsewhere = any(name in of for other, of in words.items() if other != file)
                if not elsewhere and words[file][name] < 2 and not decorated and not name.startswith("__"):
                    unused.append(f"{module}.{name}")
    assert set(unused) == FOR_TESTS


def untyped(body, inside=False):
    """The public functions and methods there whose arguments or result have no type: name and line."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from untyped(node.body, inside=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            found = node.args
            named = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
            bare = [a.arg for a in named if a and a.annotation is None]
            bare = bare[1:] if inside and bare[:1] in (["self"], ["cls"]) else bare
            if bare or (node.returns is None and node.name != "__init__"):
                yield f"{node.name}, line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_have_type_hints(module):
    assert list(untyped(ast.parse(MODULES[module].read_text(encoding="utf-8")).body)) == []


@pytest.mark.parametrize(
    ("source", "ill"),
    [
        ("def f(a: int, *b: int, c: int = 1, **d: int) -> int: ...", 0),
        ("class A:\n def __init__(self, a: int): ...\n def f(self) -> None: ...\n def _f(self, a): ...", 0),
        ("def f(a) -> int: ...", 1),
        ("def f(a: int): ...", 1),
        ("def f(*a) -> int: ...", 1),
        ("class A:\n def f(self, *, a) -> int: ...\n def __init__(self, a): ...", 2),
    ],
)
def test_a_missing_type_is_noticed(source, ill):
    assert len(list(untyped(ast.parse(source).body))) == ill


COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(rgb|hsl)a?\(|['\"](white|black|gr[ae]y|red|green|blue)['\"]")


def test_colours_are_written_in_one_file():
    found = [
        f"{file.name}: {match.group()}"
        for file in (PACKAGE / "figures").glob("*.py")
        if file.name != "style.py"
        for match in COLOUR.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == [], "use a name of the palette, or style.tint"


FORBIDDEN = {
    r"\bassistant model\b|\bassistant_model\b": "draft",
    r"\bgamma\b|\bγ\b": "K",
    r"(?<!--)\bdrafter model\b|\bproposal model\b": "draft",
    r"\bacceptance ratio\b|\bhit rate\b": "α̂ or acceptance rate",
    r"\bcorrection token\b|\bresampled token\b": "fix",
}
OF_OTHERS = {"speclib/peers.py", "speclib/draft.py"}  # they speak of transformers' own arguments


@pytest.mark.parametrize("word", FORBIDDEN)
def test_one_word_for_one_thing(word):
    files = [*FILES, *(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md"]
    found = [
        f"{file.name}: {match.group()}"
        for file in files
        if str(file.relative_to(ROOT)) not in OF_OTHERS
        for match in re.finditer(word, file.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert found == [], f"say {FORBIDDEN[word]}"
