"""Names, URLs, and queues that are predefined or have to be created."""

import json
import re
from contextlib import nullcontext

import pytest

from celery_sqs_visibility.aws import queues as module
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    UnavailableError,
    UnreachableError,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import PredefinedQueue
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues

ELSEWHERE = Location("eu-west-1", "https://sqs.eu-west-1.amazonaws.com")


@pytest.mark.parametrize("silent", [["here"], ["there"], ["here", "there"]])
def test_with_predefined_queues_in_several_places_one_that_answers_will_do(sqs, silent):
    other = FakeSQS()
    other.location = lambda: ELSEWHERE
    predefined = {name: PredefinedQueue(region=name) for name in ("here", "there")}
    places = {"here": sqs, "there": other}
    queues = Queues(sqs, predefined=predefined, sqs_for=lambda queue: places[queue.region])
    for name in silent:
        places[name].fail_next("connect", UnreachableError("refused"))
    with pytest.raises(UnreachableError) if len(silent) == len(places) else nullcontext():
        queues.reach()


def actions(sqs):
    return [action for action, _ in sqs.calls]


@pytest.mark.parametrize("method", ["find", "find_or_create", "ensure"])
@pytest.mark.parametrize(
    ("name", "said"), [("x" * 77, "has 81 characters"), ("größe", "ASCII letters")], ids=["long", "umlaut"]
)
def test_a_name_that_sqs_does_not_take_is_refused_with_a_remedy_and_no_request(sqs, method, name, said):
    with pytest.raises(RequestRefusedError, match=f"for Celery's queue '{name}'.*{said}"):
        getattr(Queues(sqs, prefix="app-"), method)(name)
    assert sqs.calls == []


OWNER = "000000000000"  # the fake's one account


@pytest.mark.parametrize("options", [{"owner": OWNER}, {"predefined": {"a.b": PredefinedQueue(owner=OWNER)}}])
@pytest.mark.parametrize("method", ["find", "find_or_create", "ensure"])
def test_a_queue_of_another_account_is_asked_for_by_that_and_never_created(sqs, options, method):
    queues = Queues(sqs, prefix="app-", **options)
    with pytest.raises(QueueDoesNotExistError, match=f"no queue 'app-a-b' of account {OWNER}"):
        getattr(queues, method)("a.b")
    url = sqs.create_queue("app-a-b", {}, {})
    assert getattr(queues, method)("a.b").url == url
    asked = [arguments for action, arguments in sqs.calls if action == "GetQueueUrl"]
    assert asked == [{"name": "app-a-b", "owner": OWNER}] * 2
    assert actions(sqs).count("CreateQueue") == 1


@pytest.mark.parametrize(("name", "number"), [("a", 1), ("a.fifo", 3)])
def test_a_queue_is_created_without_the_attributes_of_the_other_kind(sqs, name, number):
    given = {"VisibilityTimeout": "120", "ContentBasedDeduplication": "true"}
    queue = Queues(sqs, plans=lambda name: [QueuePlan(name, name, given)]).find_or_create(name)
    assert len(sqs.queue_attributes(queue.url, [*given, "FifoQueue"])) == number


def test_a_queues_url_is_asked_for_once_until_it_is_forgotten(sqs):
    url = sqs.create_queue("app-a-b", {}, {})
    queues = Queues(sqs, prefix="app-")
    queue = queues.find("a.b")
    assert (queue.name, queue.url, queue.sqs) == ("a.b", url, sqs)
    assert queues.find("a.b") is queues.find_or_create("a.b") is queue
    assert actions(sqs) == ["CreateQueue", "GetQueueUrl"]
    queues.forget("a.b")
    queues.forget("never heard of")
    assert queues.find("a.b") is not queue


def test_a_missing_queue_is_named_as_celery_and_as_sqs_know_it_until_it_exists(sqs):
    queues = Queues(sqs, prefix="app-")
    with pytest.raises(QueueDoesNotExistError, match=r"'app-a-b'.*'a\.b'"):
        queues.find("a.b")
    sqs.create_queue("app-a-b", {}, {})
    assert queues.find("a.b")


@pytest.mark.parametrize("method", ["find_or_create", "ensure"])
def test_a_missing_queue_is_created_with_attributes_and_tags(sqs, method):
    plan = QueuePlan("a", "a", {"VisibilityTimeout": "120"}, tags={"team": "a"})
    queues = Queues(sqs, plans=lambda _: [plan])
    queue = getattr(queues, method)("a")
    arguments = {"name": "a", "attributes": {"VisibilityTimeout": "120"}, "tags": {"team": "a"}}
    assert actions(sqs) == ["GetQueueUrl", "CreateQueue"]
    assert sqs.calls[-1] == ("CreateQueue", arguments)
    assert queue.url
    assert not queue.fifo


def planned(sqs, **options):
    return Queues(sqs, plans=lambda name: plan_queues([name], Options.parse(options), {name: [10]}))


def redrive_of(sqs, name):
    policy = sqs.queue_attributes(sqs.queue_url(name), ["RedrivePolicy"]).get("RedrivePolicy")
    return policy and (json.loads(policy)["deadLetterTargetArn"], json.loads(policy)["maxReceiveCount"])


@pytest.mark.parametrize(
    ("name", "letters"), [("a", "a-dead"), ("a.fifo", "a-dead.fifo")], ids=["standard", "fifo"]
)
def test_a_missing_queue_is_created_with_its_dead_letter_queue(sqs, caplog, name, letters):
    planned(sqs, queue_tags={"team": "a"}).find_or_create(name)
    assert actions(sqs)[-5:] == [
        "GetQueueUrl",
        "GetQueueUrl",
        "CreateQueue",
        "GetQueueAttributes",
        "CreateQueue",
    ]
    assert redrive_of(sqs, name) == (f"arn:aws:sqs:us-east-1:000000000000:{letters}", 14)
    attributes = sqs.queue_attributes(sqs.queue_url(letters), ["MessageRetentionPeriod"])
    assert attributes == {"MessageRetentionPeriod": "1209600"}
    assert sqs.queue_tags(sqs.queue_url(letters)) == {"team": "a"}
    assert caplog.records == []


def test_a_dead_letter_queue_that_is_there_stays_as_it_is(sqs):
    sqs.create_queue("a-dead", {"MessageRetentionPeriod": "60"}, {})
    planned(sqs).find_or_create("a")
    assert redrive_of(sqs, "a")[0].endswith(":a-dead")
    attributes = sqs.queue_attributes(sqs.queue_url("a-dead"), ["MessageRetentionPeriod"])
    assert attributes == {"MessageRetentionPeriod": "60"}


def test_a_queue_that_is_there_gets_no_dead_letter_queue(sqs):
    sqs.create_queue("a", {}, {})
    planned(sqs).find_or_create("a")
    assert actions(sqs) == ["CreateQueue", "GetQueueUrl"]


@pytest.mark.parametrize(
    ("name", "options", "temporary"),
    [
        ("a-dead", {}, []),
        ("a", {}, [{}]),
        (
            "a",
            {
                "sqs-creation-attributes": {
                    "RedrivePolicy": {
                        "maxReceiveCount": 3,
                        "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:other",
                    }
                }
            },
            [],
        ),
    ],
    ids=["a dead-letter queue", "a temporary queue", "a redrive policy of the user's"],
)
def test_no_dead_letter_queue_is_made_for(sqs, name, options, temporary):
    planned(sqs, **options).find_or_create(name, *temporary)
    assert [url.rpartition("/")[2] for url in sqs.list_queues("")] == [name]


class Restricted(FakeSQS):
    """Denies an action on the dead-letter queue."""

    denied = ""

    def _call(self, action, **arguments):
        if action == self.denied and "dead" in arguments.get("name", arguments.get("queue_url", "")):
            raise AccessDeniedError(f"no {action}", code="AccessDenied", action=action)
        return super()._call(action, **arguments)


@pytest.mark.parametrize("denied", ["GetQueueUrl", "CreateQueue", "GetQueueAttributes"])
def test_without_the_permission_the_queue_is_created_alone_with_one_warning(caplog, denied):
    sqs = Restricted()
    sqs.denied = denied
    queue = planned(sqs).find_or_create("a")
    assert (queue.origin, redrive_of(sqs, "a")) == ("created", None)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "created queue 'a' without its dead-letter queue 'a-dead', which celery -A proj sqs queues create "
        f"--update adds with credentials that may: no {denied}"
    )


def test_a_name_too_long_for_a_dead_letter_queue_is_created_alone_with_the_remedy(sqs, caplog):
    planned(sqs).find_or_create("x" * 78)
    assert redrive_of(sqs, "x" * 78) is None
    assert "the option dead_letter_queue names another" in caplog.text


def test_a_part_of_sqs_may_not_know_the_new_dead_letter_queue_yet(sqs, monkeypatch):
    monkeypatch.setattr(module, "NEW_QUEUE_PAUSES_SECONDS", (0, 0))
    missing = QueueDoesNotExistError("Dead letter target does not exist.")
    sqs.create_queue("a-dead", {}, {})
    sqs.fail_next("GetQueueAttributes", missing)
    sqs.fail_next("CreateQueue", missing)
    planned(sqs).find_or_create("a")
    assert redrive_of(sqs, "a")[0].endswith(":a-dead")


def test_a_queue_we_may_not_create_says_what_to_do_and_nothing_of_dead_letters(sqs, caplog):
    for _ in range(2):
        sqs.fail_next("CreateQueue", AccessDeniedError("no", code="AccessDenied", action="CreateQueue"))
    with pytest.raises(AccessDeniedError, match="create the queue or allow sqs:CreateQueue") as caught:
        planned(sqs).find_or_create("a")
    assert caught.value.code == "AccessDenied"
    assert caplog.records == []


def test_a_network_failure_creates_no_queue(sqs):
    sqs.fail_next("GetQueueUrl", UnavailableError("no network"))
    with pytest.raises(UnavailableError):
        Queues(sqs).find_or_create("a")
    assert actions(sqs) == ["GetQueueUrl"]


@pytest.mark.parametrize("defined_as", ["a.b", "app-a-b"])
def test_a_predefined_queue_needs_no_request(sqs, defined_as):
    definition = PredefinedQueue("https://sqs.example/1/a-b")
    others = FakeSQS()
    sqs_for = {definition: others}.__getitem__
    queues = Queues(sqs, prefix="app-", predefined={defined_as: definition}, sqs_for=sqs_for)
    queue = queues.find("a.b")
    assert (queue.url, queue.sqs) == (definition.url, others)
    assert queues.find_or_create("a.b") is queue
    assert sqs.calls == others.calls == []


@pytest.mark.parametrize("method", ["find", "find_or_create"])
def test_a_queue_that_is_not_predefined_is_told_the_nearest_name(sqs, method):
    names = ["imports", "mails", "videos"]
    predefined = {name: PredefinedQueue(f"https://sqs.example/1/{name}") for name in names}
    queues = Queues(sqs, predefined=predefined)
    with pytest.raises(QueueDoesNotExistError) as caught:
        getattr(queues, method)("import")
    message = str(caught.value)
    assert "'import' is not in the option predefined_queues" in message
    assert "'imports', 'mails', 'videos'" in message
    assert message.endswith("The nearest is 'imports'.")
    assert sqs.calls == []


def test_secrets_stay_out_of_repr(sqs):
    definition = PredefinedQueue(
        "https://sqs.example/1/a", access_key_id="AKIA", secret_access_key="hush", session_token="token"
    )
    assert not {"AKIA", "hush", "token"} & set(re.split(r"\W+", repr(definition)))
    assert repr(Queue("a", "u", sqs)) == "Queue(name='a', url='u')"


def test_ensuring_asks_whether_a_predefined_queue_is_there_where_that_is_permitted(sqs):
    queues = Queues(sqs, predefined={"a": PredefinedQueue("https://sqs.example/1/gone")})
    with pytest.raises(QueueDoesNotExistError, match=r"https://sqs\.example/1/gone.*'a'"):
        queues.ensure("a")
    sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
    assert queues.ensure("a").url == "https://sqs.example/1/gone"


@pytest.mark.parametrize(
    ("url", "name", "account"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/a.fifo", "a.fifo", "123456789012"),
        ("http://localhost:9324/queue/a", "a", None),
        ("http://localhost:9324/000000000000/a", "a", "000000000000"),
    ],
)
def test_a_url_has_sqss_name_and_perhaps_the_account(sqs, url, name, account):
    queue = Queue("celerys", url, sqs)
    assert (queue.sqs_name, queue.account) == (name, account)


def test_a_queue_knows_where_it_came_from(sqs):
    assert Queues(sqs).find_or_create("a").origin == "created"
    assert Queues(sqs).find_or_create("a").origin == "found"
    predefined = {"a": PredefinedQueue("https://sqs.example/1/a")}
    assert Queues(sqs, predefined=predefined).find("a").origin == "predefined"


def test_predefined_queues_may_be_in_several_places(sqs, monkeypatch):
    other, unused = FakeSQS(), FakeSQS()
    monkeypatch.setattr(other, "location", lambda: ELSEWHERE)
    definitions = [PredefinedQueue("https://sqs.example/1/a"), PredefinedQueue("https://sqs.example/1/b")]
    predefined = dict(zip("ab", definitions, strict=True))
    queues = Queues(
        unused, predefined=predefined, sqs_for=dict(zip(definitions, [sqs, other], strict=True)).get
    )
    assert queues.locations() == {sqs.location(), ELSEWHERE}
    assert Queues(sqs).locations() == {sqs.location()}


@pytest.mark.parametrize(
    ("prefix", "predefined", "name"),
    [
        ("", {}, "app-a"),
        ("app-", {}, "a"),
        ("", {"orders": "memory://us-east-1/000000000000/app-a"}, "orders"),
    ],
)
def test_an_arn_leads_to_its_queue_without_a_request(sqs, prefix, predefined, name):
    url = sqs.create_queue("app-a", {}, {})
    definitions = {name: PredefinedQueue(url) for name, url in predefined.items()}
    queues = Queues(sqs, prefix=prefix, predefined=definitions)
    queue = queues.by_arn("arn:aws:sqs:us-east-1:000000000000:app-a")
    assert (queue.name, queue.url) == (name, url)
    assert queues.by_arn("arn:aws:sqs:us-east-1:000000000000:app-a") is queue
    assert actions(sqs) == ["CreateQueue"]


REGIONS = ("us-east-1", "eu-west-1")


def queues_in_two_regions(monkeypatch, connection, host):
    """Queue `orders` of one account in two regions, as predefined queues; its definitions by region."""
    accesses = {region: FakeSQS() for region in REGIONS}
    for region, access in accesses.items():
        location = Location(region, f"https://{host.format(region)}")
        monkeypatch.setattr(access, "location", lambda location=location: location)
    predefined = {
        f"orders-{region[:2]}": PredefinedQueue(
            f"https://{host.format(region)}/000000000000/orders", region=region
        )
        for region in REGIONS
    }
    return Queues(accesses[connection], predefined=predefined, sqs_for=lambda each: accesses[each.region])


@pytest.mark.parametrize("host", ["sqs.{}.amazonaws.com", "localhost"])
@pytest.mark.parametrize("connection", REGIONS)
def test_an_arn_leads_to_the_queue_of_its_region(monkeypatch, connection, host):
    queues = queues_in_two_regions(monkeypatch, connection, host)
    for region in REGIONS:
        queue = queues.by_arn(f"arn:aws:sqs:{region}:000000000000:orders")
        assert (queue.name, queue.sqs.location().region) == (f"orders-{region[:2]}", region)


def test_an_arn_of_a_region_without_access_is_refused_with_the_remedy(monkeypatch):
    queues = queues_in_two_regions(monkeypatch, "us-east-1", "sqs.{}.amazonaws.com")
    with pytest.raises(QueueDoesNotExistError, match=r"is in region 'ap-south-1', .* predefined_queues"):
        queues.by_arn("arn:aws:sqs:ap-south-1:000000000000:orders")


def test_an_arn_of_another_account_is_not_the_own_queue_of_that_name(sqs):
    queues = Queues(sqs)
    own = queues.find_or_create("a")
    other = queues.by_arn("arn:aws:sqs:us-east-1:999999999999:a")
    assert other.url == "memory://us-east-1/999999999999/a"
    assert queues.by_arn("arn:aws:sqs:us-east-1:000000000000:a") is queues.find("a") is own


def test_an_arn_leads_past_predefined_queues_of_other_names(sqs):
    url = sqs.create_queue("b", {}, {})
    predefined = {"a": PredefinedQueue("https://sqs.example/000000000000/a"), "b": PredefinedQueue(url)}
    assert Queues(sqs, predefined=predefined).by_arn("arn:aws:sqs:us-east-1:000000000000:b").url == url
