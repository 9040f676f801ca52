"""The mistakes of outages.py are found, told and replayed; the right programs survive."""

from __future__ import annotations

import pytest

from pyfiber import testing
from pyfiber.testing import ScheduleFailure
from tests.testing.outages import OUTAGES, DeadConnection, LostReply, Outage, TwoHolders, TwoLeaders

TOLD: dict[type[Outage], tuple[str, ...]] = {
    LostReply: (
        "AssertionError: [1, 2, 4]",
        "what counter sends to web is lost: the connection of web to counter on port 80 is reset",
    ),
    TwoHolders: (
        "hold the lease",
        "the lock service is cut off for 8 s",
        "locks is cut off from the test, one and two",
        "the network is whole again",
    ),
    DeadConnection: ("a new version of db is installed", "db crashes", "db is started again"),
    TwoLeaders: (" has the leaders ", "is killed after its vote"),
}


@pytest.mark.parametrize("kind", OUTAGES)
def test_while_the_network_is_well_the_mistake_does_not_show(kind: type[Outage]) -> None:
    testing.run(lambda: kind().broken(), network=kind.network)


@pytest.mark.parametrize("kind", OUTAGES)
def test_the_mistake_is_found_told_and_replayed(kind: type[Outage]) -> None:
    def program() -> None:
        kind().broken()

    with pytest.raises(ScheduleFailure) as caught:
        testing.explore(program, 300, network=kind.network)
    text = str(caught.value)
    assert "what the network did:" in text
    for part in TOLD[kind]:
        assert part in text
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(program, caught.value.schedule, network=kind.network)
    assert again.value.log == caught.value.log


@pytest.mark.parametrize("kind", OUTAGES)
def test_the_right_program_survives(kind: type[Outage]) -> None:
    testing.explore(lambda: kind().right(), 100, network=kind.network)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OUTAGES)
def test_the_right_program_survives_many_schedules(kind: type[Outage]) -> None:
    for strategy in ("random", "pct"):
        testing.explore(lambda: kind().right(), 2000, strategy, network=kind.network)
