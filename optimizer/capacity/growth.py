"""What to add next: the capacity decision solved again with one more of everything (6.5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from instances.errors import InputError
from instances.instance import Instance
from optimizer.options import SolveOptions
from optimizer.side.decisions import solve_side
from optimizer.side.result import SideResultDocument
from optimizer.variants.fields import Path, changed_instance


@dataclass(frozen=True, slots=True)
class Addition:
    """A fleet with one thing more."""

    name: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """What a fleet with one thing more achieves: each goal, and how much more than without it.

    `gains` are None where the fleet as it is, or the grown one, has no plan.
    """

    name: str
    result: SideResultDocument
    values: tuple[Fraction | None, ...]
    gains: tuple[Fraction | None, ...]

    @property
    def helps(self) -> bool:
        """Whether any goal changes, or a plan exists that did not."""
        return any(self.gains) or (None in self.gains and None not in self.values)


def additions(instance: Instance, power_step_w: int | None = None) -> Iterator[Addition]:
    """Yield the instance with one more rack of each kind, server (group) of each pool, and power.

    Of a fleet to be bought the maxima are raised; racks of an existing fleet come with the servers
    that stand in each. `power_step_w` defaults to what the least server draws.
    """
    data, fleet = instance.model_dump(mode="json"), instance.fleet

    def changed(name: str, values: dict[Path, int | str | None]) -> Addition:
        fields = {("fleet", *path): value for path, value in values.items()}
        return Addition(name, changed_instance(data, fields, instance.name))

    place = {pool.name: p for p, pool in enumerate(fleet.pools)}
    for r, rack in enumerate(fleet.racks):
        more: dict[Path, int | str | None] = {("racks", r, "count"): rack.count + 1}
        for held in rack.servers:
            p = place[held.pool]
            more["pools", p, "num_servers"] = fleet.pools[p].num_servers + held.num_servers
        yield changed(f"one more rack {rack.name}", more)
    for p, pool in enumerate(fleet.pools):
        if fleet.mode == "existing" and fleet.racks:
            break  # a server needs a place in a rack, and a rack comes with its servers
        number = pool.servers_per_group
        what = "one more server" if number == 1 else f"{number} more servers"
        servers = pool.num_servers + number
        yield changed(f"{what} of {pool.name}", {("pools", p, "num_servers"): servers})
    if fleet.power is None:
        return
    drawn = [pool.server.power_w for pool in fleet.pools if pool.server.power_w]
    step_w = min(drawn, default=1000) if power_step_w is None else power_step_w
    budget_w = fleet.power.budget_w + step_w
    yield changed(f"{step_w / 1000:g} kW more power", {("power", "budget_w"): budget_w})


def growth(
    instance: Instance,
    options: SolveOptions | None = None,
    *,
    power_step_w: int | None = None,
    on_row: Callable[[str], None] | None = None,
) -> tuple[SideResultDocument, tuple[GrowthRow, ...]]:
    """Solve an instance, and again with one more of everything; each is proven and verified.

    `on_row` is called with the name of what is solved next. Raises InputError where the instance
    decides something else, and whatever `solve_side` raises.
    """
    if instance.capacity is None:
        rule = "only a capacity decision has a fleet to grow; set it to 'capacity'"
        raise InputError(instance.name, "decision", rule, instance.decision)
    tell = on_row or (lambda name: None)
    tell("as it is")
    base = solve_side(instance, options)
    before = goal_values(base)
    rows = []
    for addition in additions(instance, power_step_w):
        tell(addition.name)
        result = solve_side(addition.instance, options)
        values = goal_values(result)
        gains = tuple(
            None if new is None or old is None else new - old
            for new, old in zip(values, before, strict=True)
        )
        rows.append(GrowthRow(addition.name, result, values, gains))
    return base, tuple(rows)


def goal_values(result: SideResultDocument) -> tuple[Fraction | None, ...]:
    """Return the exact verified value of every goal."""
    return tuple(
        None if goal.verified_exact is None else Fraction(goal.verified_exact)
        for goal in (result.objective, *result.then)
    )
