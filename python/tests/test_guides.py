"""The code of the guides runs as it is, block after block."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import metadata
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_description_of_the_wheel_runs_and_has_no_relative_links() -> None:
    page = str(metadata("whimbrel").get_payload())
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "description", "exec"), names)  # noqa: S102
    assert names["run"].model["means"].shape == (2, 2)  # type: ignore[attr-defined]
    assert not re.findall(r"\]\((?!https:)", page)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_python_guide_runs() -> None:
    pytest.importorskip("matplotlib")
    found = blocks("python.md")
    assert len(found) == 7
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "python.md", "exec"), names)  # noqa: S102
    assert Path("mixture.png").is_file()


def test_the_guide_to_ray_runs() -> None:
    ray = pytest.importorskip("ray")
    (block,) = blocks("ray.md")
    shutil.copytree(GUIDES.parents[1] / "jobs" / "demo", "jobs/demo")
    names: dict[str, object] = {}
    try:
        exec(compile(block, "ray.md", "exec"), names)  # noqa: S102
    finally:
        ray.shutdown()
    assert names["run"].summary["rounds"] > 0  # type: ignore[attr-defined]


def test_the_guide_to_own_models_runs() -> None:
    in_numpy, *in_torch = blocks("own-models.md")
    assert len(in_torch) == 2
    names: dict[str, object] = {}
    exec(compile(in_numpy, "own-models.md", "exec"), names)  # noqa: S102
    assert names["run"].summary["test_accuracy"] > 0.6  # type: ignore[attr-defined]
    pytest.importorskip("torch")
    for block in in_torch:
        exec(compile(block, "own-models.md", "exec"), names)  # noqa: S102
    objective = names["run"].metrics["objective"]  # type: ignore[attr-defined]
    assert objective[-1] < objective[0]
