import base64
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.app import close_app, make_app, without_shared_tasks

from celery_sqs_visibility.operate.message import message


@pytest.fixture
def run(monkeypatch):
    without_shared_tasks(monkeypatch)
    app = make_app("app", {"task_default_queue": "a.b"}, set_as_current=False)
    app.conf.task_routes = {"proj.ordered": {"queue": "in.order.fifo"}}

    def add(x, y=1): ...

    for name in ("proj.add", "proj.ordered"):
        app.task(name=name, shared=False)(add)
    app.task(name="proj.untyped", shared=False, typing=False)(add)
    app.finalize()
    yield lambda *args: CliRunner().invoke(message, args, obj=SimpleNamespace(app=app))
    close_app(app)


def test_the_body_is_on_one_stream_and_what_goes_beside_it_on_the_other(run):
    done = run("proj.add", "--args", "[1]", "--kwargs", '{"y": 2}')
    payload = json.loads(done.stdout)
    assert payload["headers"]["task"] == "proj.add"
    assert json.loads(payload["body"])[:2] == [[1], {"y": 2}]
    assert done.stderr == "For queue 'a-b' at SQS.\n"


def test_a_countdown_is_an_eta_and_a_delay_within_sqs_limits(run):
    request = json.loads(run("proj.add", "--args", "[1]", "--countdown", "2h", "--json").stdout)
    assert request["DelaySeconds"] == 900
    assert json.loads(request["MessageBody"])["headers"]["eta"].endswith("+00:00")


def test_a_fifo_queue_has_a_group_and_a_deduplication_id_and_no_delay(run):
    done = run("proj.ordered", "--args", "[1]", "--countdown", "60", "--base64", "--json")
    request = json.loads(done.stdout)
    assert request.keys() == {"MessageBody", "MessageGroupId", "MessageDeduplicationId"}
    assert json.loads(base64.b64decode(request["MessageBody"]))["headers"]["task"] == "proj.ordered"


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (["proj.ad"], 1, "did you mean 'proj.add'?"),
        (["proj.add"], 1, "does not take these arguments: "),
        (["proj.add", "--args", "1"], 2, "--args should be a JSON list"),
        (["proj.add", "--args", "[1"], 2, "--args should be a JSON list"),
        (["proj.add", "--kwargs", "[]"], 2, "--kwargs should be a JSON object"),
        (["proj.add", "--args", "[1]", "--countdown", "soon"], 2, "a duration such as 90s"),
    ],
    ids=str,
)
def test_a_task_that_would_not_run_is_refused(run, args, status, sentence):
    done = run(*args)
    assert (done.exit_code, sentence in done.stderr) == (status, True), done.stderr


def test_of_a_task_whose_arguments_celery_does_not_check_they_are_taken_as_they_are(run):
    done = run("proj.untyped", "--args", "[1, 2, 3, 4]", "--json")
    body = json.loads(json.loads(done.stdout)["MessageBody"])["body"]
    assert json.loads(body)[0] == [1, 2, 3, 4]
