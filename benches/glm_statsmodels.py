"""CPU time of `newton` against statsmodels' `GLM.fit` on the same rows, one thread each.

Usage: python glm_statsmodels.py WHIMBREL [ROWS] [COLUMNS] [CLIENTS]

Writes a CSV of a logistic regression and runs `whimbrel run` twice: to the end, and for one round. Prints the
user time of the whole program, that of the rounds alone (the difference, per exchange, times the number of
exchanges), that of `sm.GLM(..., Binomial()).fit()` on an array in memory, and the largest difference of coefficients.
"""

import json
import os
import pathlib
import resource
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


def run(folder, rounds):
    """User seconds of a run, and its summary."""
    (folder / "job.toml").write_text(
        '[data]\nsource = "csv"\npath = "d.csv"\nclient = "client"\ntarget = "y"\n'
        '[model]\nkind = "glm"\nfamily = "binomial"\n[method]\nkind = "newton"\n' + rounds
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [binary, "run", "job.toml", "--out", "out", "--json", "--threads", "1", "--force"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, json.loads(ran.stdout)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    names = ["client", "y", *(f"x{j}" for j in range(columns))]
    table = np.column_stack([rng.integers(0, clients, rows), y, X])
    formats = ["%d", "%d", *["%.3f"] * columns]
    np.savetxt(folder / "d.csv", table, fmt=formats, delimiter=",", header=",".join(names), comments="")
    del table
    short, ended = run(folder, "rounds = 1\n")
    whole, summary = run(folder, "")
exchanges = summary["rounds"]
fit = (whole - short) / (exchanges - ended["rounds"]) * exchanges
start = time.process_time()
known = sm.GLM(y, sm.add_constant(X), family=sm.families.Binomial()).fit()
peer = time.process_time() - start
found = np.array([row["estimate"] for row in summary["coefficients"]])
print(f"{rows} rows, {columns} columns, {clients} clients")
print(f"newton: {whole:.2f} s with reading the file, {fit:.2f} s without ({exchanges} exchanges)")
print(f"statsmodels: {peer:.2f} s, {peer / whole:.1f} and {peer / fit:.1f} times as long")
print(f"largest difference of coefficients {np.abs(found - known.params).max():.1e}")
