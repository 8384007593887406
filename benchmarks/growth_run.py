"""Does the work of one subject at one size in this process, and prints its figures as JSON: see growth.py."""

from __future__ import annotations

import argparse
import json
import logging

import cost_worlds as worlds
from cost_run import end_at_once
from growth_gauges import GAUGES
from growth_subjects import SUBJECTS


class Measure:
    """A gauge, and the requests meanwhile.

    Attributes:
        gauge: what counts, weighs or times; the fake SQS pauses it.
    """

    def __init__(self, gauge):
        self.gauge = gauge
        self.sqs = None
        self._requests = 0

    def prepare(self):
        """What is allocated from here on counts."""
        self.gauge.prepare()

    def start(self):
        self.sqs.calls.clear()
        self.gauge.start()

    def weigh(self):
        """Memory is what is in use now."""
        self.gauge.weigh()

    def stop(self):
        self._requests = len(self.sqs.calls)
        self.sqs.calls.clear()
        self.gauge.stop()

    def end(self):
        """Print the figures, and end the process: a worker without threads cannot end in order."""
        end_at_once(json.dumps({"requests": self._requests, **self.gauge.figures()}), 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("size", type=int)
    parser.add_argument("gauge", choices=GAUGES)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    measure = Measure(GAUGES[arguments.gauge]())
    measure.sqs = worlds.single_threaded_sqs(measure.gauge)
    SUBJECTS[arguments.subject].work(measure, arguments.size)
    measure.end()


if __name__ == "__main__":
    main()
