"""Queues for one run each, filled without a proxy in the way."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

import boto3
from contenders import VISIBILITY
from support.app import close_app, make_app

from celery_sqs_visibility import publish_batch


def new_name():
    return f"bench-{uuid.uuid4().hex[:8]}"


def create(server, queue):
    boto3.client("sqs", endpoint_url=server.url).create_queue(QueueName=queue)


def fill(server, queue, task, count):
    """That many tasks in a new queue, in kombu's format, which all contenders read."""
    create(server, queue)
    app = make_app("producer", VISIBILITY.config(urlsplit(server.url).port, queue), set_as_current=False)
    try:
        with publish_batch(app):
            for _ in range(count):
                app.send_task(f"tasks.{task}")
    finally:
        close_app(app)
