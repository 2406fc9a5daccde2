"""Memory that nodes lend each other: the section of decision "pool" (6.6.1 to 6.6.3)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from instances.access import Access
from instances.formats import Frozen
from instances.names import check_once
from instances.quantity import (
    Bytes,
    PositiveBytes,
    PositiveSeconds,
    RequestsPerSecond,
    Seconds,
)

Name = Annotated[str, Field(min_length=1, max_length=120)]
PoolGoal = Literal["slowest_read", "remote_bytes"]

#: An item of more chunks than this is refused: `chunk_bytes` is too small for it.
MAX_CHUNKS = 1_000_000


class PoolNode(Frozen):
    """A node whose memory holds `capacity_bytes`.

    At any time it keeps at most `max_lent_bytes` of items whose home is another node; null stands
    for all that is free.
    """

    name: Name
    capacity_bytes: Bytes
    max_lent_bytes: Bytes | None = None


class PoolPath(Frozen):
    """A way on which `reader` reads memory of `lender`.

    Paths that name the same `link` share it, so their reads add up; a path without one has a link
    of its own, and separate links are read at the same time. `name` null stands for
    "READER<-LENDER".
    """

    name: Name | None = None
    reader: Name
    lender: Name
    access: Access
    link: Name | None = None

    @property
    def label(self) -> str:
        """The path's name."""
        return self.name or f"{self.reader}<-{self.lender}"


class PoolItem(Frozen):
    """Data of a task: `bytes`, held from `from_s` to `until_s` (null: to the horizon).

    The first of `readers` is its home, which keeps at least `pinned_bytes` itself. Each reader
    reads all that it has not itself `reads_per_s` times a second (0: at no given rate). What is on
    another node is leased for the item's time: "exclusive" to its one reader, or "shared".
    """

    name: Name
    bytes: Bytes
    readers: tuple[Name, ...] = Field(min_length=1, max_length=64, strict=False)
    pinned_bytes: Bytes = 0
    reads_per_s: RequestsPerSecond = Fraction(0)
    from_s: Seconds | None = None
    until_s: PositiveSeconds | None = None
    lease: Literal["exclusive", "shared"] = "exclusive"

    @model_validator(mode="after")
    def _fits_itself(self) -> PoolItem:
        check_once(self.readers, "readers: the node")
        if self.pinned_bytes > self.bytes:
            raise ValueError(
                f"pinned_bytes is {self.pinned_bytes}, more than the item's {self.bytes} bytes"
            )
        if self.lease == "exclusive" and len(self.readers) > 1:
            raise ValueError(
                f"an exclusive lease has one reader, and there are {len(self.readers)}; "
                f'say lease "shared"'
            )
        if self.until_s is not None and self.until_s <= (self.from_s or 0):
            raise ValueError("until_s must be later than from_s")
        return self


class PoolDecision(Frozen):
    """Choose which node lends how much memory to whom, and over which path.

    Every byte of every item is placed, in whole chunks of `chunk_bytes`: an item takes as many as
    its bytes need, rounded up, and a node has as many as its capacity holds, rounded down. `goals`
    are most important first: "slowest_read" makes the longest time shortest in which a link reads
    once all that is far over it; "remote_bytes" counts bytes that are not on their reader's node,
    for each reader. Without a `horizon_s` nothing ends, and items may give no times.
    """

    nodes: tuple[PoolNode, ...] = Field(min_length=1, max_length=512, strict=False)
    paths: tuple[PoolPath, ...] = Field(default=(), max_length=20_000, strict=False)
    items: tuple[PoolItem, ...] = Field(min_length=1, max_length=2000, strict=False)
    horizon_s: PositiveSeconds | None = None
    chunk_bytes: PositiveBytes = 256 * 10**6
    goals: tuple[PoolGoal, ...] = Field(
        default=("slowest_read", "remote_bytes"), min_length=1, max_length=2, strict=False
    )

    @model_validator(mode="after")
    def _names_fit(self) -> PoolDecision:
        check_once((node.name for node in self.nodes), "nodes: the name")
        check_once((path.label for path in self.paths), "paths: the name")
        check_once((item.name for item in self.items), "items: the name")
        check_once(self.goals, "goals: the goal")
        known = {node.name for node in self.nodes}
        for i, path in enumerate(self.paths):
            for field in ("reader", "lender"):
                name = getattr(path, field)
                if name not in known:
                    raise ValueError(
                        f"paths[{i}].{field}: no node is named {name!r}, so there is no such path"
                    )
            if path.reader == path.lender:
                raise ValueError(f"paths[{i}]: reader and lender are both {path.reader!r}")
        for i, item in enumerate(self.items):
            for r, name in enumerate(item.readers):
                if name not in known:
                    raise ValueError(f"items[{i}].readers[{r}]: no node is named {name!r}")
        return self

    @model_validator(mode="after")
    def _times_and_sizes_fit(self) -> PoolDecision:
        horizon_s = self.horizon_s
        for i, item in enumerate(self.items):
            if horizon_s is None and (item.from_s, item.until_s) != (None, None):
                raise ValueError(f"items[{i}] gives times, which need a horizon_s")
            if horizon_s is not None:
                for field in ("from_s", "until_s"):
                    at_s = getattr(item, field)
                    if at_s is not None and at_s > horizon_s:
                        raise ValueError(
                            f"items[{i}].{field}: {float(at_s):.6g} s is after the horizon of "
                            f"{float(horizon_s):.6g} s; a lease cannot be longer than that"
                        )
                if item.from_s == horizon_s:
                    raise ValueError(f"items[{i}].from_s is the horizon; nothing is left to hold")
            if item.bytes > MAX_CHUNKS * self.chunk_bytes:
                raise ValueError(
                    f"items[{i}] takes more than {MAX_CHUNKS:,} chunks; use a larger chunk_bytes"
                )
        return self
