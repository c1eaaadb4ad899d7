"""Principal components that federated preparation must reproduce, by scikit-learn.

Usage: python pca.py      (made with the versions that pca.json names)

Writes rows.csv, 90 rows of four clients and six columns, one of them constant, and pca.json: axes
and explained variances (over n, not n - 1) of the raw and of the standardised columns. Signs are
those of the rule: the loading of largest magnitude is positive.
"""

import json
import platform
from pathlib import Path

import numpy as np
import sklearn
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

COMPONENTS = 3
here = Path(__file__).parent
rng = np.random.default_rng(5)
x = rng.normal(size=(90, 6)) * [8, 4, 2, 1, 0.5, 0.25] @ rng.normal(size=(6, 6))
x = np.round(x + 10 * np.arange(6), 6)
x[:, 3] = 2.5
clients = rng.integers(0, 4, size=90)
with open(here / "rows.csv", "w") as out:
    out.write("client," + ",".join(f"x{j}" for j in range(6)) + "\n")
    for client, row in zip(clients, x):
        out.write(f"c{client}," + ",".join(repr(float(v)) for v in row) + "\n")

varying = x[:, [j for j in range(6) if j != 3]]
cases = {}
for name, table in [("raw", varying), ("standardized", StandardScaler().fit_transform(varying))]:
    pca = PCA(COMPONENTS, svd_solver="full").fit(table)
    axes = pca.components_
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[range(COMPONENTS), largest])[:, None]
    variances = pca.explained_variance_ * (len(x) - 1) / len(x)
    cases[name] = {"axes": axes.tolist(), "variances": variances.tolist()}
versions = f"scikit-learn {sklearn.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
(here / "pca.json").write_text(json.dumps({"made_with": versions, **cases}, indent=1) + "\n")
