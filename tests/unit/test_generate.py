"""Random tiny instances: reproducible, valid, varied, and solved as `evaluate` judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest

from instances.instance import Instance
from instances.objective import Objective
from optimizer.configurations import is_plain
from optimizer.evaluate import evaluate
from optimizer.exhaustive import solve_exhaustively, solve_many
from optimizer.exhaustive_queues import Queues
from optimizer.footprint_prices import FootprintPrices
from optimizer.generate import COLLECTIVES, DEGREES, MAX_CARDS, OBJECTIVES, tiny_instance
from optimizer.operators import step_flops, step_read_bytes
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Footprint, Plan, ServingInstance, SessionId
from optimizer.steps import decode_step

SEEDS = range(300)


def test_same_seed_gives_the_same_instance() -> None:
    for seed in range(20):
        assert tiny_instance(seed) == tiny_instance(seed)
        assert tiny_instance(seed).sha256() == tiny_instance(seed).sha256()
    assert len({tiny_instance(seed).sha256() for seed in range(20)}) == 20


def test_the_objective_alone_can_be_replaced() -> None:
    wanted = Objective(minimise=("cards", "energy"), billing="instance")
    for seed in range(20):
        given = tiny_instance(seed, objective=wanted)
        assert given.objective == wanted
        assert given.model_copy(update={"objective": None}) == tiny_instance(seed).model_copy(
            update={"objective": None}
        )
    assert tiny_instance(0, objective={"minimise": "cards"}).objective.minimise == ("cards",)


def test_instances_are_tiny_and_every_mode_occurs() -> None:
    seen: Counter[object] = Counter()
    for instance in map(tiny_instance, SEEDS):
        search, pools = instance.search, instance.fleet.pools
        assert instance.fleet.num_cards <= MAX_CARDS
        assert instance.workload.num_sessions <= 4
        seen[search.deployment, search.dispatch] += 1
        seen.update(search.collectives)
        seen.update(instance.objective.minimise)
        seen[instance.objective.billing] += 1
        seen["tp" if search.tp else "any tp"] += 1
        seen["pools", len(pools)] += 1
        seen["faults", len(instance.faults)] += 1
        seen["share", instance.workload.min_on_time_fraction * 4] += 1
        for pool in pools:
            seen["between" if pool.fabric_between else "no between"] += pool.num_servers > 1
            seen["table"] += bool(pool.server.fabric.measured)
        for cohort in instance.workload.cohorts:
            seen["deadline" if cohort.deadline_s else "no deadline"] += 1
            seen["released later" if cohort.release_s else "released at 0"] += 1
    modes = product(("uniform", "mixed"), ("round_robin", "optimised"))
    expected = [
        *modes,
        *COLLECTIVES,
        *OBJECTIVES,
        *("fleet", "instance", "tp", "any tp", "between", "no between", "table"),
        *("deadline", "no deadline", "released later", "released at 0"),
        *(("pools", n) for n in (1, 2)),
        *(("faults", n) for n in (0, 1, 2)),
        *(("share", n) for n in (0, 2, 3, 4)),
    ]
    assert {key: seen[key] for key in expected if seen[key] < 10} == {}


def test_any_model_and_any_split_occur() -> None:
    seen: Counter[object] = Counter()
    for instance in map(tiny_instance, SEEDS):
        search, model, workload = instance.search, instance.model, instance.workload
        seen["tensor parallelism alone"] += is_plain(instance) and search.batch == (1,)
        seen.update({group.attention.kind for group in model.groups})
        seen["window"] += any(getattr(g.attention, "window", None) for g in model.groups)
        ffns = [group.ffn for group in model.groups if group.ffn.kind == "moe"]
        seen["experts"] += bool(ffns)
        seen["shared experts"] += any(ffn.num_shared_experts for ffn in ffns)
        seen["scaled fp8"] += model.formats.weights.scale is not None
        seen.update({f"search {n}" for n in DEGREES if getattr(search, n) != (1,)})
        seen["redundant"] += search.redundant_experts
        seen["sp"] += search.sequence_parallel
        seen[search.stage_cut] += 1
        seen[instance.runtime.roofline] += 1
        seen[workload.routing] += 1
        seen["counts"] += workload.expert_counts is not None
        seen["prompt"] += any(cohort.prompt_tokens for cohort in workload.cohorts)
        seen["strict engine"] += instance.engine.name == "strict"
        seen["held_sessions"] += instance.objective.maximise is not None
    expected = [
        *("gqa", "mla", "linear", "window", "experts", "shared experts", "scaled fp8"),
        *(f"search {name}" for name in DEGREES),
        *("redundant", "sp", "best", "even", "step", "operator", "prompt", "strict engine"),
        *("balanced", "expected", "concentrated", "spread", "held_sessions"),
    ]
    assert {key: seen[key] for key in expected if seen[key] < 10} == {}
    assert seen["counts"] >= 3
    assert seen["tensor parallelism alone"] >= len(SEEDS) // 2


def test_searches_leave_room_for_every_degree() -> None:
    priced: Counter[str] = Counter()
    for instance in map(tiny_instance, range(200)):
        shapes = Queues(instance, 10**6).shapes
        for name in ("dp", "pp", "tp", "cp", "ep", "sp", "dcp", "copies"):
            priced[name] += any(getattr(shape.parallel, name) > 1 for shape in shapes)
        priced["redundant"] += any(shape.parallel.redundant for shape in shapes)
        priced["batch"] += any(shape.batch > 1 for shape in shapes)
        priced["micro-batches"] += any(shape.micro_batches > 1 for shape in shapes)
    assert min(priced[name] for name in priced if name != "redundant") >= 5
    assert priced["redundant"] >= 1


def test_both_bounds_of_a_step_occur_even_within_one_run() -> None:
    bounds = Counter()
    for instance in map(tiny_instance, range(150)):
        if instance.model.is_moe or instance.runtime.roofline != "step":
            continue
        model, number = instance.model, instance.model.formats.compute_format
        for pool, cohort in product(instance.fleet.pools, instance.workload.cohorts):
            accelerator, sides = pool.server.accelerator, set()
            step = decode_step(instance, pool, Footprint(pool.name, ParallelConfig(), 1, "none"))
            for context in (cohort.context_tokens, cohort.context_tokens + cohort.new_tokens - 1):
                bandwidth = accelerator.memory_bandwidth_bytes_per_s
                read_s = step_read_bytes(model, context) / bandwidth
                compute_s = step_flops(model, context + 1) / accelerator.peak(number)
                assert step.at(context + 1) == max(read_s, compute_s)
                sides.add(read_s >= compute_s)
            bounds[tuple(sorted(sides))] += 1
    assert min(bounds[False,], bounds[True,], bounds[False, True]) >= 5


def test_evaluate_accepts_the_oracle_plans_of_60_seeds() -> None:
    infeasible = restarts = spans = ends_at_deadline = idle_cards = late = lanes = full = 0
    for instance in map(tiny_instance, range(60)):
        found = solve_exhaustively(instance)
        if found.plan is None:
            assert found.values is None
            infeasible += 1
            continue
        judged = evaluate(instance, found.plan)
        assert judged.is_feasible
        names = instance.objective.names
        assert found.values == tuple(judged.objective(name) for name in names)
        restarts += any(outcome.num_restarts for outcome in judged.sessions)
        spans += any(len(serving.servers) > 1 for serving in found.plan)
        ends_at_deadline += any(o.finish_s == o.deadline_s for o in judged.sessions)
        idle_cards += found.plan.num_cards < instance.fleet.num_cards
        late += any(not outcome.on_time for outcome in judged.sessions)
        lanes += any(serving.num_lanes > 1 for serving in found.plan)
        full += any(use.total_bytes == use.capacity_bytes for use in judged.cards)
    assert 3 <= infeasible <= 20
    assert min(restarts, spans, ends_at_deadline, idle_cards, late, lanes, full) >= 1


def _all_serving(instance: Instance) -> Iterator[ServingInstance]:
    """Yield a serving instance for every set of cards of a pool and every collective."""
    prices, first = FootprintPrices(instance), instance.workload.cohorts[0]
    names = {"none", *COLLECTIVES, *instance.search.collective_options}
    for pool in instance.fleet.pools:
        cards = [
            CardId(*ids) for ids in product(range(pool.num_servers), range(pool.server.num_cards))
        ]
        for tp in range(1, len(cards) + 1):
            for chosen, name in product(combinations(cards, tp), sorted(names)):
                serving = ServingInstance(pool.name, ParallelConfig(tp=tp), name, chosen)
                built = serving.footprint
                # Only what has no price at all is left out; evaluate judges the rest.
                if (tp == 1) != (name == "none") or not prices.is_meaningful(built):
                    continue
                if prices.service_s(built, first) is not None:
                    yield serving


def _all_plans(instance: Instance) -> Iterator[Plan]:
    """Yield every plan without using any symmetry, idle serving instances included."""
    servings = list(_all_serving(instance))
    sessions = [
        SessionId(c.name, n) for c in instance.workload.cohorts for n in range(c.num_sessions)
    ]
    order = sorted(
        sessions,
        key=lambda s: next(c.release_s for c in instance.workload.cohorts if c.name == s.cohort),
    )
    dealt = instance.search.dispatch == "round_robin"
    for count in range(1, instance.fleet.num_cards + 1):
        groups = permutations(servings, count) if dealt else combinations(servings, count)
        for group in groups:
            owned = [(serving.pool, card) for serving in group for card in serving.cards]
            if len(set(owned)) < len(owned):
                continue
            if dealt:
                shares = [tuple(tuple(order[i::count]) for i in range(count))]
            else:
                shares = [
                    tuple(line[a:b] for a, b in zip((0, *cuts), (*cuts, len(line)), strict=True))
                    for line in permutations(sessions)
                    for cuts in product(range(len(line) + 1), repeat=count - 1)
                    if list(cuts) == sorted(cuts)
                ]
            for share in shares:
                yield Plan(
                    tuple(
                        ServingInstance(s.pool, s.parallel, s.collective, s.cards, queue)
                        for s, queue in zip(group, share, strict=True)
                    )
                )


def _is_smallest(instance: Instance) -> bool:
    """Whether it is TP alone and trying every plan without symmetry takes a fraction of a second.

    Any split is tried on problems made for it, in `test_exhaustive_lanes`.
    """
    search = instance.search
    if not is_plain(instance) or (search.batch, search.micro_batches) != ((1,), (1,)):
        return False
    cards, sessions = instance.fleet.num_cards, instance.workload.num_sessions
    return cards + sessions <= 5 or (cards, sessions) in ((4, 2), (2, 4))


@pytest.mark.parametrize("seed", [s for s in range(150) if _is_smallest(tiny_instance(s))])
def test_the_oracle_misses_no_plan_that_evaluate_accepts(seed: int) -> None:
    instance = tiny_instance(seed)
    objectives = [
        Objective(minimise=names, billing=billing)
        for billing in ("fleet", "instance")
        for names in ((name, "mean_completion") for name in OBJECTIVES if name != "mean_completion")
    ]
    best: list[tuple[Fraction, ...] | None] = [None] * len(objectives)
    for plan in _all_plans(instance):
        for i, objective in enumerate(objectives):
            problem = instance.model_copy(update={"objective": objective})
            if i in (0, len(objectives) // 2):  # the account depends on nothing but the billing
                judged = evaluate(problem, plan)
            if {violation.rule for violation in judged.violations} - {"on_time"}:
                break
            if judged.num_on_time >= problem.min_on_time_sessions:
                values = tuple(judged.objective(name) for name in objective.minimise)
                best[i] = min(best[i] or values, values)
    assert [result.values for result in solve_many(instance, objectives)] == best
