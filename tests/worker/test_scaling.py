"""The formulae of docs/scaling.md, held against what real workers ask of SQS."""

import pytest
from support.app import CONSTANTS
from support.scaling import scaling

SETTLE_WINDOW = "celery_sqs_visibility.transport.receiving.SETTLE_WINDOW_SECONDS"


def entries(site, action):
    """How many entries each request of that action had."""
    return [len(call.request["Entries"]) for call in site.proxy.calls(action)]


@pytest.mark.own_pool
def test_a_hundred_quick_tasks_cost_ten_receives_and_ten_deletes(make_site):
    work = scaling.Workload("quick", 0.05, slots=10, multiplier=0, settle_window=60)  # all batches fill up
    site = make_site({CONSTANTS: {SETTLE_WINDOW: work.settle_window}})
    for key in range(200):  # behind a hundred there is a backlog, or several polls would share the last ten
        site.send("quick", key)
    each = scaling.calls(work)
    assert site.proxy.count("SendMessage") == 200 * each.send
    site.start(pool="threads", concurrency=work.slots, prefetch_multiplier=work.multiplier)
    site.diary.wait_for("started", 200)
    site.proxy.wait_for(lambda _: sum(entries(site, "DeleteMessageBatch")) == 200)
    first = sorted(site.brought(), key=lambda call: call.started)[: round(100 * each.receive)]
    assert sum(len(call.response["Messages"]) for call in first) == 100
    assert entries(site, "DeleteMessageBatch") == [10] * round(200 * each.delete)
    assert site.proxy.count("ChangeMessageVisibilityBatch") == each.change_visibility == 0


LONG = {"seconds": 9, "multiplier": 1, "visibility_timeout": 6}


@pytest.mark.parametrize(
    ("arguments", "work", "calls"),
    [
        # Its extensions are farther from its end than a busy machine is late.
        (["slow", "a", 9], scaling.Workload("slow", slots=1, settle_window=0, **LONG), (1, 2, 1)),
        (["number", "a"], scaling.Workload("number", 1, slots=1, settle_window=0, retries=1), (2, 1, 1)),
    ],
    ids=["of nine seconds is extended twice", "that is retried is hidden and received once more"],
)
def test_a_task_costs_what_was_computed(make_site, arguments, work, calls):
    site = make_site(visibility_timeout=work.visibility_timeout)
    site.start(concurrency=1, prefetch_multiplier=1)
    site.send(*arguments)
    site.diary.wait_for("done", key="a")
    site.proxy.wait_for_calls("DeleteMessageBatch")
    changes, deletes = map(site.proxy.count, ["ChangeMessageVisibilityBatch", "DeleteMessageBatch"])
    each = scaling.calls(work)
    assert (len(site.brought()), changes, deletes) == calls
    assert (each.receive, each.change_visibility, each.delete) == calls
