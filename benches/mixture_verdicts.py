"""Mixtures at default settings against exact EM from the same start, and their verdicts.

Usage: python benches/mixture_verdicts.py --binary target/release/whimbrel [--only TEXT] [--starts]

96 jobs: twelve sets of rows, equal and unequal clients, participation 1, 0.5, 0.2 and 0.1; the number of
components and the covariance vary with the set. The codec is the draft's of `whimbrel new` (dithering,
automatic levels), and nothing else is set: a fit ends by itself. The exact run has the same seed, so the
same start. A miss is a fit more than 0.05 nats per row above exact EM; a silent miss is one that ends as
`converged`. With --starts: the likelihood of 15 seeds relative to the best known one, for ten clients and
for pooled rows, and of `starts = 5` relative to one start.
"""

import argparse
import csv
import json
import random
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compressed_em import DATA, rows_of, synthetic

ROWS_MAX = 2000
MISS = 0.05
NEAR = 0.02


def blobs(seed, components, columns, rows, spread, weights=None, tail=0.0):
    """Correlated Gaussian components, with a share `tail` of rows five times as far from their mean."""
    draw = random.Random(seed)
    parts = [
        (
            [draw.gauss(0, spread) for _ in range(columns)],
            [[draw.gauss(0, 0.7) for _ in range(columns)] for _ in range(columns)],
        )
        for _ in range(components)
    ]
    out, classes = [], []
    for _ in range(rows):
        k = draw.choices(range(components), weights)[0]
        mean, mixing = parts[k]
        z = [draw.gauss(0, 1) for _ in range(columns)]
        far = 5 if draw.random() < tail else 1
        row = [m + far * sum(a * b for a, b in zip(line, z)) for m, line in zip(mean, mixing)]
        out.append([f"{x:.6f}" for x in row])
        classes.append(str(k))
    return out, classes


def classic(name, label, header=1):
    return rows_of(DATA / "classics" / name, label, header)


# name: (rows and classes, components, covariance, reg_covar)
SETS = {
    "apart": (lambda: blobs(1, 3, 2, 900, 4), 3, "full", 0),
    "overlap": (lambda: blobs(2, 4, 4, 1500, 1.2), 4, "full", 0),
    "unequal": (lambda: blobs(3, 5, 3, 1500, 2.5, [8, 4, 2, 1, 1]), 5, "diagonal", 0),
    "wide": (lambda: blobs(4, 3, 12, 1200, 1.5), 3, "tied", 0),
    "tails": (lambda: blobs(5, 3, 5, 1500, 2, tail=0.1), 3, "full", 0),
    "too-few": (lambda: blobs(6, 6, 4, 1500, 2), 3, "diagonal", 0),
    "scales": (synthetic, 5, "full", 0),
    "wine": (lambda: classic("wine_data.csv", -1), 3, "diagonal", 0),
    "cancer": (lambda: classic("breast_cancer.csv", -1), 2, "tied", 0),
    "iris": (lambda: classic("iris.csv", -1), 3, "tied", 0),
    "magic": (lambda: rows_of(DATA / "uci-dense" / "magic04.csv.gz", -1), 4, "diagonal", 0),
    "abalone": (lambda: rows_of(DATA / "classics" / "abalone.csv.gz", 0), 4, "full", 1e-3),
}
PARTICIPATIONS = [1.0, 0.5, 0.2, 0.1]
CLIENTS = 10


def write_rows(folder, name, split):
    """The rows of a set with a column of clients; unequal clients hold between 1 and 40 per cent."""
    path = folder / f"{name}-{split}.csv"
    draw = random.Random(f"{name} {split}")
    rows, classes = SETS[name][0]()
    order = draw.sample(range(len(rows)), min(len(rows), ROWS_MAX))
    shares = [1 if split == "equal" else 0.6**i for i in range(CLIENTS)]
    held = [i % CLIENTS if i < 4 * CLIENTS else draw.choices(range(CLIENTS), shares)[0] for i in range(len(order))]
    if split == "unequal":
        # Neighbours in class order share a client more often than not.
        order.sort(key=lambda i: (classes[i], draw.random()) if draw.random() < 0.5 else ("", draw.random()))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"x{j + 1}" for j in range(len(rows[0]))] + ["client"])
        writer.writerows(rows[i] + [f"c{client:02}"] for i, client in zip(order, held))
    return path


def job(path, name, method, seed=1, model="", data="client = \"client\""):
    _, components, covariance, reg = SETS[name]
    return f"""seed = {seed}
[data]
source = "csv"
path = "{path}"
standardize = true
{data}
[model]
kind = "gmm"
components = {components}
covariance = "{covariance}"
reg_covar = {reg}
{model}
[method]
{method}
"""


def run(binary, folder, key, text):
    path = folder / f"{key}.toml"
    path.write_text(text)
    out = folder / key
    command = [binary, "run", path, "--out", out, "--force", "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    found = json.loads(lines[-1]) if lines else {}
    return {"ending": "error", "objective": None, "rounds": None, **found, "message": done.stderr[-300:]}


def against_exact(asked, folder):
    exact_method = 'kind = "fedem"'
    cells = [(name, split, p) for name in SETS for split in ["equal", "unequal"] for p in PARTICIPATIONS]
    cells = [cell for cell in cells if asked.only in " ".join(map(str, cell))]
    paths = {(name, split): write_rows(folder, name, split) for name, split, _ in cells}
    codec = '[uplink]\ncodec = { kind = "dithering", levels = "auto", bucket = 64 }'
    jobs = {("exact", *key): job(path, key[0], exact_method) for key, path in paths.items()}
    for name, split, p in cells:
        method = f'kind = "fedem"\nparticipation = {p}\n{codec}'
        jobs[name, split, p] = job(paths[name, split], name, method)
    with ThreadPoolExecutor(asked.jobs) as pool:
        each = {key: pool.submit(run, asked.binary, folder, "-".join(map(str, key)), text) for key, text in jobs.items()}
        found = {key: future.result() for key, future in each.items()}
    misses, silent, judged = [], [], 0
    print("| set | clients | p | verdict | rounds | exact EM | gap |\n|---|---|---|---|---|---|---|")
    for name, split, p in cells:
        exact, own = found["exact", name, split], found[name, split, p]
        if exact["ending"] != "converged":
            print(f"| {name} | {split} | {p} | | | {exact['ending']} {exact['message'][-120:]!r} | |")
            continue
        judged += 1
        gap = own["objective"] - exact["objective"] if own["objective"] is not None else float("inf")
        print(
            f"| {name} | {split} | {p} | {own['ending']} | {own['rounds']} | {exact['rounds']} rounds, "
            f"{exact['objective']:.4f} | {gap:.4f} |",
            flush=True,
        )
        if not gap <= MISS:
            misses.append((name, split, p))
            silent += [(name, split, p)] * (own["ending"] == "converged")
        elif own["ending"] not in ("converged", "stopped"):
            silent.append((name, split, p, own["ending"]))
    print(f"{judged} fits, {judged - len(misses)} within {MISS} nats; misses {misses}; wrong verdicts {silent}")


def starts(asked, folder):
    seeds = range(1, 16)
    ways = {
        "ten": ('kind = "fedem"', "", 'client = "client"'),
        "five": ('kind = "fedem"', "starts = 5", 'client = "client"'),
        "pooled": ('kind = "em"', "", 'client = "client"'),
    }
    print("| set | best | ten clients | starts = 5 | pooled | worse with five starts |\n|---|---|---|---|---|---|")
    for name in [name for name in SETS if asked.only in name]:
        path = write_rows(folder, name, "equal")
        with ThreadPoolExecutor(asked.jobs) as pool:
            each = {
                (way, seed): pool.submit(
                    run, asked.binary, folder, f"{name}-{way}-{seed}", job(path, name, method, seed, model, data)
                )
                for way, (method, model, data) in ways.items()
                for seed in seeds
            }
            found = {key: future.result()["objective"] for key, future in each.items()}
        known = {key: value for key, value in found.items() if value is not None}
        best = min(known.values())
        near = {way: sum(known.get((way, s), 9e9) <= best + NEAR for s in seeds) for way in ways}
        worse = sum(known.get(("five", s), 9e9) > known.get(("ten", s), 9e9) + 1e-3 for s in seeds)
        print(f"| {name} | {best:.4f} | {near['ten']} | {near['five']} | {near['pooled']} | {worse} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    parser.add_argument("--starts", action="store_true")
    asked = parser.parse_args()
    asked.binary = Path(asked.binary).resolve()
    with tempfile.TemporaryDirectory() as folder:
        (starts if asked.starts else against_exact)(asked, Path(folder))


if __name__ == "__main__":
    main()
