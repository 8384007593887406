"""Many steps of the model of a whole worker, each world with a seed of its own: `make model`.

A world that fails is named by its seed, which replays it: `make model SEED=n`.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback

from support.models.steps import live_through
from support.models.whole import Whole

STEPS_OF_A_WORLD = 100


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="ends the last world begun by then"
    )
    parser.add_argument("--seed", type=int, help="of one world")
    given = parser.parse_args()
    logging.getLogger("celery_sqs_visibility").addHandler(logging.NullHandler())
    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    worlds = 1 if given.seed is not None else -(-given.steps // STEPS_OF_A_WORLD)
    failed, began, lived = [], time.monotonic(), 0
    for seed in range(first, first + worlds):
        if time.monotonic() - began >= given.seconds:
            break
        try:
            live_through(Whole(seed), seed, STEPS_OF_A_WORLD)
        except Exception:  # noqa: BLE001 - it is printed
            failed.append(seed)
            say(f"world {seed} failed: make model SEED={seed}")
            say(traceback.format_exc())
        lived += 1
    lived *= STEPS_OF_A_WORLD
    say(f"{lived:,} steps from seed {first} in {time.monotonic() - began:.0f} s; failed: {failed or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
