"""Transport options as their user wrote them, without what publications have added.

kombu adds the retry policy of a publication to the options of its connection, and of those that are made of
it later, before it refuses the publication for a wrong name in that policy (kombu/messaging.py:
`Producer.publish`). That name is no option, and must not have the next connection refused. Any thread.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery_sqs_visibility.policy.option_parsers import KOMBU_OPTIONS, RETRY_POLICY
from celery_sqs_visibility.policy.options import Options

logger = logging.getLogger(__name__)

NO_OPTION: Final = (
    "unknown transport option %r is ignored: a publication's retry policy has it, whose keys are "
    "max_retries, interval_start, interval_step and interval_max"
)

#: The options of connections that were made in this process. Each access is atomic: no lock.
_accepted: Final[set[str]] = set()


def as_written(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, without names that only a retry policy can have brought; those are logged."""
    known = Options.known_names()
    strange = [name for name in given if name not in known]
    if not strange or not _are_of_a_policy(strange, given):
        return dict(given)
    for name in strange:
        logger.warning(NO_OPTION, name)
    return {name: value for name, value in given.items() if name in known}


def accept(given: Mapping[str, Any]) -> None:
    """A connection is made with these options."""
    _accepted.add(_ours(given))


def _are_of_a_policy(strange: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Whether a retry policy brought the unknown names; the policy's valid names then come before these.

    It did if a connection was made without the unknown names. Before the first connection it did if all of a
    policy's names come before them, and none of them resembles an option of ours.
    """
    names = list(given)
    before = RETRY_POLICY.intersection(names[: names.index(strange[0])])
    if before and _ours(given) in _accepted:
        return True
    ours = Options.known_names() - KOMBU_OPTIONS
    return before == RETRY_POLICY and not any(difflib.get_close_matches(name, ours, 1) for name in strange)


def _ours(given: Mapping[str, Any]) -> str:
    ours = Options.known_names() - KOMBU_OPTIONS
    return repr(sorted((name, value) for name, value in given.items() if name in ours))
