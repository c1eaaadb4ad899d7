"""The code of the guides runs as it is, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_python_guide_runs() -> None:
    pytest.importorskip("matplotlib")
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / "python.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), names)  # noqa: S102
    assert Path("mixture.png").is_file()
