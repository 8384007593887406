"""Sphinx's settings: `make docs`. Its pages are those that pages.py has laid out."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT, SOURCE

project = "celery_sqs_visibility"
version = release = re.search(
    r'__version__ = "(.+)"', (ROOT / "celery_sqs_visibility/__init__.py").read_text()
)[1]
html_title = f"{project} {version}"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_heading_anchors = 4  # named as GitHub names them
myst_enable_extensions = ["html_image"]
# Excerpts: "..." is no JSON.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"
# A console's block is copied without its prompts and without what the commands print.
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_logo = html_favicon = "static/logo.svg"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "top_of_page_buttons": [],
    "footer_icons": [{"name": "Repository", "url": SOURCE, "html": "Repository", "class": ""}],
}

ANCHOR = re.compile(r'<a id="(.+)">')


def note_options(app, doctree):
    """Have the search find each option by its name."""
    if app.env.current_document.docname == "options":
        for each in doctree.findall(nodes.raw):
            if anchor := ANCHOR.match(each.astext()):
                app.env.domains.standard_domain.note_object("confval", anchor[1], anchor[1])


def setup(app):
    app.connect("doctree-read", note_options)
