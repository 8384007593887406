"""The options by which tools see a worker."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.options import OptionError, Options

FORM = "http_address to be 'HOST:PORT', as '0.0.0.0:8080' or .* with a port from 1 to 65535"


def test_no_port_is_open_unless_one_is_named_and_then_for_this_host_alone():
    assert Options.parse({}).http_address is None
    assert Options.parse({"http_address": ":8080"}).http_address == ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("0.0.0.0:80", "0.0.0.0"),
        ("[::]:80", "::"),
        ("[fe80::1%eth0]:80", "fe80::1%eth0"),
        ("localhost:80", "localhost"),
    ],
)
def test_a_host_is_an_address_or_a_name(given, host):
    address = Options.parse({"http_address": given}).http_address
    assert address == (host, 80)
    assert str(address) == given


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        *(
            ({"http_address": wrong}, FORM)
            for wrong in (
                *(
                    8080,
                    True,
                    "8080",
                    "x",
                    "x:",
                    "x:0",
                    "x:65536",
                    "x:-1",
                    "x:8o",
                    "::1:80",
                    "::",
                    "[x]:80",
                    "[::]",
                ),
                *("http://x:80", "x:80/metrics", "x y:80", "[::1:80"),
            )
        ),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Options.parse(given)
