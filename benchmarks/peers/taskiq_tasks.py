"""The task that does nothing, for taskiq-aio-sqs.

python taskiq_tasks.py COUNT                publishes
taskiq worker taskiq_tasks:broker           consumes
"""

import asyncio
import os
import sys

from taskiq_aio_sqs import SQSBroker

TOGETHER = 10

broker = SQSBroker(
    os.environ["BENCH_QUEUE"],
    endpoint_url=os.environ["BENCH_ENDPOINT"],
    max_number_of_messages=TOGETHER,
)


@broker.task(task_name="nothing")
async def nothing() -> None:
    """Do nothing."""


async def publish(count):
    await broker.startup()
    for _ in range(count // TOGETHER):
        await asyncio.gather(*(nothing.kiq() for _ in range(TOGETHER)))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(publish(int(sys.argv[1])))
