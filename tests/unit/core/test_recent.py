"""Memory has bounds."""

from celery_sqs_visibility.core.recent import RecentKeys


def test_a_key_is_new_once_and_the_oldest_is_forgotten():
    remembered = RecentKeys(2)
    assert [remembered.add(key, 0.0) for key in "abac"] == [True, True, False, True]
    assert "b" not in remembered
    assert "a" in remembered


def test_what_is_old_is_forgotten_when_something_else_is_remembered():
    remembered = RecentKeys(100, 0.5)
    remembered.add("a", 0.0)
    remembered.add("far", 0.0, until=60.0)
    remembered.add("b", 0.5)
    assert "a" in remembered
    remembered.add("c", 0.6)
    assert "a" not in remembered
    assert "far" in remembered
    remembered.add("d", 60.1)
    assert len(remembered) == 1
