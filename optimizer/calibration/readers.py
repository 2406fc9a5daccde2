"""Reads files of measurements, whatever their names: the content tells the format."""

from __future__ import annotations

import re
from collections.abc import Sequence

from instances.errors import InputError
from instances.io import read_text
from optimizer.calibration.points import Reading, ReadOptions, merge
from optimizer.calibration.readers_csv import columns_of, read_table
from optimizer.calibration.readers_deepep import is_deepep, read_deepep
from optimizer.calibration.readers_overlap import is_overlap, read_overlaps
from optimizer.calibration.readers_text import read_nccl_tests

FORMATS = (
    "text of nccl-tests; CSV with columns for operation, ranks, size and time; CSV of DeepEP's "
    "dispatch and combine; CSV of communication and computation alone and together"
)
_TOLD_NOTHING = ReadOptions()
_NCCL_TESTS = re.compile(r"^\W*(\[[0-9,]+\](<std\w+>)?:?\s*)?#\s+(nThread\s|size\s+count\s)", re.M)


def read_measurements(text: str, source: str, options: ReadOptions = _TOLD_NOTHING) -> Reading:
    """Read the text of one file.

    Parameters
    ----------
    text
        What the file holds.
    source
        Its name, for messages.
    options
        What the file may not say.

    Raises
    ------
    InputError
        With file, line and rule, for whatever cannot be read.
    """
    if _NCCL_TESTS.search(text):
        return read_nccl_tests(text, source, options)
    columns = columns_of(text)
    if is_overlap(columns):
        return read_overlaps(text, source)
    if is_deepep(columns):
        return read_deepep(text, source, options)
    if len(columns) > 1:
        return read_table(text, source, options)
    raise InputError(source, "", f"not a file of measurements; known are: {FORMATS}")


def read_files(paths: Sequence[str], options: ReadOptions = _TOLD_NOTHING) -> Reading:
    """Read several files ("-": standard input) into one reading; raises InputError."""
    readings = [read_measurements(*read_text(path), options) for path in paths]
    found = merge(readings)
    if not found.points and not found.overlaps:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in found.dropped)
        raise InputError(", ".join(paths), "", f"no measurement is left: {reasons or 'all empty'}")
    return found
