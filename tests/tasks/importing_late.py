"""A worker of `work` that imports more tasks when its pool's processes are there: these never know them."""

from celery.signals import worker_ready
from work import app

__all__ = ["app"]


@worker_ready.connect(weak=False)
def import_more(sender, **_):
    import arriving  # noqa: F401, PLC0415

    sender.update_strategies()
