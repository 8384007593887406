"""`celery sqs doctor` as a process, on queues of moto's."""

from __future__ import annotations

import pytest
from support.commands import run_celery, run_json
from support.faults import error


def found(report):
    return [(finding["severity"], finding["thing"]) for finding in report["findings"]]


def contents(site, *urls):
    """What a probe could change: messages by their state, and how often they were received."""
    return [site.counts(url) for url in urls], site.sqs.list_queues(QueueNamePrefix=site.queue)["QueueUrls"]


def test_queues_settings_and_permissions_are_checked_and_nothing_is_changed(make_site):
    site = make_site(wait_time_seconds=0)
    dead = site.create_queue_with_dead_letters(3)
    site.send("quick", "a")
    before = contents(site, site.url, dead)
    site.proxy.clear()
    report = run_json({**site.config, "worker_send_task_events": True}, "doctor")
    things = found(report)
    assert not report["well"]
    assert things[0] == ("error", f"queue '{site.queue}'")
    assert "of its 4 attempts never run" in report["findings"][0]["consequence"]
    assert ("warning", f"dead-letter queue '{site.queue}-dead'") in things
    assert ("note", "setting worker_send_task_events") in things
    assert things[-1] == ("note", "permissions")
    assert report["rights"][site.queue]["sqs:DeleteMessage"] == "allowed"
    assert contents(site, site.url, dead) == before
    (message,) = site.sqs.receive_message(
        QueueUrl=site.url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_predefined_dead_letter_queue_an_entry_of_beat_and_remote_control_that_is_off(make_site):
    site = make_site(remote_control=True)
    urls = {f"{site.queue}-dead": site.create_queue_with_dead_letters(9), site.queue: site.url}
    site.config["broker_transport_options"]["predefined_queues"] = {n: {"url": u} for n, u in urls.items()}
    schedule = {"nightly": {"task": "work.nosuch", "schedule": 9}}
    config = {**site.config, "beat_schedule": schedule, "worker_enable_remote_control": False}
    things = found(run_json(config, "doctor"))
    assert ("warning", "beat_schedule entry 'nightly'") in things
    assert ("warning", "option remote_control") in things
    assert [thing for _, thing in things if "-dead'" in thing] == [f"dead-letter queue '{site.queue}-dead'"]


def test_what_is_missing_is_said_in_lines_for_people(make_site):
    site = make_site()
    site.create_queue()
    site.proxy.inject(error("AccessDenied", 403), "DeleteMessageBatch")
    done = run_celery(site.config, "sqs", "doctor", "--queue", site.queue, "--queue", "nowhere")
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stdout.split())
    assert f"ERROR queue '{site.queue}': sqs:DeleteMessage is not allowed to these credentials" in words
    assert "it has no dead-letter queue, and when_exhausted is 'delete'" in words
    assert "WARNING queue 'nowhere': SQS has no queue 'nowhere' (for" in words
    assert "; looked at 2 queues, " in done.stdout.splitlines()[-1]


@pytest.fixture
def kombus(make_site):
    """A site whose app is on kombu's transport."""
    site = make_site()
    site.create_queue_with_dead_letters(10)
    options = {"region": "us-east-1", "visibility_timeout": 14_400, "port": 3, "polling_interval": 1}
    site.config |= {"broker_transport": "sqs", "broker_transport_options": options}
    return site


def test_from_kombu_it_tells_what_changes_and_what_to_paste(kombus):
    report = run_json(kombus.config, "doctor", "--from-kombu")
    things = found(report)
    assert things[0] == ("error", "option port")
    assert {("warning", "option visibility_timeout"), ("note", "option wait_time_seconds")} <= set(things)
    assert ("note", "option polling_interval") not in things
    assert "['port', 'visibility_timeout']" in report["to_switch"]


@pytest.mark.parametrize(
    ("transport", "arguments", "words"),
    [
        ("sqs", [], "celery -A work sqs doctor --from-kombu says what changes"),
        ("celery_sqs_visibility", ["--from-kombu"], "leave out --from-kombu"),
        ("memory", ["--from-kombu"], "is memory, and --from-kombu is for kombu's 'sqs'"),
    ],
)
def test_the_wrong_broker_is_one_sentence(transport, arguments, words):
    done = run_celery({"broker_transport": transport}, "sqs", "doctor", *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
