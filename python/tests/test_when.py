"""The page on when it helps has the figures of the run that it names."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_documented_ratios_equal_the_recorded_run():
    rows = json.loads((ROOT / "bench/results/python-everyday.json").read_text())["rows"]
    measured = {}
    for row in rows:
        place = 1 if row["state"] == "resident" else 0
        measured.setdefault(row["cell"], ["", ""])[place] = f"{row['ratio']:.2f}"
    page = (ROOT / "python/docs/when.md").read_text()
    told = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| ([\d.]+) \| ([\d.]*) ?\|$", page, re.M)
    assert {cell: [cold, resident] for cell, cold, resident in told} == measured
