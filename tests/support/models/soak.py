"""Many steps of the models of what holds messages and of a whole worker: `make model`.

Each world has a seed of its own. A world that fails is named by it, which replays it: `make model SEED=n`.
"""

import argparse
import logging
import random
import sys
import time
import traceback

from support.models.holding import Holding
from support.models.steps import live_through
from support.models.whole import Whole

#: Makes a world of a seed.
MODELS = {"holding": lambda _seed: Holding(), "whole": Whole}
STEPS_OF_A_WORLD = 100


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def soak(name, first, worlds, seconds):
    """Live through worlds of that model, the last of which begins within `seconds`; whether one failed."""
    failed, began, lived = [], time.monotonic(), 0
    for seed in range(first, first + worlds):
        if time.monotonic() - began >= seconds:
            break
        try:
            live_through(MODELS[name](seed), seed, STEPS_OF_A_WORLD)
        except Exception:  # noqa: BLE001 - it is printed
            failed.append(seed)
            say(f"world {seed} failed: make model MODEL={name} SEED={seed}")
            say(traceback.format_exc())
        lived += STEPS_OF_A_WORLD
    took = time.monotonic() - began
    say(f"{name}: {lived:,} steps from seed {first} in {took:.0f} s; failed: {failed or 'none'}")
    return bool(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, action="append", help="all by default")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="ends the last world begun by then"
    )
    parser.add_argument("--seed", type=int, help="of one world")
    given = parser.parse_args()
    logging.getLogger("celery_sqs_visibility").addHandler(logging.NullHandler())
    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    worlds = 1 if given.seed is not None else -(-given.steps // STEPS_OF_A_WORLD)
    failed = [soak(name, first, worlds, given.seconds) for name in given.model or MODELS]
    return any(failed)


if __name__ == "__main__":
    raise SystemExit(main())
