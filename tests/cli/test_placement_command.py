"""`supernode solve` and `verify` for placements, slices and rings, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from commands import Capture, call
from instances.io import example_text

ONE, HALVES, MOE = "placement-6-plus-2", "placement-6-4-4", "placement-moe-exit"
SLICES, RING = "slices-4x4", "numa-ring-order"

Document = dict[str, Any]


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds the words."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def save(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def example(name: str) -> Document:
    document: Document = json.loads(example_text(name))
    return document


def put(path: str, value: Any) -> Callable[[Document], None]:
    """Set a field of a document; the path is written "plan.placement.0", list places as numbers."""

    def apply(document: Document) -> None:
        *parents, last = path.split(".")
        node: Any = document
        for part in parents:
            node = node[int(part) if part.isdecimal() else part]
        key: Any = int(last) if last.isdecimal() else last
        assert isinstance(node, list) or key not in node or node[key] != value
        node[key] = value

    return apply


#: What a report says besides its plan: words of its table, and of what is saved.
REPORTS = [
    (ONE, "Exchanges of a step", ("attention + ffn", "AllReduce, ring", "128", "1 x 8")),
    (HALVES, "Exchanges of a step", ("AllReduce, hierarchical", "6.784 ms, ring")),
    (MOE, "Exchanges of a step", ("dispatch", "All-to-All, direct", "4 x 4", "4 of 4")),
    (SLICES, "Slices", ("square/0", "2 x 2", "4 x 1", "first fit  8 chips of 12 free ones")),
    (RING, "Links between NUMA nodes", ("0 to 1", "1 to 0", "the ring in card order takes 262")),
]


@pytest.mark.parametrize(("name", "title", "words"), REPORTS)
def test_a_decision_is_solved_written_and_verified(
    name: str, title: str, words: tuple[str, ...], capsys: Capture, tmp_path: Path
) -> None:
    schema = json.loads(call(capsys, "schema", "side-result")[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    target = tmp_path / "result.json"
    code, out, err = call(capsys, "solve", name, "--json", "-o", str(target), "--threads", "1")
    assert (code, err) == (0, "")
    document = json.loads(out)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert target.read_text(encoding="utf-8") == out
    assert document["termination"] == "optimal"
    assert document["certificate"]["second_opinion"]["agrees"] is True
    code, out, err = call(capsys, "solve", name)
    assert (code, err) == (0, "")
    assert f"{name}: optimal, verified in " in out
    flat = " ".join(out.split())
    assert f"plan {document['plan']['sentence']} objective" in flat
    assert title in [line.strip() for line in out.splitlines()]
    for word in words:
        assert " ".join(word.split()) in flat
    code, out, err = call(capsys, "verify", name, str(target))
    assert (code, err) == (0, "")
    assert f"{name}: the plan holds" in out
    assert title in out
    code, out, err = call(capsys, "verify", name, str(target), "--json")
    assert (code, err) == (0, "")
    judged = json.loads(out)
    assert (judged["holds"], judged["mismatches"]) == (True, [])
    assert judged["evaluation"] == document["evaluation"]
    found = [o["verified_exact"] for o in (document["objective"], *document["then"])]
    assert list(judged["objective"].values()) == found


def test_the_schema_of_instances_has_the_sections(capsys: Capture) -> None:
    schema = json.loads(call(capsys, "schema")[1])
    validator = jsonschema.Draft202012Validator(schema)
    for name in (ONE, HALVES, MOE, SLICES, RING):
        validator.validate(example(name))
    wrong = example(ONE)
    wrong["placement"]["occupied"][0]["cards"] = []
    assert not validator.is_valid(wrong)
    wrong = example(SLICES)
    wrong["slices"]["requests"] = []
    assert not validator.is_valid(wrong)
    wrong = example(RING)
    wrong["ring_order"]["buffers"] = []
    assert not validator.is_valid(wrong)


def test_what_the_examples_show(capsys: Capture) -> None:
    """The figures that their descriptions and the README tell.

    14 rounds of 3.76 µs + 1280 B / 50 GB/s = 3.7856 µs, 128 times: 6.784 ms. Halves: 6 rounds of
    0.822 µs + 2560 B / 450 GB/s and 2 of 3.7856 µs, 128 times: 1.605 ms.
    """
    documents = {n: json.loads(call(capsys, "solve", n, "--json")[1]) for n in (ONE, HALVES)}
    assert documents[ONE]["objective"]["verified"] == pytest.approx(128 * 14 * 3.7856e-6)
    assert documents[ONE]["evaluation"]["saved"] == 0
    once = 6 * (0.822e-6 + 2560 / 450e9) + 2 * 3.7856e-6
    assert documents[HALVES]["objective"]["verified"] == pytest.approx(128 * once)
    assert documents[HALVES]["evaluation"]["value_before"] == pytest.approx(128 * 14 * 3.7856e-6)


def test_equal_runs_print_equal_bytes(capsys: Capture) -> None:
    for name in (HALVES, MOE, SLICES, RING):
        arguments = ("solve", name, "--json", "--threads", "1", "--seed", "7")
        first, second = (call(capsys, *arguments)[1] for _ in range(2))
        assert re.sub(r'"seconds": [0-9.]+', "", first) == re.sub(r'"seconds": [0-9.]+', "", second)


def test_verify_judges_a_hand_written_placement(capsys: Capture, tmp_path: Path) -> None:
    cards = [[0, card] for card in range(6)] + [[1, 0], [1, 1]]
    good = save(tmp_path / "good.json", {"placement": cards})
    code, out, err = call(capsys, "verify", HALVES, good)
    assert (code, err) == (0, "")
    assert "objective  communication = 66248/9765625\n" in out  # the ring of 6 and 2
    taken = save(tmp_path / "taken.json", {"placement": [*cards[:6], [1, 4], [1, 1]]})
    code, out, err = call(capsys, "verify", HALVES, taken)
    assert (code, err) == (5, "")
    assert "card_taken at domain 1 card 4: domain 1 card 4 is taken" in out
    twice = save(tmp_path / "twice.json", {"placement": [*cards[:7], [1, 0]]})
    code, out, err = call(capsys, "verify", HALVES, twice, "--json")
    assert (code, err) == (5, "")
    (broken,) = json.loads(out)["evaluation"]["violations"]
    assert (broken["rule"], broken["amount"]) == ("card_taken", 1)
    full = save(tmp_path / "full.json", {"placement": [[1, card] for card in range(8)]})
    code, out, err = call(capsys, "verify", HALVES, full, "--json")
    assert (code, err) == (5, "")
    found = {v["rule"]: v["amount"] for v in json.loads(out)["evaluation"]["violations"]}
    assert found["domain_full"] == 4
    fewer = save(tmp_path / "fewer.json", {"placement": cards[:7]})
    code, out, err = call(capsys, "verify", HALVES, fewer)
    assert (code, err) == (5, "")
    assert "rank_missing at placement: 7 cards for 8 ranks" in out
    uneven = {"placement": cards, "algorithms": ["hierarchical"]}
    code, out, err = call(capsys, "verify", HALVES, save(tmp_path / "uneven.json", uneven))
    assert (code, err) == (5, "")
    assert "algorithm at phase attention + ffn" in out


TAMPERED = [
    (HALVES, "plan.placement.0", [2, 0], "plan_sha256 differs"),
    (HALVES, "plan.algorithms", ["ring"], "communication is 66248/9765625"),
    (HALVES, "objective.verified_exact", "1/625", "not 1/625"),
    (HALVES, "objective.bound_exact", "1/625", "does not meet its bound"),
    (HALVES, "certificate.instance_sha256", "0" * 64, "another problem instance"),
    (SLICES, "plan.slices.0", None, "chips is 8"),
    (RING, "plan.ring_order.buffers.0", 1, "socket_bytes is"),
    (RING, "then.0.claimed", 1.0, "claimed socket_bytes is 1.0"),
    (RING, "then.0.bound_exact", "1", "does not meet its bound"),
    (RING, "then", [], "the objectives are busiest_link, socket_bytes"),
]


@pytest.mark.parametrize(("name", "path", "value", "said"), TAMPERED)
def test_verify_rejects_a_tampered_result(
    name: str, path: str, value: Any, said: str, capsys: Capture, tmp_path: Path
) -> None:
    result = json.loads(call(capsys, "solve", name, "--json")[1])
    put(path, value)(result)
    target = save(tmp_path / "result.json", result)
    code, out, err = call(capsys, "verify", name, target)
    assert (code, err) == (5, "")
    assert "does not hold" in out
    assert said in " ".join(out.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((ONE, t) for t in ("5", "{}", '{"plan": null}', '{"slices": []}', '{"placement": 8}')),
        *((ONE, t) for t in ('{"placement": [[0]]}', '{"placement": [[0, 1, 2]]}')),
        *((ONE, t) for t in ('{"placement": [[0, "1"]]}', '{"placement": [[0, 1.0]]}')),
        *((SLICES, t) for t in ('{"placement": []}', '{"slices": [{"shape": [2, 2]}]}')),
        (SLICES, '{"slices": [{"shape": [2, 2], "origin": [0, 0], "turned": true}]}'),
        *((RING, t) for t in ('{"ring_order": [0, 1]}', '{"ring_order": {"order": [0]}}')),
    ],
)
def test_verify_refuses_what_is_no_decision(
    name: str, text: str, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    refused(call(capsys, "verify", name, str(path)), "plan.json: ")


def test_too_few_free_cards_end_with_exit_3(capsys: Capture, tmp_path: Path) -> None:
    document = example(ONE)
    document["placement"]["occupied"][0]["cards"] = [5, 6, 7]
    target = tmp_path / "result.json"
    path = save(tmp_path / "fewer.json", document)
    code, out, err = call(capsys, "solve", path, "-o", str(target))
    assert (code, err) == (3, "")
    assert "infeasible, proven" in out
    assert "TP8 needs 8 cards, 7 are free" in out
    refused(call(capsys, "verify", path, str(target)), "holds no plan")


BAD_SECTIONS: list[tuple[str, str, Any, tuple[str, ...]]] = [
    (ONE, "placement", None, ("placement", "goes with decision")),
    (ONE, "slices", {"requests": [{"name": "a", "shapes": [[1]]}]}, ("slices", "goes with")),
    (ONE, "placement.tp", 0, ("placement.tp",)),
    (ONE, "placement.tp", 3, ("placement", "TP3")),
    (ONE, "placement.pp", 3, ("placement", "needs 24 cards", "has 16")),
    (ONE, "placement.batch", 10**5, ("placement", "short of memory")),
    (ONE, "placement.sp", 8, ("placement.sp", "no such field")),
    (ONE, "placement.occupied.0.server", 2, ("placement.occupied[0].server = 2", "0 to 1")),
    (ONE, "placement.occupied.0.cards", [8], ("placement.occupied[0].cards = 8", "0 to 7")),
    (ONE, "placement.occupied.0.cards", [6, 6], ("placement.occupied[0].cards", "twice")),
    (ONE, "placement.occupied.0.cards", [], ("placement.occupied[0].cards",)),
    (ONE, "placement.exit_bandwidth_bytes_per_s", 0, ("exit_bandwidth_bytes_per_s",)),
    (ONE, "search", {"collectives": ["measured"]}, ("search.collectives", "ring, hierarchical")),
    (ONE, "fleet.pools.0.fabric_between", None, ("fleet.pools", "fabric_between")),
    (ONE, "decision", "place", ("decision",)),
    (SLICES, "slices.extents", None, ("slices.extents", "no torus")),
    (SLICES, "slices.extents", [4, 4, 4], ("slices",)),
    (SLICES, "slices.extents", [0, 4], ("slices",)),
    (SLICES, "slices.occupied", [[4, 0]], ("slices", "(4, 0)")),
    (SLICES, "slices.requests.0.count", 1001, ("slices.requests[0].count",)),
    (SLICES, "slices.requests.0.count", 1000, ("slices", "1001 slices")),
    (SLICES, "slices.requests.1.name", "square", ("slices", "'square' appears 2 times")),
    (SLICES, "slices.requests.0.shapes", [[2, 2], [1, 3]], ("slices", "square/0")),
    (RING, "ring_order.topology", "dgx-1", ("ring_order.topology", "'numa'")),
    (RING, "ring_order.topology", "dgx-h200-host", ("ring_order.topology", "dgx-h100-host")),
    (RING, "ring_order.topology", None, ("ring_order.topology", "NUMA")),
    (RING, "ring_order.ring_bytes", 0, ("ring_order.ring_bytes",)),
    (RING, "ring_order.buffers", ["host"], ("ring_order.buffers", "sender")),
    (RING, "ring_order.buffers", [2], ("ring_order.buffers[0] = 2", "0 to 1")),
    (RING, "ring_order.buffers", [True], ("ring_order.buffers",)),
]


@pytest.mark.parametrize(("name", "path", "value", "words"), BAD_SECTIONS)
def test_a_bad_section_is_one_line_that_names_it(
    name: str, path: str, value: Any, words: tuple[str, ...], capsys: Capture, tmp_path: Path
) -> None:
    document = example(name)
    put(path, value)(document)
    refused(call(capsys, "solve", save(tmp_path / "bad.json", document)), *words)
