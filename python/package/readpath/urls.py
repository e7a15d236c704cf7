"""Files by URL: fsspec's names, opened through the file system `readpath`."""

from __future__ import annotations

import inspect
from typing import Any

import fsspec

from readpath.files import FSSPEC_TOO, PROTOCOL, URL_START, ReadPath, is_one_object, keep_with
from readpath.options import OLD_NAMES
from readpath.reader import Options

PREFIX = "readpath::"


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raises TypeError for options of text, and of the package's own clients at a URL that fsspec opens."""
    own = {*ReadPath.NAMES, *OLD_NAMES}
    # `fsspec.open` takes them, and ignores them for the mode `rb`.
    if of_text := sorted(options.keys() & {"encoding", "errors", "newline"}):
        raise TypeError(f"{', '.join(of_text)}: files are opened for reading bytes; decode them by `io.TextIOWrapper`")
    if lacking := sorted(options.keys() & own - FSSPEC_TOO):
        others = sorted(options.keys() - own)
        remedy = " and leave out ".join(["give client='readpath'", *others]) if is_one_object(name) else "leave it out"
        raise TypeError(f"fsspec opens this URL, and has no option {', '.join(lacking)}; {remedy}")


def open_url(name: str, options: dict[str, Any]) -> Any:
    """Opens a URL or a chain of fsspec, with the options of `readpath.open`."""
    # An option of readpath may have a protocol's name, such as `memory`: a dictionary under it has
    # the options of that protocol. An absent option counts as a dictionary here, and is left out.
    own = {
        option: options.pop(option)
        for option in Options.names()
        if not isinstance(options.get(option, {}), dict)
    }
    if own:
        options["readpath"] = options.get("readpath", {}) | own
    links = _links(name, options)
    # A single name with two colons of its own, perhaps below `readpath`.
    if "::" in links[-1] and (len(links) == 1 or links[0] == "readpath" and len(links) == 2):
        return _open_alone(links[-1], options)
    opened = fsspec.open(name if name.startswith("readpath:") else PREFIX + name, **options)
    file = opened.open()
    # An archive closes its own file when it is freed: keep the file system and the files below
    # alive with this file. The file itself is not in the list, so its last reference frees it.
    below = [opened.fs, *(one for one in opened.fobjects if one is not file)]
    opened.fobjects = []
    keep_with(file, below)
    return file


def _links(name: str, options: dict[str, Any]) -> list[str]:
    """Returns the links of a chain. Two colons within a name, as in `http://[::1]/file`, separate no links."""
    known = fsspec.available_protocols()
    links: list[str] = []
    for part in name.split("::"):
        is_link = URL_START.match(part) or (PROTOCOL.fullmatch(part) and part in known)
        # A path may end a chain that begins with bare protocols or with a part of an archive:
        # `simplecache::/folder/file`, `zip://part::/folder/archive.zip`.
        ends_protocols = bool(links) and "://" not in links[-1] and links[-1] in known
        if not links or is_link or ends_protocols or _needs_archive(links[-1], known, options):
            links.append(part)
        else:
            links[-1] += f"::{part}"
    return links


def _needs_archive(link: str, known: list[str], options: dict[str, Any]) -> bool:
    """Returns True for a part of an archive whose name is the next link, as it is not in the options (`fo`)."""
    protocol, separator, _ = link.partition("://")
    if not separator or protocol not in known or "fo" in options.get(protocol, {}):
        return False
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError:
        # Opening the URL raises this error, which names the missing package.
        return False
    target = inspect.signature(kind.__init__).parameters.get("fo")
    # `readpath` and `dir` may have a target, by default None. An archive needs one.
    return target is not None and target.default is not None


def _open_alone(url: str, options: dict[str, Any]) -> Any:
    """Opens a URL that contains two colons; fsspec would parse it as a chain."""
    url = url.removeprefix("readpath://")
    protocol = url.partition("://")[0] if URL_START.match(url) else "file"
    kind = fsspec.get_filesystem_class(protocol)
    of_target = kind._get_kwargs_from_urls(url) | options.pop(protocol, {})
    system = fsspec.filesystem(
        "readpath", target_protocol=protocol, target_options=of_target, **options.pop("readpath", {}), **options
    )
    return system.open(kind._strip_protocol(url))
