"""The documentation as a site: python -m sphinx -W --keep-going docs build/site

Sphinx with furo and MyST, not MkDocs with Material, because

- the reference is made of the docstrings as the built module has them, which autodoc can ask; those
  of the native types are in no file that a reader of sources would find;
- Sphinx knows C: what is in pyfiber.h stands in the same index and search as Python's names;
- links between pages, to headings and to names are checked by the build itself (-W), and the search
  works from a file system, without a server;
- CPython's own documentation is made with Sphinx, which is maintained; MkDocs' last release is of
  2024.

The pages stay plain Markdown that reads well in the repository, where their programs are tests.
"""

from __future__ import annotations

import re
import sys
import tomllib
from functools import partial
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

with (ROOT / "pyproject.toml").open("rb") as file:
    metadata = tomllib.load(file)["project"]

project = "pyfiber"
author = "the authors of pyfiber"
release = version = metadata["version"]
copyright = f"{author}, MIT license"

sys.path.insert(0, str(HERE / "extensions"))
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "c_header",
    "stub_signatures",
    "twins",
]
exclude_patterns = ["extensions"]

# The reference is of the pyfiber that this interpreter imports. What only some programs have need
# not be installed for it.
autodoc_mock_imports = [
    "billiard",
    "celery",
    "gunicorn",
    "httptools",
    "kombu",
    "psycopg",
    "psycopg2",
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # the standard library has its own reference
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 180  # as autodoc writes it, with the names of modules
default_role = "code"  # docstrings have `names` in single backticks
smartquotes = False  # what is quoted is often code: on_unhandled="raise"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # a link may lead to any heading, named as in the repository's own view

html_theme = "furo"
html_title = f"pyfiber {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(HERE / "search_scorer.js")

# A button copies code without prompts; of a session in a shell it copies the commands. What a
# program prints has no button.
copybutton_selector = "div:not(.output) > div.highlight > pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False

# Where the links lead that leave docs/: the repository, as soon as the project has an address.
SOURCE = metadata.get("urls", {}).get("Source", "").rstrip("/")
STARRED = re.compile(r"^(\S+\*)\n", re.MULTILINE)
UPWARD = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
PRINTS = re.compile(r"^<!-- prints -->\n+(```+)(\w+)\n", re.MULTILINE)
FILE_NAMED = re.compile(r"\[(\w+)\.md\](?=\(\1\.md[)#])")


def leads(page: Path, match: re.Match[str]) -> str:
    """A link to a file of the repository; its words alone where nobody could follow it."""
    text, path, anchor = match.groups()
    target = (page.parent / path).resolve()
    if target.is_relative_to(HERE):
        return match[0]
    if not target.exists():
        logger.warning("%s: a link leads to %s, which is not there", page, path)
    kind = "tree" if target.is_dir() else "blob"
    address = f"{SOURCE}/{kind}/main/{target.relative_to(ROOT)}{anchor or ''}"
    return f"[{text}]({address})" if SOURCE else text


def if_there(page: Path, match: re.Match[str]) -> str:
    """An entry with * of a table of contents is for a page that may come."""
    return match[0] if any(page.parent.glob(f"{match[1]}.md")) else ""


def rewrite(app: Sphinx, name: str, content: list[str]) -> None:
    """The pages are written for the repository; on the site, its files are elsewhere."""
    page = Path(app.env.doc2path(name))
    if name == "index":
        content[0] = STARRED.sub(partial(if_there, page), content[0])
    content[0] = PRINTS.sub(r"\1{code-block} \2\n:class: output\n\n", content[0])
    content[0] = UPWARD.sub(partial(leads, page), content[0])
    content[0] = FILE_NAMED.sub(r"[\1]", content[0])  # a page here, no file


def setup(app: Sphinx) -> None:
    app.connect("source-read", rewrite)
