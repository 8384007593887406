"""Celery's side of the model of a whole worker: what its main thread keeps, and what its pool runs."""

import functools
from weakref import ref

from celery_sqs_visibility.core.delivery import Inactivity, Wait
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Hold, Lapse
from celery_sqs_visibility.policy.prefetch import Slots


def retry(run, world):
    """As a copy that waits for its time."""
    delivery, body = run.delivery, run.payload["body"]
    renew = delivery.renewal(
        world.clock.wall() + 60,
        lambda one: (world.account.body_of(run), one.message_attributes),
        Hold(run.payload),
    )
    delivery.settle(renew or Hide(30))
    return body


#: The inactivity timeout of those runs that have one, in seconds. They show life only as they begin.
INACTIVITY = 20

#: How a run may end: what settles its delivery.
ENDS = {
    "success": lambda run, _: run.delivery.settle(Delete()),
    "success, too": lambda run, _: run.delivery.settle(Delete()),
    "failure": lambda run, _: run.delivery.settle(Hide(7)),
    "failure, for long": lambda run, _: run.delivery.settle(Hide(400)),
    "failure, at its own time": lambda run, _: run.delivery.settle(Lapse()),
    "release": lambda run, _: run.delivery.settle(RELEASE),
    "an error": lambda run, _: run.delivery.settle(run.delivery.after_an_error()),
    "comes back": lambda run, _: run.delivery.come_back(ValueError("elsewhere")),
    "given up": lambda run, world: run.delivery.give_up("broken", lambda: world.account.body_of(run)),
    "rejected": lambda run, _: run.delivery.reject(requeue=False),
    "requeued": lambda run, _: run.delivery.reject(requeue=True),
    "retry": retry,
}


class Run:
    """A request of Celery's."""

    def __init__(self, delivery, payload, world):
        self.delivery, self.payload = delivery, payload
        self.id = delivery.facts.message_id
        self.keys = payload["keys"]
        self.early = delivery.acknowledged_early = world.chance.random() < world.pool.early
        self.began = False
        self.ends_when_lost = world.chance.random() < 0.5
        self.given_up = False  # since it was lost: its process is being killed
        delivery.carrier = ref(self)


class Pool:
    """Slots, and the requests that Celery keeps beyond these."""

    def __init__(self, world, slots, *, dispatches):
        self.world = world
        self.number, self.prefetch_count = slots, slots * 2
        self.dispatches = dispatches  # whether it has processes, which nothing keeps from running
        self.reserved, self.starting, self.running = [], [], []
        self.early = 0.15  # so often a message is acknowledged when its run begins
        self.known = []  # every run, as long as the process lives: nothing is freed by being forgotten

    def slots(self):
        return Slots(self.number, self.prefetch_count, idle=not (self.running or self.starting))

    def on_message(self, payload, _delivery):
        world = self.world
        delivery = world.consumer.holder.get(payload["handle"])
        assert delivery is not None, "Celery finds what it is given"
        run = Run(delivery, payload, world)
        run.delivery.on_lost = functools.partial(self.end_lost, run)
        if world.watches_runs and len(self.known) % 4 == 0:
            run.delivery.inactivity = Inactivity(INACTIVITY, functools.partial(self.end_inactive, run))
        if len(self.known) % 5 == 0:  # it waits for its ETA or its rate
            run.delivery.consumer.rest(run.delivery, list(Wait)[1 + len(self.known) % 2])
        self.known.append(run)
        self.reserved.append(run)
        self.fill()
        if world.chance.random() < 0.3:
            world.scheduler.sleep(0.004)

    def fill(self):
        """What finds a slot begins."""
        while self.reserved and len(self.running) + len(self.starting) < self.number:
            run = self.reserved.pop(0)
            if run.delivery.held:
                run.delivery.consumer.resume(run.delivery)
            if not self.dispatches or run.delivery.dispatch():
                self.starting.append(run)
                self.world.do(self.begin, run, name=f"begins {run.id}")

    def begin(self, run):
        if self.dispatches:
            self.world.scheduler.sleep(self.world.chance.choice([0.0, 0.01, 1.0]))
        if run not in self.starting:
            return
        may = run.delivery.start()
        if run not in self.starting:
            return  # the process has ended meanwhile
        self.starting.remove(run)
        if may:
            self.world.account.begun(run)
            self.running.append(run)
            run.began = True
            self.show_life(run)
            if run.early and run.delivery.settle(Delete()):
                self.world.account.finished(run)
        else:
            self.fill()

    def pick(self, which):
        return self.running[which % len(self.running)] if self.running else None

    def end(self, run, how):
        if run not in self.running:
            return
        self.running.remove(run)
        account = self.world.account
        if run.early:
            account.done.update(run.keys)
            run.delivery.run_ended()
        else:
            account.ending(run, how)
            if ENDS[how](run, self.world) and how.startswith("success"):
                account.finished(run)
            assert not run.delivery.settle(Delete()), "a second settlement does nothing"
        self.fill()

    def end_lost(self, run, receipt):
        """As Celery's request does it: it is told without a lock, and its holder says who was first.

        It may have been settled since it was lost, by its run's own end, or have come back.
        """
        self.world.account.counts["told lost"] += 1
        if run.ends_when_lost and run in self.running:
            run.given_up = True
            run.given_up = run.delivery.holder.settle(run.delivery, Lapse(), receipt)
        if run.given_up:
            if run.early:
                run.delivery.run_ended()
            if run in self.running:  # else it has just ended, too late to settle anything
                self.running.remove(run)
            self.fill()

    def show_life(self, run):
        current = run.delivery
        if current.inactivity is not None and current.lease is not None:
            current.lease.last_sign = self.world.now

    def end_inactive(self, run):
        """As Celery's request does it: its run is killed, and fails. The supervisor's thread."""
        self.world.account.counts["told inactive"] += 1
        if run in self.running:
            self.end(run, "failure")

    def revoke(self, run):
        if run in self.reserved:
            self.reserved.remove(run)
            if run.delivery.settle(Delete()):
                self.world.account.finished(run)
                self.world.account.done.update(run.keys)

    def kill(self):
        """The process ends."""
        self.world.account.killed([run for run in self.running if run.early])
        self.reserved, self.starting, self.running = [], [], []
