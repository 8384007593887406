"""The options by which tools see a worker."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.options import OptionError, Options


def test_no_port_is_open_unless_one_is_named_and_then_for_this_host_alone():
    assert Options.parse({}).http_port is None
    options = Options.parse({"http_port": "8080"})
    assert (options.http_port, options.http_host) == (8080, "127.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost"])
def test_a_host_is_an_address_or_a_name(host):
    assert Options.parse({"http_port": 80, "http_host": host}).http_host == host


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"http_port": 0}, "http_port to be a whole number between 1 and 65535, got 0"),
        ({"http_port": True}, "between 1 and 65535, got True"),
        ({"http_port": 80, "http_host": "http://x"}, "http_host to be an address"),
        ({"http_port": 80, "http_host": "x:80"}, "without a port, got 'x:80'"),
        ({"http_host": "0.0.0.0"}, "http_port to be set where http_host is"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Options.parse(given)
