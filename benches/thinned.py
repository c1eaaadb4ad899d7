"""Coverage of intervals by the number of observations of a row, on real counts with many hidden cells.

    python3 benches/thinned.py WHIMBREL DATA [SEEDS] [SET ...]

Of two rows in three all but 1 to 15 cells are hidden, of the others one cell in five; ten clients own whole rows.
For the hidden cells, by how many cells the fit and its hold-out were given of the row: the share inside the
90 % interval, the standard error of that by bootstrap over rows, and the share of randomised PIT values (from
50 draws) below 0.05 and above 0.95, which are 0.05 each where draws are as wide as they should be. Needs NumPy.
"""

import collections
import pathlib
import random
import sys
import tempfile

import numpy as np

from birds import SETS
from low_rank import CLIENTS, impute, run

DRAWS = 50
GROUPS = [(1, 1), (2, 3), (4, 7), (8, 15), (16, 10**9)]


def hide(cells, seed):
    """The mask of given cells."""
    draw = random.Random(seed)
    rows = collections.defaultdict(list)
    for at, (row, _, _) in enumerate(cells):
        rows[str(row)].append(at)
    given = set()
    for row in sorted(rows):
        own = rows[row]
        thinned = draw.random() < 2 / 3
        kept = round(2 ** draw.uniform(0, 4) - 0.5) if thinned else round(0.8 * len(own))
        given.update(draw.sample(own, max(1, min(kept, len(own) - 1) if len(own) > 1 else 1)))
    return given


def hidden(whimbrel, cells, seed, folder):
    """For each hidden cell: its row, the row's given cells, whether it is inside, and its PIT."""
    given = hide(cells, seed)
    rng = np.random.default_rng(seed)
    seen = collections.Counter(str(cells[at][0]) for at in given)
    owner = {row: i % CLIENTS for i, row in enumerate(sorted(seen))}
    labels = folder / "columns.txt"
    labels.write_text("\n".join(sorted({str(column) for _, column, _ in cells})) + "\n")
    names = ("observer", "site", "month", "count")
    dealt = [dict(zip(names, (owner[str(cells[at][0])], *cells[at]))) for at in sorted(given)]
    run(whimbrel, folder, dealt, seed, data='column_labels = "columns.txt"')
    completed = impute(whimbrel, folder, "--draws", str(DRAWS))
    lines = {(line["row"], line["column"]): line for line in completed}
    for at, (row, column, value) in enumerate(cells):
        line = lines.get((str(row), str(column)))
        if at in given or line is None or line["observed"] != "no":
            continue
        drawn = np.array([float(line[f"draw_{k}"]) for k in range(1, DRAWS + 1)])
        below, equal = np.sum(drawn < value), np.sum(drawn == value)
        pit = (below + rng.uniform() * (equal + 1)) / (DRAWS + 1)
        yield str(row), seen[str(row)], float(line["lower"]) <= value <= float(line["upper"]), pit


def main(whimbrel, data, seeds="2", *names):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| table | cells of the row | hidden cells | coverage | standard error | PIT below 0.05 | above 0.95 |\n|---|---|---|---|---|---|---|")
    for name in names or ["great tit", "Hubbard Brook, visits", "waterfowl"]:
        cells = SETS[name](pathlib.Path(data))
        found = []
        for seed in range(1, int(seeds) + 1):
            with tempfile.TemporaryDirectory() as folder:
                found += [(f"{seed} {row}", *rest) for row, *rest in hidden(whimbrel, cells, seed, pathlib.Path(folder))]
        for low, high in GROUPS:
            rows = collections.defaultdict(list)
            for row, count, inside, pit in found:
                if low <= count <= high:
                    rows[row].append((inside, pit))
            sums = np.array([[len(of), sum(inside for inside, _ in of)] for of in rows.values()])
            if not rows or sums[:, 0].sum() < 200:
                continue
            rng = np.random.default_rng(1)
            again = [sums[rng.integers(0, len(sums), len(sums))].sum(axis=0) for _ in range(500)]
            error = np.std([inside / count for count, inside in again])
            pits = np.array([pit for of in rows.values() for _, pit in of])
            label = f"{low}" if low == high else f"{low} to {high}" if high < 10**9 else f"{low} and more"
            share = sums[:, 1].sum() / sums[:, 0].sum()
            print(f"| {name} | {label} | {len(pits)} | {share:.3f} | {error:.3f} | {np.mean(pits < 0.05):.3f} | {np.mean(pits > 0.95):.3f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
