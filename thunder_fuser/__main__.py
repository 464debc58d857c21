"""The command line: `python -m thunder_fuser demo | doctor | explain FILE | cache info | clear`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from thunder_fuser.errors import FuserError

_BROKEN_PIPE = 141
"""Exit status that a shell reports for a process ended by SIGPIPE (128 + 13)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 when it succeeded."""
    parser = argparse.ArgumentParser(prog="python -m thunder_fuser", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="fuse a small model, check it and show what was made of it")
    commands.add_parser("doctor", help="what is installed, and one kernel run on every target")
    explain = commands.add_parser("explain", help="what became of the functions of a script")
    explain.add_argument("file", metavar="FILE.py")
    explain.add_argument("--fake", action="store_true", help="run it on tensors without memory")
    forms = explain.add_mutually_exclusive_group()
    forms.add_argument("--full", action="store_true", help="every plan, boundary and reason")
    forms.add_argument("--json", action="store_true", help="as data")
    explain.add_argument("--html", metavar="FILE", default="", help="write a page, too")
    explain.add_argument(
        "--mesh", metavar="2x4", default="", help="plan it for a mesh of devices, too: dp2xtp4"
    )
    explain.add_argument(
        "--shard",
        metavar="PATTERN=AXIS:DIMENSION",
        action="append",
        default=[],
        help="a parameter or argument that is cut along an axis of the mesh: '*.up.weight=tp:0'",
    )
    explain.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    cache = commands.add_parser("cache", help="the compiled kernels on disk")
    cache.add_argument("action", choices=("info", "clear"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "explain" and chosen.shard and not chosen.mesh:
        explain.error("--shard needs --mesh, the devices that it divides a tensor among")
    try:
        status = _run(chosen)
        sys.stdout.flush()
    except FuserError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `demo | head`: the reader closed the pipe. Buffered output is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def _run(chosen: argparse.Namespace) -> int:
    # Imported on demand: torch alone takes seconds, and `--help` and `cache` do not need it.
    if chosen.command == "demo":
        from thunder_fuser import demo

        return demo.main()
    if chosen.command == "doctor":
        from thunder_fuser import doctor

        return doctor.main()
    if chosen.command == "explain":
        from thunder_fuser import explain

        form: explain.Form = "full" if chosen.full else "json" if chosen.json else "short"
        onto = explain.OnMesh(chosen.mesh, tuple(chosen.shard)) if chosen.mesh else None
        return explain.main(chosen.file, chosen.fake, chosen.arguments, form, chosen.html, onto)
    from thunder_fuser import cache_command

    clear = chosen.action == "clear"
    print(cache_command.clear() if clear else cache_command.info())
    return 0


if __name__ == "__main__":
    sys.exit(main())
