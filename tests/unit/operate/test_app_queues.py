from types import SimpleNamespace

import pytest
from celery.exceptions import CDeprecationWarning
from support.app import close_app, make_app, without_shared_tasks
from support.clock import FakeClock
from support.factories import queue, send
from support.fake_cloudwatch import FakeCloudWatch

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.operate.app_queues import QueueDepth, queue_depths, queue_names
from celery_sqs_visibility.operate.queue_metrics import OLDEST, QueueMetrics
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.routing import max_retries_by_queue, queue_of_task


@pytest.fixture
def app(monkeypatch):
    without_shared_tasks(monkeypatch)

    def by_arguments(name, args, kwargs, options, **_):
        return {"queue": "big"} if args[0] > 9 else None

    app = make_app("app", {"task_default_queue": "own"}, set_as_current=False)
    app.conf.task_routes = ({"routed": {"queue": "other"}}, by_arguments)
    yield app
    close_app(app)


def test_a_tasks_retries_count_in_the_queue_that_it_goes_to(app):
    def run(): ...

    for name, options in {"routed": {}, "plain": {"max_retries": 8}}.items():
        app.task(name=name, base=VisibilityTask, **options)(run)
    app.task(name="stock", max_retries=99)(run)
    app.finalize()
    assert max_retries_by_queue(app) == {"other": [3], "own": [8]}
    assert list(app.amqp.queues) == ["own"], "a worker without -Q consumes all of them"


def test_a_tasks_own_queue_and_routes_in_pairs_count_too(app):
    app.conf.task_routes = [[("routed.*", {"queue": "in pairs"}), ("broken",)]]

    @app.task(name="own", base=VisibilityTask, queue="of the task")
    def run(): ...

    with pytest.warns(CDeprecationWarning, match="'queue' task attribute"):
        app.finalize()
    assert queue_of_task(app, app.tasks["own"]) == "of the task"
    assert queue_names(app, Options.parse({})) == ["own", "in pairs", "of the task"]


@pytest.fixture
def sqs():
    return FakeSQS(FakeClock())


def context(sqs, **options):
    return SimpleNamespace(queues=Queues(sqs), redrive=RedriveBook(), options=Options.parse(options))


def test_a_queue_is_counted_with_its_dead_letters(sqs):
    dead = queue(sqs, "dead")
    url = queue(sqs, letters=dead).url
    for delay in (0, 0, 60):
        sqs.send(url, OutgoingMessage("m", delay=delay))
    send(dead, "m")
    sqs.receive(url, 1, 0, ReceiveOptions(30))
    metrics = QueueMetrics(lambda _queue: FakeCloudWatch({("q", OLDEST): [7.0]}))
    assert queue_depths(context(sqs), ["q", "dead"], metrics) == [
        QueueDepth("q", 1, 1, 1, 7.0, 1),
        QueueDepth("dead", 1, 0, 0, None, None),
    ]


def test_the_queue_of_the_option_is_looked_for_and_not_created(sqs):
    sqs.create_queue("q", {}, {})
    (depth,) = queue_depths(context(sqs, dead_letter_queue="letters"), ["q"])
    assert depth.visible == 0
    assert depth.dead_letters is None
    assert "letters" in str(depth.error)


def test_one_queue_s_error_leaves_the_others(sqs):
    class Forbidding(FakeSQS):
        def queue_attributes(self, queue_url, names):
            raise AccessDeniedError("no")

    sqs.create_queue("q", {}, {})
    there, missing = queue_depths(context(sqs), ["q", "missing"])
    assert there.visible == 0
    assert "missing" in str(missing.error)
    forbidding = Forbidding(FakeClock())
    forbidding.create_queue("q", {}, {})
    (forbidden,) = queue_depths(context(forbidding), ["q"])
    assert "allow sqs:GetQueueAttributes" in str(forbidden.error)


def test_without_queues_nothing_is_asked(sqs):
    assert queue_depths(context(sqs), []) == []
