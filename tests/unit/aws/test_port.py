"""A location is shown by the shortest text that tells it from others; a delay ends when it should."""

import pytest

from celery_sqs_visibility.aws.port import Location, OutgoingMessage


@pytest.mark.parametrize(
    ("endpoint", "shown", "amazons"),
    [
        ("https://sqs.eu-west-1.amazonaws.com", "eu-west-1", True),
        ("https://sqs.eu-west-1.api.aws", "eu-west-1", True),
        ("https://sqs.us-east-1.amazonaws.com", "sqs.us-east-1.amazonaws.com", True),
        ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com", "vpce-1.sqs.eu-west-1.vpce.amazonaws.com", True),
        ("http://127.0.0.1:4566", "127.0.0.1:4566", False),
        (
            "http://sqs.eu-west-1.localhost.localstack.cloud:4566",
            "sqs.eu-west-1.localhost.localstack.cloud:4566",
            False,
        ),
        ("https://key:secret@sqs.example/sqs", "sqs.example", False),
    ],
)
def test_a_location_is_its_region_or_its_host(endpoint, shown, amazons):
    location = Location("eu-west-1", endpoint)
    assert (str(location), location.is_amazons) == (shown, amazons)


@pytest.mark.parametrize(
    ("message", "delay"),
    [
        (OutgoingMessage("x"), None),
        (OutgoingMessage("x", delay=60), 60),
        (OutgoingMessage("x", delay=60, visible_at=1030.9), 30),
        (OutgoingMessage("x", delay=60, visible_at=5000.0), 60),
        (OutgoingMessage("x", delay=60, visible_at=999.5), 0),
        (OutgoingMessage("x", visible_at=999.5), None),
    ],
    ids=["the queue's own", "given", "the rest", "the most", "passed", "none when it was published"],
)
def test_a_delay_counts_from_the_request(message, delay):
    assert message.delay_at(1000.0) == delay
