"""The benchmark runs, at a small size, and measures all that it names."""

import json
import subprocess
import sys

import pytest


def test_the_benchmark_beside_the_peers_runs(root):
    pytest.importorskip("aiohttp")
    command = [sys.executable, root / "bench/python_peers.py", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kinds = {(row["part"], row["kind"]) for row in json.loads(done.stdout)["medians"]}
    assert {("stream", "readpath"), ("stream", "adaptive"), ("random", "readat_many")} < kinds
