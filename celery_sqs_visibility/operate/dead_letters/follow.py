"""Finds letters that have come back some time after a retry."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from celery_sqs_visibility.aws.queues import DELAYED, HIDDEN, VISIBLE, count
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.moves import Outcome
from celery_sqs_visibility.operate.dead_letters.session import (
    HeldMessages,
    Place,
    Session,
    given_back,
    release,
)
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import counted, say
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of letters that were sent back.

    Attributes:
        came_back: ids of the tasks that are dead letters again.
        in_queue: approximate number of messages in the source queue, including hidden ones; `None` if
            unknown.
    """

    seconds: int
    came_back: list[str]
    in_queue: int | None


def follow(session: Session, outcome: Outcome, seconds: float) -> Followed:
    """Wait, then look for tasks that were sent back and are dead letters again. The command's thread.

    Ctrl-C and SIGTERM end only the wait. Letters without a task id are not recognised.

    Raises:
        SQSError: SQS does not answer, or refuses.
    """
    release(session.held)  # give back letters that the command only looked at
    say(
        f"Sent back {counted(len(outcome.done), 'dead letter')}. Waiting {duration_text(seconds)} (Ctrl-C "
        "ends the wait), then looking for those that came back: they are received and given back at once.",
        err=True,
    )
    began = SYSTEM_CLOCK.monotonic()
    session.stop.wait(seconds)
    waited = round(SYSTEM_CLOCK.monotonic() - began)
    return Followed(waited, _letters_again(session, outcome), _in_queue(session.place))


def _letters_again(session: Session, outcome: Outcome) -> list[str]:
    # Not the session's event, which has ended the wait. A second Ctrl-C raises.
    stop, sent = threading.Event(), frozenset(filter(None, outcome.task_ids))
    held = HeldMessages(session.place.letters, SYSTEM_CLOCK, stop)
    place, ahead = replace(session.place), session.clock_offset  # a copy, which counts anew
    look = Session(place, Selection(sent), None, held, stop, ahead, began=session.now())
    with given_back(look):
        letters = list(look.letters())
    deleted = set(outcome.done)  # those that could not be deleted are part of the outcome
    return sorted({str(letter.task_id) for letter in letters if letter.id not in deleted})


def _in_queue(place: Place) -> int | None:
    try:
        return count(place.source, VISIBLE, HIDDEN, DELAYED)
    except SQSError:
        return None
