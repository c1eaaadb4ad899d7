"""Soft-impute in NumPy, against a pooled rank-2 Gaussian fit by whimbrel.

Writes a table's observed cells, runs soft-impute with a singular value decomposition per
iteration until its objective moves by less than 1e-8 of itself, and hands the objective over as a target:

    python benches/soft_impute.py target/cells.csv
    cargo run --release -p whimbrel-methods --example soft_impute target/cells.csv
"""

import sys
import time

import numpy as np

ROWS, COLUMNS, RANK, OBSERVED, LAMBDA = 800, 200, 2, 0.4, 8.0


def objective(y, seen, theta, nuclear):
    return 0.5 * np.sum((y - theta)[seen] ** 2) + LAMBDA * nuclear


def soft_impute(y, seen):
    """Returns the objective, the iterations, and the seconds."""
    theta, last, begin = np.zeros_like(y), np.inf, time.perf_counter()
    for iteration in range(1, 10_000):
        filled = np.where(seen, y, theta)
        u, s, vt = np.linalg.svd(filled, full_matrices=False)
        s = np.maximum(s[:RANK] - LAMBDA, 0.0)
        theta = (u[:, :RANK] * s) @ vt[:RANK]
        value = objective(y, seen, theta, s.sum())
        if last - value < 1e-8 * abs(value):
            break
        last = value
    return value, iteration, time.perf_counter() - begin


def main(path):
    random = np.random.default_rng(7)
    truth = random.normal(size=(ROWS, RANK)) @ random.normal(size=(RANK, COLUMNS))
    y = truth + random.normal(size=truth.shape)
    seen = random.random(y.shape) < OBSERVED
    value, iterations, seconds = soft_impute(y, seen)
    print(f"numpy {np.__version__}: objective {value:.6f} after {iterations} iterations in {seconds:.3f} s")
    with open(path, "w") as out:
        out.write(f"{ROWS},{COLUMNS},{RANK},{LAMBDA},{value!r}\n".replace("np.float64(", "").replace(")", ""))
        for row, column in np.argwhere(seen):
            out.write(f"{row},{column},{y[row, column]!r}\n".replace("np.float64(", "").replace(")", ""))


if __name__ == "__main__":
    main(sys.argv[1])
