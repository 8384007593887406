"""The task that does nothing, for dramatiq_sqs.

python dramatiq_tasks.py COUNT          publishes
dramatiq dramatiq_tasks                 consumes
"""

import os
import sys

import dramatiq
from dramatiq_sqs import SQSBroker

broker = SQSBroker(endpoint_url=os.environ["BENCH_ENDPOINT"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["BENCH_QUEUE"])
def nothing():
    """Do nothing."""


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        nothing.send()
