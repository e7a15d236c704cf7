"""The package safetensors with the reads of readpath: replace `safetensors` by `readpath.safetensors`.

Files are opened by readpath's `safe_open`, for NumPy and torch. Everything else (saving, frameworks, other
names) is the installed package safetensors, which this module needs.

`install` does the same for programs that import the package safetensors themselves, as transformers,
accelerate and vLLM do. Without a change of their code:

    python -m readpath.safetensors PROGRAM.py ARGUMENTS
    python -m readpath.safetensors -m MODULE ARGUMENTS
"""

from safetensors import SafetensorError, TensorSpec, __version__, deserialize, serialize, serialize_file

from readpath.safetensors._hook import install, uninstall
from readpath.safetensors._opened import _safe_open_handle, safe_open

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "__version__",
    "_safe_open_handle",
    "deserialize",
    "install",
    "safe_open",
    "serialize",
    "serialize_file",
    "uninstall",
]
