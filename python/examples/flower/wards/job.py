"""The job, and the rows that each ward would have."""

import os

import numpy as np

WARDS = ["east", "west"]

JOB = {
    "name": "wards",
    "seed": 5,
    "data": {"source": "csv", "path": "wards.csv", "client": "ward", "columns": ["age", "score"]},
    "model": {"kind": "gmm", "components": 2, "covariance": "full"},
    "method": {"kind": "fedem", "rounds": 10, "evaluate": {"every": 5}},
    "uplink": {"codec": {"kind": "dithering", "levels": 2}},
    "federation": {"clients": WARDS},
}

# Where the run goes and where clients keep their states.
OUT = os.environ.get("WARDS_OUT", "wards-run")
STATES = os.environ.get("WARDS_STATES", "wards-states")


def rows(ward: str) -> np.ndarray:
    """A ward's rows, which never leave it: here they are drawn."""
    rng = np.random.default_rng(WARDS.index(ward))
    centres = np.array([[-3.0, 1.0], [3.0, 0.0]])
    return rng.normal(size=(80, 2)) + centres[rng.integers(2, size=80)]
