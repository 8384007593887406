"""The examples' own promises: an object is imported once, a bad line costs only itself."""

import pickle

import pytest
from celery import _state
from celery.exceptions import Reject
from demo.plan import Plan
from demo.story import Story
from proj.celery import app
from proj.records import PROCESS_TIMEOUT, Claim, Records
from proj.tasks import RefusedError, WebhookError, import_object, parse_order
from support.aws_events import s3_record

from celery_sqs_visibility.visibility import Visibility

# Importing proj made its app the current one of this process, in which other tests have theirs.
_state._set_current_app(None)

NAME = "shop/day.csv"
HOURS = 12 * 3600.0
RECORD = s3_record(key="day.csv")


class Wall:
    """A clock that stands still until it is told."""

    now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def records(tmp_path, wall):
    return Records(str(tmp_path / "proj.sqlite3"), wall)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put an object into the bucket that the tasks see, beside the records of the test."""
    monkeypatch.setitem(app.conf, "proj_buckets", str(tmp_path))
    monkeypatch.setitem(app.conf, "proj_database", str(tmp_path / "proj.sqlite3"))
    (tmp_path / "shop").mkdir()
    return (tmp_path / "shop" / "day.csv").write_bytes


@pytest.fixture
def stopping(monkeypatch):
    """What the task sees of the shutdown, each time it looks."""

    def answer(*answers):
        looks = iter(answers)
        monkeypatch.setattr(Visibility, "stopping", property(lambda _: next(looks)))

    return answer


class TestRecords:
    def test_an_object_is_claimed_once_unless_given_back_or_left_by_the_dead_and_processed_once(
        self, records, wall
    ):
        assert records.claim(NAME, HOURS) is Claim.OURS
        assert records.claim(NAME, HOURS) is Claim.TAKEN
        records.give_back(NAME)
        assert records.claim(NAME, HOURS) is Claim.OURS
        wall.now += PROCESS_TIMEOUT - 1
        records.keep(NAME, [], 1, HOURS)
        wall.now += PROCESS_TIMEOUT - 1
        assert records.claim(NAME, HOURS) is Claim.TAKEN, "a worker that makes progress is not dead"
        wall.now += 1
        assert records.claim(NAME, HOURS) is Claim.OURS
        records.finish(NAME)
        wall.now += 10 * PROCESS_TIMEOUT
        assert records.claim(NAME, HOURS) is Claim.PROCESSED

    def test_an_object_is_taken_for_no_longer_than_its_message_is_hidden(self, records, wall):
        records.claim(NAME, 20)
        wall.now += 19
        assert records.claim(NAME, 20) is Claim.TAKEN
        records.keep(NAME, [], 1, 20)
        wall.now += 19
        records.keep(NAME, [], 1, 0)  # by a worker that has lost its message
        assert records.claim(NAME, 20) is Claim.TAKEN
        wall.now += 1
        assert records.claim(NAME, 20) is Claim.OURS

    def test_what_the_dead_have_left_is_known_once_their_time_is_over(self, records, wall):
        records.claim(NAME, 20)
        assert records.left() == []
        wall.now += 20
        assert records.left() == [NAME]
        records.finish(NAME)
        assert records.left() == []

    def test_the_place_is_kept_whatever_becomes_of_the_object_and_never_goes_back(self, records):
        records.claim(NAME, HOURS)
        assert records.kept(NAME) == (0, 0)
        records.keep(NAME, [(3, "c", 300)], 3, HOURS)
        records.give_back(NAME)
        records.claim(NAME, HOURS)
        assert records.kept(NAME) == (1, 3)
        records.keep(NAME, [(1, "a", 100)], 1, HOURS)
        assert records.kept(NAME) == (2, 3)

    def test_the_same_orders_twice_are_stored_once_and_objects_do_not_mix(self, records):
        records.keep(NAME, [(1, "a", 100), (2, "b", 200)], 2, HOURS)
        records.keep(NAME, [(2, "b", 200), (3, "c", 300)], 3, HOURS)
        assert records.orders(NAME) == [(1, "a", 100), (2, "b", 200), (3, "c", 300)]
        other = "shop/other.csv"
        assert (records.orders(other), records.kept(other)) == ([], (0, 0))
        assert records.state(other) == "unprocessed"


class TestImport:
    def test_an_error_leaves_the_object_to_the_next_delivery_and_the_one_after_is_skipped(self, put, records):
        with pytest.raises(FileNotFoundError):
            import_object(RECORD)
        assert records.state(NAME) == "unprocessed"
        put(b"a,1.00\n")
        assert import_object(RECORD) == "1 orders"
        put(b"changed,2.00\n")
        assert import_object(RECORD) == "imported before"
        assert records.orders(NAME) == [(1, "a", 100)]

    def test_bad_lines_are_skipped_with_a_warning_and_a_shutdown_after_the_last_costs_no_second_run(
        self, put, records, stopping, caplog
    ):
        put(b"a,1.00\nb,one\n\xff\xfe,1\n\nc,3.50\n")
        stopping(False)
        assert import_object(RECORD) == "2 orders, 3 skipped"
        assert records.orders(NAME) == [(1, "a", 100), (5, "c", 350)]
        assert records.state(NAME) == "processed"
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
        assert "line 2 skipped" in caplog.text

    def test_at_a_shutdown_it_saves_its_place_and_gives_the_object_and_the_message_back(
        self, put, records, stopping, monkeypatch
    ):
        monkeypatch.setattr("proj.tasks.LINES_AT_A_TIME", 2)
        put(b"a,1\nb,two\nc,3\nd,4\ne,5\n")
        stopping(False, True)
        with pytest.raises(Reject) as raised:
            import_object(RECORD)
        assert raised.value.requeue
        assert records.state(NAME) == "unprocessed"
        assert records.orders(NAME) == [(1, "a", 100)]
        put(b"never read\nagain\nc,3\nd,4\ne,5\n")
        stopping(False, False)
        assert import_object(RECORD) == "4 orders, 1 skipped"
        assert [cents for _, _, cents in records.orders(NAME)] == [100, 300, 400, 500]

    def test_each_run_names_its_object_when_it_begins_ends_fails_and_is_skipped(self, put, caplog):
        caplog.set_level("INFO", logger="proj.tasks")
        with pytest.raises(FileNotFoundError):
            import_object(RECORD)
        put(b"a,1.00\n")
        import_object(RECORD)
        import_object(RECORD)
        begins = ("INFO", f"{NAME}: import begins after line 0")
        assert [
            (record.levelname, record.getMessage().partition(": File")[0]) for record in caplog.records
        ] == [
            begins,
            ("WARNING", f"{NAME}: import ends early"),
            begins,
            ("INFO", f"{NAME}: imported, 1 orders"),
            ("INFO", f"{NAME}: skipped, since it was imported before"),
        ]

    @pytest.mark.parametrize("line", [b"", b"a", b"a,", b",1", b"a,x", b"a,1,2", b"a,NaN", b"a,0.001"])
    def test_a_line_without_number_and_amount_is_no_order(self, line):
        with pytest.raises(ValueError, match="expected an order number, a comma and an amount"):
            parse_order(line)


@pytest.mark.parametrize("error", [WebhookError(503, "2"), RefusedError(404)])
def test_webhook_errors_survive_the_way_out_of_the_pool(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.retry_after) == (type(error), str(error), error.retry_after)


FACTS = {
    "Received": {},
    "Started": {},
    "Failed": {"attempt": 1, "error": "Error()", "last": False},
    "Hidden": {"seconds": 2},
    "Finished": {},
    "Deleted": {},
}

AS_PLANNED = [
    (0.5, "Received"),
    (0.5, "Started"),
    (1.0, "Failed"),
    (1.0, "Hidden"),
    (3.5, "Started"),
    (3.6, "Finished"),
    (3.6, "Deleted"),
]
TOO_SOON = [(1.5 if at == 3.5 else at, event) for at, event in AS_PLANNED]


class TestStory:
    """The demo's verdict."""

    PLAN = Plan("a task", "some.task", (), gaps=(2.0,), result="ok")

    def told(self, *events, result="ok"):
        story = Story(began=0.0)
        story.sent("id", self.PLAN, 0.0)
        delivery = {"task_id": "id", "receive_count": 1}
        story.hear([{"at": at, "event": event, "delivery": delivery, **FACTS[event]} for at, event in events])
        story.rows["id"].result = result
        return story

    def test_a_task_that_went_as_planned_is_no_problem(self):
        story = self.told(*AS_PLANNED)
        assert story.over
        assert story.rows["id"].gaps == [2.5]
        assert story.rows["id"].problems() == []

    @pytest.mark.parametrize(
        ("events", "result", "problem"),
        [
            (TOO_SOON, "ok", "expected gaps of at least (2.0,) s, got [0.5]"),
            (AS_PLANNED[:4], "ok", "expected done, is hidden; expected 2 runs, had 1"),
            (AS_PLANNED, "other", "expected the result 'ok', got 'other'"),
        ],
        ids=["a retry that came too soon", "a message that was not deleted", "another result"],
    )
    def test_a_problem_is_told(self, events, result, problem):
        story = self.told(*events, result=result)
        assert "; ".join(story.rows["id"].problems()) == problem
        assert story.over is (events[-1] == AS_PLANNED[-1])

    def test_events_of_strangers_and_requests_are_no_lines(self):
        story = Story(began=0.0)
        stranger = {"at": 1.0, "event": "Started", "delivery": {"task_id": "other"}}
        assert story.hear([stranger, {"at": 1.0, "event": "SQSRequest", "action": "ReceiveMessage"}]) == []
        assert story.total_requests == 1
