"""A worker's diary is read line by line as it is written."""

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryFacts
from celery_sqs_visibility.testing.diary import Diary

FACTS = DeliveryFacts("orders", "m1", 1, 0.0, "shop.charge", "t1")
EVENTS = [
    events.Received(FACTS),
    events.Started(FACTS),
    events.Failed(FACTS, 1, "ValueError()", 10, last=False),
    events.Hidden(FACTS, 10),
]


def test_a_diary_is_read_as_it_is_written_line_by_line(tmp_path):
    written, read = Diary(tmp_path / "diary"), Diary(tmp_path / "diary")
    assert read.read() == []
    written.write_ready()
    for event in EVENTS:
        written.write(event)
    assert read.read() == EVENTS
    assert read.is_ready
    with read.path.open("ab") as file:
        file.write(b'{"event": "Del')
    assert read.read() == []
