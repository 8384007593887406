"""A worker and a producer with the permissions that `celery sqs permissions` prints, and no others."""

from fnmatch import fnmatch

from support.commands import run_celery, run_json
from support.faults import json_answer
from support.processes import SOON, wait_until


class Credentials:
    """A fault that refuses what the policy document does not allow, and notes both."""

    def __init__(self, document):
        self._statements = document["Statement"]
        self.used = set()
        self.refused = set()

    def __call__(self, request, forward, _removed):
        if not request.action:
            return forward(request)  # unsigned, for the date of the answer
        permission = f"sqs:{request.action.removesuffix('Batch')}"
        sids = [each["Sid"] for each in self._statements if self._allows(each, permission, request.queue)]
        if not sids:
            self.refused.add((permission, request.queue))
            return json_answer(403, {"__type": "AccessDenied", "message": "not in the policy document"})
        self.used.add(sids[0])
        return forward(request)

    def _allows(self, statement, permission, queue):
        arns = statement["Resource"]
        names = [arn.rpartition(":")[2] for arn in ([arns] if isinstance(arns, str) else arns)]
        return permission in statement["Action"] and any(fnmatch(queue or "", name) for name in names)


def test_a_worker_needs_all_that_its_policy_has_and_no_more(make_site):
    site = make_site(visibility_timeout=5)
    dead = site.create_queue_with_dead_letters(10)
    policy = run_json(site.config, "permissions", "worker")
    assert policy["notes"] == []
    site.send("hopeless", "a")
    site.send("quick", "b")
    credentials = Credentials(policy["document"])
    site.proxy.inject(credentials)
    site.start()
    wait_until(lambda: (site.counts(), site.counts(dead)) == ((0, 0), (1, 0)), SOON, "the dead letter")
    # Its dead-letter queue's URL is made up where it may not be asked for.
    assert credentials.refused <= {("sqs:GetQueueUrl", f"{site.queue}-dead")}
    assert credentials.used == {"Consume", "FindQueues", "DeadLetters"}
    # What `SendOn` is for is not to be seen here: a copy for a far ETA.
    assert {each["Sid"] for each in policy["document"]["Statement"]} - credentials.used == {"SendOn"}


def test_a_producer_that_may_create_its_queue(make_site):
    site = make_site(queue_tags={"team": "a"})
    document = run_json(site.config, "permissions", "producer", "--create")["document"]
    credentials = Credentials(document)
    site.proxy.inject(credentials)
    site.send("quick", "a")
    assert site.counts() == (1, 0)
    assert not credentials.refused
    assert {each["Sid"] for each in document["Statement"]} == credentials.used | {"TagQueues"}


def test_an_operator_sees_and_handles_what_the_worker_could_not(make_site):
    site = make_site(wait_time_seconds=1, remote_control=True)
    dead = site.create_queue_with_dead_letters(10)
    worker = site.start()
    for key in "ab":
        site.send("hopeless", key)
    wait_until(lambda: site.counts(dead) == (2, 0), SOON, "two dead letters")
    worker.stop()
    credentials = Credentials(run_json(site.config, "permissions", "operator")["document"])
    site.proxy.inject(credentials)
    first, second = run_json(site.config, "dead-letters", "list", site.queue)
    run_json(site.config, "dead-letters", "delete", site.queue, first["id"], "--yes")
    (queue,) = run_json(site.config, "status")["queues"]
    assert (queue["dead_letters"], queue["error"]) == (1, None)
    retried = run_json(site.config, "dead-letters", "retry", site.queue, second["id"])
    assert retried["failed"] == {}
    asked = run_celery(site.config, "inspect", "ping")
    assert "No nodes replied" in asked.stderr
    assert not credentials.refused
    assert {"ListControl", "ControlQueues"} <= credentials.used
