"""Coverage of a regression's pooled 95 % intervals after multiple imputation by a mixture.

    python3 benches/imputed_regression.py WHIMBREL [SETS]

Sets of 200 and 1,000 rows of four clients: two numbers, a column of two levels, and a target that is linear in
them; 30 % of the cells are missing at random. `em` fits two components with full covariances, 20 imputations are
drawn, and ordinary least squares of each are pooled by Rubin's rules. Needs NumPy.
"""

import csv
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

BETA = np.array([1.0, 0.8, -0.5, 0.4])
DRAWS = 20
# The t quantile at the degrees of freedom that occur lies within 2 % of this.
QUANTILE = 2.0
JOB = """name = "m"\nseed = 1\n[data]\nsource = "csv"\npath = "d.csv"\nclient = "site"
[schema]\nx3 = { type = "yes-no" }\n[model]\nkind = "mixture"\ncomponents = 2\nnumeric = "full"\nstarts = 2
reg_covar = 1e-6\n[method]\nkind = "em"\n"""


def write(folder, n, seed):
    rng = np.random.default_rng(seed)
    x1 = rng.normal(size=n)
    x2 = 0.5 * x1 + 0.9 * rng.normal(size=n)
    x3 = rng.random(n) < 1 / (1 + np.exp(-0.8 * x1))
    y = np.column_stack([np.ones(n), x1, x2, x3]) @ BETA + rng.normal(size=n)
    columns = [x1, x2, np.where(x3, "yes", "no"), y]
    seen = rng.random((4, n)) >= 0.3
    rows = zip(*(np.where(s, c.astype(str), "") for s, c in zip(seen, columns, strict=True)), strict=True)
    with open(folder / "d.csv", "w", newline="") as file:
        csv.writer(file).writerows([["site", "x1", "x2", "x3", "y"], *(["abcd"[i % 4], *row] for i, row in enumerate(rows))])


def fit(file):
    rows = list(csv.DictReader(open(file)))
    x = np.array([[1, float(r["x1"]), float(r["x2"]), r["x3"] == "yes"] for r in rows])
    y = np.array([float(r["y"]) for r in rows])
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ (x.T @ y)
    return beta, np.diag(inverse) * np.sum((y - x @ beta) ** 2) / (len(y) - 4)


def main(program, sets=200):
    for n in (200, 1000):
        inside = np.zeros(4)
        for seed in range(sets):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                (folder / "job.toml").write_text(JOB)
                write(folder, n, seed)
                quiet = {"cwd": folder, "check": True, "capture_output": True}
                subprocess.run([program, "run", "job.toml", "--out", "run"], **quiet)
                draws = ["--wide", "--draws", str(DRAWS), "--out", "i.csv"]
                subprocess.run([program, "impute", "run", *draws], **quiet)
                fits = [fit(folder / f"i-{k + 1}.csv") for k in range(DRAWS)]
            betas = np.array([beta for beta, _ in fits])
            total = np.mean([v for _, v in fits], 0) + (1 + 1 / DRAWS) * betas.var(0, ddof=1)
            inside += abs(betas.mean(0) - BETA) <= QUANTILE * np.sqrt(total)
        print(n, np.round(inside / sets, 3), round(float(inside.mean() / sets), 3))


main(pathlib.Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:]))
