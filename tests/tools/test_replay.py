"""Recordings of one commit are equal; what differs between two is found, and names are no text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools import replay

ONLY = ("workload/swiglu/", "reductions/1")


def recorded(resources: bool = False) -> replay.Recording:
    programs = (entry for entry in replay.corpus(12) if entry[0].startswith(ONLY))
    return replay.record(programs, resources)


@pytest.fixture(scope="module")
def recording() -> replay.Recording:
    return recorded()


def changed(recording: replay.Recording, **fields: object) -> replay.Recording:
    """The recording with other fields in its first plan."""
    (name, plan), *others = recording.plans.items()
    return replace(recording, plans={name: replace(plan, **fields), **dict(others)})  # type: ignore[arg-type]


def test_the_corpus_has_every_kind_of_program() -> None:
    kinds = {name.split("/")[0] for name, _ in replay.corpus(1)}
    assert kinds == {"workload", "program", "definition", "fusions", "reductions"}


def test_the_same_plans_are_the_same_file(recording: replay.Recording, tmp_path: Path) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path, made in zip(paths, (recording, recorded()), strict=True):
        made.save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert replay.Recording.load(paths[0]) == recording
    assert not replay.compare(*map(replay.Recording.load, paths))
    assert replay.main(["compare", *map(str, paths)]) == 0


def test_other_figures_of_a_plan_are_told(recording: replay.Recording) -> None:
    found = replay.compare(recording, changed(recording, bytes=1, kernels=7))
    (line,) = found.plans
    assert "-> 1" in line
    assert "kernels 1 -> 7" in line


def test_another_launch_and_another_text_are_told(recording: replay.Recording) -> None:
    plan = next(iter(recording.plans.values()))
    kernel, *others = plan.generated
    other = replace(kernel, text="other", shared_bytes=kernel.shared_bytes + 16)
    text = recording.texts[kernel.text].replace("float", "double")
    after = replace(
        changed(recording, generated=(other, *others)), texts={**recording.texts, "other": text}
    )
    found = replay.compare(recording, after)
    assert not found.plans
    assert len(found.launches) == len(found.texts) == 1
    assert "double" in found.diffs[0]
    assert "1 kernels with another text" in replay.report(found, 5, 1)


@pytest.mark.nvrtc
def test_other_resources_are_told() -> None:
    before = recorded(resources=True)
    arch, costs = next(iter(before.resources.items()))
    key = next(key for key in costs if key.endswith(" registers"))
    more = {**before.resources, arch: {**costs, key: costs[key] + 8}}
    digest = key.split()[0]
    # The kernel has another text, too: equal texts have equal resources and are not compared.
    renamed = {arch: {k.replace(digest, "other"): n for k, n in more[arch].items()}}
    after = replace(before, resources=renamed, texts={**before.texts, "other": "// same\n"})
    after.texts["other"] += before.texts[digest]
    after.plans = {
        name: replace(
            plan,
            generated=tuple(
                replace(k, text="other") if (k.device, k.text) == (arch, digest) else k
                for k in plan.generated
            ),
        )
        for name, plan in before.plans.items()
    }
    found = replay.compare(before, after)
    assert not found.texts
    assert [line.split(": ")[1] for line in found.resources] == [
        f"registers {costs[key]} -> {costs[key] + 8}"
    ]


def test_names_and_comments_are_no_text() -> None:
    a = "void tf_pointwise_add_0a(const bf16* T0) { // add\n  float t3 = T0[u]; }"
    b = "void tf_pointwise_add_9c(const bf16* T7) {\n  float t1 = T7[u]; }"
    assert replay.normalized(a) == replay.normalized(b)
    assert replay.normalized(a) != replay.normalized(b.replace("float", "double"))
    assert replay.normalized("t1 + t2") != replay.normalized("t1 + t1")
    # A type is no numbered name.
    assert "bf16" in replay.normalized(a)
