"""The picture of `make demo`: a terminal is followed, and its frames become an SVG that can be read."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PICTURE = Path(__file__).resolve().parents[2] / "docs/pictures/demo.svg"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 100_000


@pytest.fixture
def recording(benchmark_module):
    return benchmark_module("recording")


def texts(screen):
    return [[(column, text) for column, text, _ in row] for row in screen.shown(9)]


def test_a_screen_follows_a_table_that_is_drawn_again(recording):
    screen = recording.Screen(40)
    screen.feed("first\r\n\x1b[1;32mdone\x1b[0m  2 s")
    assert screen.shown(9)[1] == ((0, "done", (1, 32)), (6, "2 s", ()))
    screen.feed("\r\x1b[2K\x1b[1A\x1b[2Kfirst\r\nfailed")
    assert texts(screen) == [[(0, "first")], [(0, "failed")]]


def test_a_screen_breaks_what_is_too_long_and_shows_its_last_rows(recording):
    screen = recording.Screen(4)
    screen.feed("abcdef\r\n")
    assert texts(screen) == [[(0, "abcd")], [(0, "ef")]]
    assert [row[0][1] for row in screen.shown(1)] == ["ef"]


def test_a_frame_has_whole_characters_and_whole_colours(recording, tmp_path):
    halves = (
        "import os; [os.write(1, each) for each in (b'\\xe2\\x96', b'\\x88\\x1b[1', b';31mred\\x1b[0m\\n')]"
    )
    frames = recording.record([sys.executable, "-c", halves], tmp_path)
    assert frames[-1][1] == [((0, "█", ()), (1, "red", (1, 31)))]


def test_a_program_that_fails_makes_no_picture(recording, tmp_path):
    with pytest.raises(SystemExit, match="no such thing"):
        recording.record([sys.executable, "-c", "import sys; sys.exit('no such thing')"], tmp_path)


def test_a_row_is_drawn_once_for_as_long_as_it_lasts(recording):
    same, other = ((0, "a <task>", ()),), ((2, "later", (31,)),)
    drawn = recording.picture([(0.0, [same]), (1.0, [same, other]), (9.0, [same])])
    assert drawn.count("a &lt;task&gt;") == 1
    # The second pause is cut to two seconds; the last frame stays for eight, and comes first.
    assert "animation:11.0s step-end -3.0s" in drawn
    assert "9.09%{visibility:visible}27.27%{visibility:hidden}" in drawn


def test_the_picture_in_the_docs_is_small_and_has_a_text_for_those_who_do_not_see_it():
    assert PICTURE.stat().st_size < MOST_BYTES
    root = ET.parse(PICTURE).getroot()
    labels = {element.get("id"): element.text for element in root if element.get("id")}
    assert root.get("role") == "img"
    assert all(labels[name] for name in root.get("aria-labelledby").split())
    assert "prefers-color-scheme:dark" in root.findtext(f"{SVG}style")
    assert "prefers-reduced-motion" in root.findtext(f"{SVG}style")
