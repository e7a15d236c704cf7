"""Names of files, and what calls of fsspec return: the same as of the file system below."""

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file"])
def below(request, tmp_path):
    """A file system, and a folder of it with two files."""
    below = fsspec.filesystem(request.param)
    folder = "/names" if request.param == "memory" else f"{tmp_path}/names"
    below.makedirs(folder)
    below.pipe({f"{folder}/a": b"abcdefgh", f"{folder}/b": b"12345678"})
    yield below, folder
    below.rm(folder, recursive=True)


def spelled(below, folder):
    """The file system readpath over it, and all names of the folder."""
    url = below.unstrip_protocol(folder)
    fs = fsspec.filesystem("readpath", target_protocol=url.partition("://")[0])
    return fs, [folder, url, f"readpath::{url}"]


def test_cat_and_ls_accept_every_spelling_of_a_path(below):
    below, folder = below
    fs, names = spelled(below, folder)
    for name in names:
        assert fs.cat(f"{name}/a") == b"abcdefgh", name
        assert fs.cat(f"{name}/a", start=1, end=3) == b"bc"
        assert fs.cat(f"{name}/a", start=-3) == b"fgh"
        assert fs.cat_file(f"{name}/a", start=1, end=3) == b"bc"
        assert fs.cat([f"{name}/a", f"{name}/b"]) == below.cat([f"{folder}/a", f"{folder}/b"])
        assert fs.cat([f"{name}/a"], end=2) == {f"{folder}/a": b"ab"}
        assert fs.cat(f"{name}/[ab]", start=6) == {f"{folder}/a": b"gh", f"{folder}/b": b"78"}
        found = fs.cat([f"{name}/a", f"{name}/none"], on_error="return")
        assert found[f"{folder}/a"] == b"abcdefgh" and isinstance(found[f"{folder}/none"], FileNotFoundError)
        assert fs.cat([f"{name}/a", f"{name}/none"], on_error="omit") == {f"{folder}/a": b"abcdefgh"}
        for wrong in (lambda name=name: fs.cat(f"{name}/none"), lambda name=name: fs.cat([f"{name}/none"])):
            with pytest.raises(FileNotFoundError):
                wrong()
        both = [system.cat(folder, recursive=True, on_error="omit") for system in (fs, below)]
        assert both[0] == both[1] and len(both[0]) >= 2
        assert fs.head(f"{name}/a", 3) == b"abc" and fs.tail(f"{name}/a", 3) == b"fgh"
        assert fs.ls(name, detail=False) == below.ls(folder, detail=False)


def test_put_copy_move_and_remove_accept_every_spelling(below, tmp_path):
    below, folder = below
    fs, names = spelled(below, folder)
    (tmp_path / "own").write_bytes(b"own")
    for nth, name in enumerate(names):
        fs.put_file(str(tmp_path / "own"), f"{name}/put{nth}")
        fs.put(str(tmp_path / "own"), f"{name}/put-many{nth}")
        fs.cp_file(f"{name}/a", f"{name}/copied{nth}")
        fs.copy(f"{name}/a", f"{name}/copied-too{nth}")
        fs.pipe(f"{name}/piped{nth}", b"piped")
        fs.mv(f"{name}/piped{nth}", f"{name}/moved{nth}")
        fs.get_file(f"{name}/a", str(tmp_path / f"got{nth}"))
        assert (tmp_path / f"got{nth}").read_bytes() == b"abcdefgh"
        expected = {"put": b"own", "put-many": b"own", "copied": b"abcdefgh", "copied-too": b"abcdefgh", "moved": b"piped"}
        for made, data in expected.items():
            assert below.cat(f"{folder}/{made}{nth}") == data, (name, made)
        fs.rm([f"{name}/{made}{nth}" for made in expected])
        assert not below.exists(f"{folder}/piped{nth}")
    # No file has a prefix in its name.
    assert not [found for found in below.find(folder) if "readpath" in found.removeprefix(folder)]


def test_mapper_equals_the_mapper_of_the_underlying_file_system(below):
    below, folder = below
    fs, names = spelled(below, folder)
    oracle = below.get_mapper(folder)
    for name in names:
        for mapper in (fs.get_mapper(name), fsspec.get_mapper(name if "::" in name else f"readpath::{names[1]}")):
            assert sorted(mapper) == sorted(oracle), name
            assert dict(mapper) == dict(oracle)
            assert mapper.getitems(["a", "none"], on_error="omit") == {"a": b"abcdefgh"}
            assert "a" in mapper and "none" not in mapper
            with pytest.raises(KeyError, match="none"):
                mapper["none"]
            mapper["new"] = b"new"
            assert oracle["new"] == b"new"
            del mapper["new"]
            assert "new" not in oracle


def test_file_names_may_contain_two_colons(tmp_path, monkeypatch):
    (tmp_path / "a::b").mkdir()
    for name in ("a::b/c::d", "c::d", "memory::x", "http:"):
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    for name in ("a::b/c::d", "c::d", "http:"):
        for spelling in (name, f"./{name}", str(tmp_path / name), tmp_path / name, name.encode()):
            with readpath.open(spelling) as file:
                assert file.read() == name.encode(), spelling
    # `memory` is a protocol: as a chain it is one, and as a path it is a file.
    with readpath.open(tmp_path / "memory::x") as file:
        assert file.read() == b"memory::x"
    for url in (f"file://{tmp_path}/c::d", f"readpath::file://{tmp_path}/c::d", f"readpath://{tmp_path}/c::d"):
        with readpath.open(url) as file:
            assert file.read() == b"c::d", url
    with fsspec.filesystem("readpath").open(str(tmp_path / "c::d")) as file:
        assert file.read() == b"c::d"
    fsspec.filesystem("memory").pipe("/x::y", b"in memory")
    with readpath.open("memory:///x::y", memory="1MiB") as file:
        assert file.read() == b"in memory"
    fsspec.filesystem("memory").rm("/x::y")
    with pytest.raises(FileNotFoundError):
        readpath.open("none::here")


def test_ipv6_address_is_not_parsed_as_a_chain():
    pytest.importorskip("aiohttp")
    import http.server
    import socket
    import threading

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"bytes")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    try:
        server = Server(("::1", 0), Handler)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with readpath.open(f"http://[::1]:{server.server_port}/data") as file:
            assert file.read() == b"bytes"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("prefix", ["", "file://", "readpath::file://"])
def test_an_option_holds_or_is_refused_under_each_name_of_a_local_file(tmp_path, prefix):
    (tmp_path / "data").write_bytes(b"bytes")
    name = f"{prefix}{tmp_path}/data"
    with pytest.raises(ValueError, match="16383"):
        readpath.open(name, depth=10**9, memory="8MiB")
    with pytest.raises((TypeError, ValueError), match="retries"):
        readpath.open(name, retries=3)
    with pytest.raises(TypeError, match="encoding"):
        readpath.open(name, encoding="utf8")
    with readpath.open(name, depth=1, memory="8MiB") as file:
        assert file.read() == b"bytes"


def test_options_of_objects_are_refused_for_a_path(tmp_path):
    (tmp_path / "data").write_bytes(b"bytes")
    of_objects = {"request": "64KiB", "retries": 3, "storage_options": {}, "disk": tmp_path, "disk_size": "1MiB"}
    for option, value in of_objects.items():
        with pytest.raises(ValueError, match=f"{option}.*only objects by URL"):
            readpath.open(tmp_path / "data", **{option: value})
    not_given = dict.fromkeys(of_objects.keys() - {"retries"})
    with readpath.open(tmp_path / "data", **not_given) as file:
        assert file.read() == b"bytes"


@pytest.mark.parametrize("option", ["depth", "keep_files", "retries"])
def test_a_negative_number_is_refused_by_the_name_of_its_option(option):
    with pytest.raises(ValueError, match=f"{option}=-1: give a number from 0 on"):
        readpath.ReadPath(memory="1MiB", **{option: -1})
