"""User-space storage read path, and simulated storage devices.

- `open` reads a file, a device or a URL through the read path;
- `map` maps a file as memory, and `Region` is memory larger than the machine's;
- `load_file` and `safe_open` read weights: files of safetensors;
- `Rows` and `Records` are datasets over one file, for torch's DataLoader and others;
- `run` and `trace` run a job in fio's format on modelled devices, in virtual time;
- `sweep` runs a grid of jobs, on this machine or on a cluster;
- `Policy` is the base class of a readahead policy written in Python.

The book helps to choose between them, and describes policies, measurements and limits:
https://github.com/readpath/readpath/blob/main/book/src/introduction.md
"""

from typing import TYPE_CHECKING, Any

from readpath._native import Ask, Limits, NamedPolicy, Pages, __version__
from readpath.files import File, ReadPath, open
from readpath.jobs import Job
from readpath.options import warn_renamed as _warn_renamed
from readpath.policy import Policy
from readpath.memory import Mapping, Region, map
from readpath.modelled import Point, Trace, devices, frame, policies, run, trace
from readpath.records import Records, Rows
from readpath.sweeps import Failed, Sweep, sweep
from readpath.tensors import load_file, safe_open

if TYPE_CHECKING:
    SafetensorError: type[Exception]


# Names of the releases before 0.3, accepted for one release.
_OLD_NAMES = {"Law": "Policy", "NamedLaw": "NamedPolicy", "laws": "policies"}


def __getattr__(name: str) -> Any:
    """Returns `SafetensorError`, or a name of `_OLD_NAMES` with a warning. Raises AttributeError for others."""
    # The package safetensors is imported only for its exception.
    if name == "SafetensorError":
        from readpath.tensor_errors import base

        return base()
    if name in _OLD_NAMES:
        new = _OLD_NAMES[name]
        _warn_renamed(f"readpath.{name}", f"readpath.{new}")
        return globals()[new]
    raise AttributeError(f"module 'readpath' has no attribute {name!r}")


__all__ = [
    "Ask",
    "Failed",
    "File",
    "Job",
    "Policy",
    "Limits",
    "Mapping",
    "NamedPolicy",
    "Pages",
    "Point",
    "ReadPath",
    "Records",
    "Region",
    "Rows",
    "SafetensorError",
    "Sweep",
    "Trace",
    "__version__",
    "devices",
    "frame",
    "policies",
    "load_file",
    "map",
    "open",
    "run",
    "safe_open",
    "sweep",
    "trace",
]
