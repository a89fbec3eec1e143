"""The pages: built without a warning, every public name on the API page, no link into nothing; and the fork's CI."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import yaml
from markdown.extensions.toc import slugify

import speclib

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
TEXTS = [*sorted(REPOSITORY.glob("*.md")), *PAGES, *sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]


def load_tool():
    spec = importlib.util.spec_from_file_location("api_page", REPOSITORY / "tools" / "api_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built pages; a warning would have ended the build."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an announcement, of no page of ours
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr.strip(), ended.stderr
    return folder


class Page(HTMLParser):
    """The anchors of a page, and what it loads from somewhere else."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {found["id"]} if found.get("id") else set()
        self.loads += [found[a] for a in ("src", "href") if found.get(a) and tag in ("script", "img", "link", "iframe")]


def test_every_public_name_has_its_anchor_on_the_api_page(site):
    ids = Page(site / "api" / "index.html").ids
    assert [name for name, home in speclib._HOME.items() if f"speclib.{home}.{name}" not in ids] == []
    assert "speclib.decode.decode" in ids


def test_the_hook_reads_the_names_that_the_package_offers():
    assert tool.public_names() == speclib._HOME


def test_every_page_is_built_and_loads_nothing_from_the_web(site):
    for source in PAGES:
        page = site / "index.html" if source.stem == "index" else site / source.stem / "index.html"
        assert [url for url in Page(page).loads if re.match(r"(https?:)?//", url)] == [], source.name


def test_the_hook_wants_its_mark_and_leaves_other_pages_alone():
    class Named:
        def __init__(self, name: str):
            self.file = type("File", (), {"src_uri": name})

    assert tool.on_page_markdown("as it was", Named("index.md")) == "as it was"
    with pytest.raises(ValueError, match=r"docs/api\.md has no line"):
        tool.on_page_markdown("as it was", Named("api.md"))


def prose(path: Path) -> str:
    """A page's text, or a notebook's Markdown, without blocks of code."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link into a file may name after its #: Jupyter's, mkdocs' and GitHub's slugs of its headings."""
    titles = re.findall(r"^#{1,6}\s+(.+?)\s*$", prose(path), flags=re.MULTILINE)
    plain = [re.sub(r"[`*]", "", title) for title in titles]
    github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}
    return frozenset({title.replace(" ", "-") for title in plain} | {slugify(t, "-") for t in plain} | github)


def targets(text: str) -> list[str]:
    """What the links and pictures of a Markdown text point to."""
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    named = re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, flags=re.MULTILINE)
    return inline + named + re.findall(r"(?:href|src)=\"([^\"]+)\"", text)


def broken(path: Path, text: str) -> list[str]:
    """Links of a text, read as standing in path, whose file or heading is not there."""
    out = []
    for target in targets(text):
        if re.match(r"[a-z][a-z+.-]*:", target):  # https:, mailto:, attachment:
            continue
        name, _, heading = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (heading and file.suffix in (".md", ".ipynb") and heading not in anchors(file)):
            out.append(target)
    return out


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_exist(path):
    assert broken(path, prose(path)) == []


@pytest.mark.parametrize(
    ("text", "ill"),
    [
        ("[a](comparison.md) [b](comparison.md#engines) ![c](stills/01_distributions.png)", []),
        ("[a](gone.md)", ["gone.md"]),
        ("[a](comparison.md#gone)", ["comparison.md#gone"]),
        ("[a][b]\n\n[b]: gone.md", ["gone.md"]),
        ("![a](stills/gone.png)", ["stills/gone.png"]),
        ('<img src="gone.png">', ["gone.png"]),
        ("[a](../notebooks/03_greedy.ipynb#Nowhere)", ["../notebooks/03_greedy.ipynb#Nowhere"]),
        ("[a](https://example.org/gone)", []),
    ],
)
def test_a_link_into_nothing_is_noticed(text, ill):
    assert broken(REPOSITORY / "docs" / "index.md", text) == ill


def test_the_comparison_names_files_that_exist_and_sources_that_it_lists():
    text = (REPOSITORY / "docs" / "comparison.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:speclib|tests|notebooks|results)/[^`]+|SCOREBOARD\.md)`", text)
    assert len(files) > 20 and [name for name in files if not (REPOSITORY / name).exists()] == []
    used, listed = set(re.findall(r"\]\[([\w-]+)\]", text)), set(re.findall(r"^\[([\w-]+)\]: http", text, re.MULTILINE))
    assert used == listed
    # Every cell is answered: yes, no or partly, and only ours may go without a link.
    rows = [line.split("|")[2:-1] for line in text.splitlines() if re.match(r"\| (?!feature)", line)]
    assert len(rows) > 20 and {len(row) for row in rows} == {5, 7}
    for ours, *others in rows:
        assert re.match(r" (yes|no|partly)\b", ours), ours
        assert all(re.match(r" (\[(yes|no|partly)\]\[[\w-]+\]|yes, raced by `)", cell) for cell in others), others


def test_the_forks_ci_runs_what_ci_run_runs_on_both_processors():
    flow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    # YAML reads a bare `on` as true.
    assert set(flow[True]) == {"push", "schedule", "workflow_dispatch"}
    assert re.fullmatch(r"\d+ \d+ 1 \* \*", flow[True]["schedule"][0]["cron"]), "monthly"
    job = flow["jobs"]["test"]
    assert job["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert job["container"] == "debian:12" and job["timeout-minutes"] == 60
    assert job["env"]["PIP_EXTRA_INDEX_URL"] == "https://download.pytorch.org/whl/cpu"
    install, _, kept, run = job["steps"]
    assert {"git", "make", "python3", "python3-venv", "ca-certificates"} <= set(install["run"].split())
    assert kept["with"]["path"].split() == [job["env"]["PIP_CACHE_DIR"], job["env"]["SPECLIB_CACHE"]]
    assert "hashFiles('constraints.txt')" in kept["with"]["key"]
    assert run["run"].splitlines()[-1] == "bash .ci/run"


def test_who_reports_a_problem_is_asked_for_three_things():
    form = yaml.safe_load((REPOSITORY / ".github" / "ISSUE_TEMPLATE" / "problem.yml").read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    assert [field["id"] for field in form["body"]] == ["typed", "seen", "doctor"]
    assert all(field["validations"]["required"] for field in form["body"])
    assert "speclib doctor" in form["body"][2]["attributes"]["label"]
