"""The storage read path, and modelled storage to try it on.

- `open` reads a file, a device or a URL through our path;
- `map` gives a file as memory, and `Region` memory larger than the machine's;
- `run` and `trace` run a job in fio's format on modelled devices, in virtual time;
- `sweep` runs a grid of them, here or on a cluster;
- `Law` is what a readahead policy written in Python looks like.
"""

from readpath._native import Ask, Limits, NamedLaw, Pages, __version__
from readpath.files import File, ReadPath, open
from readpath.jobs import Job
from readpath.law import Law
from readpath.memory import Mapping, Region, map
from readpath.modelled import Point, Trace, devices, frame, laws, run, trace
from readpath.sweeps import Failed, Sweep, sweep

__all__ = [
    "Ask",
    "Failed",
    "File",
    "Job",
    "Law",
    "Limits",
    "Mapping",
    "NamedLaw",
    "Pages",
    "Point",
    "ReadPath",
    "Region",
    "Sweep",
    "Trace",
    "__version__",
    "devices",
    "frame",
    "laws",
    "map",
    "open",
    "run",
    "sweep",
    "trace",
]
