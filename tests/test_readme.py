"""The README tells the truth: its code runs and prints what it shows, its tables are the code's.

python -m tests.test_readme         writes new output and the options table into the README
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from thunder_fuser.options import TABLE

README = Path(__file__).resolve().parents[1] / "README.md"

# A block of code, and the block of text that follows it if that is its output.
_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S
)
_OPTIONS = re.compile(r"(?<=<!-- options -->\n)(.*?)(?=<!-- end of options -->)", re.S)


def code_blocks() -> Iterator[tuple[int, str, str | None]]:
    """Line number in the README, code and expected output of each block."""
    text = README.read_text()
    for match in _CODE.finditer(text):
        yield text.count("\n", 0, match.start("code")) + 1, match["code"], match["output"]


def printed(code: str, line: int) -> str:
    """What a block prints.  It sees nothing of the blocks before it."""
    # On their lines of the README, which errors then name.
    program = compile("\n" * (line - 1) + code, str(README), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(program, {"__name__": "__main__"})
    return output.getvalue()


def options_table() -> str:
    """The options as Markdown."""
    rows = ["| variable | takes | default | |", "| --- | --- | --- | --- |"]
    for option in TABLE:
        default = "" if option.default in (None, "") else str(option.default)
        takes = option.expects.replace("|", r"\|")
        rows.append(f"| `{option.variable}` | {takes} | {default} | {option.doc} |")
    return "\n".join(rows) + "\n"


def test_there_is_code_to_run() -> None:
    outputs = [output for _, _, output in code_blocks() if output]
    assert len(outputs) >= 2


@pytest.mark.parametrize(
    ("line", "code", "output"),
    [pytest.param(*block, id=f"line {block[0]}") for block in code_blocks()],
)
def test_code_prints_what_the_readme_shows(line: int, code: str, output: str | None) -> None:
    assert printed(code, line) == (output or "")


def test_every_option_is_in_the_table() -> None:
    (table,) = _OPTIONS.findall(README.read_text())
    assert table == options_table()


def test_the_folders_that_are_described_exist() -> None:
    text = README.read_text()
    (layout,) = re.findall(r"^## Layout\n.*?```\n(.*?)```", text, re.M | re.S)
    named = [line.split()[0] for line in layout.splitlines() if line.strip()]
    root = README.parent
    places = [root / name for name in named if "/" in name]
    assert places
    assert [str(place) for place in places if not place.exists()] == []
    packages = {f"thunder_fuser/{p.parent.name}/" for p in root.glob("thunder_fuser/*/__init__.py")}
    assert packages <= set(named)


def _refresh() -> None:
    def with_output(match: re.Match[str]) -> str:
        if match["output"] is None:
            return match[0]
        shown = printed(match["code"], 1)
        return f"```python\n{match['code']}```\n\n```text\n{shown}```\n"

    text = _CODE.sub(with_output, README.read_text())
    README.write_text(_OPTIONS.sub(lambda _: options_table(), text))


if __name__ == "__main__":
    _refresh()
