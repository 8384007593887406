"""The picture of the rooms is that of the contracts: see `make picture`."""

from support import rooms

STALE = "run `make picture`: the contracts in pyproject.toml, or docstrings of rooms, have changed"


def test_the_picture_of_the_package_is_current():
    shown = rooms.PICTURE.search(rooms.ARCHITECTURE.read_text())
    assert shown is not None
    assert shown[0] == rooms.picture(), STALE


def test_the_floors_of_the_rooms_are_current():
    assert rooms.ROOMS.read_text() == rooms.rooms_page(), STALE
