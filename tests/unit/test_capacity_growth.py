"""What one more rack, server or step of power changes, by hand (6.5.2)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from instances.errors import InputError
from instances.io import load_instance
from optimizer.capacity.growth import additions, growth
from optimizer.options import SolveOptions

ONE_THREAD = SolveOptions(threads=1)


def test_power_limits_the_building_and_servers_do_not() -> None:
    """120 kW feed 11 servers of 10.2 kW, 130.2 kW feed 12: 4 sessions more on 8 cards."""
    base, rows = growth(load_instance("building-120kw"), ONE_THREAD)
    assert base.termination == "optimal"
    found = {row.name: row for row in rows}
    assert set(found) == {"one more server of hgx", "10.2 kW more power"}
    assert not found["one more server of hgx"].helps
    more = found["10.2 kW more power"]
    assert more.helps
    assert more.result.termination == "optimal"
    assert more.gains == (4, 1, Fraction(10_200))


def test_a_step_too_small_for_a_server_changes_nothing() -> None:
    """7.8 kW are left of 120: 2,399 W more do not feed a server of 10.2 kW, 2,400 W do."""
    instance = load_instance("building-120kw")
    for step_w, servers in ((2_399, 11), (2_400, 12)):
        _, rows = growth(instance, ONE_THREAD, power_step_w=step_w)
        assert rows[-1].values[1] == servers


def test_racks_that_are_there_come_with_their_servers() -> None:
    instance = load_instance("lose-any-rack")
    names = [addition.name for addition in additions(instance)]
    assert len(names) == len(instance.fleet.racks) + len(instance.fleet.pools)
    first = next(iter(additions(instance))).instance.fleet
    assert first.racks[0].count == instance.fleet.racks[0].count + 1


def test_only_a_fleet_grows() -> None:
    with pytest.raises(InputError, match="decision"):
        growth(load_instance("four-sessions-128k"))
