"""Time of `newton` against statsmodels' `GLM.fit` on the same rows, one thread each.

Usage: python glm_statsmodels.py WHIMBREL [ROWS] [COLUMNS] [CLIENTS]

Writes a CSV of a logistic regression, runs `whimbrel run` (`seconds` of its summary: the fit without reading
the file) and `sm.GLM(..., Binomial()).fit()`, and prints both times and the largest difference of coefficients.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import statsmodels.api as sm

binary = pathlib.Path(sys.argv[1]).resolve()
rows, columns, clients = ([int(x) for x in sys.argv[2:5]] + [1_000_000, 50, 20][len(sys.argv) - 2 :])[:3]
rng = np.random.default_rng(1)
X = rng.normal(size=(rows, columns)).round(3)
y = (rng.random(rows) < 1 / (1 + np.exp(-X @ rng.normal(0, 0.2, columns)))).astype(int)
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    names = ["client", "y", *(f"x{j}" for j in range(columns))]
    table = np.column_stack([rng.integers(0, clients, rows), y, X])
    formats = ["%d", "%d", *["%.3f"] * columns]
    np.savetxt(folder / "d.csv", table, fmt=formats, delimiter=",", header=",".join(names), comments="")
    (folder / "job.toml").write_text(
        '[data]\nsource = "csv"\npath = "d.csv"\nclient = "client"\ntarget = "y"\n'
        '[model]\nkind = "glm"\nfamily = "binomial"\n[method]\nkind = "newton"\n'
    )
    command = [binary, "run", "job.toml", "--out", "out", "--json", "--threads", "1"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    summary = json.loads(ran.stdout)
start = time.perf_counter()
fit = sm.GLM(y, sm.add_constant(X), family=sm.families.Binomial()).fit()
seconds = time.perf_counter() - start
found = np.array([row["estimate"] for row in summary["coefficients"]])
print(f"{rows} rows, {columns} columns, {clients} clients")
print(f"newton {summary['seconds']:.2f} s ({summary['rounds']} rounds), statsmodels {seconds:.2f} s")
print(f"largest difference of coefficients {np.abs(found - fit.params).max():.1e}")
