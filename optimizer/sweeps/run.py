"""Runs a sweep: here, over processes, or on a Dask cluster; rows come in their fixed order."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Any

from instances.instance import Instance
from optimizer.errors import BackendUnavailable, InputError
from optimizer.options import SolveOptions
from optimizer.sweeps.chain import Block, solve_block
from optimizer.sweeps.rows import SweepPoint, SweepResult
from optimizer.sweeps.spec import SweepSpec, sweep_spec
from optimizer.variants.solver import VariantSolver

#: Blocks handed out ahead of the one waited for, per worker.
AHEAD = 3

#: Hands a block to a worker.
Submit = Callable[[Block], "Future[list[SweepPoint]]"]

_local = threading.local()


def solve_on_worker(
    document: Any, options: SolveOptions, block: Block, source: str
) -> list[SweepPoint]:
    """Solve a block with the solver that this thread of this process keeps."""
    kept: dict[SolveOptions, VariantSolver] = _local.__dict__.setdefault("solvers", {})
    if options not in kept:
        kept[options] = VariantSolver(options)
    return solve_block(kept[options], document, block, source)


_sweep: tuple[SweepSpec, SolveOptions] | None = None


def _start_worker(spec: SweepSpec, options: SolveOptions) -> None:
    """Keep what all tasks share, so that it is sent once."""
    global _sweep
    _sweep = spec, options
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle


def _solve_part(block: Block) -> list[SweepPoint]:
    """Solve a block in a process of a sweep's own."""
    assert _sweep is not None
    spec, options = _sweep
    return solve_on_worker(spec.document, options, block, spec.source)


def sweep(
    instance: Instance,
    *,
    deadline: object = None,
    fields: dict[str, object] | None = None,
    exact: bool = False,
    cohorts: Sequence[str] = (),
    options: SolveOptions | None = None,
    jobs: int = 1,
    dask: str | None = None,
    on_rows: Callable[[list[SweepPoint]], None] | None = None,
) -> SweepResult:
    """Solve every point of a sweep; see `sweep_spec` for what to sweep.

    Parameters
    ----------
    options : how each point is solved; one thread each by default.
    jobs : processes; 1 solves here.
    dask : address of a Dask scheduler whose workers have this package; `jobs` is ignored then.
    on_rows : called with the rows of every finished block, in order.

    Raises
    ------
    InputError : the sweep is not one. A point that fails is a row instead.
    BackendUnavailable : a worker process died, or the cluster cannot be reached.
    """
    spec = sweep_spec(instance, deadline=deadline, fields=fields, exact=exact, cohorts=cohorts)
    points: list[SweepPoint] = []
    for rows in run_sweep(spec, options, jobs=jobs, dask=dask):
        points += rows
        if on_rows is not None:
            on_rows(rows)
    return SweepResult(tuple(points))


def run_sweep(
    spec: SweepSpec,
    options: SolveOptions | None = None,
    *,
    jobs: int = 1,
    dask: str | None = None,
    done: Sequence[Mapping[str, Any]] = (),
) -> Iterator[list[SweepPoint]]:
    """Yield the rows block by block, in order, but for those that are `done`: the first ones."""
    options = options or SolveOptions(threads=1)
    options.check()
    if not 1 <= jobs <= 1024:
        raise InputError("options", "jobs", "must be between 1 and 1024", jobs)
    identity = spec.identity(options)
    finished, drop = _finished(spec, done)
    blocks = islice(spec.blocks(), finished, None)
    if dask is None and jobs == 1:
        solver = VariantSolver(options)
        here = (solve_block(solver, spec.document, block, spec.source) for block in blocks)
        yield from _stamped(here, identity, drop)
        return
    where = _cluster(dask, spec, options) if dask is not None else _processes(jobs, spec, options)
    with where as (submit, workers):
        yield from _stamped(_in_order(submit, workers, blocks), identity, drop)


def _finished(spec: SweepSpec, done: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many blocks are finished, and how many rows there are of the next one.

    The last piece of an exact block ends where the sweep does, or nowhere.
    """
    if spec.exact:
        ends = (None, None if spec.to_s is None else str(spec.to_s))
        last = [n for n, row in enumerate(done, start=1) if row["to_exact"] in ends]
        return len(last), len(done) - (last[-1] if last else 0)
    left = len(done)
    for number, block in enumerate(spec.blocks()):
        size = max(1, len(block.deadlines))
        if left < size:
            return number, left
        left -= size
    return spec.num_points, 0


def _stamped(
    results: Iterator[list[SweepPoint]], identity: str, drop: int
) -> Iterator[list[SweepPoint]]:
    for rows in results:
        yield [row.model_copy(update={"sweep": identity}) for row in rows[drop:]]
        drop = 0


def _in_order(submit: Submit, workers: int, blocks: Iterator[Block]) -> Iterator[list[SweepPoint]]:
    """Hand out a few blocks ahead and yield their rows in order."""
    waiting: deque[Future[list[SweepPoint]]] = deque()
    for block in islice(blocks, workers * AHEAD):
        waiting.append(submit(block))
    while waiting:
        try:
            rows = waiting.popleft().result()
        except BrokenProcessPool:
            reason = "a worker process died (out of memory?); fewer jobs may help, --resume goes on"
            raise BackendUnavailable(reason) from None
        for block in islice(blocks, 1):
            waiting.append(submit(block))
        yield rows


@contextmanager
def _processes(jobs: int, spec: SweepSpec, options: SolveOptions) -> Iterator[tuple[Submit, int]]:
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    executor = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_worker, initargs=(spec, options)
    )
    is_done = False
    try:
        yield (lambda block: executor.submit(_solve_part, block)), jobs
        is_done = True
    finally:
        if not is_done:
            for child in multiprocessing.active_children():
                child.terminate()
        executor.shutdown(wait=is_done, cancel_futures=True)


@contextmanager
def _cluster(address: str, spec: SweepSpec, options: SolveOptions) -> Iterator[tuple[Submit, int]]:
    try:
        from distributed import Client
    except ImportError:
        reason = "Dask is not installed; install supernode-planner[dask]"
        raise BackendUnavailable(reason) from None
    try:
        client = Client(address, timeout="5s")
    except (OSError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split())[:200]
        raise BackendUnavailable(f"no Dask scheduler answers at {address}: {text}") from None
    with client:
        threads = sum(client.nthreads().values())
        executor = client.get_executor(pure=False)
        yield (
            (
                lambda block: executor.submit(
                    solve_on_worker, spec.document, options, block, spec.source
                )
            ),
            max(1, threads),
        )
