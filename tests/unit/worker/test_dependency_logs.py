"""botocore's lines are for those who ask for them."""

from __future__ import annotations

import logging

import pytest
from celery import signals

from celery_sqs_visibility.worker.bootsteps import quiet_dependencies

LOGGERS = ("boto3", "botocore", "s3transfer", "urllib3")


@pytest.fixture(autouse=True)
def _levels():
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def levels():
    return {logging.getLogger(name).level for name in LOGGERS}


def test_they_write_warnings_whatever_the_root_loggers_level():
    quiet_dependencies()
    assert levels() == {logging.WARNING}


def test_a_level_that_somebody_has_set_stays():
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    quiet_dependencies()
    assert logging.getLogger("botocore").level == logging.DEBUG
    assert logging.getLogger("urllib3").level == logging.WARNING


def test_logging_that_the_user_sets_up_is_left_alone():
    def set_up_logging(**_):
        """A user's."""

    signals.setup_logging.connect(set_up_logging)
    try:
        quiet_dependencies()
    finally:
        signals.setup_logging.disconnect(set_up_logging)
    assert levels() == {logging.NOTSET}
