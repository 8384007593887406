"""The pictures of docs/visibility.md are those of the record beside them."""

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


@pytest.mark.parametrize("scene", SCENES)
def test_a_picture_is_drawn_from_the_record(timelines, record, scene):
    picture = timelines.PICTURES / f"{scene}.svg"
    assert picture.read_text() == timelines.pictures(record)[picture.name], "make timelines"


@pytest.mark.parametrize("scene", SCENES)
def test_a_picture_has_a_text_for_those_who_do_not_see_it(timelines, scene):
    root = ET.parse(timelines.PICTURES / f"{scene}.svg").getroot()
    assert root.get("role") == "img"
    assert "received by worker 1 for" in root.findtext("{http://www.w3.org/2000/svg}desc")
