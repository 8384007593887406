"""The language of behaviours, the comparison of answers, the recorder and the replays."""

import json

import pytest
from support.behaviours import page, recorder
from support.behaviours.answers import matches, told
from support.behaviours.language import RowError, parse, read_rows
from support.behaviours.replay import replay
from support.behaviours.targets import FakeTarget

ROW = {
    "id": "queue.brings",
    "claim": "A queue brings what was sent.",
    "steps": [{"create": "q"}, {"send": "a"}, {"receive": 10}],
    "answer": {"bodies": ["a"]},
    "evidence": {"class": "open", "source": "nobody", "date": "2026-11-24"},
    "relied_on": None,
    "survives": None,
    "deviations": {},
}


def row(**changes):
    return parse({**ROW, **changes})


def file_of(path, *rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "Brings"}, "'Brings' is no id"),
        ({"claim2": ""}, "expected the keys"),
        ({"steps": [{"create": "q"}, {"post": "a"}]}, "step 2: expected one of create, send, .* got 'post'"),
        ({"steps": [{"create": "q", "delay": 1}]}, "step 1: 'create' has no delay"),
        ({"steps": [{"change": "a"}]}, "step 1: 'change' needs 'to'"),
        ({"steps": [{"create": "q"}, {"sleep": 1}]}, "the last step must ask for something"),
        ({"answer": {"body": "a"}}, "an answer has no 'body'; it has code, message"),
        ({"answer": {"bodies": "a"}}, "'bodies' cannot be 'a'"),
        (
            {"evidence": {"class": "hearsay", "source": "", "date": "2026-11-24"}},
            "no class of evidence is 'hearsay'",
        ),
        ({"evidence": {"class": "open", "source": "", "date": "today"}}, "'today' is no date"),
        ({"deviations": {"elasticmq": {"answer": {}}}}, "expected one of fake, moto, .* got 'elasticmq'"),
        ({"deviations": {"moto": {"answer": {}, "reason": ""}}}, "a deviation has an answer and a why: moto"),
    ],
)
def test_what_a_row_cannot_be_is_told(changes, said):
    with pytest.raises(RowError, match=said):
        row(**changes)


def test_the_line_is_told_and_an_id_is_taken_once(tmp_path):
    path = file_of(tmp_path / "rows.jsonl", ROW, ROW)
    with pytest.raises(RowError, match=r"rows.jsonl:2: the id 'queue.brings' is taken"):
        read_rows(path)


@pytest.mark.parametrize(
    ("expected", "came", "agrees"),
    [
        ({}, {}, True),
        ({}, {"bodies": ["a"], "counts": [1]}, True),
        ({}, {"code": "InvalidParameterValue"}, False),
        ({"code": "X"}, {}, False),
        ({"code": "X", "message": "must be .* 10"}, {"code": "X", "message": "It must be at most 10."}, True),
        ({"code": "X", "message": "must be .* 10"}, {"code": "X", "message": "no"}, False),
        ({"bodies": ["a"]}, {"bodies": []}, False),
        ({"bodies": ["a"]}, {"step": 2, "code": "X"}, False),
        ({"failed": {}}, {"failed": {"1": "X"}}, False),
        ({}, {"failed": {"1": "X"}}, False),
        ({"failed": {"1": "X"}}, {"failed": {"1": "X"}}, True),
        ({"values": {"A": "^3", "B": None}}, {"values": {"A": "30"}}, True),
        ({"values": {"A": "^3", "B": None}}, {"values": {"A": "30", "B": ""}}, False),
        ({"waited": [1, 2]}, {"waited": 1.5}, True),
        ({"waited": [1, 2]}, {"waited": 0.5}, False),
        ({"bodies": []}, {"asked": False}, False),
    ],
)
def test_an_answer_agrees_or_not_and_as_it_is_told_it_agrees_with_itself(expected, came, agrees):
    assert matches(expected, came) is agrees
    assert matches(told(expected, came), came)


def test_an_unlisted_deviation_is_told_and_so_is_one_that_is_gone():
    listed = row(deviations={"moto": {"answer": {"bodies": []}}})
    as_amazon, otherwise = ({"queue.brings": {"bodies": bodies}} for bodies in (["a"], []))
    assert recorder.disagreements("moto", [row()], as_amazon) == []
    assert recorder.disagreements("moto", [listed], otherwise) == []
    assert "expected brings a, got" in recorder.disagreements("moto", [row()], otherwise)[0]
    assert "expected brings nothing (listed), got" in recorder.disagreements("moto", [listed], as_amazon)[0]


def test_what_came_is_written_down_and_forgotten_when_it_is_gone(tmp_path):
    path = file_of(tmp_path / "rows.jsonl", ROW)
    recorder.record(path, "moto", {"queue.brings": {"bodies": []}})
    assert read_rows(path) == [row(deviations={"moto": {"answer": {"bodies": []}}})]
    recorder.record(path, "moto", {"queue.brings": {"bodies": ["a"]}})
    assert read_rows(path) == [row()]


@pytest.mark.parametrize(
    ("bodies", "source"),
    [(["a"], "our own run against AWS; before: nobody"), ([], "our own run against AWS")],
)
def test_what_aws_answers_is_the_answer_from_then_on(tmp_path, bodies, source):
    path = file_of(tmp_path / "rows.jsonl", ROW)
    for _ in range(2):
        recorder.record(path, "aws", {"queue.brings": {"bodies": bodies}})
    (recorded,) = read_rows(path)
    assert (recorded.answer, recorded.evidence.kind) == ({"bodies": bodies}, "recorded")
    assert recorded.evidence.source.startswith(source)


class SlowTarget(FakeTarget):
    """Requests take a second."""

    def send(self, url, entry):
        self.sleep(1)
        return super().send(url, entry)


def test_a_row_whose_requests_take_too_long_for_its_times_is_replayed_with_longer_ones():
    timed = row(
        steps=[{"create": "q"}, {"send": "a"}, {"receive": 1, "visibility": 1}, {"sleep": 2}, {"receive": 1}]
    )
    target = SlowTarget()
    began = target.now()
    assert replay(timed, target)["counts"] == [2]
    assert target.now() - began == (1 + 2) + (1 + 4), "units of one second, then of two"


def test_the_page_has_what_the_rows_have(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"# Page\n\n{page.BEGIN}\n{page.END}\nend\n")
    deviations = {"moto": {"answer": {"bodies": []}}}
    rows = [row(deviations=deviations, relied_on="tasks"), row(deviations=deviations)]
    page.write(path, rows)
    text = path.read_text()
    assert "Of 1 behaviours that the package relies on, not so in our fake: 0, moto: 1," in text
    assert "| open: nobody | 2 | 1 |" in text
    assert text.endswith("\nend\n")
    assert page.is_current(text, rows)
    assert not page.is_current(text, [row(relied_on="tasks"), row()])
