"""The page, its text and the comparison: complete, small, and without requests; as a browser has
it, too.
"""

from __future__ import annotations

import html
import html.parser
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frontends.thunder.programs import jit
from tests.support.page_elements import Elements
from thunder_fuser.errors import Refusal
from thunder_fuser.inspect import Report, report
from thunder_fuser.inspect.data.program import FREE, Detail, Part, Program, Step, Tensor
from thunder_fuser.inspect.data.refusals import refused
from thunder_fuser.inspect.page.document import page as page_of

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def text_of(made: Report, folder: Path) -> str:
    return made.save(folder / "page.html").read_text(encoding="utf-8")


def test_a_page_asks_for_nothing(llama: Report, tmp_path: Path) -> None:
    page = text_of(llama, tmp_path)
    found = Elements(page)
    assert found.sources == []
    assert {link[0] for link in found.links} == {"#"}
    assert len(set(found.ids)) == len(found.ids)
    assert {link[1:] for link in found.links} <= {*found.ids}
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", page)


def test_the_graph_has_every_kernel_and_call(any_llama: Report, tmp_path: Path) -> None:
    boxes = " ".join(Elements(text_of(any_llama, tmp_path)).boxes)
    drawn = set(re.findall(r"[\w.]+", boxes))
    named = {s.name for s in any_llama.program.steps if s.kind not in FREE}
    # Of equal layers the first is drawn.
    first = {s.key: s.name for s in reversed(any_llama.program.steps) if s.kind not in FREE}
    assert set(first.values()) <= drawn
    assert len(drawn & named) >= len(set(first.values()))


def test_what_a_text_says_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    step = Step(0, 0, "torch", evil, "", (evil,), (), ("t",), 1, 1, "k", reasons=(evil,), detail=0)
    tensors = {"t": Tensor("t", (1,), evil, 4)}
    detail = Detail((evil,), (("plan", evil), ("after a pass (diff)", f"+{evil}")))
    told = refused([Refusal(evil, evil, evil, evil)])
    part = Part(evil, 0, 1, stages=((evil, evil),))
    program = Program(evil, (part,), (step,), tensors, evil, told, details=(detail,))
    page = text_of(Report(program), tmp_path)
    assert page.count("<script>") == 1
    Elements(page)


def many(count: int) -> Program:
    """A program of so many fusions, no two of which are equal."""
    lines = "".join(f"  T{k} = mul(T{k}, T{k})\n" for k in range(200))
    steps, tensors = [], {}
    for k in range(count):
        name, before = f"t{k}", ((f"t{k - 1}",) if k else ())
        tensors[name] = Tensor(name, (1024, k + 1), "bf16", 2048 * (k + 1))
        steps.append(
            Step(
                k,
                0,
                "pointwise",
                f"fuser{k}",
                f"fuser{k}",
                ("mul",),
                before,
                (name,),
                2048,
                2048,
                f"{k}",
                kernels=1,
                seconds=1e-6,
                copy_seconds=1e-6,
                detail=k,
                frees=before,
            )
        )
    details = tuple(Detail((f"fuser{k}",), (("plan", lines),) * 3) for k in range(count))
    part = Part("program", 0, count)
    return Program("many", (part,), tuple(steps), tensors, "NVIDIA H200", details=details)


def test_a_thousand_fusions_are_a_small_page(tmp_path: Path) -> None:
    page = text_of(Report(many(1000)), tmp_path)
    assert len(page) < 5_000_000
    assert "Omitted to limit the size of the page" in page
    Elements(page)


def test_a_screen_of_text(llama: Report) -> None:
    lines = str(llama).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    said = " ".join(str(llama).split())
    for refusal in llama.program.refusals:
        assert said.count(refusal.text) == 1
        assert said.count(f"remedy: {refusal.remedy}") == 1
        assert f"{refusal.count} x [{refusal.code}]" in said
    assert len(str(Report(many(1000))).splitlines()) <= 60


def test_before_and_after() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ w).cos() * x.exp()

    inputs = [torch.randn(32, 32) for _ in range(2)]
    made = []
    for order in ("consecutive", "dataflow"):
        compiled = jit(function, fusion_type=order)
        compiled(*inputs)
        made.append(report(compiled, order))
    before, after = made
    same = before.compare(before)
    assert (same.gone, same.new) == ([], [])
    changed = before.compare(after)
    table = {row.split()[0]: row.split() for row in str(changed).splitlines() if row}
    assert table["kernels"][1:3] == [f"{m.program.kernels}" for m in made]
    keys = [sorted(s.key for s in m.program.steps if s.kind not in FREE) for m in made]
    assert bool(changed.gone or changed.new) == (keys[0] != keys[1])
    Elements(changed._repr_html_())


# ---- the example in docs/

EXAMPLE = ROOT / "docs" / "llama.html"


def test_the_example_is_of_this_program(llama: Report, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        page = llama.save(EXAMPLE).read_text(encoding="utf-8")
        EXAMPLE.write_text(page.replace(f"{ROOT}/", ""), encoding="utf-8")
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is not None:
            picture = f"--screenshot={EXAMPLE.with_suffix('.png')}"
            opened(browser, EXAMPLE, picture, "--window-size=1240,1400", "--hide-scrollbars")
    example = EXAMPLE.read_text(encoding="utf-8")
    assert str(ROOT) not in example
    # What is expected of kernels changes as the model of their time does.
    now, then = (
        [re.sub(r", [\d.]+ [mu]?s$", "", box) for box in Elements(page).boxes]
        for page in (page_of(llama.program), example)
    )
    assert now == then, "if that is right, pytest --update-golden"
    assert EXAMPLE.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on this machine; Debian's package chromium has one")
    return found


def opened(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What a browser without network makes of a page."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"),
            *(*options, page.as_uri()),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_a_browser_has_no_complaint(browser: str, any_llama: Report, tmp_path: Path) -> None:
    page = any_llama.save(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    # What a user would do, and what came of it.
    used = """<script>
      const heads = [...document.querySelectorAll("#steps ~ .wide th button")];
      heads.find((h) => h.textContent === "total bytes").click();
      location.hash = "#fusion-1";
      setTimeout(() => {
        const rows = [...document.querySelectorAll("#steps + .wide tbody tr")];
        document.title = JSON.stringify({
          bytes: rows.map((r) => Number(r.children[4].dataset.value)),
          open: document.getElementById("fusion-1").open,
          boxes: document.querySelectorAll("svg.graph a.step").length,
          wide: document.documentElement.scrollWidth <= innerWidth,
        });
      }, 200);
    </script></body>"""
    page.write_text(text.replace("</body>", used), encoding="utf-8")
    for width in (390, 1600):
        size = f"--window-size={width},1000"
        done = opened(browser, page, "--virtual-time-budget=2000", "--dump-dom", size)
        assert "CONSOLE" not in done.stderr, done.stderr
        found = _title(done.stdout)
        assert found["bytes"] == sorted(found["bytes"], reverse=True)
        assert len(found["bytes"]) > 20
        assert found["open"]
        assert found["wide"], "the page scrolls sideways"
        assert found["boxes"] == len(Elements(text).boxes)


def _title(dom: str) -> dict[str, Any]:
    match = re.search(r"<title>(\{.*?\})</title>", dom)
    assert match is not None, dom[:500]
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found
