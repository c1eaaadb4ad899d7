"""Mixtures under differential privacy of rows: objective by epsilon for digits and for synthetic rows.

    python benches/private_mixtures.py --binary target/release/whimbrel --digits digits.csv.gz

Standard library only. Digits: the 64 pixels on their first 10 principal components, scaled to variance 1 and clipped at 5.
Synthetic: 70,000 rows of 20 columns from 10 components with their own covariances, scaled likewise; a second set has nearly
singular ones. Neither the scaling nor the
components are charged to the budget. Each set has ten clients. Prints rows of a Markdown table.
"""
import argparse
import csv
import gzip
import json
import math
import pathlib
import random
import subprocess
import tempfile

EPSILONS = (0.5, 1.0, 3.0, 8.0)
JOB = """name = "private"
seed = {seed}
[data]
source = "csv"
path = "rows.csv"
[data.split]
by = "iid"
clients = 10
[model]
kind = "gmm"
components = {components}
covariance = "full"
{start}
[method]
kind = "fedem"
allow_degenerate = true
{length}
"""
PRIVATE = "evaluate = {{ every = 80 }}\n[privacy]\nepsilon = {epsilon}\nnoise_seed = {seed}\n"


def centred(rows):
    means = [sum(column) / len(rows) for column in zip(*rows)]
    return [[x - m for x, m in zip(row, means)] for row in rows]


def scaled(rows):
    rows = centred(rows)
    scales = [math.sqrt(sum(x * x for x in column) / len(rows)) for column in zip(*rows)]
    return [[max(-5.0, min(5.0, x / s)) for x, s in zip(row, scales)] for row in rows]


def components(rows, count):
    """Scores on the leading principal components, by orthogonal iteration."""
    rows, width = centred(rows), len(rows[0])
    product = [[sum(row[i] * row[j] for row in rows) for j in range(width)] for i in range(width)]
    rng = random.Random(1)
    axes = [[rng.gauss(0, 1) for _ in range(width)] for _ in range(count)]
    for _ in range(300):
        axes = [[sum(p * a for p, a in zip(line, axis)) for line in product] for axis in axes]
        for k, axis in enumerate(axes):
            for other in axes[:k]:
                along = sum(a * b for a, b in zip(axis, other))
                axis = [a - along * b for a, b in zip(axis, other)]
            norm = math.sqrt(sum(a * a for a in axis))
            axes[k] = [a / norm for a in axis]
    return [[sum(x * a for x, a in zip(row, axis)) for axis in axes] for row in rows]


def digits(path):
    with gzip.open(path, "rt") as file:
        rows = [[float(x) for x in row[:64]] for row in csv.reader(file)]
    return scaled(components(rows, 10))


def synthetic(diagonal, spread):
    """Means of standard deviation `spread`; covariances A A', with A random, or the identity plus small entries."""
    rng = random.Random(7)
    d, parts = 20, []
    for _ in range(10):
        mean = [rng.gauss(0, spread) for _ in range(d)]
        size = (0.3 if diagonal else 1.0) / math.sqrt(d)
        mix = [[rng.gauss(0, size) + diagonal * (i == j) for j in range(d)] for i in range(d)]
        parts.append((mean, mix))
    rows = []
    for _ in range(70_000):
        mean, mix = rng.choice(parts)
        z = [rng.gauss(0, 1) for _ in range(d)]
        rows.append([m + sum(a * b for a, b in zip(line, z)) for m, line in zip(mean, mix)])
    return scaled(rows)


def objective(asked, folder, count, seed, epsilon):
    if epsilon is None:
        start, length = "starts = 5", ""
    else:
        masks = "masks = true" if asked.masks else ""
        start, length = "", PRIVATE.format(epsilon=epsilon, seed=seed) + masks
    (folder / "job.toml").write_text(JOB.format(seed=seed, components=count, start=start, length=length))
    out = folder / f"{count}-{seed}-{epsilon}"
    subprocess.run([asked.binary, "run", "job.toml", "--out", out], cwd=folder, check=True, capture_output=True)
    return json.loads((out / "summary.json").read_text())["objective"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, default="whimbrel")
    parser.add_argument("--digits", type=pathlib.Path, help="the file of digits; without it only synthetic rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--masks", action="store_true", help="noise in shares of the clients, under masks")
    asked = parser.parse_args()
    asked.binary = asked.binary.resolve() if asked.binary.exists() else asked.binary
    sets = [("digits", lambda: digits(asked.digits), (10, 3), asked.seeds)] if asked.digits else []
    sets.append(("synthetic", lambda: synthetic(1.0, 1.5), (10,), 1))
    sets.append(("synthetic, nearly singular covariances", lambda: synthetic(0.0, 2.0), (10,), 1))
    for name, rows, counts, seeds in sets:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            made = rows()
            with open(folder / "rows.csv", "w", newline="") as file:
                out = csv.writer(file)
                out.writerow([f"x{j}" for j in range(len(made[0]))])
                out.writerows([f"{x:.9g}" for x in row] for row in made)
            for count in counts:
                cells = []
                for epsilon in (*EPSILONS, None):
                    found = [objective(asked, folder, count, seed, epsilon) for seed in range(1, seeds + 1)]
                    cells.append(f"{sum(found) / seeds:.2f} ({max(found) - min(found):.2f})")
                print(f"| {name}, {count} components, {seeds} seeds | {' | '.join(cells)} |", flush=True)


main()
