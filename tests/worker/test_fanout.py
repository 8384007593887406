"""`Broadcast` queues over SNS: every worker gets every message, whichever transport sent it."""

from __future__ import annotations

import dataclasses

import boto3
import pytest
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport import SQS
from support.app import behind, close_app, make_app

#: kombu's own SQS transport has fanout since 5.7.
needs_stock_fanout = pytest.mark.skipif(not hasattr(SQS, "SNS"), reason="kombu 5.7 brought fanout")


@dataclasses.dataclass
class Newsroom:
    """A site whose workers read the news."""

    site: object
    sns: object
    news: str

    def ours(self, name, *, ready=True, queues=(), **env):
        endpoint = self.site.proxy.url
        env = {"NEWS": self.news, "AWS_ENDPOINT_URL_SNS": endpoint, **env}
        return self.site.start("newsroom", name=name, concurrency=1, env=env, ready=ready, queues=queues)

    def stock(self, name):
        env = {"NEWS": self.news, "STOCK": "yes"}
        return self.site.start_worker(
            "newsroom", config=self.stock_config(), name=name, concurrency=1, env=env
        )

    def stock_config(self):
        return {**behind(self.site.proxy.url, self.site.config), "broker_transport": "sqs"}

    def send(self, task, *args, **options):
        return self.site.app.send_task(f"newsroom.{task}", args, queue=self.news, **options)

    def subscribed(self):
        """The names of the queues that are subscribed."""
        (topic,) = (t for t in self.sns.list_topics()["Topics"] if t["TopicArn"].endswith(f":{self.news}"))
        found = self.sns.list_subscriptions_by_topic(TopicArn=topic["TopicArn"])["Subscriptions"]
        return [each["Endpoint"].rpartition(":")[2] for each in found]

    def queues(self):
        """The names of the subscribed queues that exist."""
        urls = self.site.sqs.list_queues(QueueNamePrefix="bcast").get("QueueUrls", [])
        return [name for name in self.subscribed() if any(url.endswith(f"/{name}") for url in urls)]

    def readers(self, event, **match):
        return sorted(entry["worker"].partition("@")[0] for entry in self.site.diary.entries(event, **match))


@pytest.fixture
def newsroom(make_site, queue, emulator):
    site = make_site(visibility_timeout=20, wait_time_seconds=2, supports_fanout=True)
    news = f"news-{queue}"
    site.app.conf.task_queues = [Queue(queue), Broadcast(news)]
    sns = boto3.client("sns", endpoint_url=emulator.url)
    yield Newsroom(site, sns, news)
    sns.close()


def test_a_task_reaches_all_workers_and_each_retries_for_itself(newsroom):
    workers = [newsroom.ours("first"), newsroom.ours("second", queues=[newsroom.news])]
    newsroom.send("failing", "a", "first", 1)
    newsroom.site.diary.wait_for("read", 2)
    assert newsroom.readers("read") == ["first", "second"]
    assert newsroom.readers("started") == ["first", "first", "second"]
    newsroom.site.app.send_task("newsroom.forward", ("b",))
    newsroom.site.diary.wait_for("started", 2, key="b")
    assert newsroom.readers("started", key="b") == ["first", "second"]
    assert len(newsroom.queues()) == 2, "and none of the publishers"
    for worker in workers:
        worker.terminate()
    assert [worker.wait_exit() for worker in workers] == [0, 0]
    assert newsroom.subscribed() == []


@needs_stock_fanout
def test_ours_and_stock_workers_get_what_either_sends(newsroom):
    workers = [newsroom.ours("ours"), newsroom.stock("stock")]
    newsroom.send("read", "a")
    newsroom.site.diary.wait_for("started", 2, key="a")
    app = make_app("producer", newsroom.stock_config(), set_as_current=False)
    exchange = Exchange(newsroom.news, type="fanout")
    options = {"exchange": exchange.name, "routing_key": "x", "declare": [exchange]}
    app.send_task("newsroom.read", ("b",), **options)
    close_app(app)
    newsroom.site.diary.wait_for("started", 2, key="b")
    for key in "ab":
        assert newsroom.readers("started", key=key) == ["ours", "stock"]
    assert all(worker.running for worker in workers)
