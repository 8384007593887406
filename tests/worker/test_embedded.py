"""A worker on a thread of a program ends at once, and leaves the program alone."""

import signal
import sys

import pytest
from support.processes import GuardedProcess
from support.worker import IMPORT_PATHS, environment


@pytest.fixture
def embed(proxy, tmp_path):
    """`embed(site, pool, workers)`: a program with so many workers in turn, each for as long as its task."""
    programs = []

    def start(site, pool, workers=1):
        env = environment(site.config, AWS_ENDPOINT_URL_SQS=proxy.url)
        command = [sys.executable, str(IMPORT_PATHS[2] / "embedding.py"), pool, str(workers), "2"]
        programs.append(GuardedProcess(command, tmp_path / "program.log", env))
        return programs[-1].start()

    yield start
    for program in programs:
        program.stop()


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_it_ends_while_its_long_poll_is_open_and_gives_back_what_that_brings(make_site, embed, pool):
    site = make_site(visibility_timeout=120)  # and polls of 20 s, by default
    program = embed(site, pool, workers=2)
    program.wait_for_log("goes on", 60)
    assert program.log.count("ended in ") == 2, "Celery raises when it takes ten seconds"
    assert site.diary.count("started", key="embedded") == 2, "the second worker works, too"
    if site.proxy.in_flight("ReceiveMessage"):
        site.send("quick", "after the end")
        site.proxy.wait_for(lambda _: site.brought()[2:])
        # A poll of the worker before may have had it, too: then it is hidden until that poll is over.
        site.proxy.wait_for(lambda _: site.counts() == (1, 0))
    program.signal_main(signal.SIGUSR2)
    assert program.wait_exit() == 0


def test_what_the_polls_of_workers_before_bring_runs_in_the_next_worker(make_site, embed):
    """Given back, a message was received by the next poll, and then hidden until their polls were over."""
    site = make_site(visibility_timeout=120)
    program = embed(site, "solo", workers=5)
    program.wait_for_log("goes on", 60)
    assert site.diary.count("started", key="embedded") == 5
    assert len(site.brought()) == 5
    assert site.changes() == []
