"""Counts which file of the package calls which, in all threads of a process, by `sys.setprofile`.

The counts are asked for by a connection to a Unix socket, and written when the process ends.
"""

from __future__ import annotations

import _thread
import atexit
import inspect
import json
import os
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

PACKAGE = f"{Path(__file__).resolve().parents[1] / 'celery_sqs_visibility'}{os.sep}"
IMPORTED = "an import"

#: What a worker looks after at its own times, whatever happens: no part of a walk.
LOOKS = "delivery/supervisor.py"


class Tracer:
    """Calls of the package's functions, and hops between its files, by thread.

    Attributes:
        counts: a counter for each thread and name of a thread. Keys are ("call", file, function) and
            ("hop", from, to); frames of other libraries between two files of the package are passed over.
    """

    def __init__(self):
        self.counts = []
        self._of_thread = threading.local()
        self._files = {}

    def install(self):
        """Profile this thread, and those to come. Not a child of a fork."""
        os.register_at_fork(after_in_child=self.remove)
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    @staticmethod
    def remove():
        threading.setprofile(None)
        sys.setprofile(None)

    def profile(self, frame, event, _arg):
        """`sys.setprofile`'s."""
        if event not in {"call", "return"} or not (file := self._file(frame)):
            return
        caller = self._caller(frame)
        if IMPORTED in {file, caller} or self._looks(frame):
            return
        counter = self._counter()
        if event == "call":
            counter["call", file, frame.f_code.co_name] += 1
        if caller and caller != file:
            counter[("hop", caller, file) if event == "call" else ("hop", file, caller)] += 1

    def _file(self, frame):
        """The file of the package, empty for others' code, IMPORTED for that of a module or class body."""
        code = frame.f_code
        if code not in self._files:
            _, ours, file = code.co_filename.partition(PACKAGE)
            body = ours and not code.co_flags & inspect.CO_OPTIMIZED
            self._files[code] = IMPORTED if body else file
        return self._files[code]

    def _caller(self, frame):
        while (frame := frame.f_back) is not None:
            if file := self._file(frame):
                return file
        return ""

    def _looks(self, frame):
        """Whether the supervisor has called it."""
        while frame is not None and self._file(frame) != LOOKS:
            frame = frame.f_back
        return frame is not None

    def _counter(self):
        try:
            return self._of_thread.counter
        except AttributeError:
            self._of_thread.counter = counter = Counter()
            self.counts.append((threading.current_thread().name, counter))
            return counter

    def rows(self):
        """A list of [thread, "call" or "hop", file, function or file, count]."""
        totals = Counter()
        for thread, counter in list(self.counts):
            for key, number in list(counter.items()):
                totals[(thread, *key)] += number
        return [[*key, number] for key, number in totals.items()]


def serve(tracer, directory):
    """Answer each connection with the counts; by a thread that is not profiled."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "counts"))
    listener.listen()

    def answer():
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(json.dumps(tracer.rows()).encode())

    _thread.start_new_thread(answer, ())
    main = os.getpid()

    def end():
        if os.getpid() == main:
            (directory / "end").write_text(json.dumps(tracer.rows()))

    atexit.register(end)
