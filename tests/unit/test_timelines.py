"""The pictures of docs/visibility.md are those of the record beside them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

SCENES = ["life", "error", "no-life", "long-task", "crash", "deploy"]


@pytest.fixture
def timelines(benchmark_module):
    return benchmark_module("timelines_picture")


@pytest.fixture
def record(timelines):
    return json.loads(timelines.RECORD.read_text())


def test_the_record_has_every_scene_and_is_written_as_make_timelines_writes_it(timelines, record):
    assert list(record) == SCENES == list(timelines.TITLES)
    assert timelines.RECORD.read_text() == timelines.text_of(record)


@pytest.mark.parametrize("scene", SCENES)
def test_a_picture_is_drawn_from_the_record(timelines, record, scene):
    picture = timelines.PICTURES / f"{scene}.svg"
    assert picture.read_text() == timelines.pictures(record)[picture.name], "make timelines"


@pytest.mark.parametrize("scene", SCENES)
def test_a_picture_has_a_text_for_those_who_do_not_see_it(timelines, scene):
    root = ET.parse(timelines.PICTURES / f"{scene}.svg").getroot()
    assert root.get("role") == "img"
    assert "received by worker 1 for" in root.findtext("{http://www.w3.org/2000/svg}desc")


def test_a_message_is_hidden_until_the_last_request_for_it_says(timelines):
    received = {"at": 1, "what": "received", "seconds": 6}
    extended = {"at": 5, "what": "extended", "seconds": 6}
    assert timelines.hidden([received, extended, {"at": 7, "what": "deleted"}]) == [(1, 7)]
    assert timelines.hidden([received, {**received, "at": 9}, {"at": 9.5, "what": "released"}]) == [
        (1, 7),
        (9, 9.5),
    ]
