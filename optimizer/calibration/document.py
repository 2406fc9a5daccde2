"""The document of a calibration: what was read, fitted and measured together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from optimizer.calibration.fits import Fit, NotFitted, fit
from optimizer.calibration.groups import Group
from optimizer.calibration.points import Overlap, Reading
from optimizer.calibration.quantities import rate_text, time_text
from optimizer.result import Document


class DroppedDocument(Document):
    """How many measured times were left out for one reason."""

    reason: str
    count: int


class DecadeDocument(Document):
    """Relative errors of a fit at sizes from `from_bytes` to ten times it, as shares."""

    from_bytes: int
    num_points: int
    median_error: float
    largest_error: float


class RangeDocument(Document):
    """Neighbouring measured sizes."""

    from_bytes: int
    to_bytes: int
    num_sizes: int


class FitDocument(Document):
    """T = rounds·alpha + factor·M/B, fitted by least squares of relative errors.

    `alpha` and `bandwidth` are exact texts with units of the rounded numbers; errors are those of
    the rounded numbers. `holds` is the longest run of sizes with errors of at most `tolerance`.
    """

    rounds: int
    factor: str
    alpha: str
    alpha_s: float
    bandwidth: str
    bandwidth_bytes_per_s: float
    intercept_s: float
    slope_s_per_byte: float
    starts_at_zero: bool
    residuals: list[DecadeDocument]
    tolerance: float
    holds: RangeDocument | None


class GroupDocument(Document):
    """Points that belong together; `fit` is null where there is none, see `not_fitted`."""

    operation: str
    ranks: int
    servers: int | None
    system: str
    library: str
    dtype: str
    mode: str
    num_points: int
    num_sizes: int
    from_bytes: int
    to_bytes: int
    fit: FitDocument | None
    not_fitted: str = ""


class OverlapDocument(Document):
    """Communication and computation of one size, alone and at once (6.4.3)."""

    message_bytes: int
    communication_alone_s: float
    compute_alone_s: float
    communication_together_s: float | None
    compute_together_s: float | None
    together_s: float
    saved_s: float
    hidden_share: float
    hidden_share_exact: str


class CalibrationDocument(Document):
    """What files of measurements say."""

    kind: Literal["calibration"] = "calibration"
    schema_version: Literal[1] = 1
    files: list[str]
    num_points: int
    dropped: list[DroppedDocument]
    notes: list[str]
    groups: list[GroupDocument]
    overlaps: list[OverlapDocument]

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def calibration_document(
    files: Sequence[str], reading: Reading, groups: Sequence[Group], tolerance: Fraction
) -> CalibrationDocument:
    """Fit every group and return all there is to report.

    `groups` are the points of `reading` that are looked at.
    """
    return CalibrationDocument(
        files=list(files),
        num_points=sum(len(group.points) for group in groups),
        dropped=[DroppedDocument(reason=text, count=count) for text, count in reading.dropped],
        notes=list(reading.notes),
        groups=[_group(group, tolerance) for group in groups],
        overlaps=[_overlap(overlap) for overlap in reading.overlaps],
    )


def _group(group: Group, tolerance: Fraction) -> GroupDocument:
    found, reason = None, ""
    try:
        found = _fit(fit(group, tolerance))
    except NotFitted as error:
        reason = str(error)
    key, sizes = group.key, list(group.by_size)
    return GroupDocument(
        operation=key.operation,
        ranks=key.ranks,
        servers=key.servers,
        system=key.system,
        library=key.library,
        dtype=key.dtype,
        mode=key.mode,
        num_points=len(group.points),
        num_sizes=len(sizes),
        from_bytes=sizes[0],
        to_bytes=sizes[-1],
        fit=found,
        not_fitted=reason,
    )


def _fit(found: Fit) -> FitDocument:
    holds = found.holds
    return FitDocument(
        rounds=found.rounds,
        factor=str(found.factor),
        alpha=time_text(found.alpha_s),
        alpha_s=float(found.alpha_s),
        bandwidth=rate_text(found.bandwidth_bytes_per_s),
        bandwidth_bytes_per_s=float(found.bandwidth_bytes_per_s),
        intercept_s=float(found.intercept_s),
        slope_s_per_byte=float(found.slope_s_per_byte),
        starts_at_zero=found.starts_at_zero,
        residuals=[
            DecadeDocument(
                from_bytes=decade.from_bytes,
                num_points=decade.num_points,
                median_error=float(decade.median_error),
                largest_error=float(decade.largest_error),
            )
            for decade in found.decades
        ],
        tolerance=float(found.tolerance),
        holds=None
        if holds is None
        else RangeDocument(
            from_bytes=holds.from_bytes, to_bytes=holds.to_bytes, num_sizes=holds.num_sizes
        ),
    )


def _overlap(overlap: Overlap) -> OverlapDocument:
    alone = (overlap.communication_alone_s, overlap.compute_alone_s)
    together = (overlap.communication_together_s, overlap.compute_together_s)
    return OverlapDocument(
        message_bytes=overlap.message_bytes,
        communication_alone_s=float(alone[0]),
        compute_alone_s=float(alone[1]),
        communication_together_s=None if together[0] is None else float(together[0]),
        compute_together_s=None if together[1] is None else float(together[1]),
        together_s=float(overlap.together_s),
        saved_s=float(overlap.saved_s),
        hidden_share=float(overlap.hidden_share),
        hidden_share_exact=str(overlap.hidden_share),
    )
