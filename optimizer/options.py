"""How to solve."""

from __future__ import annotations

import os
from dataclasses import dataclass

from optimizer.errors import InputError


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to solve: which solver, how long, with how many threads, from which seed."""

    solver: str = "auto"
    time_limit_s: float = 60.0
    threads: int = 0
    seed: int = 0

    def num_threads(self) -> int:
        """Threads to use; 0 means as many as the machine has processors."""
        return self.threads or os.cpu_count() or 1

    def check(self) -> None:
        """Raise InputError for an option out of range."""
        if not self.time_limit_s >= 0 or self.time_limit_s == float("inf"):
            raise InputError(
                "options", "time_limit_s", "must be a finite number of seconds, 0 or more"
            )
        if not 0 <= self.threads <= 1024:
            raise InputError("options", "threads", "must be between 0 (all) and 1024", self.threads)
        if not 0 <= self.seed < 2**31:
            raise InputError("options", "seed", "must be between 0 and 2147483647", self.seed)
