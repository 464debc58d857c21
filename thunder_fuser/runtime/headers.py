"""The C++ that is not generated: where `csrc_templates` is, and its headers as text.

A wheel carries the folder inside the package; a checkout and an editable install have it beside the
package.  `importlib.resources` finds only the first of these, a path next to this file finds all.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

ROOT: Path = next(
    folder
    for folder in (_PACKAGE / "csrc_templates", _PACKAGE.parent / "csrc_templates")
    if folder.is_dir()
)


def device_headers() -> dict[str, str]:
    """Every header that CUDA code may include, by the name it is included with.

    Sorted, without `host/`: that is the shim which stands in for CUDA under a host compiler.
    """
    files = sorted(path for path in ROOT.rglob("*.cuh") if "host" not in path.parts)
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
