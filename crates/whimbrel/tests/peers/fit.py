"""Rows, starts and the fits that jobs on them must end in, by scikit-learn.

Usage: python fit.py      writes data.csv, init-*.json and fits.json beside itself
                          (made with scikit-learn 1.9.1, NumPy 2.4.6, Python 3.11)

`fits.json` holds, for each covariance and number of EM iterations, the mean log-likelihood, the
weights, the means and the covariances that `GaussianMixture` ends in from the start of the file,
with `tol = 0` and `reg_covar = 0`.
"""

import json
import pathlib
import warnings

import numpy as np
import sklearn
from sklearn.mixture import GaussianMixture

HERE = pathlib.Path(__file__).parent
COMPONENTS, COLUMNS = 3, ["height", "weight", "age"]
CLIENTS = {"east": 60, "north": 90, "south": 25, "west": 65}
KINDS = {"tied": "tied", "diagonal": "diag", "full": "full"}


def draw():
    """Rows of four clients whose shares of the components differ, rounded so that a CSV is exact."""
    rng = np.random.default_rng(20261)
    means = np.array([[0.0, 0.0, 0.0], [3.0, -1.0, 2.0], [-2.0, 3.0, 1.0]])
    root = np.array([[1.0, 0.0, 0.0], [0.4, 0.9, 0.0], [-0.3, 0.2, 0.8]])
    names, rows = [], []
    for name, count in CLIENTS.items():
        label = rng.choice(COMPONENTS, size=count, p=rng.dirichlet(np.full(COMPONENTS, 0.8)))
        scale = 0.7 + 0.3 * label[:, None]
        rows.append(means[label] + scale * (rng.standard_normal((count, 3)) @ root.T))
        names += [name] * count
    return names, np.round(np.vstack(rows), 4)


def start(kind, rows):
    eye = np.eye(len(COLUMNS))
    form = {
        "tied": ("covariance", 2.0 * eye),
        "diagonal": ("covariances", np.full((COMPONENTS, len(COLUMNS)), 2.0)),
        "full": ("covariances", np.stack([2.0 * eye] * COMPONENTS)),
    }
    key, covariance = form[kind]
    means = rows[[5, 100, 200]]
    return {"weights": [0.5, 0.25, 0.25], "means": means.tolist(), key: covariance.tolist()}


def fit(kind, rows, init, iterations):
    covariance = np.array(init.get("covariance", init.get("covariances")))
    precision = 1 / covariance if kind == "diagonal" else np.linalg.inv(covariance)
    found = GaussianMixture(
        COMPONENTS,
        covariance_type=KINDS[kind],
        tol=0,
        reg_covar=0,
        max_iter=iterations,
        init_params="random",
        weights_init=init["weights"],
        means_init=init["means"],
        precisions_init=precision,
    ).fit(rows)
    return {
        "covariance": kind,
        "iterations": iterations,
        "log_likelihood": float(found.score(rows)),
        "weights": found.weights_.tolist(),
        "means": found.means_.ravel().tolist(),
        "covariances": found.covariances_.ravel().tolist(),
    }


def main():
    warnings.filterwarnings("ignore")
    names, rows = draw()
    lines = [",".join(["client", *COLUMNS])]
    lines += [",".join([name, *map(repr, map(float, row))]) for name, row in zip(names, rows)]
    (HERE / "data.csv").write_text("\n".join(lines) + "\n")
    fits = []
    for kind in KINDS:
        init = start(kind, rows)
        (HERE / f"init-{kind}.json").write_text(json.dumps(init) + "\n")
        fits += [fit(kind, rows, init, iterations) for iterations in [4, 200]]
    made_by = f"scikit-learn {sklearn.__version__}, NumPy {np.__version__}"
    text = ",\n".join("  " + json.dumps(one) for one in fits)
    (HERE / "fits.json").write_text(f'{{"made_by": "{made_by}", "fits": [\n{text}\n]}}\n')


main()
