"""The Python in the book runs as it stands."""

import re
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book" / "src"
BLOCKS = [
    (f"{path.name}-{nth}", code)
    for path in sorted(BOOK.rglob("*.md"))
    for nth, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S))
]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_book_block_runs(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "book"})
