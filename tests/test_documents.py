"""The README and the pages of docs/ tell the truth: code prints what they show, tables are what
they claim to be, links lead somewhere.

`pytest --update-golden` writes fresh output and tables into them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import thunder_fuser
from benchmarks.report import summary
from tests.support.plans import definitions_table, programs_table
from tests.support.refusal_examples import codes_of, run
from tests.zoo.template_programs import rms_norm
from thunder_fuser import errors
from thunder_fuser.__main__ import main as command_line
from thunder_fuser.config import TABLE
from thunder_fuser.device_table import H200
from thunder_fuser.ir.fusion import PointwiseOp, ReductionOp
from thunder_fuser.refusal_codes import CODES, ERRORS, Code, Mistake
from thunder_fuser.templates.choose import schedule_segment

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results" / "amd-epyc.json"

# A block of code, and the block of text right after it, which is its output.
_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S
)
_OWN_LINE = re.compile(r"\b\w+\.md:(\d+)")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([\w-]+))?\)")
# A table that a function makes, between two comments with its name.
_TABLE = re.compile(r"<!-- (?P<name>\w+) -->\n(?P<body>.*?)<!-- end of (?P=name) -->", re.S)


class Block(NamedTuple):
    """A block of code: where it begins, and what it is said to print."""

    page: Path
    line: int
    code: str
    output: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def code_blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in _CODE.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            yield Block(page, line, match["code"], match["output"] or "")


def printed(code: str, line: int, page: Path = README) -> str:
    """What a block prints, whose lines it numbers from its first.  It sees nothing of the blocks
    before it.
    """
    # On their lines of the page, which errors then name.
    program = compile("\n" * (line - 1) + code, str(page), "exec")
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


def refusals_table() -> str:
    lines = ["| code | meaning | remedy | example |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{row.code}` | {row.meaning} | {row.remedy} | {_shown(row.example)} |" for row in CODES
    ]
    return "\n".join(lines) + "\n"


def errors_table() -> str:
    lines = [
        "| error | base classes | raised when | remedy | example |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in ERRORS:
        others = ", ".join(f"`{b.__name__}`" for b in row.error.__bases__)
        doc = " ".join((row.error.__doc__ or "").partition("\n\n")[0].split())
        what = f"{others} | {doc} | {row.remedy} | {_shown(row.example)}"
        lines.append(f"| `{row.error.__name__}` | {what} |")
    return "\n".join(lines) + "\n"


def _shown(example: str) -> str:
    """Code in a cell of a table."""
    lines = [line.replace("    ", "\N{NO-BREAK SPACE}" * 4) for line in example.splitlines()]
    return "<br>".join(f"`{line}`" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "refusals": refusals_table,
    "errors": errors_table,
    "options": options_table,
    "figures": lambda: summary(results()),
    "programs": programs_table,
    "definitions": definitions_table,
}


@pytest.fixture(scope="module", autouse=True)
def update(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        for page in PAGES:
            text = _CODE.sub(_with_output, page.read_text())
            page.write_text(_TABLE.sub(_remade, text))


@pytest.mark.parametrize("block", code_blocks(), ids=str)
def test_code_prints_what_a_page_shows(block: Block) -> None:
    page, line, code, output = block
    assert printed(code, line, page) == output, "if that is right, pytest --update-golden"


def test_the_first_screen_has_code_and_its_output() -> None:
    first = next(code_blocks())
    assert first.page == README
    assert first.line < 10
    assert sum(bool(text.strip()) for text in first.code.splitlines()) <= 12
    assert first.output


def test_the_readme_is_two_screens() -> None:
    assert len(README.read_text().splitlines()) <= 140


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_its_function_makes(name: str) -> None:
    text = "".join(page.read_text() for page in PAGES)
    found = {match["name"]: match["body"] for match in _TABLE.finditer(text)}
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
    text = (ROOT / "docs" / "architecture.md").read_text()
    (layout,) = re.findall(r"^## Layout\n.*?```\n(.*?)```", text, re.M | re.S)
    named = [line.split()[0] for line in layout.splitlines()]
    assert [name for name in named if not (ROOT / name).is_dir()] == []
    folders = {
        path.parent.relative_to(ROOT) for path in ROOT.glob("thunder_fuser/*/**/__init__.py")
    }
    assert {f"{folder}/" for folder in folders} - set(named) == set()


def test_every_public_name_is_in_the_pages() -> None:
    """As code: between backticks, or in a block."""
    text = "".join(page.read_text() for page in PAGES)
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.S))
    assert set(thunder_fuser.__all__) - set(re.findall(r"\w+", code)) == set()


def test_every_error_is_public() -> None:
    assert {row.error.__name__ for row in ERRORS} <= set(thunder_fuser.__all__)


def _with_output(match: re.Match[str]) -> str:
    if match["output"] is None:
        return match[0]
    return f"```python\n{match['code']}```\n\n```text\n{printed(match['code'], 1)}```\n"


def _remade(match: re.Match[str]) -> str:
    name = match["name"]
    return f"<!-- {name} -->\n{TABLES[name]()}<!-- end of {name} -->"


def test_the_catalogue_has_every_code_of_a_refusal() -> None:
    used = set()
    for source in (ROOT / "thunder_fuser").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                used |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
    listed = [row.code for row in CODES]
    assert listed == sorted(listed)
    assert used == set(listed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", CODES, ids=lambda row: row.code)
def test_the_example_of_a_refusal_makes_one(row: Code) -> None:
    assert row.code in codes_of(row.example)


def test_the_catalogue_has_every_error() -> None:
    kinds = {k for k in vars(errors).values() if isinstance(k, type)}
    raised = {k for k in kinds if issubclass(k, errors.FuserError)} - {errors.FuserError}
    assert [row.error.__name__ for row in ERRORS if not row.example] == ["LoadError"]
    assert {row.error for row in ERRORS} == raised


@pytest.mark.parametrize("row", [r for r in ERRORS if r.example], ids=lambda r: r.error.__name__)
def test_the_example_of_an_error_raises_it(row: Mistake) -> None:
    with pytest.raises(row.error) as caught:
        run(row.example)
    assert type(caught.value) is row.error


@pytest.mark.parametrize(
    "page", sorted({*PAGES, *ROOT.glob("[A-Z]*.md")}), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for place, anchor in _LINK.findall(page.read_text()):
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {place}"
        if anchor and target.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            slugs = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: {place}#{anchor}"


_COMMAND = re.compile(r"python3? -m ([\w.]+)((?: +[\w./\[\]-]+)*)")


def commands() -> set[tuple[str, tuple[str, ...]]]:
    """What pages have one run by `python -m`, with its words."""
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    found = [m for page in pages for m in _COMMAND.finditer(page.read_text())]
    return {(m[1], tuple(m[2].replace("[", "").replace("]", "").split())) for m in found}


def test_commands_exist() -> None:
    """Modules and words of ours; others are tools that the extras install."""
    found = commands()
    assert {"thunder_fuser", "pytest", "venv", "benchmarks", "tests.sweep"} <= {m for m, _ in found}
    for module, words in found:
        assert importlib.util.find_spec(module) is not None, module
        if module == "thunder_fuser" and words:
            with contextlib.redirect_stdout(io.StringIO()) as told, pytest.raises(SystemExit):
                command_line([words[0], "--help"])
            options = [word for word in words if word.startswith("-")]
            assert all(option in told.getvalue() for option in options), words
        elif module.split(".")[0] in ("tests", "benchmarks"):
            source = "".join(_sources(ROOT / module.replace(".", "/")))
            options = [word for word in words if word.startswith("--")]
            assert all(f'"{option}"' in source for option in options), (module, words)


def _sources(place: Path) -> Iterator[str]:
    for file in [*place.glob("*.py"), place.with_suffix(".py")]:
        yield file.read_text() if file.exists() else ""


def test_the_kernel_that_is_followed_is_as_the_page_says() -> None:
    """Figures of docs/architecture.md's table, at each stage."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, table = page.partition("## One kernel, followed")
    rows = dict(re.findall(r"^\| ([\w ]+) \| (.*?) \|", table, re.M))
    definition = rms_norm(128, 16384)
    exprs = definition.compiled.fusion.exprs
    names = ", ".join(e.op for e in exprs if isinstance(e, (PointwiseOp, ReductionOp)))
    assert f"`{names}`" in rows["definition"]
    plan = definition.plan()
    (segment,) = plan.segments
    figures = f"{segment.bytes_read:,} B read, {segment.bytes_written:,} B written: the ideal"
    assert f"`{segment.kind}`, {figures}" in rows["plan"]
    assert plan.bytes == plan.bytes_ideal
    schedule = str(schedule_segment(segment, H200))
    assert "1024 threads a row, 1 rows a block" in schedule, schedule
    assert "vector 8" in schedule
    assert (
        rows["thread mapping"] == "1,024 threads per row, one row per block, 2 vectors per thread"
    )
    assert "persistent in registers" in schedule
    for path in re.findall(r"`([\w/]+\.(?:py|cu))`", table.partition("\n## ")[0]):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "thunder_fuser")), path


def test_sphinx_makes_pages_of_the_documents(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"{package} is missing; the docs extra has it")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs")]
    made = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert {page.stem for page in PAGES if page != README} <= pages
