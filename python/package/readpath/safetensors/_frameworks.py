"""Modules of the package safetensors, executed again with another `safe_open`."""

from __future__ import annotations

import importlib.util
from typing import Any

from readpath.safetensors._opened import safe_open


def names_of(framework: str) -> dict[str, Any]:
    """Returns the names of the module `safetensors.FRAMEWORK`. Its functions open files by readpath.

    Raises ImportError without the package safetensors or the framework.
    """
    name = f"safetensors.{framework}"
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.safe_open = safe_open  # type: ignore[attr-defined]
    return {key: value for key, value in vars(module).items() if not key.startswith("__")}
