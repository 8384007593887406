"""Makes a boto3 client's requests: the first as it does, most of the rest in a third of the CPU time.

For every request botocore works out anew where it goes, what shapes it has and how it is signed. A worker
makes three kinds of them all day long, and what differs is the body. So a client's first request is looked at
on its way out; if all of it is understood, those that follow imitate it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.imitation import Imitation
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.awsrequest import AWSPreparedRequest
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

#: The actions that are worth it. Their parameters go over the wire as they are.
FREQUENT: Final = frozenset({"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"})

#: Requests that are looked at: where keys were renewed at the wrong moment, the next will do.
MOST_LOOKS: Final = 3

#: Imitations that fail where botocore then succeeds; after so many there are no more.
MOST_MISTAKES: Final = 3

#: Refusals of which the form of a request may be the reason.
MAYBE_THE_FORM: Final = (
    CredentialsRefusedError,
    AccessDeniedError,
    RequestRefusedError,
    UnrecognizedResponseError,
)


class Caller:
    """Calls SQS for one client, which makes no second attempt at a `FREQUENT` action. Any thread.

    Where botocore is not as we know it, in another version or with another way to sign, its client goes on to
    make every request. Where an imitation is refused, so that its form may be the reason, botocore has the
    last word.

    Args:
        client: made for this alone.
        wall: seconds since the epoch.
    """

    def __init__(self, client: SQSClient, wall: Callable[[], float]) -> None:
        self.client = client
        self._wall = wall
        self._imitation: Imitation | None = None
        self._looks = MOST_LOOKS
        self._mistakes = 0
        client.meta.events.register("before-send.sqs", self._look)

    def call(self, action: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request and return what is in the answer.

        Args:
            action: of SQS's API.
            method: what the client calls it.
            params: the action's.

        Raises:
            Exception: what the client raises.
        """
        imitation = self._imitation
        if imitation is None or action not in FREQUENT:
            return self._ask_botocore(method, params)
        try:
            return imitation.call(action, params)
        except Exception as error:
            if not _may_be_our_doing(error, imitation, action):
                raise
            reason = error
        self._imitation, self._looks = None, max(self._looks, 1)  # what botocore sends now is a new model
        answer = self._ask_botocore(method, params)
        self._note_mistake(reason)
        return answer

    def _ask_botocore(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = getattr(self.client, method)(**params)
        return answer

    def _note_mistake(self, reason: Exception) -> None:
        self._mistakes += 1
        if self._mistakes >= MOST_MISTAKES:
            self._imitation, self._looks = None, 0
            logger.warning("requests to SQS are botocore's from now on, where imitations fail: %s", reason)

    def close(self) -> None:
        """Close the connections that idle; the next call opens new ones."""
        self.client.close()

    def _look(self, request: AWSPreparedRequest, **_: Any) -> None:
        """Take a request that is about to be sent for a model. The thread that makes it."""
        if self._imitation is not None or self._looks <= 0 or Imitation.made(request):
            return
        self._looks -= 1
        try:
            self._imitation = Imitation(self.client, request, self._wall)
        except Exception as error:  # noqa: BLE001 - requests only cost more then
            level = logging.DEBUG if self._looks else logging.INFO
            logger.log(level, "requests to SQS stay botocore's, which takes more CPU time: %s", error)


def _may_be_our_doing(error: Exception, imitation: Imitation, action: str) -> bool:
    if hasattr(error, "response"):
        return isinstance(translate(error, action), MAYBE_THE_FORM)
    return not imitation.knows(error)
