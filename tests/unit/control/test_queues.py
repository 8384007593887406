"""The list of queues is what processes share: cached, paged by the port, and swept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock
from support.factories import requests

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.control import queues as directory
from celery_sqs_visibility.control.queues import (
    ALIVE_TAG,
    EXCHANGE_TAG,
    LIST_SECONDS,
    NODE_TAG,
    SIGN_OF_LIFE_SECONDS,
    STALE_SECONDS,
    SWEPT_QUEUES,
    ControlQueues,
    is_stale,
    tags_of,
)
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.control_names import address_in

EXCHANGE = "celery.pidbox"


@pytest.fixture
def sqs(clock):
    return FakeSQS(clock)


@pytest.fixture
def queues(sqs, clock):
    return ControlQueues(sqs, "p-", {"team": "a"}, clock)


def names(sqs):
    return {url.rpartition("/")[2] for url in sqs.list_queues("")}


def test_a_queue_is_tagged_and_forgets_by_itself(sqs, queues):
    queue = queues.create(EXCHANGE, "a@host")
    (created,) = requests(sqs, "CreateQueue")
    assert created["attributes"] == {"MessageRetentionPeriod": "60", "VisibilityTimeout": "600"}
    assert sqs.queue_tags(queue)[NODE_TAG] == "a@host"
    assert sqs.queue_tags(queue)["team"] == "a"
    assert queues.url_of(EXCHANGE, address_in(queue)) == queue
    assert queues.create(EXCHANGE, "a@host") != queue


def test_only_queues_of_the_exchange_and_prefix_are_found(sqs, clock, queues):
    mine = queues.create(EXCHANGE, "a@host")
    queues.create("other.pidbox", "a@host")
    queues.create(f"reply.{EXCHANGE}", "a@host")
    ControlQueues(sqs, "q-", {}, clock).create(EXCHANGE, "a@host")
    sqs.create_queue(mine.rpartition("/")[2][:-13], {}, {})
    assert queues.find(EXCHANGE) == [mine]


def test_the_list_is_cached_but_not_for_a_node_that_it_lacks(sqs, clock, queues):
    first = queues.create(EXCHANGE, "a@host")
    assert queues.find(EXCHANGE) == queues.find(EXCHANGE) == [first]
    assert len(requests(sqs, "ListQueues")) == 1
    second = queues.create(EXCHANGE, "b@host")
    assert queues.find(EXCHANGE) == [first]
    assert queues.find(EXCHANGE, ["b@host"]) == [second]
    clock.advance(LIST_SECONDS)
    queues.find(EXCHANGE)
    assert len(requests(sqs, "ListQueues")) == 3


def test_what_a_killed_worker_has_left_hides_no_other_node(queues):
    queues.create(EXCHANGE, "a@host")
    queues.create(EXCHANGE, "a@host")
    queues.find(EXCHANGE)
    other = queues.create(EXCHANGE, "b@host")
    assert other in queues.find(EXCHANGE, ["a@host", "b@host"])


def test_a_queue_that_is_gone_is_forgotten(sqs, queues):
    first, second = (queues.create(EXCHANGE, node) for node in ("a", "b"))
    urls = queues.find(EXCHANGE)
    queues.delete(first)
    queues.delete(first)
    assert queues.send(EXCHANGE, urls, "body") == 1
    assert queues.find(EXCHANGE) == [second]


@pytest.mark.parametrize(
    ("error", "failures", "deletions"),
    [(ThrottledError, 2, 3), (UnavailableError, 9, 3), (AccessDeniedError, 9, 1)],
)
def test_a_deletion_that_fails_for_a_moment_is_repeated(
    sqs, queues, caplog, monkeypatch, error, failures, deletions
):
    monkeypatch.setattr(directory, "pause", lambda _failures: 0)
    queue = queues.create(EXCHANGE, "a")
    for _ in range(failures):
        sqs.fail_next("DeleteQueue", error("no"))
    queues.delete(queue)
    assert len(requests(sqs, "DeleteQueue")) == deletions
    assert (names(sqs) == set()) == ("cannot delete a control queue" not in caplog.text) == (failures == 2)


def test_a_message_that_reached_nobody_is_an_error(sqs, queues):
    urls = [queues.create(EXCHANGE, node) for node in ("a", "b")]
    for _ in urls:
        sqs.fail_next("SendMessage", AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        queues.send(EXCHANGE, urls, "body")
    assert queues.send(EXCHANGE, [], "body") == 0


def test_a_message_that_did_not_reach_all_is_told_and_one_more_attempt_made(sqs, queues, caplog):
    urls = [queues.create(EXCHANGE, node) for node in ("a", "b")]
    sqs.fail_next("SendMessage", ThrottledError("slow down"))
    assert queues.send(EXCHANGE, urls, "body") == 2
    sqs.fail_next("SendMessage", AccessDeniedError("no"))
    assert queues.send(EXCHANGE, urls, "body") == 1
    assert "did not reach 1 of 2 queues" in caplog.text


def test_a_thousand_workers_take_a_page_of_the_list_and_a_request_each(sqs, queues):
    for number in range(1000):
        queues.create(EXCHANGE, f"worker{number}@host")
    assert queues.send(EXCHANGE, queues.find(EXCHANGE), "body") == 1000
    assert len(requests(sqs, "SendMessage")) == 1000
    assert len(requests(sqs, "ListQueues")) == 1


def test_a_sweep_goes_on_while_it_finds_stale_queues(sqs, clock, queues):
    for number in range(3 * SWEPT_QUEUES):
        queues.create(EXCHANGE, f"killed{number}")
    name = queues.create(EXCHANGE, "x").rpartition("/")[2]
    foreign = sqs.create_queue(f"{name[:-1]}{'1' if name.endswith('0') else '0'}", {}, {})
    clock.advance(STALE_SECONDS + 1)
    queues.sweep("other.pidbox")
    assert len(names(sqs)) == 3 * SWEPT_QUEUES + 2
    queues.sweep(EXCHANGE)
    queues.sweep(EXCHANGE)
    assert foreign.rpartition("/")[2] in names(sqs)
    assert len(names(sqs)) == 1


def test_a_sweep_of_living_queues_looks_at_a_few_and_deletes_none(sqs, clock, queues):
    living = [queues.create(EXCHANGE, f"worker{number}") for number in range(50)]
    clock.advance(STALE_SECONDS + 1)
    for queue in living:
        queues.renew(queue)
    queues.sweep(EXCHANGE)
    assert len(requests(sqs, "ListQueueTags")) == SWEPT_QUEUES
    assert requests(sqs, "DeleteQueue") == []
    assert sqs.queue_tags(living[0])[ALIVE_TAG] == str(int(clock.wall()))


def test_two_sweepers_do_not_harm_each_other(sqs, clock, queues, caplog):
    queues.create(EXCHANGE, "killed")
    clock.advance(STALE_SECONDS + 1)
    sqs.fail_next("DeleteQueue", QueueDoesNotExistError("gone"))
    queues.sweep(EXCHANGE)
    assert not caplog.records


def test_a_sweep_goes_on_after_a_round_in_which_one_queue_was_stale(sqs, clock, queues, monkeypatch):
    stale = [queues.create(EXCHANGE, f"killed{number}") for number in range(2)]
    clock.advance(STALE_SECONDS + 1)
    for number in range(2 * SWEPT_QUEUES - 2):
        queues.create(EXCHANGE, f"worker{number}")

    def living_but_one(urls):
        living = [url for url in urls if url not in stale]
        urls[:] = [stale[0], *living[:-1], stale[1], living[-1]]

    monkeypatch.setattr(directory.random, "shuffle", living_but_one)
    queues.sweep(EXCHANGE)
    assert [each["queue_url"] for each in requests(sqs, "DeleteQueue")] == stale


def test_a_queue_that_is_gone_and_was_never_listed_is_no_error(sqs, queues):
    queue = queues.create(EXCHANGE, "a")
    queues.delete(queue)
    assert queues.send(EXCHANGE, [queue], "body") == 0
    assert queues.find(EXCHANGE) == []


def test_a_list_from_which_a_queue_was_taken_is_no_newer_for_that(sqs, clock, queues):
    first, second = (queues.create(EXCHANGE, node) for node in ("a", "b"))
    urls = queues.find(EXCHANGE)
    clock.advance(LIST_SECONDS - 1)
    queues.delete(first)
    queues.send(EXCHANGE, urls, "body")
    third = queues.create(EXCHANGE, "c")
    assert queues.find(EXCHANGE) == [second]
    clock.advance(1)
    assert queues.find(EXCHANGE) == [second, third]


def test_an_address_of_another_form_or_before_the_first_queue_has_no_url(queues):
    own = address_in(queues.create(EXCHANGE, "a"))
    assert queues.url_of(EXCHANGE, "no-address") is None
    assert ControlQueues(queues.sqs, "p-", {}, FakeClock()).url_of(EXCHANGE, own) is None


def test_a_list_is_made_at_most_once_for_a_node_that_nobody_is(sqs, queues):
    queues.create(EXCHANGE, "a")
    assert queues.find(EXCHANGE, ["nobody"]) == []
    assert len(requests(sqs, "ListQueues")) == 1
    assert queues.find(EXCHANGE, ["nobody"]) == []
    assert len(requests(sqs, "ListQueues")) == 2


@pytest.mark.parametrize("action", ["ListQueues", "DeleteQueue"])
def test_a_sweep_that_is_refused_is_told(sqs, clock, queues, caplog, action):
    queues.create(EXCHANGE, "killed")
    clock.advance(STALE_SECONDS + 1)
    sqs.fail_next(action, AccessDeniedError("no"))
    queues.sweep(EXCHANGE)
    assert "cannot sweep control queues of processes that are gone, which stay" in caplog.text
    assert len(names(sqs)) == 1


NOW = 1_700_000_000.0


@given(st.floats(0, NOW), st.text(), st.text())
def test_a_queue_is_stale_when_its_signs_of_life_have_ended(age, exchange, node):
    tags = tags_of(exchange, node, NOW - age)
    assert is_stale(tags, exchange, NOW) == (NOW - int(NOW - age) > STALE_SECONDS)
    assert all(len(value) <= 256 for value in tags.values())


def test_several_signs_of_life_may_be_missed_and_clocks_differ():
    assert STALE_SECONDS >= 2 * SIGN_OF_LIFE_SECONDS + 2 * 300


@pytest.mark.parametrize(
    "change",
    [
        {EXCHANGE_TAG: "other.pidbox"},
        {NODE_TAG: None},
        {ALIVE_TAG: None},
        {ALIVE_TAG: "-1"},
        {ALIVE_TAG: "²"},
    ],
)
def test_a_queue_without_our_tags_is_never_stale(change):
    tags = {**tags_of("celery.pidbox", "a@host", 0.0), **change}
    assert not is_stale({k: v for k, v in tags.items() if v is not None}, "celery.pidbox", NOW)
