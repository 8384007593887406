"""What holds of a simulated worker's threads whenever none can go on, and at rest."""

import select

from support.scheduler import MOMENT

from celery_sqs_visibility.core.capacity import Taken
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS

#: Seconds in which a poll, and the threads of a worker that is closed, end: a long poll, and more.
END_SECONDS = 30

#: Times that the model of a worker goes on until all is done.
ROUNDS = 400


def check_wakes(world):
    """Who waits has no reason to go on, or was woken."""
    now = world.now
    for consumer in world.consumers:
        for lane in (*consumer._lanes, *(receiver.lane for receiver in consumer._receivers.all())):
            check_lane(lane, now)
    if world.main.readable is not None and not select.select([world.main.readable], [], [], 0)[0]:
        assert not world.buffer._is_ready(), "the event loop is woken for what may go"
    check_waiters(world.consumer.capacity, world)


def check_lane(lane, now):
    """The scheduler wakes no thread for nothing: a spare one would wait less long."""
    due, waiting = lane._work.due(now), lane._pump._woken.waiting
    if due is None or not lane.started or not lane.room:
        return
    assert waiting, f"no thread {lane.duty}"
    until = min(thread.until for thread in waiting)
    assert until <= max(due, now) + MOMENT, f"nobody has woken the thread that {lane.duty}"


def check_waiters(capacity, world):
    """Free capacity is given to those that wait for it.

    A share of a queue that was paused or stopped is not, nor is what a queue may have from when another is
    known that it overtakes. The supervisor gives them that.
    """
    shares = capacity._queues.total(), len(world.turns.turns._begun) if world.turns else 0
    if shares != world.shares:
        world.shares, world.shared_at = shares, world.now
    checked_since = max(world.shared_at, world.account.awake_since)  # no supervisor runs in a sleep
    settled = world.now - checked_since > CHECK_INTERVAL_SECONDS
    if settled and world.prefetch_seconds == 0:
        waiters = list(capacity.waiters)
        with world.pump.lock:
            capacity.serve(world.now)
        served = [waiter.queue for waiter in waiters if waiter.reservation is not None]
        assert not served, f"there was capacity for {served}"


def check_rest(world):
    """All that is due is done, and nothing is left of it."""
    left = []
    for _ in range(ROUNDS):
        world.end_all()
        world.scheduler.advance(1)
        world.all_is_well()
        if not is_busy(world):
            left = [message for message in world.messages.values() if not is_given_up(world, message)]
            if not left:
                break
            # Others of its group wait behind a hidden message of a FIFO queue, also if it is given up.
            # Nothing is held meanwhile, so the machine may as well sleep, but for the poll that brings it.
            groups = {message.group for message in left} - {None}
            awaited = [one for one in world.messages.values() if one in left or one.group in groups]
            hidden = [message.visible_at for message in awaited if message.visible_at > world.now]
            wait = min(hidden, default=world.now) - world.now
            world.clock.advance(max(0, wait - END_SECONDS))
            world.scheduler.advance(min(wait, END_SECONDS))
    assert not left, f"all is done: {left}"
    for consumer in world.consumers:
        check_nothing_is_kept(world, consumer)
    check_nothing_is_known(world)
    world.do(world.consumer.close, name="close")
    world.scheduler.advance(END_SECONDS)
    others = [thread for thread in world.scheduler.threads if thread is not world.main]
    assert not others, f"threads end: {others}"


def is_busy(world):
    """Requests under way count too: a message that is given up may still be deleted."""
    pool = world.pool
    held = any(
        len(consumer.held())
        or consumer.holder.settler.batches.unfinished
        or consumer.holder.copies.pending.unfinished
        for consumer in world.consumers
    )
    starting = not world.has_started or world.ending
    return starting or held or pool.running or pool.starting or pool.reserved


def is_given_up(world, message):
    return world.account.given_up.issuperset(world.account.keys_in(message.body))


def check_nothing_is_kept(world, consumer):
    capacity = consumer.capacity
    assert len(consumer.held()) == 0, "nothing is held"
    assert not consumer.holder._held.postponed, "no settlement waits"
    assert consumer.holder.next_extension() is None, "nothing is to be extended"
    assert not consumer.holder.settler.batches.unfinished, "everything is settled"
    assert not consumer.holder.copies.pending.unfinished, "all copies are sent"
    assert capacity.held == capacity.runs == 0, "no capacity is taken"
    assert capacity._fifo == Taken(), "no capacity of FIFO queues is taken"
    assert not capacity._aside, "nothing is set aside"
    assert not capacity._places.resting, "nothing rests"
    receivers = [receiver for each in world.consumers for receiver in each._receivers.all()]
    polls = sum(receiver.in_flight for receiver in receivers)
    assert sum(capacity._asked.counts.polls.values()) <= polls, "only polls ask for messages"


def check_nothing_is_known(world):
    assert not any(map(len, world.buffers)), "nothing is buffered"
    assert not world.leases._taken, "no run has a lease"
    assert not world.consumer.holder._held.messages, "nothing is known as held"
    if world.turns is not None:
        for queue in world.queues:
            assert world.turns.turns.held(queue) == 0, "nothing counts for its queue"
            assert world.turns.turns.begun(queue) == 0, "nothing has a turn"
