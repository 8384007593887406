"""What only the store in memory does; tests/conformance has the rest."""

from celery_sqs_visibility.stores.memory import MemoryStore


def test_a_run_whose_first_answer_was_lost_is_counted_once(clock, key):
    store = MemoryStore(clock)
    for _ in range(2):
        acquired = store.acquire(key, "m1/one", 60, 3)
        assert (acquired.retries, acquired.runs) == (3, 0)
    store.release(key, "m1/one")
    acquired = store.acquire(key, "m1/two", 60, 9)
    assert (acquired.retries, acquired.runs) == (4, 1)
