"""Build backend of the package: maturin, and the command `readpath` among the wheel's scripts.

pip calls these functions (PEP 517 and PEP 660). The command is the Rust program in `crates/cli`,
built for release and stripped. With `READPATH_COMMAND` in the environment, that file is the command
and nothing is built for it.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import maturin
from maturin import get_requires_for_build_editable, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# maturin installs the files of this folder among the environment's programs (`tool.maturin.data`).
SCRIPTS = PACKAGE / "readpath.data" / "scripts"


def command() -> pathlib.Path:
    """Returns the path of the command, and builds it unless `READPATH_COMMAND` names one."""
    if given := os.environ.get("READPATH_COMMAND"):
        path = pathlib.Path(given)
        if not path.is_file():
            raise RuntimeError(f"READPATH_COMMAND={given}: there is no such file; name a built command, or unset it")
        return path
    manifest = PACKAGE.parent / "crates" / "cli" / "Cargo.toml"
    if not manifest.is_file():
        raise RuntimeError(f"{manifest} is missing: install from a clone of the repository, or from a wheel")
    # Lints of the tests' build are of its own.
    environment = {name: value for name, value in os.environ.items() if name != "RUSTC_WORKSPACE_WRAPPER"}
    environment["CARGO_PROFILE_RELEASE_STRIP"] = "symbols"
    build = ["cargo", "build", "--release", "--locked", "--bin", "readpath", "--message-format=json-render-diagnostics"]
    try:
        built = subprocess.run(
            [*build, "--manifest-path", str(manifest)], env=environment, stdout=subprocess.PIPE, check=True
        )
    except FileNotFoundError:
        raise RuntimeError("cargo is missing: install Rust from https://rustup.rs") from None
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "readpath":
            return pathlib.Path(message["executable"])
    raise RuntimeError("cargo has built no program `readpath`")


@contextlib.contextmanager
def scripts_folder(built: pathlib.Path | None) -> Iterator[None]:
    """Makes the folder that maturin packs, with the command in it if there is one. Removes it afterwards."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    try:
        if built:
            shutil.copy2(built, SCRIPTS / "readpath")
        yield
    finally:
        shutil.rmtree(SCRIPTS.parent)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the wheel, with the command. Returns its file name."""
    with scripts_folder(command()):
        return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: dict[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the wheel of an editable installation, with the command. Returns its file name."""
    with scripts_folder(command()):
        return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """Writes the metadata of the wheel. Returns the name of its folder."""
    with scripts_folder(None):
        return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """Refuses: the sources of the command and of the library are outside the package's folder."""
    raise RuntimeError("readpath has no source distribution: install a wheel, or `pip install ./python` in a clone")
