"""Machine code as text (SASS), by nvdisasm: from the wheel `nvidia-cuda-nvdisasm`, triton's wheel
or a CUDA toolkit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

MISSING = "no nvdisasm: not in the wheels of nvidia-cuda-nvdisasm and triton, $CUDA_HOME or PATH"


def find_nvdisasm() -> str | None:
    """Return the path of nvdisasm, or None."""
    found = (shutil.which("nvdisasm", path=str(folder)) for folder in _folders())
    return next(filter(None, found), None) or shutil.which("nvdisasm")


def _folders() -> Iterator[Path]:
    nvidia = importlib.util.find_spec("nvidia")
    for place in nvidia.submodule_search_locations or () if nvidia else ():
        yield from sorted(Path(place).glob("cu*/bin"), reverse=True)
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "bin"
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin"


def disassembled(image: bytes) -> dict[str, str]:
    """Return nvdisasm's output for each kernel of a cubin, by name; a kernel includes the
    subroutines that it calls. Raises FileNotFoundError without nvdisasm.
    """
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        raise FileNotFoundError(MISSING)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [nvdisasm, "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Text before the first kernel, then name and code in turn.
    _, *parts = re.split(r"^\s*\.section\s+\.text\.([\w$]+).*$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


_LINE = re.compile(r"^(?:([.$]\w\S*):|\s*/\*([0-9a-f]{4,})\*/\s+([^;]*?)\s*;)", re.MULTILINE)


def listing(code: str) -> str:
    """Format the instructions of a kernel with addresses and labels, without NOPs."""
    lines = []
    for label, address, instruction in _LINE.findall(code):
        if label.startswith(".text."):
            continue
        if label:
            lines.append(f"{label}:")
        elif instruction != "NOP":
            lines.append(f"{address}  {instruction}")
    return "\n".join(lines)
