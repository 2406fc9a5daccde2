"""Rows as a pandas DataFrame, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def to_dataframe(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame with one row per mapping.

    Raises ImportError, with what to install, where pandas is missing.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas; install it: pip install pandas") from error
    return pandas.DataFrame(list(rows))
