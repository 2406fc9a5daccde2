"""`supernode fabric`: parts and algorithms of a topology; and exchanges in `supernode explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Capture, call
from instances.catalog_store import catalog_names


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    code, out, err = call(capsys, "fabric", *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_hierarchy_beats_the_flat_ring_and_the_page_says_by_how_much(capsys: Capture) -> None:
    code, out, err = call(capsys, "fabric", "two-hgx-h100")
    assert (code, err) == (0, "")
    # 30 · (3.76 us + 640 B / 50 GB/s) = 113.184 us against 19.0934 us.
    line = "hierarchical takes 94.09 µs less than the flat ring, which takes 5.93 times as long"
    assert line in out
    assert "switches   8, network adapters 16" in out
    assert "in_switch: no switch of two-hgx-h100 adds up" in out


def test_a_report_as_json(capsys: Capture) -> None:
    found = document(capsys, "tpu-v4-cube", "--operation", "all_to_all", "--message", "32MiB")
    assert (found["num_cards"], found["num_links"], found["num_switches"]) == (64, 192, 0)
    assert found["has_start"] is False
    assert document(capsys, "hgx-h100")["has_start"] is True
    assert "No start time is given" in call(capsys, "fabric", "tpu-v4-cube")[1]
    assert found["bisection"]["num_links"] == 32
    assert found["farthest"]["num_chips"] == 5
    best = found["algorithms"][0]
    assert (best["algorithm"], best["num_rounds"]) == ("direct", 1)
    assert best["busiest_link_bytes"] == 16 * 2**20  # M/2
    assert round(best["link_bound_s"] * 1e6, 1) == 335.5
    missing = {row["algorithm"]: row["reason"] for row in found["algorithms"] if "reason" in row}
    assert list(missing) == ["two_level"]


def test_fewer_ranks_and_a_file(capsys: Capture, tmp_path: Path) -> None:
    ring = {
        "kind": "torus",
        "name": "mine",
        "extents": [8],
        "link_bandwidth_bytes_per_s": "50GB/s",
        "start_s": "1us",
    }
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(ring), encoding="utf-8")
    found = document(capsys, str(path), "--ranks", "4", "--message", "4000")
    rows = {row["algorithm"]: row for row in found["algorithms"] if "time_s" in row}
    # The first four of eight cards: the way back from card 3 to card 0 is three links long, and all
    # four messages of a round move 1000 B: 6 · (1 us + 1000 B / 50 GB/s).
    assert rows["ring"]["time_exact"] == "153/25000000"
    assert found["num_ranks"] == 4


@pytest.mark.parametrize("name", catalog_names("topologies"))
def test_every_topology_of_the_catalog_has_a_report(capsys: Capture, name: str) -> None:
    ranks = ["--ranks", "8"] if name in ("tpu-v4-512", "cloudmatrix384") else []
    assert document(capsys, name, *ranks)["algorithms"][0]["time_s"] >= 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "no entry 'no-such' in catalog topologies"),
        (["two-hgx-h100", "--ranks", "12"], "12 ranks take servers of 8 cards in part"),
        (["hgx-h100", "--ranks", "9"], "between 2 and the 8 cards, not 9"),
        (["hgx-h100", "--message", "ten"], "--message"),
        (["hgx-h100", "--message", "-1"], "--message"),
        (["hgx-h100", "--message", "0.5"], "--message"),
        (["missing.json"], "missing.json"),
        (["hgx-h100", "--operation", "shout"], "shout"),
    ],
)
def test_wrong_arguments_are_one_line(capsys: Capture, arguments: list[str], said: str) -> None:
    code, out, err = call(capsys, "fabric", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_wrong_topology_names_file_field_and_rule(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"kind": "torus", "name": "t", "extents": [4, 0], "link": 1}')
    code, _, err = call(capsys, "fabric", str(path))
    assert code == 2
    assert "bad.json" in err
    assert err.count("\n") == 1


def test_explain_says_what_cards_exchange_and_by_what(capsys: Capture) -> None:
    code, out, err = call(capsys, "explain", "framework-allreduce", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["communication"]
    decode = next(row for row in rows if row["when"] == "decode step")
    assert (decode["instance"], decode["ranks"], decode["servers"]) == ("TP8 (measured)", 8, 1)
    assert (decode["message_bytes"], decode["times"]) == (10240, 64)
    assert decode["algorithm"] == "measured TensorRT-LLM 1.3.0rc20"
    assert round(decode["others"]["measured NCCL 2.27.3"] / decode["seconds"], 2) == 4.69
    prompt = next(row for row in rows if row["when"].startswith("prompt"))
    assert prompt["message_bytes"] == 80 * 2**20
    code, out, _ = call(capsys, "explain", "one-session-50ms")
    assert code == 0
    assert "Communication of TP8 (ring)" in out
    assert "739.1 µs" in out  # 64 · 11.548 us
