"""Seconds per EM iteration of scikit-learn's GaussianMixture on one thread, beside `cargo bench`.

Usage: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benches/gmm_sklearn.py

The problem is the one of crates/whimbrel-models/benches/gmm.rs: 70,000 rows x 20 columns, 10
components. An iteration's time is the slope between a fit of 2 and one of 12 iterations, so that
start-up costs cancel; the least of five is printed, in milliseconds.
"""

import os
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import sklearn
from sklearn.mixture import GaussianMixture

ROWS, COLUMNS, COMPONENTS = 70_000, 20, 10


def seconds(x, kind, iterations):
    precision = {
        "tied": np.eye(COLUMNS) / 10,
        "diag": np.full((COMPONENTS, COLUMNS), 0.1),
        "full": np.stack([np.eye(COLUMNS) / 10] * COMPONENTS),
    }[kind]
    model = GaussianMixture(
        COMPONENTS,
        covariance_type=kind,
        tol=0,
        max_iter=iterations,
        init_params="random_from_data",
        weights_init=np.full(COMPONENTS, 1 / COMPONENTS),
        means_init=x[:COMPONENTS],
        precisions_init=precision,
        random_state=0,
    )
    start = time.perf_counter()
    model.fit(x)
    return time.perf_counter() - start


warnings.filterwarnings("ignore")
rng = np.random.default_rng(5)
means = 3 * rng.standard_normal((COMPONENTS, COLUMNS))
x = means[rng.integers(COMPONENTS, size=ROWS)] + rng.standard_normal((ROWS, COLUMNS))
print(f"scikit-learn {sklearn.__version__}, NumPy {np.__version__}")
for kind in ["tied", "diag", "full"]:
    slopes = [(seconds(x, kind, 12) - seconds(x, kind, 2)) / 10 for _ in range(5)]
    print(f"{kind:5} {1e3 * min(slopes):7.1f} ms per iteration, {ROWS} x {COLUMNS}, {COMPONENTS}")
