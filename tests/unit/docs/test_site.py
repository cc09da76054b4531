"""The pages and drawings of the documentation, as far as they can be looked at without building the site."""

from __future__ import annotations

import ast
import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))]
DRAWINGS = sorted((DOCS / "images").glob("*.svg"))
# Names of doors that are described in the text, or belong to all doors (docs/api/common.md).
NOT_LISTED = {
    *("Adasum", "Average", "Max", "Min", "Product", "Sum"),
    *("HorovodInternalError", "ProcessSet", "global_process_set"),
    *("callbacks", "elastic", "mpi_ops", "util"),
}
LINK = re.compile(r"\[[^\[\]]*\]\((?P<target>[^()#\s]+)?(?P<anchor>#[^()\s]*)?\)")


def public_names(module: str) -> set[str]:
    """What a door's `__all__` lists, read without importing the door."""
    tree = ast.parse((ROOT / "src" / module.replace(".", "/") / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return {name for name in ast.literal_eval(node.value) if name[0] != "_"}
    raise AssertionError(f"{module} has no __all__")


def text_without_code(path: Path) -> str:
    """A document without fenced blocks and code spans, in which a link would be none."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`]*`", "code", text)


@pytest.mark.parametrize("door", ["torch", "tensorflow", "keras", "numpy"])
def test_the_api_reference_lists_every_public_name_of_a_door(door: str):
    page = (DOCS / "api" / f"{door}.md").read_text()
    listed = set(re.findall(r"^\.\. (?:auto\w+|class):: ([\w.]+)$", page, re.M))
    missing = public_names(f"horovod.{door}") - NOT_LISTED - listed
    assert sorted(name for name in missing if f"`hvd.{name}`" not in page) == []


def test_the_door_of_tf_keras_has_no_name_that_the_page_of_keras_lacks():
    assert public_names("horovod.tensorflow.keras") <= public_names("horovod.keras")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(path: Path):
    targets = [found["target"] for found in LINK.finditer(text_without_code(path))]
    files = [target for target in targets if target and "://" not in target]
    assert [file for file in files if not (path.parent / file).exists()] == []


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), re.M | re.S):
            for line in tree.splitlines():
                name = line[line.find("<") + 1 :].rstrip(">").strip()
                if name and name[0] != ":":
                    listed.add((page.parent / f"{name}.md").resolve())
    assert sorted(set(PAGES) - listed) == [DOCS / "index.md"]
    assert sorted(listed - set(PAGES)) == []


# --- Drawings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_wellformed_has_a_title_and_runs_nothing(path: Path):
    root = ET.parse(path).getroot()
    tags = [element.tag.split("}")[1] for element in root.iter()]
    assert root.get("viewBox") and root.get("class") == "hvd"
    assert tags.count("title") == 1
    assert set(tags) <= {"svg", "title", "style", "text", "rect", "path"}


def test_all_drawings_and_the_style_sheet_know_the_same_colours():
    styles = {re.search(r"<style>.*?</style>", path.read_text(), re.S)[0] for path in DRAWINGS}
    assert len(styles) == 1
    light, dark = colours_of(styles.pop())
    sheet = colours_of((DOCS / "_static" / "site.css").read_text())
    assert sheet == [light, dark, dark]


def colours_of(text: str) -> list[dict[str, str]]:
    """The blocks that set colours, in their order."""
    blocks = re.findall(r"\.hvd \{([^{}]*--ink:[^{}]*)\}", text)
    return [dict(re.findall(r"(--[\w-]+): *(#\w+)", block)) for block in blocks]


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_shown_on_a_page_and_described_in_words(path: Path):
    shown = [
        found[1]
        for page in PAGES
        for found in re.finditer(r"!\[([^\]]*)\]\([^)]*images/" + path.name, page.read_text())
    ]
    assert shown and all(len(words) > 30 for words in shown)


# --- Links from the repository's form to the site's -------------------------------------------------


@pytest.fixture(scope="module")
def site_links():
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("site_conf", DOCS / "conf.py")
    assert spec is not None and spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    return conf._site_links


@pytest.mark.parametrize(
    ("folder", "written", "on_the_site"),
    [
        ("", "[a](docs/knobs.md#x)", "[a](knobs.md#x)"),
        ("", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("", "[LICENSE](LICENSE)", "`LICENSE`"),
        ("", "[a](#here)", "[a](#here)"),
        ("", "[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("docs", "[a](../ARCHITECTURE.md#glossary)", "[a](architecture.md#glossary)"),
        ("docs", "[a](knobs.md)", "[a](knobs.md)"),
        ("docs/guide", "[a](../../README.md)", "[a](../readme.md)"),
        ("docs/guide", "[a](../knobs.md)", "[a](../knobs.md)"),
    ],
)
def test_links_are_turned_into_those_of_the_site(site_links, folder, written, on_the_site):
    assert site_links(written, folder) == on_the_site
