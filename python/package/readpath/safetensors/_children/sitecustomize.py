"""The hook in the Python processes that a program with the hook starts: workers, ranks, servers.

`python -m readpath.safetensors` puts this folder first on their `PYTHONPATH`. Python imports a module of
this name at its start. A process that does not import the package safetensors pays for no other import.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

TYPE_CHECKING = False
"""As in `typing`, which takes longer to import than all other work of this module."""
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Finder:
    """Installs the hook right after the package safetensors is imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the package safetensors by the other finders, once, and installs the hook after its import."""
        if name != "safetensors":
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _install_after(spec.loader)
        return spec


def _install_after(loader: Loader) -> None:
    """Makes a loader install the hook when it has executed its module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            from readpath.safetensors import install
        except ImportError as error:
            # A program may start the interpreter of another environment.
            print(f"readpath.safetensors: {sys.executable} reads without readpath: {error}", file=sys.stderr)
        else:
            install()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _import_next() -> None:
    """Imports the module of this name that Python would have imported without this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    importlib.invalidate_caches()
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


sys.meta_path.insert(0, _Finder)
_import_next()
