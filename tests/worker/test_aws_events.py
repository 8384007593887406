"""What S3, SNS, EventBridge and others put into a queue runs tasks, in a real worker."""

import json
from collections import Counter

from support.aws_events import S3_TEST, eventbridge, s3_notification, s3_record, sns
from support.commands import run_json
from support.processes import SOON, wait_until

from celery_sqs_visibility import task_id_for, task_message
from celery_sqs_visibility.delivery.settle.dead_letters import described

#: A sender's attributes: as many as SQS takes, some with the words of a dead letter.
SENDERS = {
    name: f"the sender's {name}"
    for name in ("task", "reason", "attempts", "worker", "source_queue", "kind", "a", "b", "c")
}

REMOVED = s3_record(event="ObjectRemoved:Delete")


def put(site, body, **options):
    text = body if isinstance(body, str) else json.dumps(body)
    return site.sqs.send_message(QueueUrl=site.url, MessageBody=text, **options)["MessageId"]


def letters(site, url):
    """Dead letters by body, with the reason."""
    found = {}
    while messages := site.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    ).get("Messages"):
        for each in messages:
            found[each["Body"]] = described(each["MessageAttributes"])["reason"]
    return found


def test_events_run_tasks_and_the_rest_is_kept(make_site):
    site = make_site(visibility_timeout=30, message_adapter="importing:adapt")
    dead_url = site.create_queue_with_dead_letters(receives=10)
    site.start("importing")
    bad, foreign = s3_notification(s3_record(key="bad")), eventbridge("shop", "Order")
    shaky = put(site, sns(s3_notification(s3_record(key="shaky"))))
    many = put(site, s3_notification(s3_record(key="a+b"), s3_record(key="c%2Bd"), REMOVED, REMOVED))
    for body in (bad, foreign, S3_TEST, "raise", task_message("orders", ["sent by message"])):
        put(site, body)
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in SENDERS.items()}
    put(site, "order in vain", MessageAttributes=attributes)

    wait_until(lambda: site.counts() == (0, 0), SOON, lambda: site.diary.entries("started"))
    site.diary.wait_for("done", key="shaky")
    runs = [(entry["key"], entry["id"]) for entry in site.diary.entries("started")]
    assert Counter(key for key, _ in runs) == {"shaky": 2, "bad": 2, "a b": 1, "c+d": 1}
    ids = dict(runs)
    assert len(set(runs)) == len(ids)  # a redelivery is the same task
    assert ids["shaky"] == task_id_for(shaky)
    assert {ids["a b"], ids["c+d"]} <= {task_id_for(many, index) for index in range(3)}
    (audit,) = site.diary.entries("done", key="audit")
    assert audit["records"] == 4
    retried = run_json(
        site.config, "dead-letters", "retry", site.queue, "--task", "orders", module="importing"
    )
    assert len(retried["done"]) == 1
    for order in site.diary.wait_for("done", 2, key="order in vain"):
        assert SENDERS.items() <= order["attributes"].items()
    wait_until(lambda: site.counts() == (0, 0), SOON, "its second dead letter")
    assert site.diary.entries("done", key="sent by message")
    assert letters(site, dead_url) == {
        json.dumps(bad): "failed at its last attempt",
        json.dumps(
            foreign
        ): "no task has an sqs_event for 'shop/Order': its body is an EventBridge event, not a "
        "Celery message",
        "raise": "the message_adapter failed: KeyError('raise')",
        "order in vain": "failed at its last attempt",
    }
