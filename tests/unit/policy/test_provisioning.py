import pytest

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import (
    dead_letter_name,
    plan_queues,
    required_max_receive_count,
    why_impossible,
)


def plans(*queues, max_retries=None, **options):
    return plan_queues(queues, Options.parse(options), max_retries or {})


@pytest.mark.parametrize(
    ("max_retries", "count"), [([], 7), ([5], 9), ([1, 12, None], 16), ([None], 7), ([5000], 1000)]
)
def test_a_message_is_received_as_often_as_its_attempts_and_deploys_take(max_retries, count):
    assert required_max_receive_count(max_retries) == count


@pytest.mark.parametrize(("queue", "dead"), [("proj", "proj-dead"), ("a.fifo", "a-dead.fifo")])
def test_dead_letters_are_named_after_their_queue(queue, dead):
    assert dead_letter_name(queue) == dead


def test_a_queue_comes_after_its_dead_letter_queue():
    letters, queue = plans("a.b", queue_name_prefix="app-", queue_tags={"team": "x"})
    assert (letters.sqs_name, queue.sqs_name) == ("app-a-b-dead", "app-a-b")
    assert letters.attributes == {"MessageRetentionPeriod": "1209600"}
    assert queue.attributes == {"VisibilityTimeout": "120"}
    assert (queue.dead_letters, queue.max_receive_count) == (letters.sqs_name, 7)
    assert letters.tags == queue.tags == {"team": "x"}


def test_a_fifo_queue_has_fifo_dead_letters_and_both_are_encrypted_alike():
    attributes = {"KmsMasterKeyId": "alias/key", "DeduplicationScope": "messageGroup"}
    letters, queue = plans("a.fifo", **{"sqs-creation-attributes": attributes})
    assert letters.attributes == {
        "MessageRetentionPeriod": "1209600",
        "KmsMasterKeyId": "alias/key",
        "FifoQueue": "true",
    }
    assert queue.attributes == {"VisibilityTimeout": "120", "FifoQueue": "true", **attributes}


def test_queues_may_share_the_dead_letter_queue_of_the_option():
    shared = plans("a", "b", "dead", dead_letter_queue="dead", max_retries={"b": [9]})
    assert [plan.sqs_name for plan in shared] == ["dead", "a", "b"]
    assert [plan.max_receive_count for plan in shared] == [None, 7, 13]
    assert shared[0].attributes == {"MessageRetentionPeriod": "1209600"}


def test_the_users_own_redrive_policy_stands():
    (plan,) = plans("a", **{"sqs-creation-attributes": {"RedrivePolicy": {"maxReceiveCount": 3}}})
    assert plan.max_receive_count is None


@pytest.mark.parametrize(
    ("queue", "option", "letters"),
    [
        ("a.fifo", "failed", "failed.fifo"),
        ("a.fifo", "failed.fifo", "failed.fifo"),
        ("a", "failed.fifo", "failed"),
    ],
)
def test_sqs_redrives_only_to_a_queue_of_the_same_kind(queue, option, letters):
    planned = plans(queue, letters, dead_letter_queue=option)
    assert [(plan.sqs_name, plan.dead_letters) for plan in planned] == [(letters, None), (queue, letters)]


def test_a_predefined_queue_has_the_name_of_its_url():
    urls = {"a": {"url": "https://sqs.eu-west-1.amazonaws.com/1/prod-a"}}
    planned = plans("a", predefined_queues=urls, queue_name_prefix="p-")
    assert [plan.sqs_name for plan in planned] == ["prod-a-dead", "prod-a"]


@pytest.mark.parametrize(
    ("characters", "words"), [(75, None), (76, "option dead_letter_queue names another")]
)
def test_a_name_that_is_too_long_for_its_dead_letters_is_told(characters, words):
    reason = why_impossible(plans("q" * characters))
    assert reason is None if words is None else words in reason
