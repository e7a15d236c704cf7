#!/usr/bin/env python3
"""Effect of each constant of the policies `adaptive`: bench/sensitivity.py REGRET.json [NAME...]
or --list

REGRET.json is the output of `readpath eval policies --json`. A copy of the working tree is built
once, in which each constant is a function that reads its value from the environment: its own, half
of it, or twice. The policies run with each value in the cells of the tuning set, never in the
held-out set. Constants that the compiler must know, such as array lengths, are set in the text
instead and rebuilt. Prints a table and writes bench/results/sensitivity.json, which keeps the
results of other runs. About a quarter of a minute for each of the two values. NAME selects
constants. `--list` prints the constants as declared.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
CORE = Path("crates/core/src")
FILES = ["observed.rs", "estimate.rs", "length_distribution.rs", "readahead/evidence.rs", "readahead/credit.rs", "readahead/adaptive.rs",
         "scheduler/adaptive.rs", "swapin/adaptive.rs"]
FOLDERS = ["estimate", "readahead/adaptive", "scheduler/adaptive", "swapin/adaptive"]
# Units, bounds of numbers and sizes of tables: they decide nothing.
UNITS = {"PROBABILITY_ONE", "INVERSE_MAX", "ALL", "ALL_NEAR", "MARKED", "UNMARKED", "COVARIANCE_UNIT", "UNITS_PER_PAGE", "BLOCK_RANGES", "STEPS", "FINE_STEPS", "FIRST_COARSE_LENGTH", "SIZES", "REGIONS_MAX",
         "LATENCY", "SERVICE_TIME", "PAGE", "PROBABILITY_UNIT", "WEIGHT_UNIT", "DURATION_NS_MAX", "COUNT_MAX", "PAGE_PS_MIN"}
DECLARED = re.compile(r"^(?:pub\(\w+\) )?const ([A-Z_]+): (\w+) = (.+);$", re.M)
IMPORT = re.compile(r"^((?:pub(?:\(\w+\))? )?use [^;]*;)", re.M)
FACTORS = {"half": 0.5, "twice": 2}
LITERAL = re.compile(r"(?<![\w.])\d[\d_]*(?!\w)")


def constants(tree):
    """File, name and declaration of each constant."""
    files = [tree / CORE / name for name in FILES]
    for folder in FOLDERS:
        files += sorted((tree / CORE / folder).glob("*.rs"))
    for file in files:
        for match in DECLARED.finditer(file.read_text()):
            if match[1] not in UNITS:
                yield file.relative_to(tree), match[1], match[0]


def scaled(declaration, factor):
    """The declaration with its last number times `factor`; None if that number stays equal."""
    head, value = declaration.split(" = ", 1)
    numbers = list(LITERAL.finditer(value))
    last = numbers[0] if "<<" in value else numbers[-1]
    before = int(last[0].replace("_", ""))
    after = max(1, int(before * factor))
    if "u8" in head:
        after = min(after, 255)
    return None if after == before else f"{head} = {value[:last.start()]}{after}{value[last.end():]}"


def called(tree, file, name, declaration):
    """Replaces the constant by a function that reads its value, and its uses by calls."""
    public, typed, value = re.match(rf"(.*)const {name}: (\w+) = (.*);$", declaration).groups()
    arms = [f"Ok(\"{key(file, name)} {word}\") => {scaled(declaration, factor).removesuffix(';').split(' = ', 1)[1]},"
            for word, factor in FACTORS.items() if scaled(declaration, factor)]
    function = (f"#[allow(non_snake_case)]\n{public}fn {name}() -> {typed} {{\n"
                f"    static IS: std::sync::OnceLock<{typed}> = std::sync::OnceLock::new();\n"
                f"    *IS.get_or_init(|| match std::env::var(\"TUNED\").as_deref() {{ {' '.join(arms)} _ => {value} }})\n}}")
    for user in (tree / CORE).rglob("*.rs"):
        text = user.read_text()
        if user != tree / file and not re.search(rf"^use [^;]*\b{name}\b", text, re.M):
            continue
        before, declared, after = text.partition(declaration) if user == tree / file else ("", "", text)
        parts = ["".join(asked(piece, name) for piece in IMPORT.split(part)) for part in (before, after)]
        user.write_text(parts[0] + (function if declared else "") + parts[1])


def asked(piece, name):
    """The text without imports and comments, with each use of the constant as a call."""
    if IMPORT.match(piece):
        return piece
    return re.sub(r"^(?!\s*//)(.*)$", lambda line: re.sub(rf"\b{name}\b(?!\()", f"{name}()", line[0]), piece, flags=re.M)


def key(file, name):
    return f"{file.relative_to(CORE)}: {name}"


def build(tree):
    """Builds the program that runs the policies; returns it, or the compiler output."""
    profile = ["lto=false", "codegen-units=16", "incremental=true", "opt-level=2"]
    config = [word for option in profile for word in ("--config", f"profile.release.{option}")]
    command = ["cargo", *config, "build", "-q", "--release", "-p", "readpath-sim", "--example", "developed_ratios"]
    target = tree / "target"
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    program = target / "release/examples/developed_ratios"
    return (None, done.stderr) if done.returncode else (program, "")


def run(program, baselines, tuned=""):
    environment = os.environ | {"TUNED": tuned}
    done = subprocess.run([program, baselines], capture_output=True, text=True, env=environment)
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


def copied(folder):
    """A copy of the working tree to build in, and its constants."""
    tree = Path(folder) / "tree"
    ignore = shutil.ignore_patterns("target", ".git", ".venv", "python", "fuzz/target")
    shutil.copytree(ROOT, tree, ignore=ignore)
    manifest = tree / "Cargo.toml"
    manifest.write_text(re.sub(r'^\s*"python",?\n', "", manifest.read_text(), flags=re.M))
    return tree, list(constants(tree))


def built(tree, found):
    """The program that reads its constants, and the names that the compiler must know."""
    fixed = set()
    texts = {path: path.read_text() for path in (tree / CORE).rglob("*.rs")}
    while True:
        for path, text in texts.items():
            path.write_text(text)
        root = tree / CORE / "lib.rs"
        root.write_text(root.read_text().replace("#[cfg(test)]\nextern crate std;", "extern crate std;", 1))
        for file, name, declaration in found:
            if key(file, name) not in fixed:
                called(tree, file, name, declaration)
        program, said = build(tree)
        if program:
            return program, fixed, texts
        places = re.findall(r"--> (\S+?):\d+:\d+\n.*\n.*?\b([A-Z_]+)\(\)", said)
        new = {key(file, name) for at, used in places for file, name, _ in found
               if used == name and (at == str(file) or at.startswith(str(file.with_suffix(""))))} - fixed
        if not new:
            sys.exit(f"the copy does not build:\n{said}")
        fixed |= new


def main():
    if sys.argv[1:] == ["--list"]:
        return print("\n".join(f"{key(file, name)}\t{declared}" for file, name, declared in constants(ROOT)))
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    baselines, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="readpath-sensitivity-") as folder:
        tree, found = copied(folder)
        program, fixed, texts = built(tree, found)
        program = program.rename(program.with_name("asked"))
        base = run(program, baselines)
        if "error" in base:
            sys.exit(f"the tree as it is does not run: {base['error']}")
        known = json.loads(RESULTS.read_text())["constants"] if RESULTS.exists() and names else {}
        first = {key: base[key] for key in ["geometric_mean", "below_95_percent", "minimum"]}
        print(f"as it is: {first}", flush=True)
        for file, name, declaration in found:
            if names and name not in names:
                continue
            this, results = key(file, name), {}
            for word, factor in FACTORS.items():
                changed = scaled(declaration, factor)
                if changed is None:
                    results[word] = None
                elif this not in fixed:
                    results[word] = against(run(program, baselines, f"{this} {word}"), base)
                else:
                    for path, text in texts.items():
                        path.write_text(text.replace(declaration, changed) if path == tree / file else text)
                    other, said = build(tree)
                    results[word] = against(run(other, baselines) if other else {"error": said.splitlines()[0]}, base)
            known[this] = {"declared": declaration} | results
            print(f"| `{this}` | {shown(results['half'])} | {shown(results['twice'])} |", flush=True)
            document = {"cells": len(base["ratios"]), "as_it_is": first, "constants": known}
            RESULTS.write_text(json.dumps(document, indent=1) + "\n")


main()
