"""Settings of the documentation site: `make docs` builds it into build/docs/html."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

import horovod

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The doors are imported for the API reference; TensorFlow need not say what processor it found.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "Horovod"
author = "the Horovod authors"
project_copyright = "the Horovod authors, Apache License 2.0"
version = release = horovod.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True
# Types of other packages, which this site does not link to: it is built without the network. And ours that
# are there for annotations only.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|np|numpy|tf|tensorflow|keras|jax|collections)\b.*"),
    (r"py:.*", r"(Tensor|Array|ArrayLike|Any|Callable|Iterable|Mapping|Sequence)"),
    (r"py:.*", r"(horovod\.common\.process_sets\.)?MPI\.Comm"),
    (r"py:.*", r"horovod\.common\.compression\..*"),
]

autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# Docstrings say `name` as Markdown does, and mean code.
default_role = "code"
python_maximum_signature_line_length = 88
maximum_signature_line_length = 88

highlight_language = "none"
html_theme = "furo"
html_title = f"Horovod {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

DOORS = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.numpy")

# Documents at the root of the repository that are pages of the site too. The file in docs/ of that name is
# for readers of the repository and says where the document is.
ROOT_PAGES = {
    "architecture": "ARCHITECTURE.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "readme": "README.md",
}
_TO_ROOT_PAGE = {name: f"{page}.md" for page, name in ROOT_PAGES.items()}


def _site_links(text: str, folder: str) -> str:
    """Links between Markdown files of the repository as links between pages of the site.

    Args:
        text: of a page.
        folder: of the file with this text, from the root: "" or "docs", "docs/guide", ...
    """
    up = "../" * (folder.count("/") + 1) if folder else ""
    back = "../" * folder.count("/")  # from the page's folder to docs/

    def replaced(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3]
        if target.startswith(up) and target[len(up) :] in _TO_ROOT_PAGE:
            return f"[{shown}]({back}{_TO_ROOT_PAGE[target[len(up) :]]}{anchor})"
        if folder or "://" in target:
            return found[0]
        if target.startswith("docs/"):
            return f"[{shown}]({target.removeprefix('docs/')}{anchor})"
        return f"`{target}`"  # a file that is no page

    return re.sub(r"\[([^\[\]]*)\]\(([^()#\s]+)((?:#[^()\s]*)?)\)", replaced, text)


def _read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname in ROOT_PAGES:
        path = ROOT / ROOT_PAGES[docname]
        app.env.note_dependency(str(path))
        source[0] = _site_links(path.read_text(encoding="utf-8"), "")
    else:
        folder = "/".join(["docs", *docname.split("/")[:-1]])
        source[0] = _site_links(source[0], folder)


class InlinePictures(SphinxPostTransform):
    """Puts our drawings into the page itself, where they follow its light and dark colours."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: object) -> None:
        """Replaces images of SVG files by their text."""
        for image in list(self.document.findall(nodes.image)):
            uri = image["uri"]
            if not uri.endswith(".svg") or "://" in uri:
                continue
            drawing = (Path(self.app.srcdir) / uri).read_text(encoding="utf-8")
            drawing = drawing[drawing.index("<svg") :]
            html = f'<div class="drawing">{drawing}</div>'
            image.replace_self(nodes.raw("", html, format="html"))


def _plain_function(method: Any) -> Any:
    """The same as a function: autodoc loses an argument each time it meets one bound method again."""

    @functools.wraps(method.__func__)
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    del function.__wrapped__  # type: ignore[attr-defined]
    function.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return function


def _plain_functions(door: ModuleType) -> None:
    for name, value in list(vars(door).items()):
        if inspect.ismethod(value):
            setattr(door, name, _plain_function(value))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects what is defined here to Sphinx."""
    for door in DOORS:
        _plain_functions(importlib.import_module(door))
    app.connect("source-read", _read_source)
    app.add_post_transform(InlinePictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
