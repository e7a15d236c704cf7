"""`nfs://…` for fsspec: files on NFS servers, without a mount.

`nfs://HOST[:PORT]/EXPORT/PATH[?rsize=…]` opens as any other fsspec URL does. There are
files but no listings, so the caller must know the names.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from fsspec.spec import AbstractFileSystem

from readpath.files import File, ReadPath
from readpath.options import FSSPECS_OWN, check_names


class NfsFileSystem(AbstractFileSystem):
    """Files on NFS servers, read through readpath's NFS client.

    Takes the options of `ReadPath`; the page cache is `own`, or `none` if named. Each file has its
    own memory. Raises TypeError for an unknown option.
    """

    protocol = "nfs"
    cachable = True

    def __init__(self, *args: Any, **options: Any) -> None:
        check_names(options, {*ReadPath.NAMES, *FSSPECS_OWN}, "the file system nfs")
        self._path_options = {name: options.pop(name) for name in ReadPath.NAMES if name in options}
        self._path_options.setdefault("page_cache", "own")
        super().__init__(*args, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The whole URL is the path, since another host means another file."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return path if path.startswith("nfs://") else f"nfs://{path.lstrip('/')}"

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return str(self._strip_protocol(name))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Returns the size of a file, or the type `directory`."""
        path = self._strip_protocol(path)
        try:
            with self._within.open(path) as file:
                return {"name": path, "size": file.size, "type": "file"}
        except IsADirectoryError:
            return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Lists one file. Raises NotImplementedError for a directory."""
        info = self.info(path)
        if info["type"] == "directory":
            raise NotImplementedError(f"{path}: directories can't be listed; name a file in it")
        return [info if detail else info["name"]]

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> File:
        if mode != "rb":
            raise OSError(30, "files on NFS servers are opened for reading", path)  # EROFS
        return self._within.open(self._strip_protocol(path))

    @cached_property
    def _within(self) -> ReadPath:
        return ReadPath(**self._path_options)
