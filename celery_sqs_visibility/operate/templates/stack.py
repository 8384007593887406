"""What a template makes: queues, alarms on them, and the policies of those who use them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_sqs_visibility.policy.provisioning import QueuePlan


@dataclass(frozen=True, slots=True)
class Stack:
    """The contents of a template.

    Attributes:
        plans: the queues, each after its dead-letter queue.
        policies: policy documents by role.
        arns: SQS's names of queues by the ARNs that the documents have of them.
    """

    plans: Sequence[QueuePlan]
    policies: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    arns: Mapping[str, str] = field(default_factory=dict)


def referring(document: Any, references: Mapping[str, Any]) -> Any:
    """A copy of a document whose strings are replaced by those references."""
    if isinstance(document, dict):
        return {name: referring(value, references) for name, value in document.items()}
    if isinstance(document, list):
        return [referring(value, references) for value in document]
    return references.get(document, document) if isinstance(document, str) else document


def typed(name: str, value: str) -> Any:
    """The value of a queue's attribute: SQS takes texts, templates have types."""
    if name in {"RedrivePolicy", "RedriveAllowPolicy", "Policy"}:  # JSON at SQS
        return json.loads(value)
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return int(value) if value.isdigit() and name != "KmsMasterKeyId" else value


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with numbers behind repeated ones."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name}{seen[name]}")
    return numbered
