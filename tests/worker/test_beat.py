"""Two beats on one FIFO queue: each due time once, also after one of them has died."""

import itertools
import json
import re
import signal
import sys
from base64 import b64decode
from collections import Counter
from datetime import datetime

import pytest
from support.processes import SOON, GuardedProcess, wait_until
from support.redis_server import failover
from support.worker import environment

EVERY_SECONDS = 2


@pytest.fixture
def start_beat(proxy, tmp_path):
    """`start_beat(config)`: a beat with our scheduler, behind the proxy."""
    beats = []

    def start(config):
        path = tmp_path / f"beat{len(beats)}"
        command = [sys.executable, "-m", "celery", "-A", "work", "beat", "--pidfile=", "-l", "INFO"]
        command += ["-S", "celery_sqs_visibility.beat:Scheduler", "-s", f"{path}.schedule"]
        env = environment(config, AWS_ENDPOINT_URL_SQS=proxy.url)
        beats.append(GuardedProcess(command, tmp_path / f"{path}.log", env))
        return beats[-1].start().wait_for_log("Sending due task")

    yield start
    for beat in beats:
        beat.stop()


def refused(beats):
    """What a beat did not send, since the other had claimed it: `name@due`."""
    return [key for beat in beats for key in re.findall(r"another beat sends (\S+)", beat.log)]


def sent_keys(site):
    """How often each `name@due` was sent to a standard queue, which takes no deduplication id."""
    bodies = (json.loads(b64decode(call.request["MessageBody"])) for call in site.proxy.calls("SendMessage"))
    return Counter(body["properties"]["MessageDeduplicationId"] for body in bodies)


def test_while_the_store_hangs_every_task_is_sent_and_claimed_again_after(
    make_site, start_beat, hanging_store
):
    site = make_site(coordination_store=hanging_store.url)
    site.create_queue()
    names = [f"tick{number}" for number in range(12)]
    site.config["beat_schedule"] = {
        name: {"task": "work.quick", "schedule": EVERY_SECONDS, "args": [name]} for name in names
    }
    beat = start_beat(site.config)
    with hanging_store.hang():
        beat.wait_for_log("could not be claimed, and is sent")
        before = len(site.proxy.calls("SendMessage"))
        site.proxy.wait_for_calls("SendMessage", before + 3 * len(names))
    beat.wait_for_log("answers again")
    beats = [beat, start_beat(site.config)]
    wait_until(lambda: any("another beat sends" in each.log for each in beats), SOON, "a claim")


def test_two_beats_send_each_due_task_once_after_a_failover_of_their_redis(make_site, start_beat, tmp_path):
    with failover(tmp_path) as (address, fail_over):
        site = make_site(coordination_store=address.url)
        site.create_queue()
        site.config["beat_schedule"] = {
            name: {"task": "work.quick", "schedule": EVERY_SECONDS, "args": [name]} for name in "abc"
        }
        beats = [start_beat(site.config), start_beat(site.config)]
        wait_until(lambda: refused(beats), SOON, "a claim")
        fail_over()
        before = len(refused(beats))
        wait_until(lambda: len(refused(beats)) >= before + 12, SOON, "claims after the failover")
        claimed = set(refused(beats))
        site.proxy.wait_for(lambda _: claimed <= sent_keys(site).keys())
    assert set(sent_keys(site).values()) == {1}
    assert not any("could not be claimed" in beat.log for beat in beats)


def test_two_beats_send_each_due_time_once_and_one_goes_on_without_the_other(make_fifo_site, start_beat):
    site = make_fifo_site()
    site.config["beat_schedule"] = {
        "tick": {"task": "work.quick", "schedule": EVERY_SECONDS, "args": ["tick"]}
    }

    def keys():
        return [call.request["MessageDeduplicationId"] for call in site.proxy.calls("SendMessage")]

    beats = [start_beat(site.config), start_beat(site.config)]
    site.proxy.wait_for(lambda _: len(keys()) - len(set(keys())) >= 3)
    beats[0].signal_group(signal.SIGKILL)
    both = len(set(keys()))
    site.proxy.wait_for(lambda _: len(set(keys())) >= both + 2)
    beats[1].stop()
    due = [datetime.fromisoformat(key.removeprefix("tick@").rstrip("Z")) for key in sorted(set(keys()))]
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(due)]
    assert set(gaps) == {EVERY_SECONDS}
    assert site.counts()[0] == len(due) < len(keys())
    assert "twice" not in beats[0].log, "no warning"
