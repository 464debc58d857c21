"""The README tells the truth: its code prints what it shows, its tables are what they claim to be.

`pytest --update-golden` writes fresh output and tables into it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import summary
from tests.support.plans import definitions_table, programs_table
from thunder_fuser.config import TABLE

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "amd-epyc.json"

# A block of code, and the block of text right after it, which is its output.
_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S
)
_OWN_LINE = re.compile(r"\bREADME\.md:(\d+)")
# A table that a function makes, between two comments with its name.
_TABLE = re.compile(r"<!-- (?P<name>\w+) -->\n(?P<body>.*?)<!-- end of (?P=name) -->", re.S)


def code_blocks() -> list[tuple[int, str, str | None]]:
    """Line number in the README, code and expected output of each block."""
    text = README.read_text()
    return [
        (text.count("\n", 0, match.start("code")) + 1, match["code"], match["output"])
        for match in _CODE.finditer(text)
    ]


def printed(code: str, line: int) -> str:
    """What a block prints, whose lines it numbers from its first.  It sees nothing of the blocks
    before it.
    """
    # On their lines of the README, which errors then name.
    program = compile("\n" * (line - 1) + code, str(README), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(program, {"__name__": "__main__"})
    return _OWN_LINE.sub(lambda own: f"example.py:{int(own[1]) - line + 1}", output.getvalue())


def results() -> Mapping[str, Any]:
    """The report that the README quotes."""
    return json.loads(RESULTS.read_text())  # type: ignore[no-any-return]


def options_table() -> str:
    lines = ["| variable | takes | default | |", "| --- | --- | --- | --- |"]
    for option in TABLE:
        default = "" if option.default in (None, "") else str(option.default)
        lines.append(f"| `{option.variable}` | {option.expects} | {default} | {option.doc} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "options": options_table,
    "figures": lambda: summary(results()),
    "programs": programs_table,
    "definitions": definitions_table,
}


@pytest.fixture(scope="module", autouse=True)
def update(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        text = _CODE.sub(_with_output, README.read_text())
        README.write_text(_TABLE.sub(_remade, text))


@pytest.mark.parametrize("block", range(len(code_blocks())))
def test_code_prints_what_the_readme_shows(block: int) -> None:
    line, code, output = code_blocks()[block]
    assert printed(code, line) == (output or ""), "if that is right, pytest --update-golden"


def test_the_first_screen_has_code_and_its_output() -> None:
    line, code, output = code_blocks()[0]
    assert line < 10
    assert sum(bool(text.strip()) for text in code.splitlines()) <= 12
    assert output


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_its_function_makes(name: str) -> None:
    found = {match["name"]: match["body"] for match in _TABLE.finditer(README.read_text())}
    assert found.keys() == TABLES.keys()
    assert found[name] == TABLES[name]()


def test_what_is_said_about_plans_is_in_the_report() -> None:
    (table,) = (t for t in results()["tables"] if t["title"] == "Plans and compilation")
    assert len(table["rows"]) > 20
    for row in table["rows"]:
        # A forward and its backward as one program are two of the others.
        if "ideal" not in row:
            continue
        kernels, traffic = (2, 1.5) if row["workload"] == "BatchNorm, channels last" else (1, 1)
        assert (row["kernels"], row["in_torch"], row["spilled"]) == (kernels, 0, 0), row["workload"]
        assert row["bytes"] == pytest.approx(traffic * row["ideal"], rel=(traffic - 1) * 1e-3)


def test_the_layout_names_every_package() -> None:
    (layout,) = re.findall(r"^## Layout\n.*?```\n(.*?)```", README.read_text(), re.M | re.S)
    named = [line.split()[0] for line in layout.splitlines()]
    assert [name for name in named if not (ROOT / name).is_dir()] == []
    packages = {f"thunder_fuser/{p.parent.name}/" for p in ROOT.glob("thunder_fuser/*/__init__.py")}
    assert packages <= set(named)


def _with_output(match: re.Match[str]) -> str:
    if match["output"] is None:
        return match[0]
    return f"```python\n{match['code']}```\n\n```text\n{printed(match['code'], 1)}```\n"


def _remade(match: re.Match[str]) -> str:
    name = match["name"]
    return f"<!-- {name} -->\n{TABLES[name]()}<!-- end of {name} -->"
