"""In a command an error is one line; elsewhere it is what it was."""

import pickle

import click
import pytest
from celery.bin.base import CLIContext
from celery.exceptions import ImproperlyConfigured
from click.testing import CliRunner
from kombu import Connection

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.errors import OptionError


def celerys_context():
    """What a `celery` command has for its object."""
    return CLIContext(app=None, no_color=True, workdir=None)


def celerys_command():
    return click.Context(click.Command("worker"), obj=celerys_context())


@pytest.mark.parametrize("cls", [OptionError, ImproperlyConfigured])
def test_a_command_ends_with_one_line_and_status_1(cls):
    @click.command()
    @click.pass_context
    def command(context):
        context.obj = celerys_context()
        raise shown_in_one_line(cls("the sentence"))

    result = CliRunner().invoke(command)
    assert (result.exit_code, result.output) == (1, "Error: the sentence\n")


def test_in_a_command_it_is_still_caught_by_its_class():
    with celerys_command(), pytest.raises(OptionError, match="did you mean 'region'"):
        _ = Connection(transport="celery_sqs_visibility", transport_options={"regin": 1}).transport


def test_a_pools_process_pickles_the_error_itself():
    with celerys_command():
        error = pickle.loads(pickle.dumps(shown_in_one_line(OptionError("the sentence"))))
    assert (type(error), str(error)) == (OptionError, "the sentence")


def test_elsewhere_it_is_the_error_itself():
    error = OptionError("the sentence")
    assert shown_in_one_line(error) is error
    with click.Context(click.Command("a program of the user's")):
        assert shown_in_one_line(error) is error
