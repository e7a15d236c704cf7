"""Every recipe of docs/libraries.md runs as it stands, if its library is installed."""

import re
import sys
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
pytest.importorskip("fsspec")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "python" / "docs" / "libraries.md"
RECIPES = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
CODE = {name: "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)) for name, text in RECIPES}
SHAPE = (64, 64, 4)

sys.path.append(str(ROOT / "bench"))
import delayed_store  # noqa: E402
import python_libraries  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("libraries")


def url_names(code, folder, stack):
    """The URLs that a recipe names, each of a server with the written file."""
    writers = {
        "parquet_url": lambda path: python_libraries.write_parquet(path, 2_000, 500),
        "h5_url": lambda path: python_libraries.write_h5(path, SHAPE),
        "zip_url": lambda path: python_libraries.write_zip(path, SHAPE),
        "tar_url": lambda path: python_libraries.write_tar(path, 7, 1_000),
    }
    names = {"data_shape": SHAPE, "tar_bytes": 7_000, "frame": range(2_000), "__name__": "recipe"}
    for name, write in writers.items():
        if name in code:
            path = folder / name
            if not path.exists():
                write(path)
            names[name] = stack.enter_context(delayed_store.running(path, 1))
    return names


@pytest.mark.parametrize("name", [name for name, code in CODE.items() if code])
def test_library_recipe_runs(name, folder):
    import contextlib

    for line in re.findall(r"^import (.+)$", CODE[name], re.M):
        for module in line.split(", "):
            pytest.importorskip(module.split(".")[0])
    with contextlib.ExitStack() as stack:
        exec(compile(CODE[name], f"{DOCS}: {name}", "exec"), url_names(CODE[name], folder, stack))


def test_a_level_result_is_named_so():
    # Spreads that overlap, and two that do not: 1.0 to 1.2 next to 2.0 to 2.4, medians 1.1 and 2.2.
    assert python_libraries.verdict([1.0, 2.0, 1.5], [1.9, 2.5, 2.0]) == "level"
    assert python_libraries.verdict([1.0, 1.1, 1.2], [2.0, 2.2, 2.4]) == "0.50"
