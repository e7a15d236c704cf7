"""The benchmark runs, at a small size, and measures all that it names."""

import json
import subprocess
import sys

import pytest

import readpath


def need_userfaultfd(tmp_path):
    try:
        (tmp_path / "probe").write_bytes(b"1")
        readpath.map(tmp_path / "probe").close()
    except OSError as error:
        pytest.skip(f"no userfaultfd here: {error}")


def test_baseline_benchmark_runs(root):
    pytest.importorskip("aiohttp")
    command = [sys.executable, root / "bench/python_peers.py", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kinds = {(row["part"], row["kind"]) for row in json.loads(done.stdout)["medians"]}
    assert {("stream", "readpath"), ("stream", "adaptive"), ("random", "readat_many")} < kinds


def test_access_pattern_matrix_has_all_its_cells(root, tmp_path):
    pytest.importorskip("aiohttp")
    need_userfaultfd(tmp_path)
    command = [sys.executable, root / "bench/python_everyday.py", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    cells = {row["cell"] for row in rows}
    assert {"stream", "random", "rows", "mapped", "copies", "pieces", "loader", "open"} < cells
    assert {"columns", "weights", "http stream", "http columns", "http row group"} < cells
    assert {"rows, readat_many", "copied", "http filter", "http filter, by name", "http open_parquet_file"} < cells
    assert all(len(row["seconds"]) >= 2 and row["ratio"] > 0 for row in rows)
    above = {(row["cell"], row["state"]) for row in rows if row["ratio"] > row["limit"]}
    assert len(json.loads(done.stdout)["above"]) == len(above)


def test_tensor_benchmark_measures_every_method(root, tmp_path):
    """With the memory that each has of its own: a copy of the file for who reads it, none for who maps it."""
    pytest.importorskip("safetensors")
    need_userfaultfd(tmp_path)
    out = tmp_path / "tensors.json"
    command = [sys.executable, root / "bench/python_tensors.py", "--smoke", "--on", tmp_path, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    ways = {"readinto", "4 threads of preadv", "safetensors.load_file", "load_file", "safe_open, get_tensors"}
    assert ways < set(told["medians"]["cold"]) and ways < set(told["medians"]["resident"])
    own = {way: one["own_mib"] for way, one in told["memory"].items()}
    assert own["readinto"] > 15 and own["load_file"] < 4 and own["load_file"] <= own["safetensors.load_file"]
