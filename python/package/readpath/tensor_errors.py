"""Exceptions of weights, which are Python's and, if installed, the package safetensors' at the same time."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def base() -> type[Exception]:
    """`SafetensorError`: the class of the package safetensors, or one of that name without the package."""
    try:
        from safetensors import SafetensorError
    except ImportError:
        return type("SafetensorError", (Exception,), {"__module__": "readpath"})
    found: type[Exception] = SafetensorError
    return found


# Combined classes by the name of Python's class.
_combined: dict[str, type[Exception]] = {}


def _combined_class(kind: type[Exception]) -> type[Exception]:
    """Returns the class that derives from `kind` and from `SafetensorError`. The first call creates it."""
    if kind.__name__ not in _combined:
        methods = {"__module__": "readpath", "__reduce__": _reduced}
        _combined[kind.__name__] = type("SafetensorError", (kind, base()), methods)
    return _combined[kind.__name__]


def _reduced(error: Exception) -> tuple[Any, ...]:
    """Pickles an exception of a combined class, which has no importable name, by Python's class and its text."""
    return error_of, (type(error).__mro__[1], *error.args)


def error_of(kind: type[Exception], text: str) -> Exception:
    """An exception of this kind that is a `SafetensorError` too: programs catch either."""
    return _combined_class(kind)(text)
