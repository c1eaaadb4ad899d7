"""Data and jobs that several tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mixture_job() -> dict:
    """A mixture over compressed channels, half of the clients in each round."""
    return {
        "name": "mixture",
        "seed": 3,
        "data": {"source": "mixture", "clients": 14, "rows": 30},
        "model": {"kind": "gmm", "components": 2},
        "method": {"kind": "fedem", "rounds": 12, "step": 0.1, "participation": 0.5},
        "uplink": {"codec": {"kind": "dithering", "levels": 1}},
    }


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of three clusters, their labels, and who holds them."""
    rng = np.random.default_rng(7)
    labels = rng.integers(3, size=600)
    X = rng.normal(size=(600, 2)) + np.array([[-6, 0], [6, 0], [0, 8]])[labels]
    return X, labels, rng.integers(5, size=600)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Estimators without `random_state` draw their seed from NumPy's global generator."""
    np.random.seed(0)
