"""Ranges of one version of a remote file.

A program may overwrite an object while another one has it open. Each fetched range belongs to the version that the
open found. Any other version is an error that names the file; its bytes are never returned.

- HTTP: `If-Match` with a strong ETag, else `If-Unmodified-Since`; the ETag of the answer, its `Content-Range` and its
  length are compared, and `Last-Modified` for a file without ETag.
- S3: `If-Match`, and `VersionId` where the file system is `version_aware`, which reads the old version; the answer is
  compared in the same way.
- Google Cloud Storage: `ifGenerationMatch`, but for zonal buckets.
- Other storage has no conditional reads in fsspec. Its details are compared after a fetch, at most once in
  `CHECK_SECONDS`. Two reads within this time may see two versions.
"""

from __future__ import annotations

import asyncio
import errno
import re
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from readpath.reader import Fetch, on_threads

CHECK_SECONDS = 0.1
"""Shortest time between two checks of a file's details on storage without conditional reads."""

IDENTITY = frozenset(
    {
        "ETag", "etag", "e_tag", "VersionId", "version_id", "generation", "Content-MD5", "content_md5", "md5Hash",
        "Digest", "checksum", "Last-Modified", "LastModified", "last_modified", "modified", "modify", "mtime", "size",
    }
)  # fmt: skip
"""Names of details that differ between two versions, as the known file systems name them."""

TAGS = frozenset({"ETag", "etag", "e_tag"})
"""Names of tags, which some listings have without the quotes of a single request."""

CREATION = frozenset({"created", "creation_time"})
"""Names of details that identify a version if the details have no modification time."""

CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
"""The header of RFC 9110, section 14.4."""

CHANGED_CODES = frozenset({"PreconditionFailed", "InvalidRange", "412", "416"})
"""Error codes of S3 for another version than the one that was asked for."""

HTTP_PRECONDITION_FAILED = 412
HTTP_RANGE_NOT_SATISFIABLE = 416
HTTP_PARTIAL = 206
HTTP_OK = 200


class Version:
    """The version of a file on the file system `below` that `details` describe."""

    def __init__(self, below: Any, path: str, details: Mapping[str, Any]) -> None:
        """`details`: the reply of the file system's `info`, whose time counts as the first check."""
        while type(below).__name__ == "DirFileSystem" and hasattr(below, "_join"):
            # A wrapper for a folder of another file system, which may have conditional reads.
            below, path = below.fs, below._join(path)
        self._below, self._path, self._size = below, path, details["size"]
        self._identity = _identity_of(details)
        self._etag = str(details.get("ETag") or details.get("etag") or "")
        self._modified = details.get("Last-Modified")
        version = details.get("VersionId")
        self._version_id = version if getattr(below, "version_aware", False) else None
        self._generation = details.get("generation")
        self._checked_at = time.monotonic()
        self._get = self._conditional_read()

    def fetch(self, threads: Callable[[], ThreadPoolExecutor]) -> Fetch:
        """Returns the function that starts to fetch a range: on the loop of the file system, or on `threads()`."""
        below = self._below
        if below.async_impl and not below.asynchronous:
            # In a child of fork the property `loop` raises an exception, and no coroutine is made.
            return lambda start, end: _started(below.loop, lambda: self.range_of(start, end))
        return on_threads(self.range_waited_for, threads())

    def fetch_on(self, loop: asyncio.AbstractEventLoop) -> Fetch:
        """Returns the function that starts to fetch a range on the caller's loop."""
        return lambda start, end: _started(loop, lambda: self.range_of(start, end))

    async def range_of(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range.

        Raises OSError (`ESTALE`) with the file's name if the storage now has another version.
        """
        if start >= end:
            return b""
        if self._get is not None:
            data: bytes = await self._get(start, end)
        elif self._below.async_impl:
            data = await self._compared_range(start, end)
        else:
            data = await asyncio.to_thread(self.range_waited_for, start, end)
        return self._whole(data, start, end)

    async def _compared_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range, and compares the details of the file if a check is due."""
        data: bytes = await self._below._cat_file(self._path, start=start, end=end)
        if self._begins_check():
            self._compare(await self._details())
        return data

    def range_waited_for(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range like `range_of`, from a synchronous file system."""
        if start >= end:
            return b""
        data = self._below.cat_file(self._path, start, end)
        if self._begins_check():
            forget_listings(self._below, self._path)
            try:
                details = self._below.info(self._path)
            except FileNotFoundError as error:
                raise self._changed("it is gone") from error
            self._compare(details)
        return self._whole(data, start, end)

    def _conditional_read(self) -> Any:
        """Returns the conditional read of this kind of storage, or None."""
        kind = type(self._below)
        http = sys.modules.get("fsspec.implementations.http")
        if http is not None and getattr(kind, "_cat_file", None) is http.HTTPFileSystem._cat_file:
            return self._http_range
        s3fs = sys.modules.get("s3fs")
        if s3fs is not None and getattr(kind, "_cat_file", None) is s3fs.S3FileSystem._cat_file:
            return self._s3_range
        gcs = sys.modules.get("gcsfs.core")
        if gcs is not None and isinstance(self._below, gcs.GCSFileSystem) and self._generation:
            return self._gcs_range
        return None

    async def _http_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range by HTTP. Only a strong ETag or the modification time is a condition."""
        below = self._below
        options = dict(below.kwargs)
        headers = dict(options.pop("headers", None) or {})
        # A compressed answer has other lengths and another ETag.
        headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if self._etag and not self._etag.startswith("W/"):
            headers["If-Match"] = self._etag
        elif self._modified:
            headers["If-Unmodified-Since"] = self._modified
        session = await below.set_session()
        async with session.get(below.encode_url(self._path), headers=headers, **options) as answer:
            if answer.status in (HTTP_PRECONDITION_FAILED, HTTP_RANGE_NOT_SATISFIABLE):
                raise self._changed(f"the server answers {answer.status}")
            below._raise_not_found_for_status(answer, self._path)
            said = answer.headers
            self._check_tag(said.get("ETag"))
            if not self._etag and self._modified and said.get("Last-Modified", self._modified) != self._modified:
                raise self._changed(f"it is of {said['Last-Modified']}, not of {self._modified}")
            if answer.status == HTTP_PARTIAL:
                self._check_range(said.get("Content-Range"), start, end)
                return bytes(await answer.read())
            if answer.status != HTTP_OK:
                raise OSError(errno.EIO, f"the server answers {answer.status}", self._path)
            # The server ignores the range and sends the whole file.
            whole = await answer.read()
            if len(whole) != self._size:
                raise self._changed(f"it has {len(whole)} bytes, not {self._size}")
            return bytes(whole[start:end])

    async def _s3_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range of an S3 object, of its version or under the condition of its ETag."""
        from s3fs.core import _error_wrapper, version_id_kw

        below = self._below
        bucket, key, in_path = below.split_path(self._path)
        named = version_id_kw(self._version_id or in_path)
        if self._etag:
            named["IfMatch"] = self._etag

        async def read() -> bytes:
            answer = await below._call_s3(
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **named
            )
            body = answer["Body"]
            try:
                self._check_tag(answer.get("ETag"))
                if answer.get("ContentRange"):
                    self._check_range(answer["ContentRange"], start, end)
                return bytes(await body.read())
            finally:
                body.close()

        try:
            return bytes(await _error_wrapper(read, retries=below.retries))
        except OSError as error:
            if _s3_code(error) in CHANGED_CODES:
                raise self._changed(str(error)) from error
            raise

    async def _gcs_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range of a Google Cloud object, under the condition of its generation."""
        below = self._below
        bucket, _, _ = below.split_path(self._path)
        if (is_zonal := getattr(below, "_is_zonal_bucket", None)) is not None and await is_zonal(bucket):
            # The class reads these buckets by gRPC, without conditions.
            return await self._compared_range(start, end)
        head = {"Range": f"bytes={start}-{end - 1}"}
        try:
            said, data = await below._call(
                "GET", below.url(self._path), headers=head, ifGenerationMatch=str(self._generation)
            )
        except Exception as error:
            # gcsfs has FileExistsError for every condition that fails.
            if isinstance(error, FileExistsError) or str(getattr(error, "code", "")) in CHANGED_CODES:
                raise self._changed(str(error)) from error
            raise
        if said.get("Content-Range"):
            self._check_range(said["Content-Range"], start, end)
        return bytes(data)

    async def _details(self) -> Mapping[str, Any]:
        """Returns the present details of the file. A missing file counts as changed."""
        forget_listings(self._below, self._path)
        try:
            found: Mapping[str, Any] = await self._below._info(self._path)
            return found
        except FileNotFoundError as error:
            raise self._changed("it is gone") from error

    def _begins_check(self) -> bool:
        """True if the details must be compared: the last check was `CHECK_SECONDS` ago. A new check begins then."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return False
        self._checked_at = now
        return True

    def _compare(self, details: Mapping[str, Any]) -> None:
        """Raises OSError (`ESTALE`) if these details describe another version."""
        present = _identity_of(details)
        if present != self._identity:
            # The next check finds the change again.
            self._checked_at = 0.0
            names = {*present, *self._identity}
            different = sorted(name for name in names if present.get(name) != self._identity.get(name))
            raise self._changed(f"other than then: {', '.join(different)}")

    def _check_tag(self, tag: str | None) -> None:
        """Raises OSError (`ESTALE`) for another ETag than the one at the open. An unknown one is not compared."""
        if self._etag and tag and _opaque(tag) != _opaque(self._etag):
            raise self._changed(f"its ETag is {tag}, not {self._etag}")

    def _check_range(self, said: str | None, start: int, end: int) -> None:
        """Compares the header `Content-Range` with the requested range and the length of the file.

        Raises OSError: `ESTALE` for another length of the file, `EIO` for a missing header or another range.
        """
        found = CONTENT_RANGE.fullmatch((said or "").strip())
        if found is None:
            raise OSError(
                errno.EIO, f"bytes {start} to {end} were asked for; the answer has Content-Range {said!r}", self._path
            )
        if found[3] != "*" and int(found[3]) != self._size:
            raise self._changed(f"it has {found[3]} bytes, not {self._size}")
        if (int(found[1]), int(found[2]) + 1) != (start, end):
            raise OSError(
                errno.EIO, f"bytes {start} to {end} were asked for; the answer is of {said!r}", self._path
            )

    def _whole(self, data: bytes, start: int, end: int) -> bytes:
        """Returns the data of a range. Raises OSError for another length: fewer bytes mean a changed file."""
        if len(data) < end - start:
            raise self._changed(f"of the bytes {start} to {end} there are {len(data)}")
        if len(data) > end - start:
            raise OSError(
                errno.EIO, f"bytes {start} to {end} were asked for, and {len(data)} bytes came", self._path
            )
        return data

    def _changed(self, how: str) -> OSError:
        """The error for another version than the one at the open. Drops the cached listings of the file."""
        forget_listings(self._below, self._path)
        return OSError(
            errno.ESTALE,
            f"it has changed in its storage since it was opened ({how}); revalidate it, or open it again",
            self._path,
        )


def _started(loop: asyncio.AbstractEventLoop, read: Callable[[], Any]) -> Future[bytes]:
    """Starts a coroutine on the loop of another thread. Returns the future of its result."""
    return asyncio.run_coroutine_threadsafe(read(), loop)


def forget_listings(below: Any, path: str) -> None:
    """Drops the cached listings of a file and of its folder: they describe the version of their time."""
    name = below._strip_protocol(path)
    below.invalidate_cache(name)
    below.invalidate_cache(below._parent(name))


def is_same_version(details: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True for equal details, and for details with equal tags that were queried in different ways."""
    identity = _identity_of(details)
    return details == other or not TAGS.isdisjoint(identity) and identity == _identity_of(other)


def _identity_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """The details that differ between two versions. With one alone, such as the size, the creation time counts too."""
    found = {name: details[name] for name in IDENTITY if details.get(name) is not None}
    found |= {name: _opaque(str(found[name])) for name in TAGS if name in found}
    return found if len(found) > 1 else found | {name: details[name] for name in CREATION if name in details}


def _opaque(tag: str) -> str:
    """Returns an ETag without its weak mark, for the weak comparison of RFC 9110, section 8.8.3.2."""
    return tag.removeprefix("W/").strip('"')


def _s3_code(error: OSError) -> str:
    """The error code of S3 behind an exception of s3fs, or an empty text."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
