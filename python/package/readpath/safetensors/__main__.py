"""Runs a Python program whose safetensors files are read by readpath."""

from __future__ import annotations

import runpy
import sys

from readpath.safetensors import install

USAGE = """usage: python -m readpath.safetensors PROGRAM.py [ARGUMENTS]
       python -m readpath.safetensors -m MODULE [ARGUMENTS]
Runs a Python program that loads safetensors files; readpath reads these files."""


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else 2)
    install()
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print(f"-m needs the name of a module\n{USAGE}", file=sys.stderr)
            raise SystemExit(2)
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if arguments[0].startswith("-"):
        print(f"unknown option {arguments[0]!r}\n{USAGE}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = arguments
    import os.path

    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


main()
