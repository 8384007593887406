"""A look, some time after a retry, for the letters that have come back."""

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
        seconds: how long it was waited.
        came_back: ids of the tasks that are dead letters again.
        in_queue: approximate number of messages in the source queue, hidden ones included; `None` if SQS
            does not tell.
    """

    seconds: int
    came_back: list[str]
    in_queue: int | None


def follow(session: Session, outcome: Outcome, seconds: float) -> Followed:
    """Wait, then look for tasks that were sent back and are letters again. The command's thread.

    Ctrl-C and SIGTERM end the wait, not the look. Letters without a task's id are not recognised.

    Raises:
        SQSError: SQS does not answer, or refuses.
    """
    release(session.held)  # nobody waits for what this command only looked at
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
    # Not the session's event, which has ended the wait: a second Ctrl-C raises.
    stop, sent = threading.Event(), frozenset(filter(None, outcome.task_ids))
    held = HeldMessages(session.place.letters, SYSTEM_CLOCK, stop)
    place, ahead = replace(session.place), session.clock_offset  # a copy, which counts anew
    look = Session(place, Selection(sent), None, held, stop, ahead, began=session.now())
    with given_back(look):
        letters = [letter for batch in look.batches() for letter in batch]
    deleted = set(outcome.done)  # or not deleted, which the outcome says
    return sorted({str(letter.task_id) for letter in letters if letter.id not in deleted})


def _in_queue(place: Place) -> int | None:
    try:
        return count(place.source, VISIBLE, HIDDEN, DELAYED)
    except SQSError:
        return None
