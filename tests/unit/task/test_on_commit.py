"""`delay_on_commit`, as Celery's own class for Django has it."""

from __future__ import annotations

import inspect

import django
import pytest
from celery.contrib.django.task import DjangoTask
from django.conf import settings
from django.db import connections, transaction

from celery_sqs_visibility import VisibilityTask

# At once: settings that are not configured raise at whoever looks at them, as pytest-celery does.
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})


@pytest.fixture(scope="module")
def database():
    django.setup()
    yield
    connections.close_all()


@pytest.mark.parametrize("method", ["delay_on_commit", "apply_async_on_commit"])
def test_both_methods_are_those_of_celerys_class(method):
    ours, theirs = (inspect.getsource(getattr(cls, method)) for cls in (VisibilityTask, DjangoTask))
    assert method.removesuffix("_on_commit") in ours
    assert "transaction.on_commit(functools.partial(self." in theirs


@pytest.mark.parametrize(("commits", "published"), [(True, ["delay", "apply_async"]), (False, [])])
def test_a_task_is_published_only_if_the_transaction_commits(database, commits, published):
    calls = []

    class Recorded(VisibilityTask):
        def delay(self, *args):
            calls.append("delay")

        def apply_async(self, **options):
            calls.append("apply_async")

        def run(self): ...

    task = Recorded()
    with transaction.atomic():
        task.delay_on_commit("a")
        task.apply_async_on_commit(countdown=1)
        assert not calls
        transaction.set_rollback(not commits)
    assert calls == published
