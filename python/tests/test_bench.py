"""The benchmark runs, at a small size, and measures all that it names."""

import json
import subprocess
import sys

import pytest

import readpath


def test_the_benchmark_beside_the_peers_runs(root):
    pytest.importorskip("aiohttp")
    command = [sys.executable, root / "bench/python_peers.py", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kinds = {(row["part"], row["kind"]) for row in json.loads(done.stdout)["medians"]}
    assert {("stream", "readpath"), ("stream", "adaptive"), ("random", "readat_many")} < kinds


def test_the_everyday_matrix_has_all_its_cells(root, tmp_path):
    pytest.importorskip("aiohttp")
    try:
        (tmp_path / "probe").write_bytes(b"1")
        readpath.map(tmp_path / "probe").close()
    except OSError as error:
        pytest.skip(f"no userfaultfd here: {error}")
    command = [sys.executable, root / "bench/python_everyday.py", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    cells = {row["cell"] for row in rows}
    assert {"stream", "random", "rows", "mapped", "copies", "pieces", "loader", "open"} < cells
    assert {"columns", "weights", "http stream", "http columns", "http row group"} < cells
    assert all(len(row["seconds"]) >= 2 and row["ratio"] > 0 for row in rows)
