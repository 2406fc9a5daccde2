"""From a solver's selection to a plan: which cards exactly, which sessions exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optimizer.errors import MismatchError
from optimizer.plan import CardId, Plan, ServingInstance, SessionId
from optimizer.protocols import Selection
from optimizer.tables import Kind, ProblemTables


class _CardSupply:
    """Hands out cards of servers: failing ones to the kinds that own them, the others in order."""

    def __init__(self, tables: ProblemTables) -> None:
        self.tables = tables
        self.next_card: dict[tuple[int, int], int] = {}

    def take(self, kind: Kind, server: int) -> Iterator[CardId]:
        """Yield the cards of one block of `kind` on `server`."""
        tables, pool_index = self.tables, kind.candidate.pool_index
        failing = {
            f.card: i
            for i, f in enumerate(tables.faulted_cards)
            if (f.pool_index, f.server) == (pool_index, server)
        }
        mine = [card for card, i in failing.items() if i in kind.faulted]
        yield from (CardId(server, card) for card in mine)
        card = self.next_card.get((pool_index, server), 0)
        for _ in range(kind.candidate.cards_per_server - len(mine)):
            while card in failing:
                card += 1
            if card >= tables.pools[pool_index].server.num_cards:
                raise MismatchError(f"a selection overfills server {server}")
            yield CardId(server, card)
            card += 1
        self.next_card[pool_index, server] = card


def _cards(tables: ProblemTables, selection: Selection) -> Iterator[tuple[CardId, ...]]:
    """Yield the cards of each selected instance."""
    if selection.layout is not None and tables.layouts is not None:
        yield from (cards for _, cards in tables.layouts[selection.layout].instances)
        return
    supply = _CardSupply(tables)
    for chosen in selection.instances:
        kind = tables.kinds[chosen.kind]
        servers = sorted(chosen.servers or ())
        yield tuple(sorted(c for s in servers for c in supply.take(kind, s)))


def _session_queues(
    tables: ProblemTables, selection: Selection
) -> list[tuple[tuple[SessionId, ...], tuple[int, ...]]]:
    """Number the sessions of each cohort in the order in which they are dealt out.

    Returns the sessions of each instance, and the lanes they are on where that is not a matter of
    course: it is under round robin and where there is one lane.
    """
    taken = [0] * len(tables.cohorts)
    dealt: list[list[SessionId]] = [[] for _ in selection.instances]
    lanes: list[list[int]] = [[] for _ in selection.instances]

    def deal(i: int, cohort: int) -> None:
        dealt[i].append(SessionId(tables.cohorts[cohort].name, taken[cohort]))
        taken[cohort] += 1

    if tables.is_round_robin:
        for j, cohort in enumerate(tables.dispatch_order):
            deal(j % len(dealt), cohort)
    else:
        for i, chosen in enumerate(selection.instances):
            candidate = tables.kinds[chosen.kind].candidate
            for lane, queue in enumerate(chosen.queues):
                for cohort in queue:
                    deal(i, cohort)
                    if candidate.num_groups * candidate.num_lanes > 1:
                        lanes[i].append(lane)
    return [(tuple(ids), tuple(mine)) for ids, mine in zip(dealt, lanes, strict=True)]


def plan_of(
    tables: ProblemTables,
    selection: Selection,
    placed: Sequence[tuple[CardId, ...]] | None = None,
) -> Plan:
    """Return the plan a selection stands for; `placed` gives its instances' cards if known.

    Sessions of a cohort are numbered as they are dealt out: by round robin where the search wants
    it, else instance by instance and lane by lane. Raises MismatchError when a selection cannot be
    laid out.
    """
    queues = _session_queues(tables, selection)
    serving: list[ServingInstance] = []
    blocks = _cards(tables, selection) if placed is None else placed
    for chosen, cards, (sessions, lanes) in zip(selection.instances, blocks, queues, strict=True):
        footprint = tables.kinds[chosen.kind].candidate.footprint
        serving.append(
            ServingInstance(
                pool=footprint.pool,
                parallel=footprint.parallel,
                collective=footprint.collective,
                cards=cards,
                sessions=sessions,
                stages=footprint.stages,
                batch=footprint.batch,
                micro_batches=footprint.micro_batches,
                lanes=lanes,
            )
        )
    plan = Plan(tuple(serving))
    if tables.is_round_robin:
        return plan
    return plan.sorted(tuple(pool.name for pool in tables.pools))
