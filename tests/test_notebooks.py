"""Notebooks run from top to bottom, and show what their cells really print.

python -m tests.test_notebooks      runs them and stores the new outputs
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> tuple[Any, Any]:
    """The notebook as it is stored, and after a run in a process of its own."""
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    # No timings: they would differ each time.
    NotebookClient(fresh, timeout=300, record_timing=False, store_widget_state=False).execute(
        cwd=str(ROOT)
    )
    return stored, fresh


def shown(cell: Any) -> list[Any]:
    """What a reader sees below a cell.  Warnings and progress on stderr are not part of it."""
    outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]
    return [o.get("text") or o.get("data") for o in outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_it_prints(path: Path) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(
            package, reason=f"{package} is not installed; the notebooks extra has it"
        )
    stored, fresh = executed(path)
    for before, after in zip(stored.cells, fresh.cells, strict=True):
        assert shown(after) == shown(before), after.source
    assert path.stat().st_size < 100_000


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def _refresh() -> None:
    import nbformat

    for path in NOTEBOOKS:
        _, fresh = executed(path)
        for cell in fresh.cells:
            if "outputs" in cell:
                cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        fresh.metadata.language_info = {"name": "python"}
        nbformat.write(fresh, path)


if __name__ == "__main__":
    _refresh()
