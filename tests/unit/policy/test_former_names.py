"""Former names of options: they work for one release, are told, and are refused beside another value."""

from __future__ import annotations

import pytest
from kombu import Connection

from celery_sqs_visibility.policy.option_names import PRESENT_NAMES, former_names
from celery_sqs_visibility.policy.options import OptionError, Options, reference

#: Options by their former names; the same by the present ones; and another value of the first of these.
RENAMINGS = [
    ({"exclusive_store": "redis://a"}, {"coordination_store": "redis://a"}, "redis://b"),
    ({"http_port": 80}, {"http_address": ":80"}, "0.0.0.0:80"),
    ({"http_host": "::", "http_port": 80}, {"http_address": "[::]:80"}, ":80"),
    ({"payload_bucket": "b"}, {"payload_store": "s3://b"}, "s3://b/c"),
    ({"payload_bucket": "b", "payload_prefix": "c/%/"}, {"payload_store": "s3://b/c/%/"}, "s3://b"),
    ({"on_exhausted": "keep"}, {"when_exhausted": "keep"}, "delete"),
    ({"on_lost": "terminate"}, {"when_lost": "terminate"}, "continue"),
]


def test_every_former_name_is_tried():
    assert {former for given, _, _ in RENAMINGS for former in given} == PRESENT_NAMES.keys()


@pytest.mark.parametrize(("given", "present", "other"), RENAMINGS, ids=str)
def test_former_names_mean_what_the_present_one_means_also_beside_it(given, present, other):
    assert Options.parse(given) == Options.parse(present) == Options.parse({**given, **present})
    (name,) = present
    with pytest.raises(OptionError) as caught:
        Options.parse({**given, name: other})
    assert all(each in str(caught.value) for each in (*given, name))


@pytest.mark.parametrize(("given", "present"), [row[:2] for row in RENAMINGS], ids=str)
def test_former_names_are_told_where_a_connection_is_made_and_in_the_reference(given, present):
    (name,) = present
    assert former_names(given) == dict.fromkeys(given, name)
    connection = Connection(transport="celery_sqs_visibility", transport_options=given)
    with pytest.warns(DeprecationWarning, match="is now") as told:
        assert connection.transport.options == Options.parse(present)
    assert [str(each.message).split(";")[0] for each in told] == [
        f"the transport option {former} is now {name}" for former in given
    ]
    assert all(f"| `{former}` | `{name}` |" in reference() for former in given)


def test_a_wrong_value_is_refused_with_both_names():
    with pytest.raises(OptionError, match=r"expected when_lost \(given as on_lost\) to be .*, got 'end'"):
        Options.parse({"on_lost": "end"})


@pytest.mark.parametrize("unset", [None, ""])
@pytest.mark.parametrize("former", sorted(PRESENT_NAMES))
def test_former_names_that_are_not_set_are_told_and_mean_nothing(former, unset):
    assert Options.parse({former: unset}) == Options.parse({})
    assert former_names({former: unset}) == {former: PRESENT_NAMES[former]}


def test_former_names_work_for_one_queue_too():
    given = {"queues": {"q": {"on_exhausted": "keep"}, "r": {}}}
    assert Options.parse(given).for_queue("q").when_exhausted == "keep"
    assert former_names(given) == {"on_exhausted": "when_exhausted"}
    assert former_names({"queues": {"q": "?"}}) == former_names({"queues": 7}) == {}  # not checked yet
    with pytest.raises(
        OptionError, match=r"expected queues\['q'\]\['when_exhausted'\] alone, got its former name"
    ):
        Options.parse({"queues": {"q": {"on_exhausted": "keep", "when_exhausted": "delete"}}})
    with pytest.raises(OptionError, match=r"option 'on_lost' in queues\['q'\]"):  # it is none of one queue
        Options.parse({"queues": {"q": {"on_lost": "continue"}}})
