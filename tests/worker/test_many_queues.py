"""One worker and many queues: a busy one is not held up by the idle ones, and nobody waits for long."""

from __future__ import annotations

import time

from celery_sqs_visibility import publish_batch


def queue_names(site, count):
    return [site.queue, *(f"{site.queue[:60]}-idle-{number}" for number in range(1, count))]


def test_a_busy_queue_among_idle_ones_keeps_its_pace(make_site):
    site = make_site(visibility_timeout=120)
    names = queue_names(site, 50)
    site.start(concurrency=2, queues=names)
    site.proxy.wait_for(lambda _: len({call.queue for call in site.proxy.calls("ReceiveMessage")}) >= 5)
    with publish_batch(site.app):
        for key in range(200):
            site.send("quick", key)
    began = time.monotonic()
    site.diary.wait_for("started", 200, timeout=100)
    took = time.monotonic() - began
    assert took < 30, f"{200 / took:.1f} tasks a second"


def test_the_first_message_of_every_idle_queue_starts_soon(make_site):
    site = make_site(visibility_timeout=120)
    names = queue_names(site, 30)
    site.start(concurrency=2, queues=names)
    site.proxy.wait_for(
        lambda _: {call.queue for call in site.proxy.calls("ReceiveMessage")} >= set(names), timeout=40
    )
    sent = {}
    for name in names[::-12]:
        sent[name] = time.time()
        site.app.send_task("work.quick", (name,), queue=name)
    for name, at in sent.items():
        (started,) = site.diary.wait_for("started", key=name, timeout=40)
        assert started["time"] - at < 25, "a turn is 10 s"
