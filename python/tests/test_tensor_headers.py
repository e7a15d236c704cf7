"""Odd headers of safetensors files are accepted and refused as by the package safetensors."""

import gc
import json
import math
import resource
import struct
import types

import numpy
import pytest
import safetensors
import safetensors.numpy

import readpath
import readpath.tensor_files


def entry(**changes):
    return {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]} | changes


ONE = json.dumps({"a": entry()})

HEADERS = {
    "metadata of numbers": '{"__metadata__": {"b": 1}, ' + ONE[1:],
    "metadata nested": '{"__metadata__": {"b": {"c": "d"}}, ' + ONE[1:],
    "metadata list": '{"__metadata__": [], ' + ONE[1:],
    "metadata null": '{"__metadata__": null, ' + ONE[1:],
    "metadata empty": '{"__metadata__": {}, ' + ONE[1:],
    "metadata twice": '{"__metadata__": {"b": "1"}, "__metadata__": {"b": "2"}, ' + ONE[1:],
    "metadata key twice": '{"__metadata__": {"b": "1", "b": "2"}, ' + ONE[1:],
    "metadata of infinity": '{"__metadata__": {"b": Infinity}, ' + ONE[1:],
    "tensor twice": '{"a": ' + json.dumps(entry()) + ", " + ONE[1:],
    "field twice": ONE.replace('"dtype"', '"dtype": "I8", "dtype"'),
    "unknown field": ONE.replace('"dtype"', '"more": 1, "dtype"'),
    "length of a float": ONE.replace("[1]", "[1.0]"),
    "length of an exponent": ONE.replace("[1]", "[1e0]"),
    "length of a text": ONE.replace("[1]", '["1"]'),
    "length of a bool": ONE.replace("[1]", "[true]"),
    "offset of a float": ONE.replace("[0, 1]", "[0, 1.0]"),
    "offset of a bool": ONE.replace("[0, 1]", "[false, true]"),
    "offset of NaN": ONE.replace("[0, 1]", "[0, NaN]"),
    "offset beyond 64 bits": ONE.replace("[0, 1]", f"[0, {2**64 + 1}]"),
    "shape beyond 64 bits": ONE.replace("[1]", f"[{2**63}, 2, 0]").replace("[0, 1]", "[0, 0]"),
    "length beyond 64 bits": ONE.replace("[1]", f"[{2**64}, 0]").replace("[0, 1]", "[0, 0]"),
    "byte order mark": "\ufeff" + ONE,
    "spaces": "  " + ONE + " \n\t",
    "text behind it": ONE + "x",
    "half a surrogate pair": ONE.replace('"a"', '"\\ud800"'),
    "surrogate pair": ONE.replace('"a"', '"\\ud83d\\ude00"'),
    "name of no letters": ONE.replace('"a"', '""'),
    "deep nesting": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "list": "[]",
    "null": "null",
    "empty": "",
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_are_accepted_and_refused_as_by_safetensors(tmp_path, case):
    header, path = HEADERS[case].encode(), tmp_path / "odd.safetensors"
    data = b"" if "[0, 0]" in HEADERS[case] else b"x"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)

    def found(module):
        with module.safe_open(path, "np") as file:
            names = file.keys()
            return names, file.metadata(), {name: file.get_tensor(name).tolist() for name in names}

    try:
        expected = found(safetensors)
    except safetensors.SafetensorError:
        for kind in (safetensors.SafetensorError, ValueError):
            with pytest.raises(kind, match="none of safetensors"):
                found(readpath)
    else:
        assert found(readpath) == expected


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "F6"])
@pytest.mark.parametrize(
    ("shape", "size"), [([4], 3), ([4], 2), ([3], 2), ([8, 1], 6), ([8, 1], 4), ([2, 3], 3), ([0], 0), ([], 0)]
)
def test_types_of_parts_of_bytes_are_accepted_and_refused_as_by_safetensors(tmp_path, dtype, shape, size):
    header = json.dumps(
        {"a": entry(dtype=dtype, shape=shape, data_offsets=[0, size]), "b": entry(data_offsets=[size, size + 1])}
    ).encode()
    path = tmp_path / "parts.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x" * size + b"y")

    def found(module):
        with module.safe_open(path, "np") as file:
            part = file.get_slice("a")
            return part.get_dtype(), part.get_shape(), file.get_tensor("b").tolist()

    try:
        expected = found(safetensors)
    except safetensors.SafetensorError:
        with pytest.raises(safetensors.SafetensorError, match="none of safetensors"):
            found(readpath)
        return
    assert found(readpath) == expected
    with readpath.safe_open(path) as file, pytest.raises(TypeError, match=f"no type {dtype}"):
        file.get_tensor("a")


def test_empty_tensors_may_follow_a_tensor_of_the_same_offset(tmp_path):
    places = {
        "b": ([1], 1, 2), "a": ([1], 0, 1), "e": ([0], 1, 1), "f": ([0, 2], 0, 0), "z": ([0], 2, 2)
    }  # fmt: skip
    header = json.dumps(
        {name: entry(shape=shape, data_offsets=offsets) for name, (shape, *offsets) in places.items()}
    ).encode()
    path = tmp_path / "empty.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"xy")
    with safetensors.safe_open(path, "np") as expected, readpath.safe_open(path) as file:
        assert file.offset_keys() == expected.offset_keys() == ["f", "a", "e", "b", "z"]
        for name in places:
            ours, other = file.get_tensor(name), expected.get_tensor(name)
            assert ours.shape == other.shape and ours.tobytes() == other.tobytes()


def test_other_encodings_are_refused(tmp_path):
    path, header = tmp_path / "odd.safetensors", ONE.encode("utf-16")
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "np")
    with pytest.raises(safetensors.SafetensorError):
        readpath.safe_open(path)


def test_tensors_use_no_descriptors_and_end_with_their_last_reference(tmp_path, descriptors):
    path = tmp_path / "many.safetensors"
    made = {f"t{index}": numpy.full(3000, index, "u2") for index in range(300)}
    safetensors.numpy.save_file(made, path)

    def mappings():
        with open("/proc/self/maps") as file:
            return sum(str(path) in line for line in file)

    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(number) for number, _ in before) + 20, limits[1]))
    try:
        tensors = readpath.load_file(path)
        assert descriptors() <= before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all((tensors[name] == made[name]).all() for name in made)
    assert mappings() > 0
    part = tensors["t7"][1000:2000]
    tensors.clear()
    gc.collect()
    assert mappings() == 1
    part[:] = 8
    assert part.tolist() == [8] * 1000
    assert (readpath.load_file(path)["t7"] == 7).all()
    del part
    assert mappings() == 0


@pytest.mark.parametrize("case", ["large", "negative", "texts", "packed"])
def test_hostile_shape_is_refused_at_its_first_lengths(tmp_path, case, monkeypatch):
    """The product of 80,000 lengths of 64 bits has 5 million bits."""
    shape, words = {
        "large": ([2**63 + nth for nth in range(80_000)], "no size of 64 bits"),
        "negative": ([-(2**63)] * 80_000, "no integer from 0"),
        "texts": (["1" * 1_000_000] * 3, "no integer from 0"),
        "packed": ([1] * 80_001, "4 bits, no whole bytes"),
    }[case]
    changes = {"shape": shape, "dtype": "F4" if case == "packed" else "U8"}
    header = json.dumps({"a": entry(**changes)}).encode()
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    products = []
    monkeypatch.setattr(math, "prod", lambda lengths: products.append(lengths) or 1)
    with pytest.raises(readpath.SafetensorError, match=words) as caught:
        readpath.safe_open(path)
    assert len(str(caught.value)) < 1000
    assert not products


@pytest.mark.parametrize("field", ["name", "dtype", "gap", "size"])
def test_messages_of_hostile_headers_are_short(tmp_path, field):
    long = "x" * 1_000_000
    changes = {
        "name": {"shape": [2]}, "dtype": {"dtype": long}, "gap": {"data_offsets": [1, 2]},
        "size": {"shape": [1] * 80_000, "data_offsets": [0, 2]},
    }[field]  # fmt: skip
    header = json.dumps({"a" if field in ("dtype", "size") else long: entry(**changes)}).encode()
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    with pytest.raises(readpath.SafetensorError) as caught:
        readpath.safe_open(path)
    assert len(str(caught.value)) < 1000


def test_grouping_of_small_tensors_examines_each_a_few_times(monkeypatch):
    """A sum over the group for each tensor took 4.9 s for 20,000 tensors of 1 KiB."""
    count, examined = 1_000, []

    class Counted:
        offset, shape, dtype = 0, (1,), "U8"

        @property
        def size(self):
            examined.append(self)
            return 1

    file = readpath.tensor_files.OtherTensors.__new__(readpath.tensor_files.OtherTensors)
    file.places = {f"{nth}": Counted() for nth in range(count)}
    groups = []
    monkeypatch.setattr(readpath.tensor_files, "AHEAD_BYTES", 300)
    monkeypatch.setattr(file, "_load", lambda places, make: groups.append(places) or places)
    file.load(list(file.places), types.SimpleNamespace(needs_bytes=True))
    assert [len(places) for places in groups] == [300, 300, 300, 100]
    assert len(examined) <= 4 * count
