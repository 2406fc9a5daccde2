"""Racks with their servers to scale, cards coloured by model: equal racks are drawn once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from optimizer.reports.palette import NUM_BAR_COLOURS, bar_role
from optimizer.reports.scene import (
    SMALL_PX,
    Hatch,
    Rect,
    Scene,
    Text,
    legend,
    shortened,
    text_width,
)
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    PlacedRackDocument,
    PlacedServerDocument,
)
from optimizer.side.capacity_words import held_text, short
from optimizer.words import digits, plural

#: Kinds of rack on a picture, and kinds of server outside of racks.
MAX_RACKS = 24
MAX_SERVERS = 40

_WIDTH, _EDGE = 980.0, 12.0
_COLUMNS, _RACK, _GAP = 5, 176.0, 19.0
#: A rack is as high as its units, within these; a server lower than the last is not drawn alone.
_UNIT, _HIGHEST, _LEAST_SERVER = 9.0, 432.0, 7.0
_HEAD, _LINE = 34.0, 22.0
#: Cards in one row of a server.
_MOST_IN_ROW = 18

_OCCUPIED, _SPANNED = "occupied", "of an instance over several servers"


@dataclass(frozen=True, slots=True)
class _Look:
    """How cards of a serving instance look: its model's colour, a name, how many cards."""

    name: str
    label: str
    colour: str
    hatch: Hatch
    num_cards: int


class _Looks:
    """Gives models their colours, and knows serving instances by their names."""

    def __init__(self, account: CapacityAccountDocument) -> None:
        self.models = list(dict.fromkeys(option.model for option in account.instances))
        self._by_name = {
            option.name: _Look(
                option.name,
                option.label.partition(" (")[0].partition(" over ")[0],
                *model_look(self.models.index(option.model)),
                option.num_cards,
            )
            for option in account.instances
        }

    def of(self, name: str) -> _Look:
        """Return how an instance looks; one that is not known as if it had no model."""
        return self._by_name.get(name) or _Look(name, "", "track", "", 1)


def model_look(number: int) -> tuple[str, Hatch]:
    """Return colour and hatch of a model by its number: colours come again with a hatch."""
    return bar_role(number), "." if (number // NUM_BAR_COLOURS) % 2 else ""


def rack_scene(account: CapacityAccountDocument, instance: str) -> Scene | None:
    """Return racks as columns of servers with their cards; None where nothing is placed.

    Heights are to scale of rack units. Each kind of rack is drawn once, with how many there are.
    """
    racks = [rack for rack in account.placement if rack.rack is not None]
    loose = [s for rack in account.placement if rack.rack is None for s in rack.servers]
    if not racks and not loose:
        return None
    total = sum(rack.count for rack in racks)
    what = plural(total, "rack") if racks else "servers"
    scene = Scene(_WIDTH, 0.0, f"Cards of {what}: {instance}", _described(account))
    looks = _Looks(account)
    at = _draw_legend(scene, looks, account.placement)
    for start in range(0, min(len(racks), MAX_RACKS), _COLUMNS):
        at = _draw_racks(scene, looks, racks[start : min(start + _COLUMNS, MAX_RACKS)], at)
    at = _draw_loose(scene, looks, loose[:MAX_SERVERS], at)
    more = max(0, len(racks) - MAX_RACKS) + max(0, len(loose) - MAX_SERVERS)
    if more:
        text = f"… and {plural(more, 'more kind')}, in the table below"
        scene.add(Text(_EDGE, at + 14, text, size=SMALL_PX, colour="soft"))
        at += _LINE
    scene.height = at + 4
    return scene


def _described(account: CapacityAccountDocument) -> str:
    """Return the first racks in words, for those who do not see them."""
    parts = []
    for rack in account.placement[:4]:
        name = "no rack" if rack.rack is None else f"{rack.count:,} x {short(rack.rack)}"
        held = (f"{server.count:,} x {server.pool}: {held_text(server)}" for server in rack.servers)
        parts.append(f"{name}: {'; '.join(held)}")
    return ". ".join(parts)


def _draw_legend(scene: Scene, looks: _Looks, racks: Sequence[PlacedRackDocument]) -> float:
    """Draw what colours and hatches mean, in as many lines as it takes; return where they end."""
    servers = [server for rack in racks for server in rack.servers]
    entries: list[tuple[str, str, Hatch]] = [
        (shortened(model, 260, SMALL_PX), *model_look(m)) for m, model in enumerate(looks.models)
    ]
    spanned = next((s.spanned_by for s in servers if s.spanned_by is not None), None)
    if spanned is not None:
        entries.append((_SPANNED, looks.of(spanned).colour, "\\"))
    if any(server.free_cards < server.num_cards for server in servers):
        entries.append((_OCCUPIED, "occupied", "/"))
    if any(_num_free(looks, server) for server in servers):
        entries.append(("free", "paper", ""))
    x, y = _EDGE, 22.0
    for entry in entries:
        width = 22 + text_width(entry[0], SMALL_PX) + 22
        if x > _EDGE and x + width > _WIDTH:
            x, y = _EDGE, y + _LINE
        scene.add(*legend([entry], x, y))
        x += width
    return y + 16


def _num_free(looks: _Looks, server: PlacedServerDocument) -> int:
    if server.spanned_by is not None:
        return 0
    used = sum(looks.of(b.instance).num_cards * b.number for b in server.instances)
    return server.free_cards - used


def _draw_racks(
    scene: Scene, looks: _Looks, racks: Sequence[PlacedRackDocument], top: float
) -> float:
    """Draw kinds of racks beside each other, standing on one line; return where they end."""
    per_unit = min(_UNIT, _HIGHEST / max((rack.units or 1) for rack in racks))
    floor = top + _HEAD + per_unit * max((rack.units or 1) for rack in racks)
    for n, rack in enumerate(racks):
        left = _EDGE + n * (_RACK + _GAP)
        units = rack.units or 1
        roof = floor - units * per_unit
        count = f" x {rack.count:,}" if rack.count > 1 else ""
        name = shortened(rack.rack or "", _RACK - text_width(count) - 8)
        scene.add(Text(left, roof - 20, f"{name}{count}", bold=True))
        scene.add(Text(left, roof - 6, _load_text(rack), size=11, colour="soft"))
        tip = f"{short(rack.rack or '')}: {rack.used_units} of {units} U"
        scene.add(Rect(left, roof, _RACK, floor - roof, "track", outline="axis", tip=tip))
        at = floor
        for server in rack.servers:
            at = _stack(scene, looks, server, left + 3, at, per_unit)
    return floor + 22


def _load_text(rack: PlacedRackDocument) -> str:
    text = f"{rack.used_units} of {rack.units} U"
    if rack.limit_w is not None:
        text += f" · {digits(rack.power_w / 1000)} of {digits(rack.limit_w / 1000)} kW"
    elif rack.power_w:
        text += f" · {digits(rack.power_w / 1000)} kW"
    return text


def _stack(
    scene: Scene,
    looks: _Looks,
    server: PlacedServerDocument,
    left: float,
    floor: float,
    per_unit: float,
) -> float:
    """Draw equal servers from the floor up, one box for all where they are low; return the top."""
    height = (server.rack_units or 1) * per_unit
    alone = height >= _LEAST_SERVER
    boxes = server.count if alone else 1
    for _ in range(boxes):
        tall = height if alone else height * server.count
        floor -= tall
        gap = 1.0 if tall > 3 else 0.0
        box = (left, floor + gap, _RACK - 6, tall - 2 * gap)
        is_named = boxes == server.count
        _draw_server(scene, looks, server, box, is_named=is_named)
        if not is_named and tall >= 16:
            middle = left + _RACK / 2 - 3
            text = f"{server.count} x {server.pool}"
            width = text_width(text, SMALL_PX) + 8
            scene.add(Rect(middle - width / 2, floor + tall / 2 - 8, width, 16, "paper"))
            scene.add(Text(middle, floor + tall / 2 + 4, text, "middle", SMALL_PX))
    return floor


def _draw_loose(
    scene: Scene, looks: _Looks, servers: Sequence[PlacedServerDocument], top: float
) -> float:
    """Draw servers that stand in no rack, each kind once with how many there are."""
    for server in servers:
        text = f"{server.count:,} x {server.pool}"
        scene.add(Text(_EDGE, top + 20, shortened(text, 210), bold=True))
        _draw_server(scene, looks, server, (240, top + 2, 330, 28))
        scene.add(Text(582, top + 20, shortened(held_text(server), 386, SMALL_PX), size=SMALL_PX))
        top += 38
    return top


@dataclass(frozen=True, slots=True)
class _Cards:
    """Cards next to each other that belong together."""

    number: int
    text: str
    colour: str
    hatch: Hatch
    tip: str


def _cards(looks: _Looks, server: PlacedServerDocument) -> Iterator[_Cards]:
    """Yield the cards of a server in order: instances, free ones, occupied ones."""
    where = f"{server.pool}: "
    if server.spanned_by is not None:
        look = looks.of(server.spanned_by)
        yield _Cards(server.num_cards, look.label, look.colour, "\\", where + server.spanned_by)
        return
    for block in server.instances:
        look = looks.of(block.instance)
        tip = f"{where}{look.name}, {plural(look.num_cards, 'card')}"
        for _ in range(block.number):
            yield _Cards(look.num_cards, look.label, look.colour, look.hatch, tip)
    free = _num_free(looks, server)
    taken = server.num_cards - server.free_cards
    for number, text in ((free, "free"), (taken, _OCCUPIED)):
        tip = f"{where}{plural(number, 'card')} {text}"
        for _ in range(number):
            is_free = text == "free"
            yield _Cards(1, "", "paper" if is_free else "occupied", "" if is_free else "/", tip)


def _draw_server(
    scene: Scene,
    looks: _Looks,
    server: PlacedServerDocument,
    box: tuple[float, float, float, float],
    *,
    is_named: bool = True,
) -> None:
    """Draw a server as a box with a cell for each card, in rows; serving instances by name."""
    left, top, width, height = box
    scene.add(Rect(left, top, width, height, "grid", outline="axis"))
    rows = _num_rows(server.num_cards, width, height)
    in_row = ceil(server.num_cards / rows)
    pad = 2.0 if height >= 10 else 0.0
    cell_w, cell_h = (width - 2 * pad) / in_row, (height - 2 * pad) / rows
    at = 0
    for cards in _cards(looks, server):
        end = min(at + cards.number, server.num_cards)
        while at < end:  # what does not end in this row goes on in the next
            row, column = divmod(at, in_row)
            share = min(end - at, in_row - column)
            x, y = left + pad + column * cell_w, top + pad + row * cell_h
            gap = 1.0 if cell_w > 4 and cell_h > 5 else 0.0
            cell = (x + gap, y + gap / 2, share * cell_w - 2 * gap, cell_h - gap)
            scene.add(Rect(*cell, cards.colour, cards.hatch, "axis", cards.tip))
            _divide(scene, cell, share)
            if (
                is_named
                and cards.text
                and cell_h >= 14
                and text_width(cards.text, 11) + 4 <= cell[2]
            ):
                middle = x + share * cell_w / 2
                base = y + cell_h / 2 + 4
                wide = text_width(cards.text, 11) + 4
                scene.add(Rect(middle - wide / 2, base - 10, wide, 13, cards.colour))
                scene.add(Text(middle, base, cards.text, "middle", 11, "on-bar"))
            at += share


def _divide(scene: Scene, box: tuple[float, float, float, float], cards: int) -> None:
    """Mark the cards of an instance off from each other, where there is room."""
    x, y, width, height = box
    each, tick = width / cards, min(height * 0.3, 9.0)
    if each < 4:
        return
    for n in range(1, cards):
        scene.add(Rect(x + n * each - 0.4, y + height - tick, 0.8, tick, "axis"))


def _num_rows(cards: int, width: float, height: float) -> int:
    """Return in how many rows cards are drawn, so that cells are not much wider than high."""
    rows = 1
    while cards / rows > _MOST_IN_ROW or (
        cards > 2 * rows and height / (rows + 1) >= 16 and width * rows / cards < 20
    ):
        rows += 1
    return rows
