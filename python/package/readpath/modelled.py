"""Simulation runs: a job, a device and policies give one row."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from readpath import _native
from readpath.jobs import Job, as_job
from readpath.policy import PolicyMaker, policy_name

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]
"""One result, with the keys and values of the command's `readpath run --json`."""

JobLike = Job | str | os.PathLike[str]
OneOrMore = str | Iterable[str]
Policies = str | PolicyMaker | Iterable[str | PolicyMaker]


@dataclass(frozen=True)
class Point:
    """One run: one job on one device under one set of policies."""

    job: Job
    device: str = "hdd"
    readahead: str | PolicyMaker = "adaptive"
    scheduler: str = "adaptive"
    memory_bytes: int = 256 << 20
    seed: int = 1

    @property
    def names(self) -> dict[str, str | int]:
        """Identity of the point, as text and numbers."""
        return {
            "job": self.job.name,
            "storage": self.device,
            "readahead": policy_name(self.readahead),
            "scheduler": self.scheduler,
            "memory_bytes": self.memory_bytes,
            "seed": self.seed,
        }

    def check(self) -> None:
        """Checks if it can be run, without running it.

        Raises ValueError with the command's message if it cannot.
        """
        _native.check(self._native())

    def run(
        self,
        *,
        tell: Callable[[int, int, int | None], object] | None = None,
        stop: _native.Stop | None = None,
    ) -> Row:
        """Runs it. `tell(now_ns, bytes, bytes_total)` is called with the progress."""
        return self._run(tell=tell, stop=stop)[0]

    def trace(self, events_max: int = 1_000_000) -> Trace:
        """Runs it and keeps the first `events_max` reads, requests and windows."""
        row, events = self._run(events_max=events_max)
        assert events is not None
        return Trace(row, events["reads"], events["requests"], events["windows"], events["dropped"])

    def _run(self, **options: Any) -> tuple[Row, dict[str, Any] | None]:
        """Runs it with the options of `_native.simulate`. Returns the row, and the events if `events_max` is given."""
        policy = None if isinstance(self.readahead, str) else self.readahead
        text, events = _native.simulate(self._native(), policy=policy, **options)
        row: Row = json.loads(text)
        row["readahead"] = row["readahead"] if policy is None else policy_name(policy)
        return row, events

    def _native(self) -> tuple[str, str, str, str, str, str, int, int]:
        """The point as `_native.simulate` takes it. A policy written in Python is passed separately."""
        readahead = self.readahead if isinstance(self.readahead, str) else "none"
        job = self.job
        policies = (self.device, readahead, self.scheduler)
        return (job.name, job.source, job.text, *policies, self.memory_bytes, self.seed)


@dataclass(frozen=True)
class Trace:
    """Events of a run. Each table is a dictionary of columns.

    `reads`: the operations of the job, or the faults of a mapped one: `process`,
    `offset`, `bytes` (None: failed), `issued_ns`, `done_ns`. `requests`: of the
    device: `sector`, `sectors` (of 512 bytes), `is_write`, `issued_ns`,
    `done_ns`. `windows`: the calls of the readahead policies: `now_ns`, `handle`
    (number of the open file), `page`, `pages` (requested), `demand_pages` and
    `ahead_pages` (added by the policy, requested and beyond).
    """

    row: Row
    reads: dict[str, list[Any]]
    requests: dict[str, list[Any]]
    windows: dict[str, list[Any]]
    dropped: int
    """Number of events beyond `events_max`, which are in no table."""


def points(
    jobs: JobLike | Iterable[JobLike],
    devices: OneOrMore = "hdd",
    readahead: Policies = "adaptive",
    scheduler: OneOrMore = "adaptive",
    memory: str | int | Iterable[str | int] = "256MiB",
    seeds: int | Iterable[int] = 1,
) -> Iterator[Point]:
    """Yields every combination of the arguments, with the last one varying fastest."""
    jobs = [jobs] if isinstance(jobs, Job | str | os.PathLike) else jobs
    memory = [memory] if isinstance(memory, str | int) else memory
    grid = itertools.product(
        [as_job(job) for job in jobs],
        _specs(devices),
        _policies(readahead),
        _specs(scheduler),
        [memory_bytes(size) for size in memory],
        [seeds] if isinstance(seeds, int) else list(seeds),
    )
    return itertools.starmap(Point, grid)


def run(
    job: JobLike,
    on: OneOrMore = "hdd",
    *,
    readahead: Policies = "adaptive",
    scheduler: OneOrMore = "adaptive",
    memory: str | int = "256MiB",
    seed: int = 1,
) -> list[Row]:
    """Runs a job on each device under each combination of policies. Returns a row for each.

    `job` is the path of a job file in fio's format, or a `Job`. Devices and policies
    are named as on the command line, one or several: `"hdd,drive=sata2010,ssd"`.
    A readahead policy may also be a class, see `Policy`. `frame` converts the rows to
    a DataFrame.

    Raises ValueError with the command's message, before the first run, if a
    combination cannot be run.
    """
    all_points = list(points(job, on, readahead, scheduler, memory, seed))
    for point in all_points:
        point.check()
    return [point.run() for point in all_points]


def trace(
    job: JobLike,
    on: str = "hdd",
    *,
    readahead: str | PolicyMaker = "adaptive",
    scheduler: str = "adaptive",
    memory: str | int = "256MiB",
    seed: int = 1,
    events_max: int = 1_000_000,
) -> Trace:
    """Like `run` on one device, with each read, request and window."""
    point = Point(as_job(job), on, readahead, scheduler, memory_bytes(memory), seed)
    return point.trace(events_max)


def frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """Converts rows to a DataFrame. Latencies become `latency_us.p50`, … (needs pandas)."""
    import pandas

    return pandas.json_normalize(list(rows))


def policies(kind: str = "readahead") -> dict[str, str]:
    """Returns the policies of a kind, `readahead`, `scheduler` or `eviction`: name and line."""
    return {name: line for name, line, _ in _native.policies(kind)}


def devices() -> dict[str, str]:
    """Returns the modelled devices: name and line."""
    return dict(_native.devices())


def memory_bytes(size: str | int) -> int:
    """Converts the size of a cache, option `memory`, to bytes: a number, or text such as `"256MiB"`.

    Raises ValueError for an invalid size, for less than a page, and for a cache too large for this machine.
    """
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _native.size_bytes(str(size), "memory", machine_bytes)


def size_bytes(size: str | int, option: str) -> int:
    """As `memory_bytes`, for a size that is no cache's. Errors have the name of the `option`."""
    return _native.size_bytes(str(size), option, None)


def _specs(names: OneOrMore) -> list[str]:
    """Splits names of policies or devices, each of which may be a list with parameters, into single ones."""
    names = [names] if isinstance(names, str) else names
    return [spec for name in names for spec in _native.parse_specs(name)]


def _policies(names: Policies) -> list[str | PolicyMaker]:
    """Splits names like `_specs`. Policies written in Python stay as they are."""
    if isinstance(names, str) or callable(names):
        names = [names]
    return [policy for name in names for policy in (_specs(name) if isinstance(name, str) else [name])]
