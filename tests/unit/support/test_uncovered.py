"""The list of code that no test runs, and what its reasons are about."""

from __future__ import annotations

from support import uncovered

REPORT = {
    "files": {
        "celery_sqs_visibility/aws/boto.py": {
            "functions": {
                "BotoSQS.close": {"missing_lines": [], "missing_branches": []},
                "BotoSQS.send": {
                    "missing_lines": [4, 5, 6, 9],
                    "missing_branches": [[3, 4], [4, 8], [11, -2]],
                },
                "": {"missing_lines": [1], "missing_branches": []},
            }
        }
    },
    "totals": {"num_statements": 200, "covered_lines": 195, "num_branches": 50, "covered_branches": 48},
}


def test_lines_and_branches_are_listed_by_function_unless_there_is_a_reason():
    assert list(uncovered.unexplained(REPORT, {})) == [
        "aws/boto.py: BotoSQS.send: 4-6, 9, 3→4, 11→",
        "aws/boto.py: (module): 1",
    ]
    why = {"aws/boto.py": {"BotoSQS.send": "on AWS only"}}
    assert list(uncovered.unexplained(REPORT, why)) == ["aws/boto.py: (module): 1"]


def test_the_page_has_the_shares():
    assert "195 of 200 (97.50 %) lines and 48 of 50 (96.00 %) branches" in uncovered.shares(REPORT)


def test_functions_that_have_a_reason_exist():
    for name, functions in uncovered.reasons().items():
        path = uncovered.PACKAGE / name
        assert path.exists(), name
        assert functions.keys() <= uncovered.functions(path), name


def test_the_page_has_a_place_for_it():
    assert uncovered.WRITTEN.search(uncovered.PAGE.read_text())
