"""Builds the command and the benchmark programs of crates/eval/benches."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Build folder, as cargo takes it from the environment.
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
# The command after a release build.
COMMAND = TARGET / "release/readpath"


def bench(name: str) -> str:
    """Path of a benchmark program, built as `cargo bench` builds it."""
    command = ["cargo", "bench", "--quiet", "-p", "readpath-eval", "--bench", name, "--no-run",
               "--message-format=json"]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in told.splitlines()]
    return next(message["executable"] for message in built
                if message.get("executable") and message["target"]["name"] == name)


def command() -> pathlib.Path:
    """Path of the command, built as `cargo build --release` builds it."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "readpath"], cwd=ROOT, check=True)
    told = subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps"], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return pathlib.Path(json.loads(told)["target_directory"]) / "release/readpath"
