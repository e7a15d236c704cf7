"""The programs of the benchmarks (crates/peers/benches), built."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def bench(name: str) -> str:
    """The program of one, as `cargo bench` builds it."""
    command = ["cargo", "bench", "--quiet", "-p", "readpath-peers", "--bench", name, "--no-run",
               "--message-format=json"]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in told.splitlines()]
    return next(message["executable"] for message in built
                if message.get("executable") and message["target"]["name"] == name)
