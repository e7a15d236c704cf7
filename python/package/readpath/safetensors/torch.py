"""`safetensors.torch` with the reads of readpath."""

from typing import TYPE_CHECKING

from readpath.safetensors._frameworks import names_of

if TYPE_CHECKING:
    from safetensors.torch import *  # noqa: F403

globals().update(names_of("torch"))
