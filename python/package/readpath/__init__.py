"""The storage read path, and modelled storage to try it on.

- `run` and `trace` run a job in fio's format on modelled devices, in virtual time;
- `sweep` runs a grid of them, here or on a cluster;
- `Law` is what a readahead policy written in Python looks like.
"""

from readpath._native import Ask, Limits, NamedLaw, Pages, __version__
from readpath.jobs import Job
from readpath.law import Law
from readpath.modelled import Point, Trace, devices, frame, laws, run, trace
from readpath.sweeps import Failed, Sweep, sweep

__all__ = [
    "Ask",
    "Failed",
    "Job",
    "Law",
    "Limits",
    "NamedLaw",
    "Pages",
    "Point",
    "Sweep",
    "Trace",
    "__version__",
    "devices",
    "frame",
    "laws",
    "run",
    "sweep",
    "trace",
]
