"""Every recipe of docs/recipes.md runs as it stands, in its order."""

import contextlib
import re
import sys
from pathlib import Path

import pytest

import readpath

DOCS = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"
RECIPES = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What one recipe leaves for the next."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "far.bin").write_bytes(bytes(range(256)) * 4096)
    with delayed_store.running(folder / "far.bin", 1) as url:
        yield {"folder": folder, "url": url, "__name__": "recipes"}


@pytest.fixture(scope="module")
def stack():
    """What is ended when the last recipe is done."""
    with contextlib.ExitStack() as stack:
        yield stack


def lacks_userfaultfd(tmp_path):
    (tmp_path / "probe").write_bytes(b"1")
    try:
        readpath.map(tmp_path / "probe").close()
    except OSError as error:
        return str(error)


@pytest.mark.parametrize(("title", "text"), RECIPES, ids=[title for title, _ in RECIPES])
def test_recipe_runs(title, text, names, stack, request, tmp_path):
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert code, "a recipe has code"
    for module in ("distributed", "fsspec", "matplotlib", "numpy", "pandas", "pyarrow"):
        if module in code or (module == "matplotlib" and "plot." in code):
            pytest.importorskip(module)
    if "nfs_url" in code and "nfs_url" not in names:
        serve = request.getfixturevalue("nfs_server")
        names["nfs_url"] = stack.enter_context(serve(names["folder"] / "far.bin"))
    if ("readpath.map" in code or "Region" in code) and (why := lacks_userfaultfd(tmp_path)):
        pytest.skip(f"no userfaultfd here: {why}")
    exec(compile(code, f"{DOCS.name}: {title}", "exec"), names)
    for picture in re.findall(r'"(\w+\.png)"', code):
        assert (names["folder"] / picture).stat().st_size > 5_000
