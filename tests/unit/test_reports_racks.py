"""The picture of racks, servers and cards: to scale, once each, nothing on top of another."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.reports.rack_scene import MAX_RACKS, MAX_SERVERS, model_look, rack_scene
from optimizer.reports.scene import Rect, Scene, Text, text_width
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    PlacedRackDocument,
    PowerDocument,
)
from placed_racks import RACKS, TP1, TP2, WIDE, option, rack, server

INSTANCES = [
    option("qwen3-32b", 2),
    option("llama-3.1-8b", 1),
    option("qwen3-32b", 16, "TP16 over 2 servers (ring)"),
]


def account(placement: list[PlacedRackDocument], **changes: Any) -> CapacityAccountDocument:
    """A plan of which the picture needs no more than its serving instances."""
    power = PowerDocument(parts=[], fixed_w=0, tiers_w=0, total_w=0, budget_w=None, left_w=None)
    fields: dict[str, Any] = {
        "cohorts": [],
        "instances": INSTANCES,
        "servers": [],
        "racks": [],
        "endpoints": 0,
        "tiers": [],
        "power": power,
        "resources": [],
        "placement": placement,
    }
    return CapacityAccountDocument(**{**fields, **changes})


def scene_of(placement: list[PlacedRackDocument], **changes: Any) -> Scene:
    found = rack_scene(account(placement, **changes), "hall")
    assert found is not None
    return found


def rects(scene: Scene, colour: str, hatch: str | None = None) -> list[Rect]:
    return [
        item
        for item in scene.items
        if isinstance(item, Rect) and item.colour == colour and hatch in (None, item.hatch)
    ]


def words(scene: Scene) -> list[str]:
    return [item.text for item in scene.items if isinstance(item, Text)]


def tipped(scene: Scene, tip: str) -> list[Rect]:
    return [item for item in scene.items if isinstance(item, Rect) and tip in item.tip]


def test_racks_are_drawn_once_with_their_number() -> None:
    scene = scene_of(RACKS)
    assert scene.title == "Cards of 4 racks: hall"
    assert {"air x 3", "low", "24 of 42 U · 30.6 of 40 kW"} <= set(words(scene))
    assert {"qwen3-32b", "llama-3.1-8b", "occupied", "free"} <= set(words(scene))
    assert "of an instance over several servers" in words(scene)
    assert f"4 x {TP2}" in scene.description


def test_every_instance_has_its_cards_to_scale() -> None:
    """Two servers of four TP2, one of five TP1 and three free cards; three TP2 and two taken."""
    scene = scene_of(RACKS)
    pairs, singles = tipped(scene, f"{TP2}, 2 cards"), tipped(scene, f"{TP1}, 1 card")
    assert (len(pairs), len(singles)) == (2 * 4 + 3, 5)
    assert {cell.colour for cell in pairs} == {"m0"}
    assert {cell.colour for cell in singles} == {"m1"}
    free, taken = tipped(scene, "3 cards free"), tipped(scene, "2 cards occupied")
    assert (len(free), {cell.colour for cell in free}) == (3, {"paper"})
    assert [(cell.colour, cell.hatch) for cell in taken] == [("occupied", "/")] * 2
    # a pair is as wide as two cells: its own two gaps beside those of each
    assert pairs[0].width + 2 == pytest.approx(2 * (singles[0].width + 2))
    wide = tipped(scene, WIDE)
    assert [(cell.colour, cell.hatch) for cell in wide] == [("m0", "\\")] * 2
    assert {"TP2", "TP16"} <= set(words(scene))
    # a server of 8 units in a rack of 42
    frame = next(r for r in rects(scene, "track") if r.tip.startswith("air"))
    boxes = rects(scene, "grid")
    assert len(boxes) == 6
    assert boxes[0].height + 2 == pytest.approx(frame.height * 8 / 42)


def all_inside(scene: Scene) -> bool:
    for item in scene.items:
        if isinstance(item, Text):
            width = text_width(item.text, item.size)
            left = item.x - {"start": 0, "middle": width / 2, "end": width}[item.anchor]
            if left < 0 or left + width > scene.width or not 0 < item.y <= scene.height:
                return False
        elif isinstance(item, Rect):
            is_flat = item.width <= 0 or item.height <= 0
            right, bottom = item.x + item.width, item.y + item.height
            if is_flat or item.x < 0 or right > scene.width or bottom > scene.height:
                return False
    return True


def overlaps(scene: Scene) -> list[tuple[str, str]]:
    """Texts that lie on each other."""
    boxes = []
    for item in scene.items:
        if isinstance(item, Text):
            width = text_width(item.text, item.size) * 0.9
            left = item.x - {"start": 0, "middle": width / 2, "end": width}[item.anchor]
            boxes.append((item.text, left, item.y - item.size * 0.7, left + width, item.y))
    return [
        (a[0], b[0])
        for n, a in enumerate(boxes)
        for b in boxes[n + 1 :]
        if a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]
    ]


MANY = [option(f"model-{n}-with-quite-a-long-name", 2) for n in range(9)]

PLACEMENTS = {
    "two racks": RACKS,
    "one card": [rack("a", server(1, (TP1, 1), num_cards=1, free_cards=1, rack_units=1), units=1)],
    "low servers": [rack("a", server(42, (TP1, 4), num_cards=4, free_cards=4, rack_units=1))],
    "very high": [rack("a", server(125, (TP2, 4)), units=1000)],
    "whole rack": [
        rack("nvl", server(1, (TP2, 35), num_cards=72, free_cards=70, rack_units=48), units=48)
    ],
    "long names": [rack("a rack with a very long name, indeed/0-9", server(1), count=12345)] * 6,
    "many": [rack(f"r{n}", server(5, (TP2, 4))) for n in range(MAX_RACKS + 3)],
    "no racks": [
        rack(None, server(12345, (TP2, 4)), server(2, spanned_by=WIDE), server(1)),
    ],
    "many servers": [rack(None, *[server(n + 1, (TP2, 1)) for n in range(MAX_SERVERS + 2)])],
    "unknown instance": [rack("a", server(1, ("what", 3)))],
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_nothing_lies_outside_or_on_each_other(name: str) -> None:
    for changes in ({}, {"instances": [*INSTANCES, *MANY]}):
        scene = scene_of(PLACEMENTS[name], **changes)
        assert all_inside(scene)
        assert overlaps(scene) == []
    more = {"many": "… and 3 more kinds, in the table below"}
    more["many servers"] = "… and 2 more kinds, in the table below"
    assert (more.get(name, "none") in words(scene)) is (name in more)


def test_low_servers_share_a_box() -> None:
    scene = scene_of(PLACEMENTS["very high"])
    assert "125 x hgx" in words(scene)
    assert len(rects(scene, "grid")) == 1
    assert len(rects(scene_of(PLACEMENTS["low servers"]), "grid")) == 42


def test_more_models_than_colours_have_hatches() -> None:
    looks = [model_look(n) for n in range(12)]
    assert len(set(looks)) == 12
    assert [hatch for _, hatch in looks] == [""] * 6 + ["."] * 6


def test_nothing_placed_is_nothing_to_draw() -> None:
    assert rack_scene(account([]), "hall") is None
    assert rack_scene(account([rack(None)]), "hall") is None
