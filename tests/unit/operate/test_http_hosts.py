"""Names and addresses by which a worker's port may be asked, and those of a page in somebody's browser."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.operate.http_server import is_allowed_host


@pytest.mark.parametrize(
    "header",
    [
        "10.1.2.3:9540",
        "127.0.0.1",
        "[::1]:9540",
        "[fe80::1]",
        "localhost:9540",
        "worker:9540",
        "worker.proj.svc:9540",
        "worker.proj.svc.cluster.local:9540",
        "ip-10-0-0-1.eu-west-1.compute.internal",
        "Worker1.Example.com.",
        "",
    ],
)
def test_addresses_private_names_and_the_workers_own_are_allowed(header):
    assert is_allowed_host(header, ["worker1.example.com"])


@pytest.mark.parametrize(
    "header",
    ["evil.example", "worker1.example.com.evil.example:80", "notexample.org", "127.0.0.1.nip.io", "a.b:1:2"],
)
def test_other_public_names_are_not(header):
    assert not is_allowed_host(header, ["worker1.example.com"])
