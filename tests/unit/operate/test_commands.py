import pytest

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.operate.commands import LazyGroup, sqs


def test_a_command_that_there_is_not_is_none():
    assert LazyGroup("sqs").get_command(None, "nope") is None


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("1", False)])
def test_no_color_is_heeded(run_on, monkeypatch, variable, is_coloured):
    monkeypatch.setenv("NO_COLOR", variable)
    assert ("\x1b[" in run_on(FakeSQS(), sqs, "doctor", color=True).output) is is_coloured
