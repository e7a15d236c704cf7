"""Grids of runs, on one machine or on a cluster.

A sweep runs every combination of jobs, devices and policies, one task per
point: in threads of this process, on a `concurrent.futures` executor, or on an
existing Dask or Ray cluster. Rows arrive in the order of completion. A failed
point is tried again at the end, and reported if it fails again. The other rows
are not affected. With an output file, rows are written as they arrive, and a
restarted sweep runs only the missing points.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from readpath import _native
from readpath.modelled import JobLike, Policies, OneOrMore, Point, Row, frame, points
from readpath.parquet import RowFile
from readpath.policy import PolicyMaker, policy_name

if TYPE_CHECKING:
    import pandas

Submit = Callable[[Point], "Future[Row]"]

IN_FLIGHT_MAX = 256
"""Maximum number of submitted tasks: enough for a cluster, and small in memory."""


@dataclass(frozen=True)
class Failed:
    """A point that failed twice, with its error."""

    point: Point
    error: BaseException

    def __str__(self) -> str:
        names = ", ".join(f"{key} {value}" for key, value in self.point.names.items())
        return f"{names}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep: its rows in the order of the grid, and the failed points."""

    rows: list[Row]
    failed: list[Failed]

    def frame(self) -> pandas.DataFrame:
        """The rows as a DataFrame (needs pandas)."""
        return frame(self.rows)


def sweep(
    jobs: JobLike | Iterable[JobLike],
    devices: OneOrMore = "hdd",
    readahead: Policies = "adaptive",
    scheduler: OneOrMore = "adaptive",
    *,
    memory: str | int | Iterable[str | int] = "256MiB",
    seeds: int | Iterable[int] = 1,
    executor: Any = None,
    out: str | os.PathLike[str] | None = None,
    on_row: Callable[[Row], object] | None = None,
    progress: bool = True,
) -> Sweep:
    """Runs every combination. Returns the rows, and the points that failed twice.

    A row has the keys of `run`, and `memory_bytes`, `seed` and `point`, the key
    of its point. `executor`: None for threads of this process, a
    `concurrent.futures.Executor`, a Dask `Client`, or the module `ray`. `out`
    names a Parquet file for the rows (needs pyarrow); points with a row in it
    are not run again. `on_row` is called with each new row. `progress` shows a
    bar if tqdm is installed and standard error is a terminal.

    Raises ValueError before the first run if a point cannot be run, or if two policies have one
    name. With `out` a policy needs a name that identifies it: it is a class or function of a
    module, or has an attribute `name`.
    """
    all_points = points(jobs, devices, readahead, scheduler, memory, seeds)
    grid = _grid(all_points, is_kept=out is not None)
    for point in grid.values():
        point.check()
    file = None if out is None else RowFile(out)
    known = {} if file is None else file.rows("point")
    done: dict[str, Row] = {key: known[key] for key in grid if key in known}
    failed: dict[str, Failed] = {}
    todo = {key: point for key, point in grid.items() if key not in done}
    with _bar(len(grid), len(done), progress) as advance, contextlib.ExitStack() as stack:
        if file is not None:
            stack.callback(file.flush)
        submit = stack.enter_context(_submitter(executor))
        for attempt in (1, 2):
            again: dict[str, Point] = {}
            for key, result in _results(todo, submit):
                if isinstance(result, dict):
                    point = grid[key]
                    facts = {"memory_bytes": point.memory_bytes, "seed": point.seed, "point": key}
                    done[key] = result | facts
                    if file is not None:
                        file.add(done[key])
                    if on_row is not None:
                        on_row(done[key])
                    advance()
                elif attempt == 1:
                    again[key] = grid[key]
                else:
                    failed[key] = Failed(grid[key], result)
                    advance()
            todo = again
    rows = [done[key] for key in grid if key in done]
    return Sweep(rows, [failed[key] for key in grid if key in failed])


def _results(
    todo: Mapping[str, Point], submit: Submit
) -> Iterator[tuple[str, Row | Exception]]:
    """Submits the points, up to `IN_FLIGHT_MAX` at once, and yields each key with its row or exception on completion.

    Exceptions that are no `Exception`, such as KeyboardInterrupt, are raised. The end cancels the tasks in flight.
    """
    waiting = iter(todo.items())
    in_flight: dict[Future[Row], str] = {}
    try:
        while True:
            while len(in_flight) < IN_FLIGHT_MAX and (item := next(waiting, None)) is not None:
                key, point = item
                try:
                    in_flight[submit(point)] = key
                except Exception as error:
                    yield key, error
            if not in_flight:
                return
            # A time limit, so that ctrl-C is heard on every system.
            ended, _ = wait(in_flight, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ended:
                key = in_flight.pop(future)
                # A cancelled future raises where it is asked for its exception.
                failure = _Lost() if future.cancelled() else future.exception()
                if failure is None:
                    yield key, future.result()
                elif isinstance(failure, Exception):
                    yield key, failure
                else:
                    raise failure
    finally:
        for future in in_flight:
            future.cancel()


class _Lost(RuntimeError):
    """Error of a task that its executor cancelled."""

    def __str__(self) -> str:
        return "the task was cancelled by its executor"


def _run_point(point: Point) -> Row:
    """Runs a point in another process, which imports this function by its name."""
    return point.run()


@contextlib.contextmanager
def _submitter(executor: Any) -> Iterator[Submit]:
    """Returns the function that submits a point to an executor of any kind."""
    if executor is None:
        stop = _native.Stop()
        with ThreadPoolExecutor(os.cpu_count(), "readpath-sweep") as threads:
            try:
                yield lambda point: threads.submit(lambda: point.run(stop=stop))
            except BaseException:
                # Threads do not receive signals, so they are stopped explicitly.
                stop.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    elif getattr(executor, "__name__", None) == "ray":
        task = executor.remote(max_retries=0)(_run_point)
        yield lambda point: task.remote(point).future()
    elif hasattr(executor, "get_executor"):
        # Dask's client. `pure=False`: the same point may be tried again.
        with executor.get_executor(pure=False, retries=0) as futures:
            yield lambda point: futures.submit(_run_point, point)
    elif hasattr(executor, "submit"):
        yield lambda point: executor.submit(_run_point, point)
    else:
        raise TypeError(
            f"executor is a {type(executor).__name__}; give a concurrent.futures executor, a Dask "
            "client, the module ray, or None"
        )


@contextlib.contextmanager
def _bar(total: int, done: int, is_wanted: bool) -> Iterator[Callable[[], object]]:
    """Shows a progress bar, and yields the function that advances it by one. It does nothing without tqdm."""
    try:
        if not is_wanted:
            raise ImportError
        from tqdm import tqdm
    except ImportError:
        yield lambda: None
        return
    # `disable=None`: none where standard error is no terminal.
    with tqdm(total=total, initial=done, unit="run", disable=None) as bar:
        yield bar.update


def _grid(all_points: Iterable[Point], *, is_kept: bool) -> dict[str, Point]:
    """Returns the points by their keys. `is_kept`: a later sweep finds rows by these keys.

    Raises ValueError for two policies of one name, and for a kept point whose policy has none of
    its own.
    """
    grid: dict[str, Point] = {}
    for index, point in enumerate(all_points):
        has_name = _has_own_name(point.readahead)
        if is_kept and not has_name:
            raise ValueError(
                f"policy {policy_name(point.readahead)}: rows of other policies may have this "
                "name; give it an attribute `name`, or use a class of a module"
            )
        key = _key(point, None if has_name else index)
        if grid.setdefault(key, point).readahead != point.readahead:
            raise ValueError(
                f"there are two policies named {policy_name(point.readahead)}; give each an "
                "attribute `name` of its own"
            )
    return grid


def _has_own_name(policy: str | PolicyMaker) -> bool:
    """True if the name of a policy identifies it, unlike that of a partial or a local class."""
    if isinstance(policy, str) or getattr(policy, "name", None):
        return True
    is_definition = inspect.isclass(policy) or inspect.isfunction(policy)
    # A lambda and a class in a function have names such as `<lambda>` and `make.<locals>.Policy`.
    return is_definition and "<" not in policy.__qualname__


def _key(point: Point, place: int | None) -> str:
    """Hash of everything that determines a row, equal on every machine.

    `place`: the point's index in its grid, if the name of its policy does not identify it.
    """
    policy = point.readahead
    facts = point.names | {"text": point.job.text, "version": _native.__version__}
    if not isinstance(policy, str):
        facts["policy"] = f"{getattr(policy, '__module__', '')}.{getattr(policy, '__qualname__', '')}"
    if place is not None:
        facts["place"] = place
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
