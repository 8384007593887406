"""A site with a connection and a channel."""

import threading

import pytest
from support.kombu_site import KombuSite
from support.processes import SOON, wait_until


@pytest.fixture
def site():
    before = set(threading.enumerate())
    site = KombuSite()
    yield site
    site.close()
    wait_until(lambda: not set(threading.enumerate()) - before, SOON, "its threads to end")


@pytest.fixture
def connection(site):
    return site.connect()


@pytest.fixture
def channel(connection):
    return connection.channel()
