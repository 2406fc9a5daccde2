"""What each card holds against what it can hold, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from instances.quantity import human_bytes
from optimizer.reports.axes import Scale, draw_x_axis
from optimizer.reports.scene import (
    SMALL_PX,
    Hatch,
    Line,
    Rect,
    Scene,
    Text,
    legend,
    on_bar,
    shortened,
    text_width,
)
from optimizer.result import CardDocument, EvaluationDocument
from optimizer.side.result import StageDocument
from optimizer.words import card_ranges, plural

#: Up to this many cards have a bar each; of more, equal ones share a bar.
MAX_SINGLE_CARDS = 8
#: Bars on a chart and rows in a table.
MAX_STACKS = 40

_WIDTH, _RIGHT, _TOP, _ROW, _BAR = 980.0, 700.0, 52.0, 34.0, 22.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Bytes on each of some equal cards. `kind` names what they belong to."""

    name: str
    kind: str
    num_cards: int
    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """All that the card holds."""
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes

    @property
    def verdict(self) -> str:
        """What is left, or how much is missing, in words."""
        left = self.capacity_bytes - self.total_bytes
        return f"{human_bytes(left)} free" if left >= 0 else f"short by {human_bytes(-left)}"


@dataclass(frozen=True, slots=True)
class Stacks:
    """The bars of one plan, at most `MAX_STACKS`, and how many more there are."""

    title: str
    workspace_name: str
    shown: tuple[Stack, ...]
    num_more: int


def card_stacks(evaluation: EvaluationDocument, instance: str) -> Stacks:
    """Return a bar for each card if there are few, else for each set of equal cards."""
    cards = evaluation.cards
    groups: dict[tuple[object, ...], list[CardDocument]] = {}
    for n, card in enumerate(cards):
        load = (card.weights_bytes, card.kv_bytes, card.workspace_bytes, card.capacity_bytes)
        key = (n,) if len(cards) <= MAX_SINGLE_CARDS else (card.pool, *load)
        groups.setdefault(key, []).append(card)
    stacks = [_stack(group) for group in groups.values()]
    if len(stacks) > MAX_STACKS:  # what is fullest matters most
        stacks.sort(key=lambda s: s.total_bytes - s.capacity_bytes, reverse=True)
    return Stacks(
        f"Memory of {'each card' if len(stacks) == len(cards) else 'equal cards'}: {instance}",
        "workspace",
        tuple(stacks[:MAX_STACKS]),
        max(0, len(stacks) - MAX_STACKS),
    )


def _stack(cards: Sequence[CardDocument]) -> Stack:
    first = cards[0]
    owners = sorted({card.instance for card in cards})
    kind = f"instance {owners[0]}" if len(owners) == 1 else plural(len(owners), "instance")
    return Stack(
        name=card_ranges([(f"{c.pool}/{c.server}", c.card) for c in cards], most=3),
        kind=kind,
        num_cards=len(cards),
        weights_bytes=first.weights_bytes,
        kv_bytes=first.kv_bytes,
        workspace_bytes=first.workspace_bytes,
        capacity_bytes=first.capacity_bytes,
    )


def stage_stacks(stages: Sequence[StageDocument], instance: str) -> Stacks:
    """Return a bar for a card of each pipeline stage."""
    stacks = [
        Stack(
            name=f"stage {n} ({stage.pool})",
            kind=f"layers {stage.first_layer}-{stage.first_layer + stage.num_layers - 1}",
            num_cards=1,
            weights_bytes=stage.weights_bytes,
            kv_bytes=stage.kv_bytes + stage.state_bytes,
            workspace_bytes=stage.total_bytes
            - stage.weights_bytes
            - stage.kv_bytes
            - stage.state_bytes,
            capacity_bytes=stage.capacity_bytes,
        )
        for n, stage in enumerate(stages)
    ]
    title = f"Memory of a card of each stage: {instance}"
    more = max(0, len(stacks) - MAX_STACKS)
    return Stacks(title, "other", tuple(stacks[:MAX_STACKS]), more)


def memory_scene(stacks: Stacks) -> Scene:
    """Return the bars as a chart: weights, KV and workspace up to a line at the capacity."""
    base = _TOP + len(stacks.shown) * _ROW
    scene = Scene(_WIDTH, base + 52, stacks.title, _described(stacks))
    widest = max(text_width(_name(stack), SMALL_PX) for stack in stacks.shown)
    largest = max(max(s.total_bytes, s.capacity_bytes) for s in stacks.shown)
    scale = Scale(0, largest * 1.03, min(max(widest, 70.0), 220.0) + 24, _RIGHT)
    entries: tuple[tuple[str, str, Hatch], ...] = (
        ("weights", "weights", ""),
        ("KV cache", "kv", "/"),
        (stacks.workspace_name, "workspace", "."),
    )
    scene.add(*legend(entries, 12, 24))
    scene.add(Line(((318, 19), (344, 19)), "limit", 2.4, (6, 3)))
    scene.add(Text(350, 24, "capacity", size=SMALL_PX))
    if stacks.num_more:
        scene.add(Text(_WIDTH - 12, 24, f"and {stacks.num_more} more", "end", SMALL_PX, "soft"))
    draw_x_axis(scene, scale, _TOP - 6, base, "bytes on a card", "B")
    for n, stack in enumerate(stacks.shown):
        _bar(scene, stack, stacks.workspace_name, scale, _TOP + n * _ROW)
    return scene


def _name(stack: Stack) -> str:
    return stack.name + (f" ×{stack.num_cards}" if stack.num_cards > 1 else "")


def _bar(scene: Scene, stack: Stack, workspace_name: str, scale: Scale, top: float) -> None:
    middle, left = top + _BAR / 2, scale.start
    name = shortened(_name(stack), left - 20, SMALL_PX)
    scene.add(Text(left - 12, middle - 1, name, "end", SMALL_PX))
    scene.add(Text(left - 12, middle + 12, stack.kind, "end", 11, "soft"))
    x = scale.at(stack.capacity_bytes)
    scene.add(Rect(left, top, x - left, _BAR, "track"))
    at = 0
    parts: tuple[tuple[str, int, str, Hatch], ...] = (
        ("weights", stack.weights_bytes, "weights", ""),
        ("KV", stack.kv_bytes, "kv", "/"),
        (workspace_name, stack.workspace_bytes, "workspace", "."),
    )
    for label, size, colour, hatch in parts:
        if not size:
            continue
        begin, end = scale.at(at), scale.at(at + size)
        tip = f"{stack.name}: {label} {human_bytes(size)} ({size:,} B)"
        scene.add(Rect(begin, top, end - begin, _BAR, colour, hatch, "paper", tip))
        text = f"{label} {human_bytes(size)}"
        if text_width(text, SMALL_PX) + 8 <= end - begin:
            scene.add(*on_bar((begin + end) / 2, middle, text, colour, hatch, "middle"))
        at += size
    tip = f"capacity {human_bytes(stack.capacity_bytes)}"
    scene.add(Line(((x, top - 4), (x, top + _BAR + 4)), "limit", 2.4, (6, 3), tip))
    full = f"{human_bytes(stack.total_bytes)} of {human_bytes(stack.capacity_bytes)}"
    scene.add(Text(_RIGHT + 14, middle + 4, f"{full}, {stack.verdict}", size=SMALL_PX))


def _described(stacks: Stacks) -> str:
    """Return the first bars in words, for those who do not see them."""
    return "; ".join(
        f"{s.name}: {human_bytes(s.total_bytes)} of {human_bytes(s.capacity_bytes)}, {s.verdict}"
        for s in stacks.shown[:4]
    )
