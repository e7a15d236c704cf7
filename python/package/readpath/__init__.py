"""The storage read path, and modelled storage to try it on.

- `open` reads a file, a device or a URL through our path;
- `map` gives a file as memory, and `Region` memory larger than the machine's;
- `load_file` and `safe_open` read weights: files of safetensors;
- `run` and `trace` run a job in fio's format on modelled devices, in virtual time;
- `sweep` runs a grid of them, here or on a cluster;
- `Law` is what a readahead policy written in Python looks like.

Which of them a program wants, each law in words and in a picture, figures and limits are in the book:
https://github.com/readpath/readpath/blob/main/book/src/introduction.md
"""

from typing import TYPE_CHECKING, Any

from readpath._native import Ask, Limits, NamedLaw, Pages, __version__
from readpath.files import File, ReadPath, open
from readpath.jobs import Job
from readpath.law import Law
from readpath.memory import Mapping, Region, map
from readpath.modelled import Point, Trace, devices, frame, laws, run, trace
from readpath.sweeps import Failed, Sweep, sweep
from readpath.tensors import load_file, safe_open

if TYPE_CHECKING:
    SafetensorError: type[Exception]


def __getattr__(name: str) -> Any:
    # The package safetensors is imported when its exception is asked for.
    if name == "SafetensorError":
        from readpath.tensor_errors import base

        return base()
    raise AttributeError(f"module 'readpath' has no attribute {name!r}")


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
    "SafetensorError",
    "Sweep",
    "Trace",
    "__version__",
    "devices",
    "frame",
    "laws",
    "load_file",
    "map",
    "open",
    "run",
    "safe_open",
    "sweep",
    "trace",
]
