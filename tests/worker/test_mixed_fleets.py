"""Workers of this transport and stock ones, of kombu's own, share a queue: docs/mixed-fleets.md tells."""

from __future__ import annotations

import dataclasses

import pytest
from support.app import behind

#: Seconds. The queue's own visibility timeout is that of stock workers' messages, which nobody extends.
OF_THE_QUEUE = "8"
OURS = 6


@dataclasses.dataclass
class Fleet:
    """A site with workers of both transports, of old or new code."""

    site: object

    def ours(self, code="new", **options):
        return self.site.start("fleet", env={"FLEET": code}, **options)

    def stock(self, code="old", **options):
        config = {**behind(self.site.proxy.url, self.site.config), "broker_transport": "sqs"}
        return self.site.start_worker("fleet", config=config, env={"FLEET": code}, **options)

    def send(self, task, *args, **options):
        return self.site.app.send_task(f"fleet.{task}", args, **options)

    def until_over(self, result, state="FAILURE"):
        """Wait for that state in the end, and for an empty queue."""

        def over(_):
            return result.state == state and self.site.counts() == (0, 0)

        self.site.proxy.wait_for(over)

    def runs(self):
        """Where each run was, and which attempt it took itself for."""
        return [(entry["on"], entry["retries"]) for entry in self.site.diary.entries("started")]


@pytest.fixture
def fleet(make_site):
    site = make_site(visibility_timeout=OURS, wait_time_seconds=1)
    site.create_queue(VisibilityTimeout=OF_THE_QUEUE)
    return Fleet(site)


@pytest.fixture
def redriven(make_site):
    """A fleet whose queue has a dead-letter queue."""
    site = make_site(visibility_timeout=OURS, wait_time_seconds=1)
    site.dead = site.create_queue_with_dead_letters(receives=5)
    site.sqs.set_queue_attributes(QueueUrl=site.url, Attributes={"VisibilityTimeout": OF_THE_QUEUE})
    return Fleet(site)


def end(worker):
    worker.terminate()
    assert worker.wait_exit() == 0


def deleted(site):
    """What SQS said that it deleted. A stock worker that is told to end before sends its message again."""
    return [call for call in site.proxy.calls("DeleteMessage") if call.status == 200]


@pytest.mark.parametrize("transport", ["stock", "ours"])
def test_the_old_code_does_not_see_the_attempts_of_a_message_that_was_hidden(fleet, transport):
    result = fleet.send("retried", "a")
    worker = fleet.ours()
    fleet.site.diary.wait_for("started", 2)
    end(worker)
    (fleet.stock if transport == "stock" else fleet.ours)("old")
    fleet.until_over(result)
    assert fleet.runs() == [("ours", 0), ("ours", 1), *((transport, retries) for retries in range(4))]
    assert all(entry["headers"] is None for entry in fleet.site.diary.entries("started"))


def test_attempts_are_counted_right_while_all_workers_run_the_old_code(fleet):
    result = fleet.send("retried", "a")
    worker = fleet.stock()
    fleet.site.proxy.wait_for(lambda _: deleted(fleet.site))
    end(worker)
    fleet.ours("old")
    fleet.until_over(result)
    transports, retries = zip(*fleet.runs(), strict=True)
    assert set(transports) == {"stock", "ours"}
    assert retries == (0, 1, 2, 3)


def test_an_eta_that_a_stock_worker_gave_back_loses_no_attempt(fleet):
    result = fleet.send("retried", "a", countdown=20, delay_seconds=0)
    worker = fleet.stock()
    fleet.site.proxy.wait_for(lambda _: fleet.site.counts() == (0, 1))
    end(worker)
    fleet.ours()
    fleet.until_over(result)
    assert fleet.runs() == [("ours", retries) for retries in range(4)]


@pytest.mark.parametrize(("first", "retries"), [("ours", 0), ("stock", 1)])
def test_the_message_of_a_killed_worker_comes_back_to_the_other_kind(fleet, first, retries):
    workers = {"ours": fleet.ours, "stock": fleet.stock}
    result = fleet.send("slow", "a", 5)
    worker = workers.pop(first)()
    fleet.site.diary.wait_for("started")
    worker.kill()
    (other,) = workers
    workers[other]()
    fleet.until_over(result, "SUCCESS")
    assert fleet.runs() == [(first, 0), (other, retries)]


def test_a_stock_worker_runs_a_visibility_task_as_a_plain_one(fleet):
    failed, looked = fleet.send("unhandled", "a"), fleet.send("looking", "b")
    fleet.stock("new")
    fleet.until_over(looked, "SUCCESS")
    fleet.until_over(failed)
    assert fleet.site.diary.count("started", key="a") == 1, "nothing tries it again"
    views = fleet.site.diary.entries("looked")
    assert [(view["lost"], view["stopping"], view["remaining"]) for view in views] == [
        (False, False, float("inf"))
    ] * 2, "released once"


def test_a_task_that_a_stock_worker_did_not_know_runs_here(redriven):
    result = redriven.send("added", "a")
    worker = redriven.stock()
    worker.wait_for_log("unregistered task of type 'fleet.added'")
    redriven.site.proxy.wait_for(lambda _: result.state == "FAILURE")
    end(worker)
    redriven.ours()
    redriven.site.diary.wait_for("started")
    redriven.site.proxy.wait_for(lambda _: redriven.site.counts() == (0, 0))
    assert redriven.runs() == [("ours", 1)]
    assert redriven.site.counts(redriven.site.dead) == (0, 0)


def test_a_failed_run_that_a_stock_worker_left_to_sqs_is_given_up_here(redriven):
    result = redriven.send("left_to_sqs", "a")
    worker = redriven.stock()
    redriven.site.proxy.wait_for(lambda _: result.state == "FAILURE")
    end(worker)
    redriven.ours().wait_for_log("was given up before")
    redriven.site.proxy.wait_for(lambda _: redriven.site.counts(redriven.site.dead) == (1, 0))
    assert redriven.runs() == [("stock", 0)]
