"""SQS's limits, as Amazon documents them; the unit is in the name.

Source: "Amazon SQS quotas" and the API reference, Amazon SQS Developer Guide; API_Publish, Amazon SNS.
"""

from __future__ import annotations

from typing import Final

#: Entries in one batch request, and messages in one ReceiveMessage answer.
BATCH_ENTRIES: Final = 10

#: Bytes in one message or one SendMessageBatch, attributes included.
MESSAGE_BYTES: Final = 1024 * 1024

#: Bytes in one message that is published to an SNS topic, attributes included, unless the topic's attribute
#: `MaximumMessageSize` says otherwise.
TOPIC_MESSAGE_BYTES: Final = 256 * 1024

#: Longest visibility timeout, counted from the receive. SQS refuses a longer one; it does not clamp it.
VISIBILITY_HORIZON_SECONDS: Final = 12 * 60 * 60

#: How far to stay below that: SQS registered the receive a little earlier than we did.
HORIZON_MARGIN_SECONDS: Final = 2

#: Shortest, longest and default MessageRetentionPeriod.
MIN_RETENTION_SECONDS: Final = 60
RETENTION_SECONDS: Final = 14 * 24 * 60 * 60
DEFAULT_RETENTION_SECONDS: Final = 4 * 24 * 60 * 60

#: Messages of one queue in flight, held by workers or hidden; approximate, and unless AWS has raised it.
#: Above it long polls, and all polls of a FIFO queue, bring no messages and no error.
IN_FLIGHT_MESSAGES: Final = 120_000

#: From this number on a warning is logged.
MANY_IN_FLIGHT_MESSAGES: Final = IN_FLIGHT_MESSAGES * 8 // 10

#: Longest long poll.
WAIT_TIME_SECONDS: Final = 20

#: Longest DelaySeconds of one message; not allowed on FIFO queues.
DELAY_SECONDS: Final = 15 * 60

#: Attributes a message may carry.
MESSAGE_ATTRIBUTES: Final = 10

#: A FIFO queue drops a message whose MessageDeduplicationId it has accepted this long ago.
DEDUPLICATION_SECONDS: Final = 5 * 60

#: Longest MessageDeduplicationId.
DEDUPLICATION_ID_CHARACTERS: Final = 128

#: Most queues on one page of ListQueues.
LISTED_QUEUES: Final = 1000
