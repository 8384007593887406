"""Letters that have something in common are one group."""

import click
import pytest

from celery_sqs_visibility.operate.dead_letters.groups import grouped, grouping, show_groups


def summary(letter_id, exception, age, **others):
    facts = {"task": "proj.charge", "reason": "failed", "source_queue": "proj", "worker": None}
    return {"id": letter_id, "exception": exception, "age_seconds": age, **facts, **others}


SUMMARIES = [
    summary("a-long-id", "proj.Down: no route to 10.0.0.1", 90),
    summary("b-long-id", "ValueError: odd", 7200, task="proj.import_object"),
    summary("c-long-id", "proj.Down: no route to 10.0.0.2", 5),
    summary("d-long-id", None, 40),
]


def test_the_largest_group_is_first_and_an_exception_is_its_class():
    assert grouped(SUMMARIES, ("exception", "task")) == [
        {
            "exception": "proj.Down",
            "task": "proj.charge",
            "count": 2,
            "oldest_seconds": 90,
            "newest_seconds": 5,
            "example": "c-long-id",
        },
        {
            "exception": "ValueError",
            "task": "proj.import_object",
            "count": 1,
            "oldest_seconds": 7200,
            "newest_seconds": 7200,
            "example": "b-long-id",
        },
        {
            "exception": None,
            "task": "proj.charge",
            "count": 1,
            "oldest_seconds": 40,
            "newest_seconds": 40,
            "example": "d-long-id",
        },
    ]


@pytest.mark.parametrize(
    ("by", "counts"), [("task", [3, 1]), ("source_queue", [4]), ("worker,task", [3, 1])], ids=str
)
def test_groups_are_of_what_is_named(by, counts):
    assert [group["count"] for group in grouped(SUMMARIES, grouping(by))] == counts


def test_a_table_has_a_group_a_line(capsys):
    by = ("exception", "source_queue")
    show_groups(grouped(SUMMARIES, by), by)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "exception   source queue  count  oldest  newest  example",
        "proj.Down   proj              2  1m30s   5s      c-long-i",
    ]


def test_names_are_taken_once_and_with_spaces():
    assert grouping("task, exception,task") == ("task", "exception")
    with pytest.raises(click.BadParameter, match="got ''"):
        grouping("")
