"""Goals, failures, models and cohorts of capacity decisions: each rule from both sides."""

from __future__ import annotations

from copy import deepcopy

import pytest

from capacity_schemas import COHORT, MODEL, POOL, Json, Start, bought, put, refusal
from instances import Instance, parse_instance


def plain() -> Json:
    """Return a valid document of a deployment."""
    pool = {name: POOL[name] for name in ("name", "server", "num_servers")}
    return deepcopy(
        {
            "name": "unit",
            "model": MODEL,
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": [COHORT]},
            "objective": {"minimise": "makespan"},
        }
    )


def test_the_documents_that_these_tests_change_are_valid() -> None:
    for start in (bought, plain):
        assert isinstance(parse_instance(start()), Instance)


#: (document, path, value that passes, value that does not, what is said)
RULES: dict[str, tuple[Start, str, object, object, str]] = {
    "goal known": (
        bought,
        "capacity.goals",
        ["cards"],
        ["watts"],
        "capacity.goals[0] = 'watts': ",
    ),
    "goal twice": (
        bought,
        "capacity.goals",
        ["servers", "racks"],
        ["servers", "servers"],
        "goals: each goal may appear once",
    ),
    "no goal": (bought, "capacity.goals", ["servers"], [], "capacity.goals"),
    "quotient last": (
        bought,
        "capacity",
        {"goals": ["servers", "price_per_on_time_session"], "period_s": 1},
        {"goals": ["price_per_on_time_session", "servers"], "period_s": 1},
        "goals: 'price_per_on_time_session' is a quotient and may stand last only",
    ),
    "period of energy": (
        bought,
        "capacity",
        {"goals": ["energy"], "period_s": "1h"},
        {"goals": ["energy"]},
        "goals: 'energy' is counted over period_s, which is null",
    ),
    "period of a quotient": (
        bought,
        "capacity",
        {"goals": ["price_per_million_tokens"], "period_s": "1h"},
        {"goals": ["price_per_million_tokens"]},
        "goals: 'price_per_million_tokens' is counted over period_s, which is null",
    ),
    "period above zero": (
        bought,
        "capacity.period_s",
        "1ns",
        0,
        "capacity.period_s = 0",
    ),
    "failures of a goal": (
        bought,
        "capacity",
        {"goals": ["worst_case_sessions"], "failures": [{"kind": "card"}]},
        {"goals": ["worst_case_sessions"]},
        "goals: 'worst_case_sessions' needs at least one kind in failures",
    ),
    "failure twice": (
        bought,
        "capacity.failures",
        [{"kind": "card"}, {"kind": "server"}],
        [{"kind": "card"}, {"kind": "card"}],
        "failures: kind 'card' appears 2 times",
    ),
    "expected without cards": (
        bought,
        "capacity",
        {"goals": ["expected_sessions"], "failures": [{"kind": "server", "probability": 0}]},
        {"goals": ["expected_sessions"], "failures": [{"kind": "card", "probability": 0}]},
        "failures[0]: goal 'expected_sessions' is not for single cards",
    ),
    "expected with probabilities": (
        bought,
        "capacity",
        {"goals": ["expected_sessions"], "failures": [{"kind": "rack", "probability": "1%"}]},
        {"goals": ["expected_sessions"], "failures": [{"kind": "rack"}]},
        "failures[0].probability is null; goal 'expected_sessions' needs it",
    ),
    "probability at most one": (
        bought,
        "capacity.failures",
        [{"kind": "card", "probability": "100%"}],
        [{"kind": "card", "probability": "101%"}],
        "probability cannot exceed 1 (100%)",
    ),
    "fraction after a failure": (
        bought,
        "capacity.failures",
        [{"kind": "card", "min_on_time_fraction": 1}],
        [{"kind": "card", "min_on_time_fraction": "1.5"}],
        "min_on_time_fraction cannot exceed 1 (100%)",
    ),
    "racks of rack failures": (
        bought,
        "capacity.failures",
        [{"kind": "rack"}],
        [{"kind": "power_supply"}],
        "capacity.failures[0]: fleet.failure_domains has no domain of kind 'power_supply'",
    ),
    "models of their own names": (
        bought,
        "models",
        [MODEL, {**MODEL, "name": "other"}, {**MODEL, "name": "third"}],
        [MODEL, {**MODEL, "name": "other"}, MODEL],
        "models: 'tiny' appears 2 times",
    ),
    "model is the first": (
        bought,
        "model",
        MODEL,
        {**MODEL, "name": "other"},
        "model must be the first of models, or be left out",
    ),
    "model of a cohort": (
        bought,
        "workload.cohorts.0.model",
        "tiny",
        "huge",
        "workload.cohorts[0].model: no model is named 'huge'; see models",
    ),
    "pools of a cohort": (
        bought,
        "workload.cohorts.1.pools",
        ["q", "p"],
        ["q", "z"],
        "workload.cohorts[1].pools: no pool is named 'z'",
    ),
    "fraction of a cohort": (
        bought,
        "workload.cohorts.1.min_on_time_fraction",
        1,
        "100.1%",
        "workload.cohorts[1].min_on_time_fraction cannot exceed 1 (100%)",
    ),
    "no faults": (
        bought,
        "faults",
        [],
        [{"card": 0, "at_s": 0, "stall_s": 1}],
        "faults at given times are not for capacity; use capacity.failures",
    ),
    "no expert counts": (
        bought,
        "workload.expert_counts",
        None,
        [1, 2],
        "workload.expert_counts are not for capacity; use workload.routing",
    ),
    "mixed": (
        bought,
        "search",
        {"deployment": "mixed"},
        {"deployment": "uniform"},
        "capacity needs search.deployment 'mixed' and dispatch 'optimised'",
    ),
    "optimised": (
        bought,
        "search",
        {"dispatch": "optimised"},
        {"dispatch": "round_robin"},
        "capacity needs search.deployment 'mixed' and dispatch 'optimised'",
    ),
    "no budget": (
        bought,
        "objective",
        {"minimise": "makespan"},
        {"minimise": "makespan", "at_most": {"num_cards": 3}},
        "objective is not for capacity; use capacity.goals and fleet.power",
    ),
    "sessions without a capacity decision": (
        plain,
        "workload.cohorts.0.num_sessions",
        100_000,
        100_001,
        "workload has 100001 sessions in all; the planner takes at most 100000, except where",
    ),
}


@pytest.mark.parametrize("name", list(RULES))
def test_a_rule_lets_one_value_pass_and_refuses_the_other(name: str) -> None:
    start, path, good, bad, rule = RULES[name]
    parse_instance(put(start(), path, good))
    assert rule in refusal(put(start(), path, bad))
