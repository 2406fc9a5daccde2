"""Variables and rows of the capacity decision, one function per family (capacity.md)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from formulations.integer_program import IntegerProgram
from optimizer.capacity.loads import UnitLoads, unit_loads
from optimizer.capacity.problem import CapacityProblem, RackSite, ServerClass
from optimizer.errors import TooLargeError

#: More loads of a unit, server layouts, or fill patterns of a rack than this are not listed.
MAX_LOADS, MAX_LAYOUTS, MAX_FILLS = 5000, 2000, 2000

#: Variables by option, and by the class or cell that they count on.
ByOption = dict[int, dict[int, int]]


@dataclass
class CapacityModel:
    """The program, and the variables by what they count."""

    problem: CapacityProblem
    program: IntegerProgram = field(default_factory=lambda: IntegerProgram("capacity"))
    loads: dict[int, UnitLoads] = field(default_factory=dict)
    #: servers of a class: bought, or in use
    used: list[int] = field(default_factory=list)
    #: instances on one server, by option and class
    instances: ByOption = field(default_factory=lambda: defaultdict(dict))
    #: servers that an instance over several has whole, by option and class
    whole: ByOption = field(default_factory=lambda: defaultdict(dict))
    #: instances over several servers, by option and cell
    spanning: ByOption = field(default_factory=lambda: defaultdict(dict))
    #: servers by (class, layout), where card sizes do not divide each other
    layouts: dict[int, list[tuple[tuple[int, ...], int]]] = field(default_factory=dict)
    racks: dict[int, int] = field(default_factory=dict)
    #: racks of a site by fill: servers of each class
    fills: dict[int, list[tuple[dict[int, int], int]]] = field(default_factory=dict)
    tiers: list[int | None] = field(default_factory=list)
    #: units by (scenario, option) and load; scenario 0 is healthy, e + 1 is after event e
    units: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    served: list[list[int]] = field(default_factory=list)
    worst: int | None = None

    def in_use(self, option: int) -> dict[int, int]:
        """Terms that add up to the instances of an option."""
        variables = (*self.instances[option].values(), *self.spanning[option].values())
        return dict.fromkeys(variables, 1)

    def on_class(self, counted: ByOption, j: ServerClass) -> list[tuple[int, int]]:
        """Return (option, variable) of what is counted on one class."""
        options = self.problem.options_of_pool[j.pool]
        return [(k, counted[k][j.index]) for k in options if j.index in counted[k]]


def build_model(problem: CapacityProblem) -> CapacityModel:
    """State all rules; raises TooLargeError."""
    m = CapacityModel(problem)
    for option in problem.options:
        m.loads[option.index] = unit_loads(problem, option.index, MAX_LOADS)
    define_server_variables(m)
    define_load_variables(m)
    define_server_cards(m)
    define_spans(m)
    define_pools(m)
    (define_racks if problem.is_purchase else define_standing_racks)(m)
    define_tiers_and_power(m)
    define_units(m)
    define_sessions(m)
    return m


def _most_instances(problem: CapacityProblem, option: int) -> int:
    """More instances than sessions, in every scenario, are of no use."""
    one = problem.options[option]
    sessions = sum(
        cohort.num_sessions
        for cohort, time in zip(problem.cohorts, one.service_s, strict=True)
        if time is not None
    )
    return sessions * (1 + len(problem.events))


def define_server_variables(m: CapacityModel) -> None:
    """used[j], instances[j,k], whole[j,k], spanning[cell,k]."""
    problem, add = m.problem, m.program.add_variable
    by_cell: dict[tuple[int, int], int] = defaultdict(int)
    for j in problem.classes:
        m.used.append(add(f"used[{j.index}]", 0, j.count))
        for k in problem.options_of_pool[j.pool]:
            option, most = problem.options[k], _most_instances(problem, k)
            if option.num_servers == 1:
                fit = j.free_cards // option.cards_per_server * j.count
                if fit and most:
                    name = f"instances[{j.index},{k}]"
                    m.instances[k][j.index] = add(name, 0, min(fit, most))
            elif not j.is_occupied and most:
                few = min(j.count, most * option.num_servers)
                m.whole[k][j.index] = add(f"whole[{j.index},{k}]", 0, few)
                by_cell[j.cell, k] += j.count
    for (cell, k), servers in by_cell.items():
        most = min(servers // problem.options[k].num_servers, _most_instances(problem, k))
        m.spanning[k][cell] = add(f"spanning[{cell},{k}]", 0, most)


def define_load_variables(m: CapacityModel) -> None:
    """units[e,k,v] and served[e,c]."""
    problem, add = m.problem, m.program.add_variable
    upper = {
        k: sum(m.program.variables[v].upper for v in m.in_use(k)) * m.loads[k].num_units
        for k in m.loads
    }
    for e in range(len(problem.events) + 1):
        least = (
            [c.min_sessions for c in problem.cohorts]
            if not e
            else list(problem.events[e - 1].min_sessions)
        )
        m.served.append(
            [
                add(f"served[{e},{c}]", least[c], cohort.num_sessions)
                for c, cohort in enumerate(problem.cohorts)
            ]
        )
        for k, found in m.loads.items():
            mine = m.units[e, k] = {}
            for v, load in enumerate(found.loads):
                needed = [
                    -(-cohort.num_sessions // n)
                    for cohort, n in zip(problem.cohorts, load.counts, strict=True)
                    if n
                ]
                most = min(upper[k], max(needed, default=0))
                if most:
                    mine[v] = add(f"units[{e},{k},{v}]", 0, most)


def define_server_cards(m: CapacityModel) -> None:
    """Instances fit on the cards that their servers have free.

    Where each size divides the next, first-fit decreasing wastes nothing, so that a row for each
    size is exact; else the largest layouts of a server are counted.
    """
    for j in m.problem.classes:
        blocks: dict[int, list[int]] = defaultdict(list)
        for k, v in m.on_class(m.instances, j):
            blocks[m.problem.options[k].cards_per_server].append(v)
        whole = {v: -1 for _, v in m.on_class(m.whole, j)}
        servers = {m.used[j.index]: 1, **whole}
        sizes = sorted(blocks)
        if whole:
            m.program.add_row(f"whole_servers[{j.index}]", servers, 0, None)
        if all(b % a == 0 for a, b in pairwise(sizes)):
            for a in sizes:
                row = {v: b // a for b in sizes if b >= a for v in blocks[b]}
                have = {v: -c * (j.free_cards // a) for v, c in servers.items()}
                m.program.add_row(f"cards[{j.index},{a}]", row | have, None, 0)
        else:
            _define_layouts(m, j, sizes, blocks, servers)


def _define_layouts(
    m: CapacityModel,
    j: ServerClass,
    sizes: list[int],
    blocks: dict[int, list[int]],
    servers: dict[int, int],
) -> None:
    found = _largest(sizes, j.free_cards, MAX_LAYOUTS)
    m.layouts[j.index] = [
        (layout, m.program.add_variable(f"layout[{j.index},{q}]", 0, j.count))
        for q, layout in enumerate(found)
    ]
    total = {v: 1 for _, v in m.layouts[j.index]}
    less = {v: -c for v, c in servers.items()}
    m.program.add_row(f"layouts[{j.index}]", total | less, None, 0)
    for i, a in enumerate(sizes):
        slots = {v: -layout[i] for layout, v in m.layouts[j.index]}
        m.program.add_row(f"slots[{j.index},{a}]", dict.fromkeys(blocks[a], 1) | slots, None, 0)


def _largest(sizes: list[int], room: int, limit: int) -> list[tuple[int, ...]]:
    """List the numbers of every size that fit together and leave room for no more."""
    found: list[tuple[int, ...]] = []

    def visit(i: int, left: int, chosen: tuple[int, ...]) -> None:
        if i == len(sizes):
            if left < min(sizes):
                found.append(chosen)
                if len(found) > limit:
                    raise TooLargeError(f"capacity: more than {limit} layouts of a server")
            return
        for number in range(left // sizes[i], -1, -1):
            visit(i + 1, left - number * sizes[i], (*chosen, number))

    visit(0, room, ())
    return found


def define_spans(m: CapacityModel) -> None:
    """An instance over several servers has whole ones of one cell."""
    for k, cells in m.spanning.items():
        for cell, v in cells.items():
            row = {w: 1 for j, w in m.whole[k].items() if m.problem.classes[j].cell == cell}
            row[v] = -m.problem.options[k].num_servers
            m.program.add_row(f"span[{cell},{k}]", row, 0, 0)


def define_pools(m: CapacityModel) -> None:
    """No more servers than there are or may be bought, and those in whole groups."""
    if not m.problem.is_purchase:
        return
    for p, pool in enumerate(m.problem.pools):
        row = {m.used[j]: 1 for j in m.problem.classes_of_pool[p]}
        if not row:
            continue
        m.program.add_row(f"pool[{p}]", row, None, pool.num_servers)
        if pool.servers_per_group > 1:
            most = pool.num_servers // pool.servers_per_group
            groups = m.program.add_variable(f"groups[{p}]", 0, most)
            m.program.add_row(f"groups[{p}]", {**row, groups: -pool.servers_per_group}, 0, 0)


def _servers_of(m: CapacityModel, site: int) -> list[ServerClass]:
    return [j for j in m.problem.classes if j.site == site]


def define_racks(m: CapacityModel) -> None:
    """Servers that are bought fit into racks that are bought; alike racks are filled in order."""
    previous: dict[int, int] = {}
    for s, site in enumerate(m.problem.sites):
        racks = m.racks[s] = m.program.add_variable(f"racks[{s}]", 0, site.count)
        mine = _servers_of(m, s)
        pools = {j.pool for j in mine}
        if site.count == 1:
            _define_single_rack(m, site, s, racks, mine)
        elif len(pools) == 1:
            row = {m.used[j.index]: 1 for j in mine}
            fit = m.problem.rack_holds(s, mine[0].pool)
            m.program.add_row(f"rack[{s}]", {**row, racks: -fit}, None, 0)
        elif pools:
            _define_fills(m, site, s, racks, mine)
        if site.number is not None:
            if site.kind in previous:
                before = m.racks[previous[site.kind]]
                m.program.add_row(f"rack_order[{s}]", {racks: 1, before: -1}, None, 0)
            previous[site.kind] = s


def _define_single_rack(
    m: CapacityModel, site: RackSite, s: int, racks: int, mine: list[ServerClass]
) -> None:
    pools = m.problem.pools
    units = {m.used[j.index]: pools[j.pool].rack_units for j in mine}
    m.program.add_row(f"units[{s}]", {**units, racks: -site.units}, None, 0)
    if site.limit_w is not None:
        watts = {m.used[j.index]: pools[j.pool].power_w for j in mine}
        m.program.add_row(f"watts[{s}]", {**watts, racks: -site.limit_w}, None, 0)


def _define_fills(
    m: CapacityModel, site: RackSite, s: int, racks: int, mine: list[ServerClass]
) -> None:
    """Count racks by how many servers of each pool they hold, none of which could hold one more."""
    pools = sorted({j.pool for j in mine})
    found: list[tuple[int, ...]] = []

    def visit(i: int, units: int, watts: int | None, chosen: tuple[int, ...]) -> None:
        if i == len(pools):
            found.append(chosen)
            if len(found) > MAX_FILLS:
                raise TooLargeError(f"capacity: more than {MAX_FILLS} fills of a rack")
            return
        kind = m.problem.pools[pools[i]]
        most = units // max(kind.rack_units, 1)
        if watts is not None and kind.power_w:
            most = min(most, watts // kind.power_w)
        for number in range(most, -1, -1):
            left_w = None if watts is None else watts - number * kind.power_w
            visit(i + 1, units - number * kind.rack_units, left_w, (*chosen, number))

    visit(0, site.units, site.limit_w, ())
    kept = [
        one
        for one in found
        if not any(o != one and all(a >= b for a, b in zip(o, one, strict=True)) for o in found)
    ]
    m.fills[s] = [
        (
            dict(zip(pools, one, strict=True)),
            m.program.add_variable(f"fill[{s},{q}]", 0, site.count),
        )
        for q, one in enumerate(kept)
    ]
    m.program.add_row(f"rack[{s}]", {racks: -1} | {v: 1 for _, v in m.fills[s]}, None, 0)
    for p in pools:
        row = {m.used[j.index]: 1 for j in mine if j.pool == p}
        have = {v: -one[p] for one, v in m.fills[s]}
        m.program.add_row(f"rack_servers[{s},{p}]", row | have, None, 0)


def define_standing_racks(m: CapacityModel) -> None:
    """Racks that are there feed what is on in them; one counts once a server in it is in use."""
    pools = m.problem.pools
    for s, site in enumerate(m.problem.sites):
        if site.count > 1:
            continue  # nothing about it limits or counts, else its racks would be told apart
        racks = m.racks[s] = m.program.add_variable(f"racks[{s}]", 0, 1)
        mine = _servers_of(m, s)
        for j in mine:
            row = {m.used[j.index]: 1, racks: -j.count}
            m.program.add_row(f"rack[{s},{j.index}]", row, None, 0)
        if site.limit_w is not None:
            on = sum(j.count * pools[j.pool].power_w for j in mine if j.is_occupied)
            watts = {m.used[j.index]: pools[j.pool].power_w for j in mine if not j.is_occupied}
            m.program.add_row(f"watts[{s}]", watts, None, site.limit_w - on)


def define_tiers_and_power(m: CapacityModel) -> None:
    """tiers[t] are needed beyond their endpoints; all that is on keeps the power budget."""
    problem, pools = m.problem, m.problem.pools
    new = [j for j in problem.classes if not j.is_occupied]
    cards = {m.used[j.index]: pools[j.pool].num_cards for j in new}
    most = problem.occupied_endpoints + sum(pools[j.pool].num_cards * j.count for j in new)
    for t, tier in enumerate(problem.tiers):
        if most <= tier.above_endpoints:
            m.tiers.append(None)
            continue
        needed = m.program.add_variable(f"tier[{t}]", 0, 1)
        m.tiers.append(needed)
        room = tier.above_endpoints - problem.occupied_endpoints
        row = {**cards, needed: -(most - tier.above_endpoints)}
        m.program.add_row(f"tier[{t}]", row, None, room)
    if problem.budget_w is None:
        return
    watts = {m.used[j.index]: pools[j.pool].power_w for j in new}
    for tier, variable in zip(problem.tiers, m.tiers, strict=True):
        if variable is not None:
            watts[variable] = tier.power_w
    left = problem.budget_w - problem.fixed_w - problem.occupied_w
    m.program.add_row("power", watts, None, left)


def define_units(m: CapacityModel) -> None:
    """Loads are only on units of instances that there are, in every scenario."""
    for e in range(len(m.problem.events) + 1):
        for k, found in m.loads.items():
            loaded = dict.fromkeys(m.units[e, k].values(), 1)
            if not loaded:
                continue
            have = m.in_use(k)
            if e:
                for v, number in _lost(m, e - 1, k).items():
                    have[v] = have.get(v, 0) - number
            row = loaded | {v: -found.num_units * number for v, number in have.items() if number}
            m.program.add_row(f"units[{e},{k}]", row, None, 0)


def _lost(m: CapacityModel, e: int, k: int) -> dict[int, int]:
    """Terms that add up to the instances of an option that an event takes."""
    event, problem = m.problem.events[e], m.problem
    if event.option is not None:
        if event.option != k:
            return {}
        is_used = m.program.add_variable(f"is_used[{e}]", 0, 1)
        have = m.in_use(k)
        most = sum(m.program.variables[v].upper for v in have)
        m.program.add_row(f"is_used[{e}]", {**have, is_used: -most}, None, 0)
        return {is_used: 1}
    gone = set(event.classes)
    lost = {v: 1 for j, v in m.instances[k].items() if j in gone}
    for cell, v in m.spanning[k].items():
        members = {j.index for j in problem.classes if j.cell == cell}
        if members <= gone:
            lost[v] = 1
        else:  # single servers fail: each takes an instance of its own
            lost |= {v: 1 for j, v in m.whole[k].items() if j in members & gone}
    return lost


def define_sessions(m: CapacityModel) -> None:
    """Sessions that are taken have a unit that serves them, in every scenario."""
    rows: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for (e, k), mine in m.units.items():
        for v, variable in mine.items():
            for c, number in enumerate(m.loads[k].loads[v].counts):
                if number:
                    rows[e, c][variable] = number
    for e, served in enumerate(m.served):
        for c, variable in enumerate(served):
            m.program.add_row(f"sessions[{e},{c}]", {**rows[e, c], variable: -1}, 0, None)
