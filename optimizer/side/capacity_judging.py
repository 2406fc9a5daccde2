"""The account of a capacity plan as a document: who is served, what is taken, what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from optimizer.capacity.account import CapacityEvaluation, Resource
from optimizer.capacity.building import ModelRejection
from optimizer.capacity.plan import CapacityPlan
from optimizer.capacity.problem import CapacityProblem, is_maximised
from optimizer.plan_document import as_float, as_text, footprint_document
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    CohortUseDocument,
    LostCandidateDocument,
    NotUsedDocument,
    OptionUseDocument,
    OutcomeDocument,
    PoolUseDocument,
    PowerDocument,
    PowerPartDocument,
    ResourceDocument,
    RuleCountDocument,
    ServersByPowerDocument,
    SiteUseDocument,
    TierUseDocument,
)
from optimizer.side.capacity_placing import kind_name, placement
from optimizer.side.capacity_plans import PlanNames
from optimizer.surroundings.power import max_servers

#: Candidates that lost are shown up to this many.
MAX_EXAMPLES = 60


def capacity_account(
    names: PlanNames, plan: CapacityPlan, judged: CapacityEvaluation
) -> CapacityAccountDocument:
    """Return everything that a plan takes, serves and withstands."""
    problem = names.problem
    return CapacityAccountDocument(
        cohorts=_cohorts(problem, judged),
        instances=_options(names, plan, judged),
        servers=_pools(problem, plan, judged),
        racks=_racks(problem, judged),
        endpoints=judged.endpoints,
        tiers=[
            TierUseDocument(
                name=tier.name,
                above_endpoints=tier.above_endpoints,
                is_needed=tier.name in judged.tiers,
                power_w=tier.power_w,
                price_per_hour=float(tier.price_per_hour),
                price_per_hour_exact=str(tier.price_per_hour),
            )
            for tier in problem.tiers
        ],
        power=_power(problem, judged),
        resources=resources_by_fullness(problem, judged.resources),
        after=_outcomes(names, judged),
        placement=placement(names, plan) if judged.is_feasible else [],
    )


def _cohorts(problem: CapacityProblem, judged: CapacityEvaluation) -> list[CohortUseDocument]:
    return [
        CohortUseDocument(
            name=cohort.name,
            model=problem.models[cohort.model],
            taken=taken,
            num_sessions=cohort.num_sessions,
            min_sessions=cohort.min_sessions,
            deadline_s=as_float(cohort.deadline_s),
            deadline_exact=as_text(cohort.deadline_s),
        )
        for cohort, taken in zip(problem.cohorts, judged.sessions, strict=False)
    ]


def _options(
    names: PlanNames, plan: CapacityPlan, judged: CapacityEvaluation
) -> list[OptionUseDocument]:
    problem, served = names.problem, Counter[int]()
    for load in plan.loads:
        in_group = sum(lane.count * sum(n for _, n in lane.runs) for lane in load.lanes)
        served[load.option] += load.count * in_group
    return [
        OptionUseDocument(
            name=names.options[option.index],
            model=problem.models[option.model],
            label=option.footprint.label(),
            pool=problem.pools[option.pool].name,
            number=number,
            num_cards=option.num_cards,
            sessions=served[option.index],
        )
        for option, number in zip(problem.options, judged.instances, strict=False)
        if number
    ]


def _pools(
    problem: CapacityProblem, plan: CapacityPlan, judged: CapacityEvaluation
) -> list[PoolUseDocument]:
    idle = Counter[int]()
    for fill in plan.servers:
        if fill.spanned_by is None and not any(number for _, number in fill.blocks):
            idle[problem.classes[fill.server_class].pool] += fill.count
    return [
        PoolUseDocument(
            pool=pool.name,
            servers=used,
            idle=idle[p],
            most=pool.num_servers,
            servers_per_group=pool.servers_per_group,
            price_per_hour=float(pool.price_per_hour),
            price_per_hour_exact=str(pool.price_per_hour),
        )
        for p, (pool, used) in enumerate(zip(problem.pools, judged.servers, strict=False))
    ]


def _racks(problem: CapacityProblem, judged: CapacityEvaluation) -> list[SiteUseDocument]:
    """Return racks by kind; those that are told apart are added up."""
    kinds: dict[int, list[int]] = defaultdict(list)
    for s, site in enumerate(problem.sites):
        kinds[site.kind].append(s)
    found = []
    for sites in kinds.values():
        first = problem.sites[sites[0]]
        found.append(
            SiteUseDocument(
                rack=kind_name(first),
                used=sum(judged.racks[s] for s in sites),
                most=sum(problem.sites[s].count for s in sites),
                price_per_hour=float(first.price_per_hour),
                price_per_hour_exact=str(first.price_per_hour),
            )
        )
    return found


def _power(problem: CapacityProblem, judged: CapacityEvaluation) -> PowerDocument:
    tiers_w = sum(tier.power_w for tier in problem.tiers if tier.name in judged.tiers)
    budget_w, total_w = problem.budget_w, judged.power_w
    servers = []
    if budget_w is not None:
        for p, pool in enumerate(problem.pools):
            alone = None
            if pool.power_w:
                alone = max_servers(budget_w, pool.power_w, problem.fixed_w + tiers_w)
            more = servers_that_fit(problem, p, budget_w - total_w, judged.endpoints)
            servers.append(
                ServersByPowerDocument(
                    pool=pool.name, server_w=pool.power_w, alone=alone, more=more
                )
            )
    return PowerDocument(
        parts=[
            PowerPartDocument(name=p.name, count=p.count, each_w=p.each_w, watts=p.watts)
            for p in judged.power
        ],
        fixed_w=problem.fixed_w,
        tiers_w=tiers_w,
        total_w=total_w,
        budget_w=budget_w,
        left_w=None if budget_w is None else budget_w - total_w,
        servers=servers,
    )


def servers_that_fit(
    problem: CapacityProblem, pool: int, left_w: int, endpoints: int
) -> int | None:
    """Return how many servers of a pool `left_w` feeds with the tiers they need (6-11).

    None where a server draws nothing, so that power limits no number of them.
    """
    server = problem.pools[pool]
    if not server.power_w:
        return None
    most, left = 0, left_w
    ahead = sorted(
        (tier for tier in problem.tiers if tier.above_endpoints >= endpoints),
        key=lambda tier: tier.above_endpoints,
    )
    for tier in ahead:
        # as many as need this tier and those after it not yet
        before_tier = (tier.above_endpoints - endpoints) // server.num_cards
        most = max(most, min(before_tier, left // server.power_w))
        left -= tier.power_w
    return max(most, left // server.power_w)


def resources_by_fullness(
    problem: CapacityProblem, resources: Sequence[Resource]
) -> list[ResourceDocument]:
    """Return resources, binding ones first, fullest first; those without a limit come last."""
    left = {resource.name: resource.left for resource in resources}
    found = [
        ResourceDocument(
            name=resource.name,
            used=resource.used,
            most=resource.most,
            left=resource.left,
            unit=resource.unit,
            is_binding=_is_binding(problem, resource, left),
        )
        for resource in resources
    ]
    return sorted(found, key=lambda item: (item.is_binding, _fullness(item)), reverse=True)


def _fullness(resource: ResourceDocument) -> Fraction:
    if resource.most is None:
        return Fraction(-1)
    return Fraction(resource.used, resource.most) if resource.most > 0 else Fraction(1)


def _is_binding(
    problem: CapacityProblem, resource: Resource, left: Mapping[str, int | None]
) -> bool:
    """Whether less is left than the least server takes of it; `left` of all, by name.

    Sessions run out where more of them would be better, cards where no server is left.
    """
    if resource.left is None:
        return False
    if resource.name.startswith("cards of "):
        return not resource.left and not left.get(f"servers of {resource.name[9:]}")
    if resource.unit == "sessions":
        return resource.left <= 0 and any(is_maximised(goal) for goal in problem.goals)
    sizes: dict[str, list[int]] = {
        "W": [pool.power_w for pool in problem.pools],
        "units": [pool.rack_units for pool in problem.pools],
    }
    if resource.name.startswith("endpoints"):
        sizes["cards"] = [pool.num_cards for pool in problem.pools]
    least = min((size for size in sizes.get(resource.unit, []) if size), default=1)
    return resource.left < least


def _outcomes(names: PlanNames, judged: CapacityEvaluation) -> list[OutcomeDocument]:
    """Return what is served after every event, those of a kind that are alike together."""
    alike: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    events = zip(names.events, names.problem.events, judged.after, strict=False)
    for name, event, outcome in events:
        alike[event.kind, outcome.sessions, event.min_sessions].append(name)
    return [
        OutcomeDocument(kind=kind, events=events, sessions=list(sessions), min_sessions=list(least))
        for (kind, sessions, least), events in alike.items()
    ]


def not_used(
    problem: CapacityProblem, rejections: Sequence[ModelRejection], used: Iterable[int]
) -> NotUsedDocument:
    """Return the candidates that are not in a plan; `used` are the options that are."""
    by_rule = defaultdict[str, list[ModelRejection]](list)
    for lost in rejections:
        by_rule[lost.rejection.rule].append(lost)
    for found in by_rule.values():
        found.sort(key=lambda lost: lost.rejection.amount)
    rules = sorted(by_rule, key=lambda rule: (-len(by_rule[rule]), rule))
    # the nearest of every rule first, of rare rules before that; nobody misses a measurement
    rare = sorted(rules, key=lambda rule: (rule == "no_measurement", len(by_rule[rule])))
    places = [(at, rule) for rule in rare for at in range(min(len(by_rule[rule]), MAX_EXAMPLES))]
    places.sort(key=lambda place: (place[1] == "no_measurement", place[0]))
    return NotUsedDocument(
        possible=len(problem.options) - len(set(used)),
        rules=[RuleCountDocument(rule=rule, number=len(by_rule[rule])) for rule in rules],
        examples=[_lost(by_rule[rule][at]) for at, rule in places[:MAX_EXAMPLES]],
    )


def _lost(lost: ModelRejection) -> LostCandidateDocument:
    rejection = lost.rejection
    label, pool = rejection.footprint.label(), rejection.footprint.pool
    message = rejection.message.removeprefix(f"{label} on {pool}: ").removeprefix(f"{label}: ")
    return LostCandidateDocument(
        model=lost.model,
        label=label,
        **footprint_document(rejection.footprint),
        rule=rejection.rule,
        amount=float(rejection.amount),
        unit=rejection.unit,
        message=message,
    )
