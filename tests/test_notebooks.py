"""Notebooks run from top to bottom, and show what their cells really print.

`pytest --update-golden` stores what they print now.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What Jupyter calls the file of a cell: a folder of its process, a digest of its text.
_CELL = re.compile(r"(?:\S*/ipykernel_\d+/)?\b\d{5,}\.py")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run(notebook: Any) -> None:
    """Execute the cells in a process of its own and put their outputs into them."""
    from nbclient import NotebookClient

    # Without timings, which would differ each time.
    client = NotebookClient(notebook, timeout=300, record_timing=False, store_widget_state=False)
    client.execute(cwd=str(ROOT))
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if "outputs" in cell:
            # Warnings and progress: they depend on the machine and are nobody's result.
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = _CELL.sub("cell.py", output.text)


def shown(cell: Any) -> tuple[str, list[Any]]:
    """What a reader sees below a cell: text, in however many pieces it came, and pictures."""
    outputs = cell.get("outputs", [])
    return "".join(o.get("text", "") for o in outputs), [o["data"] for o in outputs if "data" in o]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_it_prints(path: Path, request: pytest.FixtureRequest) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is missing; the notebooks extra has it")
    import nbformat

    stored, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    run(fresh)
    if request.config.getoption("--update-golden"):
        nbformat.write(fresh, path)
        return
    for before, after in zip(stored.cells, fresh.cells, strict=True):
        assert shown(after) == shown(before), f"{after.source}: pytest --update-golden stores it"
    assert path.stat().st_size < 100_000


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
