from __future__ import annotations

from click.testing import CliRunner

from celery_sqs_visibility.operate.commands import MODULES, RENAMED, LazyGroup, sqs


def test_a_former_name_of_a_command_works_with_a_warning_and_is_not_listed():
    for former, name in RENAMED.items():
        assert name in MODULES
        answer = CliRunner().invoke(sqs, [former, "--help"])
        assert answer.exit_code == 0
        assert f"`celery sqs {former}` is now `celery sqs {name}`" in answer.output
    assert not RENAMED.keys() & MODULES.keys()


def test_a_command_that_there_is_not_is_none():
    assert LazyGroup("sqs").get_command(None, "nope") is None
