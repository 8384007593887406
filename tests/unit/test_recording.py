"""The picture of `make demo`: a terminal is followed, and its frames become an SVG that can be read."""

from pathlib import Path
from xml.etree import ElementTree as ET

PICTURE = Path(__file__).resolve().parents[2] / "docs/pictures/demo.svg"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 100_000


def test_the_picture_in_the_docs_is_small_and_has_a_text_for_those_who_do_not_see_it():
    assert PICTURE.stat().st_size < MOST_BYTES
    root = ET.parse(PICTURE).getroot()
    labels = {element.get("id"): element.text for element in root if element.get("id")}
    assert root.get("role") == "img"
    assert all(labels[name] for name in root.get("aria-labelledby").split())
    assert "prefers-color-scheme:dark" in root.findtext(f"{SVG}style")
    assert "prefers-reduced-motion" in root.findtext(f"{SVG}style")
