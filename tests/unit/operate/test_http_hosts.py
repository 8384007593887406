"""Names and addresses by which a worker's port may be asked, and those of a page in somebody's browser."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.operate.http_server import is_allowed_host
from celery_sqs_visibility.policy.options import Options


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
        "a.b.example.org:9540",
        "",
    ],
)
def test_addresses_private_names_and_those_of_the_option_are_allowed(header):
    assert is_allowed_host(header, ["worker1.example.com", ".example.org"])


@pytest.mark.parametrize(
    "header",
    ["evil.example", "worker1.example.com.evil.example:80", "notexample.org", "127.0.0.1.nip.io", "a.b:1:2"],
)
def test_a_public_name_is_not_unless_all_are(header):
    assert not is_allowed_host(header, ["worker1.example.com", ".example.org"])
    assert is_allowed_host(header, ["*"])


@pytest.mark.parametrize("value", [["a.example", ".b.example"], ("*",), "a.example, .b.example"])
def test_names_are_a_list_or_text(value):
    assert Options.parse({"http_address": ":80", "http_allowed_hosts": value}).http_allowed_hosts


@pytest.mark.parametrize("value", [["http://a"], ["a:80"], [1], 1, ["*.a"], [""]])
def test_what_is_no_name_is_refused(value):
    with pytest.raises(OptionError, match=r"expected http_allowed_hosts to be a list of names"):
        Options.parse({"http_address": ":80", "http_allowed_hosts": value})


def test_names_without_a_port_are_refused():
    with pytest.raises(OptionError, match="expected http_address to be set where http_allowed_hosts is"):
        Options.parse({"http_allowed_hosts": ["a"]})
