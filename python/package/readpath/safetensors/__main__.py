"""Runs a Python program whose safetensors files are read by readpath."""

from __future__ import annotations

import os
import runpy
import shutil
import sys

from readpath.safetensors import install

USAGE = """usage: python -m readpath.safetensors PROGRAM [ARGUMENTS]
       python -m readpath.safetensors -m MODULE [ARGUMENTS]
Runs a Python program that loads safetensors files; readpath reads these files, also in the Python
processes that the program starts. PROGRAM is a file, or a Python script on PATH such as torchrun."""


def _refuse(message: str) -> SystemExit:
    print(f"python -m readpath.safetensors: {message}", file=sys.stderr)
    return SystemExit(2)


def _program(name: str) -> str:
    """Path of the program; one without a folder is also looked for on PATH, as a shell does."""
    if os.path.exists(name):
        return name
    found = None if os.path.dirname(name) else shutil.which(name)
    if found is None:
        raise _refuse(f"{name}: there is no such file, and no such program on PATH")
    with open(found, "rb") as program:
        if b"python" not in program.readline(200):
            raise _refuse(f"{found} is not a Python program")
    return found


def _install_in_children() -> None:
    """Python processes started from here find the hook on their PYTHONPATH."""
    children = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_children")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([children, before] if before else [children])


def main() -> None:
    """Installs the hook here and in child processes, and runs the program of the command line."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else 2)
    if arguments[0] == "-m" and len(arguments) < 2:
        raise _refuse(f"-m needs the name of a module\n{USAGE}")
    if arguments[0].startswith("-") and arguments[0] != "-m":
        raise _refuse(f"unknown option {arguments[0]!r}\n{USAGE}")
    is_module = arguments[0] == "-m"
    program = arguments[1] if is_module else _program(arguments[0])
    install()
    _install_in_children()
    if is_module:
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    sys.argv = [program, *arguments[1:]]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


main()
