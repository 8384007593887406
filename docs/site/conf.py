"""Sphinx's settings: `make docs`. Its pages are those that pages.py has laid out."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from pages import SOURCE

project = "celery_sqs_visibility"
html_title = project
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_heading_anchors = 4  # named as GitHub names them
myst_enable_extensions = ["html_image"]
# Excerpts: "..." is no JSON.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
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
