"""What conflicts and what would help, on instances small enough to work out by hand.

Qwen3-32B with 131,064 tokens of context and 8 new ones takes on one H100 65,524,246,528 B of
weights, 64 · 2 · 8 · 128 · 2 B · 131,072 tokens = 34,359,738,368 B of cache and 2 GiB of workspace,
102,031,468,544 B in all: 22,031,468,544 B more than the 80 GB there are. A session takes 234.8 ms
on TP1, 119.1 ms on TP2, 63.79 ms on TP4 and 41.18 ms on TP8, with ring AllReduce.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from instances.errors import InputError
from instances.instance import Instance
from instances.io import example_text, load_instance, parse_instance
from optimizer.conflicts.changes import with_limit, with_memory
from optimizer.conflicts.constraints import constraints_of, variants
from optimizer.conflicts.document import ConflictDocument, RelaxationDocument
from optimizer.conflicts.explain import explain_infeasible
from optimizer.conflicts.probing import Answer, Prober
from optimizer.conflicts.smallest import fewest_sharing
from optimizer.frontiers.deadline import time_step_s, with_deadline
from optimizer.options import SolveOptions
from optimizer.pricing import build_tables
from optimizer.solve import solve

#: A session on TP2: the README's 119.1 ms.
TP2_S = Fraction(3507022216, 29443359375)
NEEDED_BYTES = 102_031_468_544
CHAT = {"name": "chat", "num_sessions": 4, "context_tokens": 131064, "new_tokens": 8}
FREE = {"collectives": ["ring"], "deployment": "mixed", "dispatch": "optimised"}


def built(**changes: Any) -> Instance:
    """Return four-sessions-128k in a mixed search without deadlines, with other sections."""
    document = json.loads(example_text("four-sessions-128k"))
    document |= {"search": FREE, "workload": {"cohorts": [CHAT]}} | changes
    return parse_instance(document)


def pool(name: str, num_cards: int, num_servers: int = 1, **accelerator: Any) -> dict[str, Any]:
    card = {"base": "h100-sxm", **accelerator}
    server = {"base": "hgx-h100", "accelerator": card, "num_cards": num_cards}
    return {"name": name, "server": server, "num_servers": num_servers}


def names(document: ConflictDocument) -> list[str]:
    assert document.termination == "infeasible"
    assert document.is_smallest
    return [constraint.name for constraint in document.constraints]


def of(document: ConflictDocument, path: str) -> RelaxationDocument:
    (found,) = [item for item in document.relaxations if item.path == path]
    assert found.exact
    assert found.width == 0
    assert found.proof
    assert found.plan
    return found


def has_plan(instance: Instance) -> bool:
    result = solve(instance, SolveOptions(threads=1))
    assert result.termination in ("optimal", "infeasible")
    return result.plan is not None


def check_deadline(instance: Instance, cohort: int, value_s: Fraction) -> None:
    """Check that a deadline admits a plan and that the next shorter one does not."""
    step = time_step_s(build_tables(instance))
    assert has_plan(with_deadline(instance, (cohort,), value_s))
    assert not has_plan(with_deadline(instance, (cohort,), value_s - step))


@cache
def impossible() -> tuple[ConflictDocument, list[str]]:
    """Return the conflict of the bundled example, and the steps that were told."""
    steps: list[str] = []
    return explain_infeasible(load_instance("infeasible-deadline"), on_step=steps.append), steps


def test_a_deadline_shorter_than_reading_the_weights_conflicts_alone() -> None:
    """Even TP8 with the fastest collective needs more than 30 ms; three of four end with TP2."""
    instance, document = load_instance("infeasible-deadline"), impossible()[0]
    assert names(document) == ["deadline of cohort 'chat'"]
    assert document.constraints[0].description.startswith("30.00 ms; 3 of all 4 sessions")
    assert "fastest candidate, TP8 (ring), needs 41.18 ms; with all other" in document.reason
    moved = of(document, "workload.cohorts[0].deadline_s")
    assert Fraction(moved.value_exact) == TP2_S
    assert moved.change == pytest.approx(0.08911, abs=1e-5)
    assert moved.plan == "8 cards = 4 instances × TP2 (ring)"
    check_deadline(instance, 0, TP2_S)
    assert len(document.relaxations) == 1
    without = " ".join(document.without_help)
    for line in ("not even 1.00 PB a card", "not even 64 servers (512 cards)", "not even 1 of 4"):
        assert line in without


def test_memory_alone() -> None:
    """One card without a fabric to others; (80e9 − weights − 2 GiB) / 262,144 B = 47,028 tokens."""
    one = CHAT | {"num_sessions": 1}
    document = explain_infeasible(
        built(fleet={"pools": [pool("lone", 1)]}, workload={"cohorts": [one]})
    )
    assert names(document) == ["memory of pool 'lone'"]
    assert document.constraints[0].description == "80.00 GB a card"
    assert [item.path for item in document.relaxations] == [
        "fleet.pools[0].server.accelerator.memory_bytes",
        "workload.cohorts[0].context_tokens",
        "fleet.pools[0].server.num_cards",
    ]
    more = of(document, "fleet.pools[0].server.accelerator.memory_bytes")
    assert (int(more.value_exact), more.change) == (NEEDED_BYTES, NEEDED_BYTES - 80e9)
    assert more.message == "22.03 GB more on every card of pool 'lone', 102.03 GB"
    assert of(document, "workload.cohorts[0].context_tokens").value == 47028 - 8
    assert of(document, "fleet.pools[0].server.num_cards").plan.endswith("1 instance × TP2 (ring)")


def test_usable_memory_is_what_counts() -> None:
    """With 90 % usable a card must be so large that nine tenths of it, rounded down, suffice."""
    runtime = {"workspace_bytes": "2GiB", "usable_memory_fraction": "90%"}
    one = {"cohorts": [CHAT | {"num_sessions": 1}]}
    instance = built(fleet={"pools": [pool("lone", 1)]}, workload=one, runtime=runtime)
    document = explain_infeasible(instance)
    assert document.constraints[0].description == "80.00 GB a card, 90 % usable"
    more = of(document, "fleet.pools[0].server.accelerator.memory_bytes")
    assert int(more.value_exact) == -(-NEEDED_BYTES * 10 // 9)
    assert has_plan(with_memory(instance, 0, int(more.value_exact)))
    assert not has_plan(with_memory(instance, 0, int(more.value_exact) - 1))


def test_memory_and_a_deadline_conflict_where_each_alone_is_fine() -> None:
    """The fast card lacks memory, the large one reads 100 GB in 0.1 s: 0.8 s for eight tokens."""
    pools = [pool("fast", 1), pool("large", 1, memory_bytes="200GB")]
    pools[1]["server"]["accelerator"]["memory_bandwidth_bytes_per_s"] = "1TB/s"
    one = CHAT | {"num_sessions": 1, "deadline_s": "300ms"}
    instance = built(fleet={"pools": pools}, workload={"cohorts": [one]})
    document = explain_infeasible(instance)
    assert names(document) == ["deadline of cohort 'chat'", "memory of pool 'fast'"]
    more = of(document, "fleet.pools[0].server.accelerator.memory_bytes")
    assert int(more.value_exact) == NEEDED_BYTES
    later = of(document, "workload.cohorts[0].deadline_s")
    assert later.value == pytest.approx(8 * 0.0983, rel=0.01)
    check_deadline(instance, 0, Fraction(later.value_exact))
    assert not any(item.path.startswith("fleet.pools[1]") for item in document.relaxations[:2])


def test_a_uniform_deployment_and_memory() -> None:
    """Three cards: TP1 lacks memory, TP2 leaves a card over, TP3 does not divide 64 heads."""
    instance = built(
        fleet={"pools": [pool("odd", 3)]},
        workload={"cohorts": [CHAT | {"num_sessions": 1}]},
        search=FREE | {"deployment": "uniform"},
    )
    document = explain_infeasible(instance)
    assert names(document) == ["memory of pool 'odd'", "search.deployment"]
    (choice,) = document.choices
    assert choice.name == "search.deployment"
    assert choice.plan == "2 of 3 cards = 1 instance × TP2 (ring)"
    more = of(document, "fleet.pools[0].server.accelerator.memory_bytes")
    assert int(more.value_exact) == NEEDED_BYTES
    assert of(document, "fleet.pools[0].server.num_cards").value == 4


def test_a_list_of_degrees_and_memory() -> None:
    document = explain_infeasible(built(search=FREE | {"tp": [1]}))
    assert names(document) == ["memory of pool 'hgx'", "search.tp"]
    assert document.constraints[1].description == "only 1"
    assert [choice.name for choice in document.choices] == ["search.tp"]
    # every degree listed that a server of eight can ever use: no restriction, no constraint
    listed = built(search=FREE | {"tp": [1, 2, 4, 8, 16, 32, 64]})
    assert "search.tp" not in [constraint.name for constraint in constraints_of(listed)]


def test_a_limit_on_cards_and_a_deadline() -> None:
    """Four cards hold two sessions at a time on TP2: four sessions take twice as long as two."""
    workload = {"cohorts": [CHAT | {"deadline_s": "130ms"}]}
    objective = {"minimise": ["makespan"], "at_most": {"num_cards": 4}}
    instance = built(workload=workload, objective=objective)
    document = explain_infeasible(instance)
    assert names(document) == ["deadline of cohort 'chat'", "limit on cards"]
    more = of(document, "objective.at_most.num_cards")
    assert (more.value, more.change) == (8, 4)
    assert not has_plan(with_limit(instance, "num_cards", 7))
    later = of(document, "workload.cohorts[0].deadline_s")
    assert Fraction(later.value_exact) == 2 * TP2_S
    check_deadline(instance, 0, 2 * TP2_S)
    assert of(document, "workload.min_on_time_fraction").value_exact == "1/2"
    assert of(document, "workload.cohorts[0].num_sessions").value == 2
    changes = [abs(item.change / (item.value - item.change)) for item in document.relaxations]
    assert changes == sorted(changes)


def test_two_cohorts_and_too_few_cards() -> None:
    """Each must end within 45 ms, which takes a server of its own: TP8, 41.18 ms."""
    cohorts = [CHAT | {"name": n, "num_sessions": 1, "deadline_s": "45ms"} for n in ("a", "b")]
    document = explain_infeasible(built(workload={"cohorts": cohorts}))
    assert names(document) == [
        "deadline of cohort 'a'",
        "deadline of cohort 'b'",
        "cards of pool 'hgx'",
    ]
    assert document.constraints[2].description == "8 cards (1 server of 8)"
    more = of(document, "fleet.pools[0].num_servers")
    assert (more.value, more.plan) == (2, "16 cards = 2 instances × TP8 (ring)")
    assert more.message == "1 server (8 cards) more in pool 'hgx', 2 servers"
    alone = of(document, "workload.cohorts[0].deadline_s")
    both = of(document, "workload.cohorts[*].deadline_s")
    assert alone.value == pytest.approx(2 * 0.04118, rel=1e-3)
    assert both.value == pytest.approx(0.06379, rel=1e-3)  # two of TP4 side by side


def test_a_failing_card_is_a_constraint() -> None:
    """TP8 owns the card that fails, TP4 takes 63.79 ms; another server would not fail."""
    one = CHAT | {"num_sessions": 1, "deadline_s": "50ms"}
    faults = [{"server": 0, "card": 3, "at_s": "20ms", "stall_s": "40ms"}]
    document = explain_infeasible(built(workload={"cohorts": [one]}, faults=faults))
    assert names(document) == ["deadline of cohort 'chat'", "faults", "cards of pool 'hgx'"]
    assert [choice.name for choice in document.choices] == ["faults"]
    assert of(document, "fleet.pools[0].num_servers").value == 2


def test_more_cards_do_no_good_where_all_are_paid() -> None:
    """Eight cards until four TP2 instances end; more servers would be paid for as well."""
    objective = {
        "minimise": ["makespan"],
        "billing": "fleet",
        "at_most": {"occupied_card_s": "0.9card*s"},
    }
    instance = built(objective=objective)
    kept = frozenset(range(len(constraints_of(instance)))) - {len(constraints_of(instance)) - 1}
    fleets = [v.fleet.num_cards for v in variants(instance, constraints_of(instance), kept)]
    assert fleets == [512, 256, 128, 64, 32, 16, 8]  # as it is, too
    document = explain_infeasible(instance)
    assert names(document) == ["limit on occupied_card_seconds"]
    more = of(document, "objective.at_most.occupied_card_s")
    assert Fraction(more.value_exact) == 8 * TP2_S
    assert "servers of pool 'hgx': not even 64" in " ".join(document.without_help)


def test_the_physical_facts_are_no_constraint() -> None:
    """Sessions with a prompt are served one at a time, whatever becomes of the rest."""
    prompts = {"cohorts": [CHAT | {"prompt_tokens": 10, "deadline_s": "1h"}]}
    document = explain_infeasible(built(workload=prompts, search=FREE | {"batch": [2]}))
    assert names(document) == []
    assert document.reason.startswith("nothing fits even with every constraint dropped: ")
    assert document.reason.endswith(
        "sessions with prompt_tokens are served one at a time: batch and micro-batches 1"
    )
    assert document.relaxations == document.choices == []


def test_a_feasible_instance_has_no_conflict() -> None:
    document = explain_infeasible(load_instance("four-sessions-128k"))
    assert (document.termination, document.reason) == ("optimal", "the instance has a plan")
    assert document.constraints == document.relaxations == document.without_help == []


def test_what_is_not_known_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def knows_nothing(self: Prober, instance: Instance, key: object = None) -> Answer:
        return Answer(None, instance)

    monkeypatch.setattr(Prober, "ask", knows_nothing)
    instance = load_instance("infeasible-deadline")
    document = explain_infeasible(instance)
    assert document.termination == "infeasible"
    assert not document.is_smallest
    assert len(document.constraints) == len(constraints_of(instance))
    assert document.relaxations == []
    assert all("not known" in line for line in document.without_help)


def test_the_document_is_json_and_steps_are_told() -> None:
    document, steps = impossible()
    assert steps[0] == "solving infeasible-deadline"
    assert any("least change: deadline of cohort 'chat'" in step for step in steps)
    assert ConflictDocument.model_validate_json(document.to_json()) == document
    assert document.instance_sha256 == load_instance("infeasible-deadline").sha256()


def test_what_cannot_be_explained_is_refused() -> None:
    with pytest.raises(InputError, match="decision"):
        explain_infeasible(load_instance("r1-bf16-64xa800-stages"))
    with pytest.raises(InputError, match="time_limit_s"):
        explain_infeasible(load_instance("mixed-wins"), SolveOptions(time_limit_s=-1))


def test_fewest_that_share_one_with_every_set() -> None:
    sets = [frozenset({1, 2}), frozenset({2, 3}), frozenset({4})]
    assert fewest_sharing(sets, 2) == {2, 4}
    assert fewest_sharing(sets, 1) is None
    assert fewest_sharing([], 0) == frozenset()
    assert fewest_sharing([frozenset()], 5) is None
