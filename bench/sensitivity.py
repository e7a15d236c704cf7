#!/usr/bin/env python3
"""What each constant of the laws `adaptive` is worth: bench/sensitivity.py REGRET.json [NAME...]

REGRET.json is what `readpath regret --json` printed. Each constant is set to half and to twice its value in a copy
of the working tree, and the laws are run in the cells on which they are worked on (never in those that are held
out). Prints a table and writes bench/results/sensitivity.json, which keeps what other runs found. About half a
minute for each of the two values. With names only those.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
CORE = Path("crates/core/src")
FILES = ["estimate.rs", "readahead/evidence.rs", "readahead/adaptive.rs", "scheduler/adaptive.rs",
         "swapin/adaptive.rs"]
FOLDERS = ["readahead/adaptive", "scheduler/adaptive", "swapin/adaptive"]
# Units in which something is counted, and sizes of tables: they decide nothing.
UNITS = {"CHANCE_ONE", "ALL", "PARTS", "BLOCK", "AGES", "STEPS"}
DECLARED = re.compile(r"^const ([A-Z_]+): (\w+) = (.+);$", re.M)
LITERAL = re.compile(r"(?<![\w.])\d[\d_]*(?!\w)")


def constants(tree):
    """File, name and declaration of each."""
    files = [tree / CORE / name for name in FILES]
    for folder in FOLDERS:
        files += sorted((tree / CORE / folder).glob("*.rs"))
    for file in files:
        for match in DECLARED.finditer(file.read_text()):
            if match[1] not in UNITS:
                yield file.relative_to(tree), match[1], match[0]


def scaled(declaration, factor):
    """The declaration with its last number times `factor`; None where that is no other number."""
    head, value = declaration.split(" = ", 1)
    numbers = list(LITERAL.finditer(value))
    last = numbers[0] if "<<" in value else numbers[-1]
    before = int(last[0].replace("_", ""))
    after = max(1, int(before * factor))
    if "u8" in head:
        after = min(after, 255)
    return None if after == before else f"{head} = {value[:last.start()]}{after}{value[last.end():]}"


def run(tree, rivals):
    profile = ["lto=false", "codegen-units=16", "incremental=true", "opt-level=2"]
    config = [word for option in profile for word in ("--config", f"profile.release.{option}")]
    command = ["cargo", *config, "run", "-q", "--release", "-p", "readpath-sim", "--example", "developed_ratios",
               "--", str(rivals)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no word"}
    ratios = json.loads(done.stdout)
    values = list(ratios.values())
    return {"ratios": ratios, "geometric_mean": math.exp(sum(map(math.log, values)) / len(values)),
            "below_95_percent": sum(value < 0.95 for value in values), "minimum": min(values)}


def against(result, base):
    if "error" in result:
        return {"error": result["error"]}
    moved = [name for name, ratio in result["ratios"].items() if abs(ratio / base["ratios"][name] - 1) > 0.01]
    kept = {key: round(result[key], 4) for key in ["geometric_mean", "below_95_percent", "minimum"]}
    return kept | {"cells_moved": len(moved)}


def shown(result):
    if result is None:
        return "as small as it can be"
    if "error" in result:
        return f"doesn't run: {result['error'][:40]}"
    return (f"{result['geometric_mean']:.4f}, {result['below_95_percent']}, {result['minimum']:.3f}, "
            f"{result['cells_moved']}")


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    rivals, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="readpath-sensitivity-") as folder:
        tree = Path(folder) / "tree"
        ignore = shutil.ignore_patterns("target", ".git", ".venv", "python", "fuzz/target")
        shutil.copytree(ROOT, tree, ignore=ignore)
        manifest = tree / "Cargo.toml"
        manifest.write_text(re.sub(r'^\s*"python",?\n', "", manifest.read_text(), flags=re.M))
        base = run(tree, rivals)
        if "error" in base:
            sys.exit(f"the tree as it is does not run: {base['error']}")
        found = json.loads(RESULTS.read_text())["constants"] if RESULTS.exists() and names else {}
        first = {key: base[key] for key in ["geometric_mean", "below_95_percent", "minimum"]}
        print(f"as it is: {first}", flush=True)
        for file, name, declaration in constants(tree):
            key = f"{file.relative_to(CORE)}: {name}"
            if names and name not in names:
                continue
            text, results = (tree / file).read_text(), {}
            for word, factor in [("half", 0.5), ("twice", 2)]:
                changed = scaled(declaration, factor)
                if changed:
                    (tree / file).write_text(text.replace(declaration, changed))
                    results[word] = against(run(tree, rivals), base)
                else:
                    results[word] = None
            (tree / file).write_text(text)
            found[key] = {"declared": declaration} | results
            print(f"| `{key}` | {shown(results['half'])} | {shown(results['twice'])} |", flush=True)
            document = {"cells": len(base["ratios"]), "as_it_is": first, "constants": found}
            RESULTS.write_text(json.dumps(document, indent=1) + "\n")


main()
