"""A program with workers of the app of `work` on threads of its own, one after the other, as tests have."""

import signal
import sys
import time

from celery.contrib.testing.worker import start_worker
from work import app

if __name__ == "__main__":
    app.loader.import_task_module("celery.contrib.testing.tasks")
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
    pool, workers = sys.argv[1], int(sys.argv[2])
    for _ in range(workers):
        with start_worker(app, pool=pool, perform_ping_check=False, loglevel="INFO"):
            app.tasks["work.quick"].delay("embedded")
            time.sleep(float(sys.argv[3]))
            ended = time.monotonic()
        sys.stdout.write(f"ended in {time.monotonic() - ended:.1f} s\n")
    sys.stdout.write("goes on\n")
    sys.stdout.flush()
    time.sleep(600)
