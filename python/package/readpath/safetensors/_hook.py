"""The hook: programs that use the package safetensors open their files by readpath."""

from __future__ import annotations

import sys
from typing import Any

import safetensors

from readpath.safetensors import _opened

_REPLACED = {
    "safe_open": (_opened.original_safe_open, _opened.safe_open),
    "_safe_open_handle": (_opened.original_safe_open_handle, _opened._safe_open_handle),
}


def install() -> None:
    """Replaces `safe_open` in the package safetensors and in all modules that imported it by this name.

    Modules that are imported later import the replacement. A second call has no effect on the first.
    """
    for name, (original, ours) in _REPLACED.items():
        _replace(name, original, ours)


def uninstall() -> None:
    """Undoes `install`, also in modules that were imported since."""
    for name, (original, ours) in _REPLACED.items():
        _replace(name, ours, original)


def _replace(name: str, old: Any, new: Any) -> None:
    """Sets a name of the package safetensors to `new`, and in each other module where it is `old`.

    Modules of readpath keep what they have.
    """
    setattr(safetensors, name, new)
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        if held.get(name) is old and not held.get("__name__", "").startswith("readpath."):
            held[name] = new
