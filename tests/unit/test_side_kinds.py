"""Slices and rings from an instance: data, sentences, proofs, and what is refused."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import parse_instance
from optimizer import SolveOptions
from optimizer.side.decisions import SOLVERS, solve_side
from optimizer.side.document import side_plan_sha256, verify_side
from optimizer.side.kinds import KINDS, side_kind
from optimizer.side.result import SidePlanDocument, SideResultDocument
from optimizer.side.ring_order_kind import ring_problem
from optimizer.side.slice_kind import slice_problem

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


def test_every_decision_has_a_kind_with_a_field_of_its_own() -> None:
    fields = set(SidePlanDocument.model_fields) - {"sentence", "algorithms"}
    assert fields == set(KINDS)


def test_slices_are_counted_named_and_placed() -> None:
    """Row 0 of a 4 x 4 torus is taken; three rows have room for three slices of four chips."""
    section = {
        "extents": [4, 4],
        "occupied": [[0, 0], [0, 1], [0, 2], [0, 3]],
        "requests": [
            {"name": "row", "shapes": [[1, 4]]},
            {"name": "square", "count": 2, "shapes": [[2, 2]]},
            {"name": "wide", "shapes": [[4, 1]]},
        ],
    }
    document = instance("slices", section)
    problem = slice_problem(parse_instance(document))
    assert [r.name for r in problem.requests] == ["row", "square/0", "square/1", "wide"]
    result = solved(document)
    assert (result.termination, result.objective.verified_exact) == ("optimal", "12")
    assert (result.objective.unit, result.objective.direction) == ("chips", "maximise")
    assert result.plan is not None
    # first fit puts the row into row 1, and the squares into rows 2 and 3
    assert result.plan.sentence == "3 of 4 slices on 12 of 12 free chips (first fit 12)"
    assert result.plan.slices is not None
    assert result.plan.slices[3] is None
    assert result.evaluation is not None
    assert sorted(c for s in result.evaluation.slices for c in s.chips) == [
        [x, y] for x in (1, 2, 3) for y in range(4)
    ]
    judged = verify_side(parse_instance(document), result.model_dump(mode="json"))
    assert (judged["holds"], judged["mismatches"]) == (True, [])


def test_slices_of_a_servers_own_torus() -> None:
    document = instance("slices", {"requests": [{"name": "a", "shapes": [[2, 2]]}]})
    refused(document, "slices.extents", "no torus")
    torus = {"kind": "torus", "name": "t", "extents": [2, 2], "link_bandwidth_bytes_per_s": 1}
    fabric = {"name": "inside", "alpha_s": 1, "bandwidth_bytes_per_s": 100, "topology": torus}
    document["fleet"]["pools"][0]["server"]["fabric"] = fabric
    assert slice_problem(parse_instance(document)).extents == (2, 2)
    assert solved(document).objective.verified == 4


def test_a_hand_written_slice_is_judged() -> None:
    section = {"extents": [4, 4], "requests": [{"name": "a", "count": 2, "shapes": [[2, 2]]}]}
    problem = parse_instance(instance("slices", section))
    places = [{"shape": [2, 2], "origin": [3, 3]}, {"shape": [2, 2], "origin": [0, 0]}]
    judged = verify_side(problem, {"slices": places})
    assert [(v["rule"], v["amount"]) for v in judged["evaluation"]["violations"]] == [
        ("overlap", 1)
    ]
    places[1]["origin"] = [1, 1]
    assert verify_side(problem, {"slices": places})["objective"] == {"chips": "8"}
    judged = verify_side(problem, {"slices": [{"shape": [1, 4], "origin": [0, 0]}, None]})
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == ["shape"]
    judged = verify_side(problem, {"slices": [None, None, None]})
    assert [v["rule"] for v in judged["evaluation"]["violations"]] == ["slice_count"]
    named = [{"name": "b", "shape": [2, 2], "origin": [0, 0]}, None]
    with pytest.raises(InputError, match="list the slices in their order"):
        verify_side(problem, {"slices": named})


def test_bad_slices_are_refused() -> None:
    request = {"name": "a", "shapes": [[2, 2]]}
    for section, field, word in (
        ({"extents": [4, 4], "occupied": [[4, 0]], "requests": [request]}, "slices", "(4, 0)"),
        ({"extents": [4], "requests": [request]}, "slices", "axes"),
        (
            {"extents": [4, 4], "occupied": [[1, 1], [1, 1]], "requests": [request]},
            "slices.occupied",
            "twice",
        ),
    ):
        refused(instance("slices", section), field, word)


#: Four cards numbered in turn between two NUMA nodes, 8 B/s to the host, 4 B/s between nodes.
HOST: Document = {
    "kind": "numa",
    "name": "host",
    "numa_nodes": [[0, 2], [1, 3]],
    "pcie_bandwidth_bytes_per_s": 8,
    "socket_bandwidth_bytes_per_s": 4,
    "buffers": "sender",
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_ring_has_two_goals(solver: str) -> None:
    """Of 16 B a card, card order takes 2 · 16/4 = 8 s each way, neighbours first 16/4 = 4 s."""
    document = instance("ring_order", {"topology": HOST, "ring_bytes": 16})
    result = solved(document, solver)
    assert (result.termination, result.objective.verified_exact) == ("optimal", "4")
    (then,) = result.then
    assert (then.name, then.unit, then.verified_exact, then.bound_exact) == (
        *("socket_bytes", "B"),
        *("32", "32"),
    )
    assert result.plan is not None
    assert result.plan.ring_order is not None
    assert result.plan.sentence.endswith(
        "busiest link 4.000 s, 32 B between nodes (card order 8.000 s)"
    )
    assert result.evaluation is not None
    assert [link.load_bytes for link in result.evaluation.links] == [16, 16]
    assert [link.load_bytes for link in result.evaluation.links_before] == [32, 32]
    stored = json.loads(result.to_json())
    judged = verify_side(parse_instance(document), stored)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["objective"] == {"busiest_link": "4", "socket_bytes": "32"}
    stored["then"][0]["verified_exact"] = "16"
    judged = verify_side(parse_instance(document), stored)
    assert any("socket_bytes is 32, not 16" in line for line in judged["mismatches"])
    stored["then"] = []
    judged = verify_side(parse_instance(document), stored)
    assert judged["mismatches"] == ["the objectives are busiest_link, socket_bytes"]


def test_a_ring_takes_the_models_vector_and_the_servers_host() -> None:
    """A hidden vector of 32 numbers of 2 B over 4 cards is 16 B; the section may say otherwise."""
    document = instance("ring_order", {"buffers": [0, "receiver"]})
    refused(document, "ring_order.topology", "no", "NUMA")
    fabric = {"name": "host", "alpha_s": 1, "bandwidth_bytes_per_s": 8, "topology": HOST}
    document["fleet"]["pools"][0]["server"]["fabric"] = fabric
    problem = ring_problem(parse_instance(document))
    assert (problem.ring_bytes, problem.buffers) == (16, (0, "receiver"))
    assert problem.card_nodes == (0, 1, 0, 1)
    assert [(link.start, link.end, link.bytes_per_s) for link in problem.links] == [
        *[(0, 1, 4), (1, 0, 4)]
    ]
    document["ring_order"]["buffers"] = ["sender", 2]
    refused(document, "ring_order.buffers[1]", "0 to 1")
    named = instance("ring_order", {"topology": "dgx-h100-host"})
    assert ring_problem(parse_instance(named)).ring_bytes == 8
    with pytest.raises(InputError, match="must be of kind 'numa', not 'torus'"):
        parse_instance(instance("ring_order", {"topology": "tpu-v4-cube"}))


def test_a_hand_written_ring_is_judged() -> None:
    problem = parse_instance(instance("ring_order", {"topology": HOST, "ring_bytes": 16}))
    ring = {"order": [0, 2, 1, 3], "buffers": [0, 0, 1, 1]}
    judged = verify_side(problem, {"ring_order": ring})
    assert judged["objective"] == {"busiest_link": "4", "socket_bytes": "32"}
    judged = verify_side(problem, {"ring_order": {**ring, "order": [0, 2, 1, 1]}})
    assert judged["holds"] is False
    assert judged["objective"] == {"busiest_link": None, "socket_bytes": None}


def test_the_hash_of_a_plan_leaves_out_what_it_does_not_decide() -> None:
    """Stages and experts keep the hashes they had before other decisions came."""
    cut = SidePlanDocument(sentence="any", stages=[1, 2])
    text = b'{"experts":null,"stages":[1,2]}'
    assert side_plan_sha256(cut) == hashlib.sha256(text).hexdigest()
    assert side_plan_sha256(cut) != side_plan_sha256(SidePlanDocument(stages=[2, 1]))
    ring = SidePlanDocument(placement=[[0, 1]], algorithms=["ring"])
    assert side_plan_sha256(ring) != side_plan_sha256(SidePlanDocument(placement=[[0, 1]]))


def test_a_decision_without_time_keeps_its_first_answer() -> None:
    for document in (
        placed(tp=4, occupied=[{"server": 0, "cards": [0]}, {"server": 1, "cards": [0]}]),
        instance("ring_order", {"topology": HOST, "ring_bytes": 16}),
    ):
        result = solved(document, seconds=0)
        assert result.plan is not None
        kind = side_kind(parse_instance(document))
        assert kind.broken(kind.read_plan(result.plan)) in ((), [])
