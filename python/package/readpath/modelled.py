"""Runs in the modelled world: a job, a device, the laws; one row out."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from readpath import _native
from readpath.jobs import Job, as_job
from readpath.law import LawMaker, law_name

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]
"""One result: the keys and values of the command's `readpath run --json`."""

JobLike = Job | str | os.PathLike[str]
OneOrMore = str | Iterable[str]
Laws = str | LawMaker | Iterable[str | LawMaker]


@dataclass(frozen=True)
class Point:
    """One run: one job on one device under one set of laws."""

    job: Job
    device: str = "hdd"
    readahead: str | LawMaker = "adaptive"
    scheduler: str = "adaptive"
    memory_bytes: int = 256 << 20
    seed: int = 1

    @property
    def names(self) -> dict[str, str | int]:
        """What tells the point from others, as text and numbers."""
        return {
            "job": self.job.name,
            "storage": self.device,
            "readahead": law_name(self.readahead),
            "scheduler": self.scheduler,
            "memory_bytes": self.memory_bytes,
            "seed": self.seed,
        }

    def check(self) -> None:
        """Finds out whether it can be run, without running it.

        Raises ValueError with the words of the command where it can't.
        """
        _native.check(self._native())

    def run(
        self,
        *,
        tell: Callable[[int, int, int | None], object] | None = None,
        stop: _native.Stop | None = None,
    ) -> Row:
        """Runs it. `tell(now_ns, bytes, bytes_total)` hears of the progress."""
        return self._run(tell=tell, stop=stop)[0]

    def trace(self, events_max: int = 1_000_000) -> Trace:
        """Runs it and keeps the first `events_max` reads, requests and windows."""
        row, events = self._run(events_max=events_max)
        assert events is not None
        return Trace(row, events["reads"], events["requests"], events["windows"], events["dropped"])

    def _run(self, **options: Any) -> tuple[Row, dict[str, Any] | None]:
        law = None if isinstance(self.readahead, str) else self.readahead
        text, events = _native.simulate(self._native(), law=law, **options)
        row: Row = json.loads(text)
        row["readahead"] = row["readahead"] if law is None else law_name(law)
        return row, events

    def _native(self) -> tuple[str, str, str, str, str, str, int, int]:
        readahead = self.readahead if isinstance(self.readahead, str) else "none"
        job = self.job
        laws = (self.device, readahead, self.scheduler)
        return (job.name, job.source, job.text, *laws, self.memory_bytes, self.seed)


@dataclass(frozen=True)
class Trace:
    """A run, moment by moment; each table is a dictionary of columns.

    `reads`: the operations of the job, or the faults of a mapped one: `process`,
    `offset`, `bytes` (None: failed), `issued_ns`, `done_ns`. `requests`: of the
    device: `sector`, `sectors` (of 512 bytes), `is_write`, `issued_ns`,
    `done_ns`. `windows`: the calls of the readahead laws: `now_ns`, `handle`
    (which opening of a file), `page`, `pages` (asked for), `demand_pages` and
    `ahead_pages` (added by the law, asked for and beyond).
    """

    row: Row
    reads: dict[str, list[Any]]
    requests: dict[str, list[Any]]
    windows: dict[str, list[Any]]
    dropped: int
    """Events beyond `events_max`, which are in no table."""


def points(
    jobs: JobLike | Iterable[JobLike],
    devices: OneOrMore = "hdd",
    readahead: Laws = "adaptive",
    scheduler: OneOrMore = "adaptive",
    memory: str | int | Iterable[str | int] = "256MiB",
    seeds: int | Iterable[int] = 1,
) -> Iterator[Point]:
    """Every combination of what is named, the last one varying fastest."""
    jobs = [jobs] if isinstance(jobs, Job | str | os.PathLike) else jobs
    memory = [memory] if isinstance(memory, str | int) else memory
    grid = itertools.product(
        [as_job(job) for job in jobs],
        _specs(devices),
        _laws(readahead),
        _specs(scheduler),
        [memory_bytes(size) for size in memory],
        [seeds] if isinstance(seeds, int) else list(seeds),
    )
    return itertools.starmap(Point, grid)


def run(
    job: JobLike,
    on: OneOrMore = "hdd",
    *,
    readahead: Laws = "adaptive",
    scheduler: OneOrMore = "adaptive",
    memory: str | int = "256MiB",
    seed: int = 1,
) -> list[Row]:
    """Runs a job on every device named, under every combination of laws: a row each.

    `job` is the path of a job file in fio's format, or a `Job`. Devices and laws
    are named as on the command line, one or several: `"hdd,drive=sata2010,ssd"`.
    A readahead law may also be a class, see `Law`. `frame` makes a DataFrame of
    the rows.

    Raises ValueError, with the words of the command, where something can't be
    run as it was asked; nothing has been run then.
    """
    all_points = list(points(job, on, readahead, scheduler, memory, seed))
    for point in all_points:
        point.check()
    return [point.run() for point in all_points]


def trace(
    job: JobLike,
    on: str = "hdd",
    *,
    readahead: str | LawMaker = "adaptive",
    scheduler: str = "adaptive",
    memory: str | int = "256MiB",
    seed: int = 1,
    events_max: int = 1_000_000,
) -> Trace:
    """As `run` on one device, with each read, request and window."""
    point = Point(as_job(job), on, readahead, scheduler, memory_bytes(memory), seed)
    return point.trace(events_max)


def frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """Rows as a DataFrame; latencies become `latency_us.p50`, … (needs pandas)."""
    import pandas

    return pandas.json_normalize(list(rows))


def laws(kind: str = "readahead") -> dict[str, str]:
    """The laws that there are, `readahead`, `scheduler` or `reclaim`: name and line."""
    return {name: line for name, line, _ in _native.laws(kind)}


def devices() -> dict[str, str]:
    """The modelled devices: name and line."""
    return dict(_native.devices())


def memory_bytes(size: str | int) -> int:
    """A memory in bytes, from a number or a size such as `"256MiB"`."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _native.memory_bytes(str(size), machine_bytes)


def _specs(names: OneOrMore) -> list[str]:
    names = [names] if isinstance(names, str) else names
    return [spec for name in names for spec in _native.parse_specs(name)]


def _laws(names: Laws) -> list[str | LawMaker]:
    if isinstance(names, str) or callable(names):
        names = [names]
    return [law for name in names for law in (_specs(name) if isinstance(name, str) else [name])]
