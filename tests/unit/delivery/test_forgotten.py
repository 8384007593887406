"""A worker that has none but messages of which nothing here knows is seen; no other is."""

import gc
import threading
from weakref import ref

import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility.core.settlements import Hold
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS
from celery_sqs_visibility.delivery.watches import ENOUGH_CHECKS, GARBAGE_CHECKS
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.policy.health import (
    FORGOTTEN_SECONDS,
    LATE_SECONDS,
    WorkerFacts,
    WorkerPhase,
    liveness,
)


def look(world, seconds=FORGOTTEN_SECONDS + 1):
    """Have the supervisor look for that long; for how many seconds there were none but forgotten messages."""
    for _ in range(int(seconds / CHECK_INTERVAL_SECONDS) + 1):
        world.consumer._forgotten.replace_stuck(world.clock.monotonic())
        world.clock.advance(CHECK_INTERVAL_SECONDS)
        world.extend()
    return world.consumer.forgotten


def is_live(world, **facts):
    return liveness(WorkerFacts(WorkerPhase.RUNNING, **facts)).ok


def test_a_message_that_neither_could_be_handed_over_nor_settled_is_given_back(world, queue, monkeypatch):
    def lacks_memory(*_):
        raise MemoryError

    world.buffered(queue, "a", on_message=lacks_memory)
    with monkeypatch.context() as memory:
        memory.setattr(world.consumer.holder, "settle", lacks_memory)
        with pytest.raises(MemoryError):
            world.hand_over()
    assert world.held() == 1
    assert is_live(world, forgotten=look(world))
    assert world.held() == 0


@pytest.mark.parametrize("where", ["buffer", "Celery", "pool", "nowhere"])
def test_messages_that_somebody_has_are_well(world, queue, where):
    if where == "buffer":
        world.buffered(queue, "a")
    if where in ("Celery", "pool"):
        (delivery,) = world.deliveries(queue, "a")
        assert where == "Celery" or delivery.start()
    assert look(world) == 0.0


class Request:
    """As Celery's, which holds the message that it settles."""


@pytest.mark.parametrize("superseded", [False, True])
def test_a_message_whose_request_is_gone_is_given_back(world, queue, superseded, caplog):
    (delivery,) = world.deliveries(queue, "a")
    request = Request()
    delivery.carrier = ref(request)
    assert delivery.start()
    if superseded:
        world.come_back(queue)
        assert delivery.facts.receive_count == 2
    look(world, 2)
    assert world.held() == 1
    del request
    look(world, (ENOUGH_CHECKS - 1) * CHECK_INTERVAL_SECONDS)
    assert world.held() == 1
    look(world, CHECK_INTERVAL_SECONDS)
    assert world.held() == 0
    assert "RuntimeError('its run was dropped, unreported')" in caplog.text


def test_so_is_one_whose_run_is_left_in_a_cycle_by_a_thread_that_died(world, queue):
    (delivery,) = world.deliveries(queue, "a")
    request = Request()
    request.traceback = request
    delivery.carrier = ref(request)
    assert delivery.start()
    gc.disable()
    try:
        del request
        look(world, (GARBAGE_CHECKS - 1) * CHECK_INTERVAL_SECONDS)
        assert world.held() == 1
        look(world, (ENOUGH_CHECKS + 2) * CHECK_INTERVAL_SECONDS)
        assert world.held() == 0
    finally:
        gc.enable()


def test_a_message_that_its_request_wanted_copied_in_vain_waits_for_another_request(world, queue):
    (delivery,) = world.deliveries(queue, "a")
    request = Request()
    delivery.carrier = ref(request)
    payload = world.handed[0]
    renew = delivery.renewal(world.clock.wall() + 1, lambda _: ("a", {}), Hold(payload))
    assert renew is not None
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    assert delivery.settle(renew)
    del request
    wait_until(lambda: len(world.buffer) == 1, SOON, "it to be buffered")
    look(world)
    assert world.held() == 1, "Celery has not been given it yet"


def test_a_supervisor_that_hangs_is_late_and_the_probe_does_not_wait(world, queue, monkeypatch):
    world.buffered(queue, "a")
    supervisor = world.consumer._supervisor
    supervisor._running = True
    world.clock.advance(2 * CHECK_INTERVAL_SECONDS)  # so that it is late until it looks
    hangs, go_on = threading.Event(), threading.Event()

    def hang(_now):
        hangs.set()
        go_on.wait(SOON)

    monkeypatch.setattr(world.consumer._receivers.get("q"), "replace_stuck", hang)
    thread = threading.Thread(target=supervisor.lane.send_next, daemon=True)
    thread.start()
    assert hangs.wait(SOON)
    assert supervisor.late(world.clock.monotonic()) == 0
    world.clock.advance(LATE_SECONDS + 1)
    now = world.clock.monotonic()
    facts = {"polls": world.consumer.polling_facts(now), "duties": world.consumer.duty_facts(now)}
    go_on.set()
    thread.join(SOON)
    verdict = liveness(WorkerFacts(WorkerPhase.RUNNING, **facts))
    assert not verdict.ok
    assert "replaces threads that hang" in verdict.reason
