#!/usr/bin/env python3
"""Models loaded by transformers, accelerate and vLLM, without a change of their code.

usage: bench/python_models.py --environment PYTHON [--device NAME] [--times N] [--only NAME]…
       [--command PATH] [--small] [--save]   (default network, 7 runs, all loaders it has)

Needs root. PYTHON is the interpreter of an environment that has torch, transformers, the package
readpath, and accelerate or vLLM where these are to be measured. The device is that which
`bench/latency.py` emulates, with 128 KiB of kernel readahead and an ext4 file system. On it lies a
model of 220 million parameters in three safetensors files (879 MB).

Each loader runs cold and held, in fresh processes, in turn as it is (`alone`) and started by
`python -m readpath.safetensors` (`ours`). Seconds are of the load and of one sum over each
parameter, without the imports. The sums must be equal. `--save` adds the rows of this device to
bench/results/python-models.json.

- `transformers`: `AutoModelForCausalLM.from_pretrained`;
- `accelerate`: `load_checkpoint_in_model` into a model made before;
- `vllm`: vLLM's iterator over the weights, each copied to memory of its own as into a model's
  parameter; and with its strategies `prefetch` (all files are read by threads first) and `eager`
  (each file is read whole).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import advise
import latency

LOADERS = {
    "transformers": "transformers",
    "accelerate": "accelerate",
    "vllm": "vllm",
    "vllm, prefetch": "vllm",
    "vllm, eager": "vllm",
}
WAYS = {"alone": [], "ours": ["-m", "readpath.safetensors"]}
MODEL = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
         "num_attention_heads": 16, "vocab_size": 32000}
SMALL_MODEL = {**MODEL, "hidden_size": 256, "num_hidden_layers": 2}


def lay_out(folder: Path, small: bool) -> None:
    """Writes the model; runs in the measured environment."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(**(SMALL_MODEL if small else MODEL))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder, max_shard_size="20MB" if small else "300MB")


def load(name: str, folder: Path) -> dict:
    """Loads by this loader; runs in the measured environment. Imports are not in the seconds."""
    import torch

    if name.startswith("vllm"):
        from vllm.model_executor.model_loader import weight_utils

        strategy = name.partition(", ")[2] or None
        begun = time.monotonic()
        files = [str(path) for path in folder.glob("*.safetensors")]
        tensors = []
        for _, tensor in weight_utils.safetensors_weights_iterator(files, False, strategy):
            tensors.append(torch.empty_like(tensor).copy_(tensor))
    else:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        config = transformers.AutoConfig.from_pretrained(folder)
        model_class = transformers.AutoModelForCausalLM
        if name == "accelerate":
            import accelerate

            model = model_class.from_config(config)
            begun = time.monotonic()
            accelerate.load_checkpoint_in_model(model, str(folder))
        else:
            begun = time.monotonic()
            model = model_class.from_pretrained(folder)
        tensors = [parameter.detach() for parameter in model.parameters()]
    total = sum(float(tensor.double().sum()) for tensor in tensors)
    return {"seconds": time.monotonic() - begun, "sum": round(total, 3)}


def worker() -> None:
    """The second level of the script: one act in the measured environment."""
    act, folder, *rest = sys.argv[2:]
    if act == "lay-out":
        lay_out(Path(folder), rest == ["small"])
    else:
        print(json.dumps(load(act, Path(folder))))


def in_environment(python: str, options: list[str], act: str, *rest: object) -> str:
    """Output of an act in a process of its own."""
    command = [python, *options, __file__, "worker", act, *map(str, rest)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout


def has(python: str, module: str) -> bool:
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", probe]).returncode == 0


def measure(python: str, name: str, folder: Path, times: int) -> dict:
    files = sorted(folder.glob("*.safetensors"))
    seconds = {f"{state}, {way}": [] for state in ["cold", "held"] for way in WAYS}
    sums = set()
    ways = list(WAYS)
    for nth in range(times):
        for state in ["cold", "held"]:
            for way in ways[nth % 2:] + ways[:nth % 2]:
                for path in files:
                    advise.cold(path) if state == "cold" else path.read_bytes()
                output = in_environment(python, WAYS[way], name, folder)
                one = json.loads(output.splitlines()[-1])
                seconds[f"{state}, {way}"].append(round(one["seconds"], 3))
                sums.add(one["sum"])
    if len(sums) != 1:
        sys.exit(f"{name}: the sums of the parameters differ: {sums}")
    return {"loader": name, "seconds": seconds}


def print_row(row: dict) -> None:
    parts = [f"{row['loader']:16}"]
    for state in ["cold", "held"]:
        alone, ours = (row["seconds"][f"{state}, {way}"] for way in WAYS)
        ratio = statistics.median(alone) / statistics.median(ours)
        parts.append(f"{state}: alone {statistics.median(alone):.2f} s ({min(alone):.2f} to "
                     f"{max(alone):.2f}), ours {statistics.median(ours):.2f} ({min(ours):.2f} to "
                     f"{max(ours):.2f}), {ratio:.2f} times as fast")
    print("; ".join(parts), flush=True)


def main() -> None:
    parser = latency.device_parser(__doc__)
    parser.add_argument("--environment", required=True, metavar="PYTHON")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--only", action="append", choices=LOADERS)
    parser.add_argument("--small", action="store_true", help="a small model, one run: a check")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    latency.use_command(arguments)
    python = arguments.environment
    rows = []
    with latency.mounted(arguments.device, 128) as device:
        folder = Path(device) / "model"
        in_environment(python, [], "lay-out", folder, *(["small"] if arguments.small else []))
        subprocess.run(["sync"], check=True)
        for name in arguments.only or LOADERS:
            if not has(python, LOADERS[name]):
                print(f"{name:16} skipped: the environment lacks {LOADERS[name]}")
                continue
            in_environment(python, [], name, folder)
            rows.append(measure(python, name, folder, 1 if arguments.small else arguments.times))
            print_row(rows[-1])
    if arguments.save:
        latency.save_rows("python-models", arguments.device, {"rows": rows})


if __name__ == "__main__":
    worker() if sys.argv[1:2] == ["worker"] else main()
