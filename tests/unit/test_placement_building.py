"""Placements from an instance: phases, cards, sentences, proofs, and what is refused."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import parse_instance
from optimizer import SolveOptions
from optimizer.parallel import ParallelConfig
from optimizer.placement.building import exchange_groups, placement_problem
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import verify_side
from optimizer.side.result import SideResultDocument
from optimizer.work import Exchange

F = Fraction
Document = dict[str, Any]

#: Two layers with 32 numbers a hidden vector, four query heads and two KV heads.
TINY: Document = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "ffn_size": 64,
    "vocab_size": 32,
}


def instance(decision: str, section: Document, **changes: Any) -> Document:
    """A server has 4 cards with 100 B/s and 1 s a round inside, 10 B/s and 3 s between."""
    accelerator = {
        "name": "card",
        "memory_bytes": "1GiB",
        "memory_bandwidth_bytes_per_s": 10**9,
        "peak_flops_per_s": {"bf16": 10**12},
    }
    inside = {"name": "inside", "alpha_s": 1, "bandwidth_bytes_per_s": 100}
    between = {"name": "between", "alpha_s": 3, "bandwidth_bytes_per_s": 10}
    server = {"name": "server", "accelerator": accelerator, "num_cards": 4, "fabric": inside}
    pool = {"name": "pool", "server": server, "num_servers": 2, "fabric_between": between}
    cohort = {"name": "chat", "num_sessions": 1, "context_tokens": 15, "new_tokens": 1}
    return {
        "name": decision,
        "decision": decision,
        "model": TINY,
        "fleet": {"pools": [{**pool, **changes.pop("pool", {})}]},
        "workload": {"cohorts": [cohort]},
        "runtime": {"workspace_bytes": 0},
        decision: section,
        **changes,
    }


def placed(**section: Any) -> Document:
    return instance("placement", section)


def solved(document: Document, solver: str = "auto", seconds: float = 60) -> SideResultDocument:
    options = SolveOptions(solver=solver, time_limit_s=seconds, threads=1)
    return solve_side(parse_instance(document), options)


def refused(document: Document, field: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        solved(document)
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)


def test_the_groups_of_an_exchange_lie_apart_in_blocks() -> None:
    """Ranks 8 to 15 in blocks of 4, groups of 2: 8 with 10, 9 with 11, 12 with 14, 13 with 15."""
    config = ParallelConfig(dp=2, pp=2, cp=2, tp=2)
    exchange = Exchange("x", "all_reduce", 2, 4, F(1), 1)
    assert exchange_groups(exchange, 8, config) == ((8, 10), (9, 11), (12, 14), (13, 15))
    neighbours = Exchange("x", "all_reduce", 4, 4, F(1), 1)
    assert exchange_groups(neighbours, 0, config) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_tensor_parallel_reductions_are_one_phase() -> None:
    """Two layers reduce after attention and FFN: 4 times 32 numbers of 2 B."""
    p = placement_problem(parse_instance(placed(tp=2, batch=3)))
    (phase,) = p.phases
    assert (phase.name, phase.operation, phase.times) == ("attention + ffn", "all_reduce", 4)
    assert phase.message_bytes == 3 * 64
    assert phase.groups == ((0, 1),)
    assert phase.algorithms == ("ring", "hierarchical")
    assert (p.num_ranks, p.free_cards) == (2, ((0, 1, 2, 3), (0, 1, 2, 3)))
    assert (p.inside.alpha_s, p.inside.bytes_per_s) == (1, 100)
    assert p.between is not None
    assert (p.between.alpha_s, p.between.bytes_per_s) == (3, 10)


def test_stages_hand_on_to_the_same_places_and_return_tokens() -> None:
    p = placement_problem(parse_instance(placed(tp=2, pp=2)))
    found = {phase.name: (phase.operation, phase.times, phase.groups) for phase in p.phases}
    assert found == {
        "attention of stage 0 + ffn of stage 0": ("all_reduce", 2, ((0, 1),)),
        "attention of stage 1 + ffn of stage 1": ("all_reduce", 2, ((2, 3),)),
        "hand-off of stage 0": ("send", 1, ((0, 2), (1, 3))),
        "tokens": ("send", 1, ((2, 0), (3, 1))),
    }
    assert [phase.message_bytes for phase in p.phases] == [64, 64, 64, 4]


def mixture(**section: Any) -> Document:
    document = placed(**section)
    return {**document, "model": {"base": "mixtral-8x7b"}, "fleet": hgx(2)}


def hgx(num_servers: int) -> Document:
    pool = {"name": "hgx", "server": "hgx-h100", "num_servers": num_servers}
    return {"pools": [{**pool, "fabric_between": "infiniband-ndr"}]}


def test_an_all_to_all_counts_the_share_that_stays() -> None:
    """Four cards with a token each, two experts of eight: 32 layers, there and back."""
    p = placement_problem(parse_instance(mixture(dp=4, ep=4)))
    (phase,) = p.phases
    assert (phase.name, phase.operation, phase.times) == ("dispatch", "all_to_all", 64)
    # a token goes to 2 groups; 4096 numbers of 2 B each, one in four of which stays
    assert phase.message_bytes == 2 * 4096 * 2
    assert phase.groups == ((0, 1, 2, 3),)
    assert phase.algorithms == ("direct",)


def test_context_and_expert_groups_are_strided() -> None:
    """CP merges ranks of equal place in TP; experts add up over the cards that share them."""
    p = placement_problem(parse_instance(mixture(cp=2, tp=2, ep=2)))
    groups = {phase.name: phase.groups for phase in p.phases}
    assert groups["merge"] == ((0, 2), (1, 3))
    # attention adds up over TP, and so do both halves of each expert, on the same cards
    assert groups["attention + experts"] == ((0, 1), (2, 3))
    assert groups["experts"] == ((0, 2), (1, 3))


def test_a_cache_that_is_read_remotely_comes_from_the_stage_that_has_it() -> None:
    document = mixture(pp=4, tp=8, ep=8)
    document |= {"model": "deepseek-v4.1-flash", "fleet": hgx(4)}
    document["search"] = {"kv_sharing": "remote", "stage_cut": "even"}
    p = placement_problem(parse_instance(document))
    reads = [phase for phase in p.phases if phase.name.startswith("remote_kv")]
    assert reads
    for phase in reads:
        stage = int(re.findall(r"stage (\d)", phase.name)[0])
        assert phase.operation == "send"
        for sender, receiver in phase.groups:
            assert receiver // 8 == stage
            assert sender // 8 < stage
            assert sender % 8 == receiver % 8


def test_occupied_cards_and_the_exit_limit_are_read() -> None:
    occupied = [{"server": 1, "cards": [0, 3]}, {"server": 1, "cards": [1]}]
    document = placed(tp=4, occupied=occupied, exit_bandwidth_bytes_per_s="5B/s")
    p = placement_problem(parse_instance(document))
    assert p.free_cards == ((0, 1, 2, 3), (2,))
    assert p.exit_bytes_per_s == 5


def test_the_topology_between_servers_gives_the_exit_limit_unless_the_section_does() -> None:
    topology = {
        "kind": "servers",
        "name": "two",
        "num_servers": 2,
        "server": {"base": "switched-64", "num_cards": 4},
        "nics_per_server": 4,
        "nic_bandwidth_bytes_per_s": 10,
        "exit_bandwidth_bytes_per_s": 7,
    }
    between = {"name": "b", "alpha_s": 3, "bandwidth_bytes_per_s": 10, "topology": topology}
    document = instance("placement", {"tp": 4}, pool={"fabric_between": between})
    assert placement_problem(parse_instance(document)).exit_bytes_per_s == 7
    document["placement"]["exit_bandwidth_bytes_per_s"] = 5
    assert placement_problem(parse_instance(document)).exit_bytes_per_s == 5


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_placement_is_proven_and_told_in_a_sentence(solver: str) -> None:
    """TP4 on 3 + 2 free cards: halves take 2 · (1 + 32/100) + 2 · (3 + 16/10) = 11.84 s a time.

    First fit has 3 + 1: 6 · (3 + 16/10) = 27.6 s. There are 4 reductions.
    """
    occupied = [{"server": 0, "cards": [1]}, {"server": 1, "cards": [0, 2]}]
    result = solved(placed(tp=4, occupied=occupied), solver)
    assert (result.termination, result.decision) == ("optimal", "placement")
    assert result.objective.verified_exact == result.objective.bound_exact == str(F(1184, 25))
    assert result.plan is not None
    assert result.plan.sentence == (
        "TP4: 2 cards of server 0 and 2 of server 1; 4 all-reduces hierarchical; "
        "communication 47.36 s a step (first fit 110.4 s)"
    )
    assert result.plan.placement == [[0, 0], [0, 2], [1, 1], [1, 3]]
    assert result.plan.algorithms == ["hierarchical"]
    assert result.evaluation is not None
    (phase,), (before,) = result.evaluation.phases, result.evaluation.phases_before
    assert (phase.step_exact, before.step_exact) == ("1184/25", "552/5")
    assert (phase.algorithm, before.algorithm) == ("hierarchical", "ring")
    # two rounds with two blocks of 16 B; the ring's six rounds have one
    assert (phase.exit_bytes, before.exit_bytes) == (64, 96)
    assert result.evaluation.saved == pytest.approx(110.4 - 47.36)
    judged = verify_side(parse_instance(placed(tp=4, occupied=occupied)), result.model_dump())
    assert (judged["holds"], judged["mismatches"]) == (True, [])


def test_first_fit_is_left_out_where_nothing_can_run_on_it() -> None:
    """3 + 2 free cards and no ring: 3 + 1 is no equal division, 2 + 2 is."""
    document = placed(tp=4, occupied=[{"server": 0, "cards": [0]}, {"server": 1, "cards": [0, 1]}])
    document["search"] = {"collectives": ["hierarchical"]}
    result = solved(document)
    assert (result.termination, result.objective.verified_exact) == ("optimal", str(F(1184, 25)))
    assert result.plan is not None
    assert result.plan.sentence.endswith("communication 47.36 s a step")
    assert result.evaluation is not None
    assert (result.evaluation.phases_before, result.evaluation.saved) == ([], None)


def test_just_enough_free_cards_and_one_too_few() -> None:
    occupied = [{"server": 1, "cards": [0, 1, 2]}]
    result = solved(placed(tp=4, occupied=[{"server": 0, "cards": [0]}, *occupied]))
    assert (result.termination, result.objective.verified_exact) == ("optimal", "552/5")
    occupied = [{"server": 0, "cards": [0]}, {"server": 1, "cards": [0, 1, 2, 3]}]
    result = solved(placed(tp=4, occupied=occupied))
    assert (result.termination, result.plan) == ("infeasible", None)
    assert result.reason == "TP4 needs 4 cards, 3 are free"
    assert result.certificate.second_opinion.agrees is True


def test_a_plan_without_algorithms_takes_the_fastest() -> None:
    problem = parse_instance(placed(tp=4))
    halves = {"placement": [[0, 0], [0, 1], [1, 0], [1, 1]]}
    judged = verify_side(problem, halves)
    assert judged["objective"] == {"communication": str(F(1184, 25))}
    judged = verify_side(problem, {**halves, "algorithms": ["ring"]})
    assert judged["objective"] == {"communication": "552/5"}
    uneven = {"placement": [[0, 0], [0, 1], [0, 2], [1, 1]]}
    judged = verify_side(problem, {**uneven, "algorithms": ["hierarchical"]})
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == ["algorithm"]
    apart = parse_instance(instance("placement", {"tp": 4}, pool={"fabric_between": None}))
    judged = verify_side(apart, uneven)
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == ["span"]


BAD_PLACEMENTS: list[tuple[Document, str, tuple[str, ...]]] = [
    ({"tp": 3}, "placement", ("TP3", "[heads]")),
    ({"tp": 2, "ep": 2}, "placement", ("EP2",)),
    ({"tp": 4, "cp": 4}, "placement", ("needs 16 cards", "which has 8")),
    ({"occupied": [{"server": 2, "cards": [0]}]}, "placement.occupied[0].server", ("0 to 1",)),
    ({"occupied": [{"server": 0, "cards": [4]}]}, "placement.occupied[0].cards", ("0 to 3",)),
    (
        {"occupied": [{"server": 0, "cards": [1]}, {"server": 0, "cards": [2, 1]}]},
        "placement.occupied[1].cards",
        ("card 1 of server 0 is listed twice",),
    ),
]


@pytest.mark.parametrize(("section", "field", "words"), BAD_PLACEMENTS)
def test_a_section_that_cannot_be_meant_is_refused(
    section: Document, field: str, words: tuple[str, ...]
) -> None:
    refused(placed(**section), field, *words)


def test_what_a_placement_needs_besides_its_section() -> None:
    document = placed(tp=4)
    document["search"] = {"collectives": ["tree"]}
    refused(document, "search.collectives", "ring, hierarchical")
    document["search"] = {"collectives": ["tree", "hierarchical"]}
    (phase,) = placement_problem(parse_instance(document)).phases
    assert phase.algorithms == ("hierarchical",)
    occupied = [{"server": 0, "cards": [0]}, {"server": 1, "cards": [0]}]
    document = instance("placement", {"tp": 4}, pool={"fabric_between": None})
    assert solved(document).termination == "optimal"
    document["placement"]["occupied"] = occupied
    refused(document, "fleet.pools", "no fabric_between")
    document = placed(tp=2)
    document["runtime"]["workspace_bytes"] = "1GiB"
    refused(document, "placement", "short of memory")
