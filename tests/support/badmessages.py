"""Hypothesis strategies for what ends up in a queue and is no task, and one that could be.

`BAD` draws SQS message bodies: none of them may succeed as a task of `tests/tasks/work.py`.
"""

import base64
import json
import zlib
from copy import deepcopy

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support.aws_events import S3_TEST, eventbridge, s3_notification, sns

#: A task that fails at its first attempt, if at all.
TASK = "work.once"

# What SQS takes in a body (API_SendMessage): a body that breaks that cannot be in a queue.
CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
TEXT = st.text(CHARACTERS, max_size=40)
# Inside of JSON, anything may be escaped.
ANY_TEXT = st.text(st.characters(), max_size=20)
NUMBERS = st.integers(-(10**40), 10**40) | st.floats() | st.booleans()
LEAVES = st.none() | NUMBERS | ANY_TEXT
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
LISTS, OBJECTS = st.lists(JSON, max_size=3), st.dictionaries(ANY_TEXT, JSON, max_size=3)
TYPED = st.builds(
    lambda kind, value: {"__type__": kind, "__value__": value},
    st.sampled_from(["bytes", "base64", "datetime", "date", "time", "decimal", "uuid"]) | ANY_TEXT,
    JSON,
)
NOT_TEXT = NUMBERS | LISTS.filter(bool) | OBJECTS | TYPED | st.sampled_from(["\ud800", "a\0b", "\x1b[2J"])
NOT_AN_OBJECT = NUMBERS | LISTS | ANY_TEXT
NOT_A_COUNT = st.floats() | st.booleans() | ANY_TEXT | LISTS | OBJECTS | st.integers(max_value=-1)
NOT_AN_INSTANT = st.sampled_from(
    ["soon", "", "2030-13-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2030-01-01T99"]
) | (NUMBERS | LISTS | OBJECTS)
# Hypothesis draws constants of the modules that are imported, too, "task" among them.
NAMING_NO_TASK = OBJECTS.filter(lambda value: "task" not in value)
NOT_SIGNATURES = (
    NUMBERS.filter(lambda value: value is not False)
    | ANY_TEXT
    | NAMING_NO_TASK
    | st.lists(NUMBERS | NAMING_NO_TASK | LISTS, min_size=1, max_size=3)
    | st.just([{"task": "work.quick", "args": 5}])
    | st.just([{"task": "work.quick", "options": "x"}])
)
NOT_LIMITS = st.lists(NUMBERS, max_size=6).filter(lambda value: len(value) not in {0, 2}) | st.sampled_from(
    [
        5,
        "10",
        ["1", None],
        [None, "2"],
        [-1, None],
        [None, float("nan")],
        [float("inf"), 1],
        [{}, []],
        {"a": 1},
    ]
)


def envelope(body, *, headers=None, properties=None, protocol=2, **more):
    """kombu's message, as Celery publishes it."""
    named = {"lang": "py", "task": TASK, "id": "11111111-1111-4111-8111-111111111111", "retries": 0}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return {
        "body": base64.b64encode(raw).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {**(named if protocol == 2 else {}), **(headers or {})},
        "properties": {
            "correlation_id": "11111111-1111-4111-8111-111111111111",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "q"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "tag",
            **(properties or {}),
        },
        **more,
    }


def body_of(args=("key",), kwargs=None, embedded=None):
    """The body of a protocol 2 message."""
    return [
        list(args),
        kwargs or {},
        {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **(embedded or {})},
    ]


def old_body(**changes):
    """The body of a protocol 1 message."""
    return {
        "task": TASK,
        "id": "22222222-2222-4222-8222-222222222222",
        "args": ["key"],
        "kwargs": {},
        "retries": 0,
        **changes,
    }


def encoded(message):
    """As it lies in the queue."""
    return base64.b64encode(json.dumps(message).encode()).decode()


def with_header(name, values):
    return values.map(lambda value: envelope(body_of(), headers={name: value}))


def without(*path):
    """A message that lacks one thing."""
    message = envelope(body_of())
    inner = message
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return message


def nested(depth):
    """A list of lists, that deep, as text: deeper than Python would write it."""
    return "[" * depth + "]" * depth


HEADERS = st.one_of(
    *(with_header(name, NOT_TEXT) for name in ("task", "id", "root_id", "parent_id", "group", "shadow")),
    *(with_header(name, NOT_A_COUNT) for name in ("retries", "group_index", "replaced_task_nesting")),
    *(with_header(name, NOT_AN_INSTANT) for name in ("eta", "expires")),
    with_header("timelimit", NOT_LIMITS),
    with_header("stamped_headers", NUMBERS | st.lists(NOT_TEXT, min_size=1, max_size=2)),
    *(with_header(name, NOT_AN_OBJECT) for name in ("stamps", "headers")),
    st.sampled_from(["get", "update", "clear", "as_execution_options", "_children"]).flatmap(
        lambda name: with_header(name, JSON)
    ),
    with_header("task", ANY_TEXT.map(lambda name: f"nobody.knows.{name}")),
    st.sampled_from([without("headers"), without("headers", "task"), without("headers", "id")]),
    NOT_AN_OBJECT.map(lambda value: {**envelope(body_of()), "headers": value}),
)
PROPERTIES = st.one_of(
    NOT_AN_OBJECT.map(lambda value: {**envelope(body_of()), "properties": value}),
    st.just(without("properties")),
    *(
        values.map(lambda value, name=name: envelope(body_of(), properties={name: value}))
        for name, values in {
            "delivery_info": NOT_AN_OBJECT,
            "body_encoding": NUMBERS.filter(bool) | st.sampled_from(["base65", "uu", [1]]),
            "correlation_id": NOT_TEXT,
            "reply_to": NOT_TEXT,
        }.items()
    ),
)
CONTENT = st.one_of(
    st.sampled_from(
        ["application/x-python-serialize", "application/x-yaml", "application/x-msgpack", "text/plain", "\0"]
    ).map(lambda kind: {**envelope(body_of()), "content-type": kind}),
    (NUMBERS | LISTS | OBJECTS).map(lambda kind: {**envelope(body_of()), "content-type": kind}),
    st.sampled_from(["zlib", "bz2", "punycode", "idna", "hex", "no-such", "a\0b", "undefined\ud800"]).map(
        lambda name: {**envelope(body_of()), "content-type": "application/data", "content-encoding": name}
    ),
    (NUMBERS | LISTS | OBJECTS).map(lambda kind: {**envelope(body_of()), "content-encoding": kind}),
    (NUMBERS | LISTS | OBJECTS).map(lambda body: {**envelope(body_of()), "body": body}),
    st.sampled_from(["=", "abc", "\ud800", "%%%%"]).map(lambda body: {**envelope(body_of()), "body": body}),
    st.just(without("body")),
)
COMPRESSION = st.one_of(
    (NOT_TEXT.filter(bool) | ANY_TEXT.filter(bool)).map(
        lambda name: envelope(body_of(), headers={"compression": name})
    ),
    st.sampled_from(["gzip", "zlib", "application/x-gzip", "bzip2", "lzma", "xz"]).flatmap(
        lambda name: st.binary(max_size=40).map(lambda raw: envelope(raw, headers={"compression": name}))
    ),
    st.integers(1, len(zlib.compress(b'[["key"], {}, {}]')) - 1).map(
        lambda cut: envelope(zlib.compress(b'[["key"], {}, {}]')[:cut], headers={"compression": "gzip"})
    ),
)
NOT_A_BODY = JSON.filter(lambda value: value not in (None, "")) | TYPED
BODIES = st.one_of(
    (NOT_A_BODY | st.binary(min_size=1, max_size=40)).map(envelope),
    (NUMBERS | ANY_TEXT | OBJECTS).map(lambda args: envelope([args, {}, {}])),
    (NUMBERS | ANY_TEXT | LISTS).map(lambda kwargs: envelope([["key"], kwargs, {}])),
    (NUMBERS | ANY_TEXT | LISTS).map(lambda embedded: envelope([["key"], {}, embedded])),
    st.sampled_from(["callbacks", "errbacks", "chain"]).flatmap(
        lambda name: NOT_SIGNATURES.map(lambda value: envelope(body_of(embedded={name: value})))
    ),
    (NUMBERS | LISTS | NAMING_NO_TASK).map(lambda chord: envelope(body_of(embedded={"chord": chord}))),
    st.sampled_from(["id", "sqs", "retries", "delivery_info", "args", "is_eager", "get"]).flatmap(
        lambda name: JSON.map(lambda value: envelope(body_of(embedded={name: value})))
    ),
    st.sampled_from([400, 499, 520, 700, 990, 5000]).map(
        lambda depth: envelope(f'[["key", {nested(depth)}], {{}}, {{}}]'.encode())
    ),
    st.just(envelope(b'[["key"], {"x": 1' + b"0" * 5000 + b"}, {}]")),
)
ARGUMENTS = st.one_of(
    st.dictionaries(ANY_TEXT.filter(lambda name: name != "key"), JSON, min_size=1, max_size=3).map(
        lambda kwargs: envelope(body_of(kwargs=kwargs))
    ),
    st.lists(JSON, max_size=4).filter(lambda args: len(args) != 1).map(lambda args: envelope(body_of(args))),
)
OLD = st.one_of(
    *(
        values.map(lambda value, name=name: envelope(old_body(**{name: value}), protocol=1))
        for name, values in {
            "task": NOT_TEXT | ANY_TEXT.map(lambda name: f"nobody.knows.{name}"),
            "id": NOT_TEXT,
            "args": NUMBERS | ANY_TEXT | OBJECTS,
            "kwargs": NUMBERS | ANY_TEXT | LISTS,
            "retries": NOT_A_COUNT,
            "eta": NOT_AN_INSTANT,
            "expires": NOT_AN_INSTANT,
            "timelimit": NOT_LIMITS,
            "taskset": NOT_TEXT,
            "callbacks": NOT_SIGNATURES,
        }.items()
    ),
    NOT_A_BODY.map(lambda body: envelope(body, protocol=1)),
)

SNS = sns("Hello world!")


def _of_another_system(event, name, value):
    return json.dumps({**deepcopy(event), name: value})


OTHER_SYSTEMS = st.builds(
    _of_another_system,
    st.sampled_from([s3_notification(), S3_TEST, SNS, eventbridge()]),
    st.sampled_from(["extra", "id"]),
    JSON,
)
NOT_JSON = TEXT.filter(str.strip) | st.binary(min_size=1, max_size=40).map(
    lambda raw: base64.b64encode(raw).decode()
)
FOREIGN = (
    JSON.map(json.dumps)
    | JSON.map(encoded)
    | st.sampled_from(
        [
            nested(5000),
            '{"properties": {"x": ' + nested(500) + "}}",
            '{"properties": {}, "headers": {"x": 1' + "0" * 5000 + "}}",
        ]
    )
)
#: Envelopes of kombu's, wrong in one place.
ENVELOPES = st.one_of(HEADERS, PROPERTIES, CONTENT, COMPRESSION, BODIES, ARGUMENTS, OLD)
#: Bodies as SQS holds them: nothing that anybody could run, or what could be run but fails.
NO_TASKS = (
    NOT_JSON | FOREIGN | OTHER_SYSTEMS | (PROPERTIES | CONTENT | COMPRESSION | HEADERS | OLD).map(encoded)
)
BAD = st.one_of(
    NOT_JSON,
    FOREIGN,
    OTHER_SYSTEMS,
    *(kind.map(encoded) for kind in (HEADERS, PROPERTIES, CONTENT, COMPRESSION, BODIES, ARGUMENTS, OLD)),
)


def generated(strategy, count):
    """That many different examples, the same where the same modules are imported."""
    found = {}
    rounds = 0
    while len(found) < count:

        @seed(rounds)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def draw(example):
            found.setdefault(example)

        draw()
        rounds += 1
    return list(found)[:count]
