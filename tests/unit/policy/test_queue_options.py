"""Options of single queues: checked one by one and together, and found by name or glob."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options


def options(queues, **others):
    return Options.parse({"queues": queues, **others})


def refusal(queues, **others):
    with pytest.raises(OptionError) as caught:
        options(queues, **others)
    return str(caught.value)


def test_a_queue_has_its_own_options_and_for_the_rest_those_of_all():
    parsed = options(
        {"reports": {"visibility_timeout": "600", "error_visibility_timeout": [5, 10]}},
        wait_time_seconds=7,
        dead_letter_queue="dead",
    )
    reports, other = parsed.for_queue("reports"), parsed.for_queue("other")
    assert (reports.visibility_timeout, reports.heartbeat_interval) == (600, 200)
    assert reports.error_visibility_timeout.delay(1, ValueError()) == 10
    assert (reports.wait_time_seconds, reports.dead_letter_queue) == (7, "dead")
    assert (other.visibility_timeout, other.heartbeat_interval, other.error_visibility_timeout) == (
        120,
        40,
        None,
    )
    assert (parsed.longest_visibility_timeout, parsed.longest_poll) == (600, 7)


@pytest.mark.parametrize(
    ("queue", "weight"), [("high", 8), ("high-1", 2), ("high-low", 2), ("low", 3), ("a.low", 3), ("else", 1)]
)
def test_the_name_goes_first_and_then_the_first_glob_that_matches(queue, weight):
    queues = {"high*": {"weight": 2}, "*low": {"weight": 3}, "high": {"weight": 8}}
    assert options(queues).for_queue(queue).weight == weight


@pytest.mark.parametrize(
    ("queue", "for_all", "heartbeat_interval"),
    [
        ({"visibility_timeout": 30}, {"heartbeat_interval": 60}, 10),
        ({"visibility_timeout": 30}, {"heartbeat_interval": 0}, 0),
        ({"visibility_timeout": 30, "heartbeat_interval": 20}, {}, 20),
        ({"visibility_timeout": None, "heartbeat_interval": ""}, {"heartbeat_interval": 7}, 7),
    ],
)
def test_the_heartbeat_follows_the_queues_own_timeout(queue, for_all, heartbeat_interval):
    assert options({"q": queue}, **for_all).for_queue("q").heartbeat_interval == heartbeat_interval


def test_a_longer_sleep_of_a_queue_needs_no_longer_longest_sleep():
    q = options({"q": {"polling_interval": 5}}, polling_interval_max=3).for_queue("q")
    assert (q.polling_interval, q.polling_interval_max) == (5, 5)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([], ["expected queues", "mapping"]),
        ({5: {}}, ["names of queues", "5"]),
        ({"q": 5}, ["queues['q']", "mapping"]),
        ({"q": {"visibilty_timeout": 5}}, ["queues['q']", "visibilty_timeout", "'visibility_timeout'"]),
        ({"q": {"region": "x"}}, ["'region'", "queues['q']", "weight"]),
        ({"q": {"visibility_timeout": 0}}, ["queues['q']['visibility_timeout']", "between 1 and 43200", "0"]),
        ({"q": {"heartbeat_interval": 120}}, ["queues['q']", "visibility_timeout (120)", "120"]),
        ({"q": {"polling_interval": 9, "polling_interval_max": 1}}, ["queues['q']", "at least", "9", "1"]),
        ({"q": {"error_visibility_timeout": [1, "x"]}}, ["queues['q']['error_visibility_timeout'][1]", "x"]),
        ({"q": {"dead_letter_queue": "a:b"}}, ["queues['q']['dead_letter_queue']", "a:b"]),
        *(
            ({"q": {"max_running": wrong}}, ["queues['q']['max_running']", "between 1 and", repr(wrong)])
            for wrong in (0, 1.5, True, "many", 10**5, float("inf"))
        ),
    ],
)
def test_a_refusal_names_queue_option_value_and_bound(queues, words):
    sentence = refusal(queues)
    assert [word for word in words if word not in sentence] == []


@pytest.mark.parametrize("name", ["weight", "max_running"])
def test_an_option_of_queues_only_is_refused_for_all_with_its_place(name):
    with pytest.raises(OptionError, match=f"there is no transport option '{name}': .*queues"):
        Options.parse({name: 3})


@given(st.lists(st.text("ab*?[]", max_size=3), unique=True), st.text("ab", max_size=3))
def test_any_globs_give_every_queue_options(globs, queue):
    parsed = options({glob: {"weight": number + 1} for number, glob in enumerate(globs)})
    found = parsed.for_queue(queue)
    assert found.weight == (1 if found.place == len(globs) else found.place + 1)
