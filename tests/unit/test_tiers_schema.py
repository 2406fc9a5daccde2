"""The section of decision "tiers": what is read from it, and what is refused in one line."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from instances.catalog_store import catalog_names
from instances.errors import InputError
from instances.io import load_instance, parse_instance
from instances.tiers import Memory
from optimizer.tiers.building import tier_problem

F = Fraction
Document = dict[str, Any]

HBM: Document = {
    "name": "hbm",
    "kind": "hbm",
    "capacity_bytes": "80GB",
    "access": {"bandwidth_bytes_per_s": "3350GB/s"},
}
FAR: Document = {
    "name": "far",
    "kind": "neighbour_hbm",
    "capacity_bytes": "40GB",
    "access": {
        "bandwidth_bytes_per_s": "50GB/s",
        "round_trip_s": "7.52us",
        "in_flight": 128,
        "transaction_bytes": "256B",
    },
    "path": "hbm",
    "max_reads_per_s": 1000,
    "price_per_hour": "0.5",
}
ROM: Document = {
    "name": "rom",
    "kind": "rom",
    "area_mm2": 100,
    "bytes_per_mm2": "9MB",
    "access": {"bandwidth_bytes_per_s": "100TB/s"},
}
KV: Document = {
    "name": "kv",
    "kind": "active_kv",
    "bytes_per_session": "100MB",
    "read_bytes_per_session": "50MB",
    "write_bytes_per_session": "1kB",
}
TABLE: Document = {
    "name": "table",
    "kind": "lookup_table",
    "bytes": "20GB",
    "lookups_per_session": 48,
    "lookup_bytes": "264B",
    "is_prefetched": True,
    "tiers": ["far", "rom"],
}
IDLE: Document = {
    "name": "idle",
    "kind": "idle_kv",
    "idle_sessions": 20,
    "bytes_per_idle_session": "1GB",
    "resumes_per_s": 2,
    "max_resume_s": "100ms",
}
SNAPSHOT: Document = {
    "name": "snapshot",
    "kind": "snapshot",
    "bytes": "20GB",
    "reads": 10,
    "may_copy": True,
    "tiers": ["far"],
}


def instance(**changes: Any) -> Document:
    section: Document = {
        "machine": {"name": "a card", "first_block_share": "1/40"},
        "tiers": [HBM, FAR, ROM],
        "classes": [KV, TABLE, IDLE, SNAPSHOT],
        "sessions": {"min": 2, "max": 100},
        "step_target_s": "50ms",
    }
    return {
        "schema_version": 1,
        "name": "test",
        "decision": "tiers",
        "tiers": deepcopy({**section, **changes}),
    }


def test_numbers_are_read_exactly() -> None:
    problem = tier_problem(parse_instance(instance()))
    hbm, far, rom = problem.tiers
    assert problem.paths == ("hbm", "hbm", "rom")  # one is HBM's own, one is named so
    assert (hbm.capacity_bytes, hbm.bytes_per_s, hbm.path) == (80 * 10**9, 3350 * 10**9, 0)
    assert (hbm.write_bytes_per_s, hbm.is_writable, hbm.max_reads_per_s) == (3350 * 10**9, 1, None)
    # 128 · 256 B every 7.52 us
    assert (far.bytes_per_s, far.path) == (F(128 * 256 * 10**8, 752), 1)
    assert (far.round_trip_s, far.max_reads_per_s) == (F(752, 10**8), 1000)
    assert far.price_per_hour == F(1, 2)
    assert (rom.capacity_bytes, rom.is_writable, rom.bytes_per_mm2) == (9 * 10**8, False, 9 * 10**6)
    kv, table, idle, snapshot = problem.classes
    assert (kv.tiers, kv.is_written, kv.write_bytes_per_session) == ((0, 1, 2), True, 1000)
    assert (table.tiers, table.is_written, table.lookup_bytes) == ((1, 2), False, 264)
    assert (idle.bytes, idle.resume_bytes, idle.max_resume_s) == (20 * 10**9, 10**9, F(1, 10))
    assert (snapshot.bytes, snapshot.read_bytes) == (20 * 10**9, 200 * 10**9)
    assert (problem.min_sessions, problem.max_sessions, problem.goal) == (2, 100, "sessions")
    assert problem.machine.first_block_share == F(1, 40)
    assert problem.places(0) == ((0, None), (1, None))


def test_a_shared_path_is_one_path() -> None:
    shared = {**HBM, "path": "memory"}, {**FAR, "path": "memory"}, ROM
    problem = tier_problem(parse_instance(instance(tiers=shared)))
    assert problem.paths == ("memory", "rom")
    assert [tier.path for tier in problem.tiers] == [0, 0, 1]


def test_what_is_written_by_wish_has_no_place_in_rom() -> None:
    classes = [{**TABLE, "is_written": True}]
    problem = tier_problem(parse_instance(instance(classes=classes)))
    assert problem.places(0) == ((1, None),)


def changed(base: Document, **fields: Any) -> Document:
    return {k: v for k, v in {**base, **fields}.items() if v != "gone"}


BAD_SECTIONS = [
    ({"classes": [changed(KV, tiers=["rom"])]}, "'kv' is written, but it may lie only in 'rom'"),
    ({"tiers": [ROM], "classes": [KV]}, "'kv' is written, but it may lie only in 'rom'"),
    ({"classes": [changed(KV, tiers=["hbn"])]}, "classes[0].tiers: no tier is named 'hbn'"),
    ({"classes": [changed(KV, tiers=["hbm", "hbm"])]}, "tiers: the name 'hbm' appears 2 times"),
    ({"classes": [KV, KV]}, "classes: the name 'kv' appears 2 times"),
    ({"tiers": [HBM, HBM]}, "tiers: the name 'hbm' appears 2 times"),
    ({"classes": []}, "classes"),
    ({"tiers": []}, "tiers"),
    ({"machine": {"name": "a card"}}, "classes[1] is prefetched, which needs machine.first_block"),
    ({"machine": {"name": "a", "balance": 0}}, "balance is 0; it must be more than 0 and at most"),
    ({"machine": {"name": "a", "balance": "1.1"}}, "balance is 11/10; it must be more than 0"),
    ({"machine": {"name": "a", "first_block_share": 2}}, "first_block_share is 2; it must be more"),
    ({"machine": {"name": "a", "fixed_flops": 5}}, "need peak_flops_per_s"),
    ({"goal": "throughput_per_price"}, "needs machine.price_per_hour"),
    ({"goal": "most"}, "goal"),
    ({"sessions": {"min": 5, "max": 4}}, "min is 5, more than max, 4"),
    ({"sessions": {"min": 0}}, "sessions.min"),
    ({"step_target_s": 0}, "must be more than 0"),
]
BAD_TIERS = [
    ({"access": {"bandwidth_bytes_per_s": 0}}, "must be more than 0"),
    ({"access": {**FAR["access"], "in_flight": 0}}, "in_flight"),
    ({"access": {**FAR["access"], "transaction_bytes": None}}, "in_flight needs transaction_bytes"),
    ({"capacity_bytes": "gone"}, "memory of kind 'neighbour_hbm' is measured by capacity_bytes"),
    ({"area_mm2": 5}, "memory of kind 'neighbour_hbm' is measured by capacity_bytes"),
    ({"kind": "rom"}, "ROM is measured by area_mm2 and bytes_per_mm2"),
    ({"kind": "tape"}, "kind"),
    ({"max_reads_per_s": 0}, "must be more than 0"),
]
BAD_ROMS = [
    ({"is_writable": True}, "ROM cannot be written"),
    ({"write_bytes_per_s": "1GB/s"}, "ROM cannot be written"),
    ({"area_mm2": "gone"}, "ROM is measured by area_mm2"),
    ({"capacity_bytes": "1GB"}, "ROM is measured by area_mm2"),
]
BAD_CLASSES = [
    (KV, {"lookups": 4}, "lookups is of data of kind 'lookup_table', not 'active_kv'"),
    (KV, {"may_copy": True}, "may_copy is of data of kind 'snapshot', not 'active_kv'"),
    (KV, {"resumes_per_s": 1}, "resumes_per_s is of data of kind 'idle_kv', not 'active_kv'"),
    (KV, {"is_written": False}, "data of kind 'active_kv' are always written"),
    (TABLE, {"write_bytes_per_session": 5}, "write_bytes_per_session needs is_written"),
    (TABLE, {"lookup_bytes": "gone"}, "lookups and lookup_bytes are given together"),
    (TABLE, {"lookups_per_session": 0}, "lookups and lookup_bytes are given together"),
    (SNAPSHOT, {"read_bytes": 5}, "a snapshot is read as a whole: give reads, not read_bytes"),
    (SNAPSHOT, {"is_written": True}, "what is written cannot be read from a copy"),
    (IDLE, {"idle_sessions": "gone"}, "idle_kv needs idle_sessions and bytes_per_idle_session"),
    (IDLE, {"bytes": 5}, "idle_kv is idle_sessions of bytes_per_idle_session, not bytes"),
    (IDLE, {"max_resume_s": 0}, "must be more than 0"),
    (KV, {"colour": "red"}, "colour"),
]
BAD = [
    *((f"section {i}", changes, words) for i, (changes, words) in enumerate(BAD_SECTIONS)),
    *(
        (f"tier {i}", {"tiers": [HBM, changed(FAR, **fields), ROM]}, words)
        for i, (fields, words) in enumerate(BAD_TIERS)
    ),
    *(
        (f"rom {i}", {"tiers": [HBM, FAR, changed(ROM, **fields)]}, words)
        for i, (fields, words) in enumerate(BAD_ROMS)
    ),
    *(
        (f"class {i}", {"classes": [changed(base, **fields)]}, words)
        for i, (base, fields, words) in enumerate(BAD_CLASSES)
    ),
]


@pytest.mark.parametrize(("changes", "words"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_bad_sections_are_refused_in_one_line(
    changes: Document, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(instance(**changes)))
    with pytest.raises(InputError) as raised:
        load_instance(str(file))
    text = str(raised.value)
    assert words in text
    assert len(text.splitlines()) == 1


def test_a_goal_of_time_needs_something_that_takes_time() -> None:
    classes = [{"name": "w", "kind": "replicated_weights", "bytes": 5}]
    with pytest.raises(InputError, match="goal 'user_rate' needs something that takes time"):
        parse_instance(instance(classes=classes, goal="user_rate"))
    for machine in ({"fixed_s": 1}, {"communication_s": 1}, {"communication_s_per_session": 1}):
        full = {"name": "a", **machine}
        assert parse_instance(instance(classes=classes, goal="user_rate", machine=full)).tiers


def test_a_path_that_nothing_uses_is_fine() -> None:
    assert parse_instance(instance(classes=[changed(KV, tiers=["hbm"])])).tiers is not None


@pytest.mark.parametrize("name", catalog_names("memory"))
def test_memory_of_the_catalog_is_taken_by_name_or_changed(name: str) -> None:
    known = TypeAdapter(Memory).validate_python(name)
    assert known.name == name
    assert known.size_bytes > 0
    changed = TypeAdapter(Memory).validate_python({"base": name, "name": "mine"})
    assert changed.model_copy(update={"name": name}) == known


def test_the_sram_of_twelve_wafers_holds_the_checkpoint() -> None:
    """44 GB each: 12 hold 528 GB, 11 hold 484 GB of the 510,286,023,000 bytes."""
    each = TypeAdapter(Memory).validate_python("wse-3-sram").size_bytes
    assert 11 * each < 510_286_023_000 <= 12 * each
