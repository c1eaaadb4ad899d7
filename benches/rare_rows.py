"""Estimates, draws and intervals of rarely observed rows of real counts.

    python3 benches/rare_rows.py WHIMBREL DATA [SEEDS] [SET ...]

Of 150 rows three in ten keep one to three cells, the others 85 in a hundred; the rest are hidden. For the hidden
cells of rows with one, two or three, and more cells: mean deviance and sum relative to the hidden counts of the
estimates, of the means of 100 draws, and of the means of draws clipped to the interval; coverage of the intervals
and of the 5 to 95 % range of draws; the share of cells whose `se` exceeds the width of the interval (at least 1),
for draws as they are and clipped. Standard library only.
"""

import math
import pathlib
import random
import sys
import tempfile

from birds import SETS
from low_rank import impute, owners, run

ROWS, DRAWS = 150, 100
MODEL = 'rank = "auto"\nlambda = "auto"\neffects = "row+column"'


def deviance(y, mean):
    mean = max(mean, 1e-3)
    return 2 * ((y * math.log(y / mean) if y else 0) - (y - mean))


def hidden(cells, draw):
    """The kept cells, and the hidden ones with the number of cells of their row."""
    rows = {}
    for row, column, count in cells:
        rows.setdefault(str(row), []).append((str(column), count))
    kept, rest = [], []
    for row in draw.sample(sorted(rows), min(ROWS, len(rows))):
        own = draw.sample(rows[row], len(rows[row]))
        keep = draw.choice([1, 1, 2, 3]) if draw.random() < 0.3 else 1 + int(0.85 * len(own))
        kept += [(row, *cell) for cell in own[:keep]]
        rest += [(keep, row, *cell) for cell in own[keep:]]
    columns = {column for _, column, _ in kept}
    return kept, [cell for cell in rest if cell[2] in columns]


def moments(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))


def judged(whimbrel, folder, cells, seed):
    """The figures of each hidden cell."""
    draw = random.Random(seed)
    kept, rest = hidden(cells, draw)
    owner = owners((row for row, _, _ in kept), draw)
    names = ("observer", "site", "month", "count")
    run(whimbrel, folder, [dict(zip(names, (owner[cell[0]], *cell))) for cell in kept], seed, model=MODEL)
    lines = {(at["row"], at["column"]): at for at in impute(whimbrel, folder, "--draws", str(DRAWS), "--force")}
    for count, row, column, y in rest:
        at = lines[row, column]
        lower, upper, width = float(at["lower"]), float(at["upper"]), max(float(at["upper"]) - float(at["lower"]), 1)
        draws = [float(at[f"draw_{k + 1}"]) for k in range(DRAWS)]
        ordered = sorted(draws)
        mean, sd = moments(draws)
        own_mean, own_sd = moments([min(max(x, lower), upper) for x in draws])
        inside = [lower <= y <= upper, ordered[4] <= y <= ordered[-5], sd > width, own_sd > width]
        yield count, y, (float(at["estimate"]), mean, own_mean), inside


def main(whimbrel, data, seeds="2", *names):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| table | cells of the row | hidden | deviance | sum / hidden counts | coverage | se above width |\n|" + "---|" * 7)
    for name in names or ("mallard", "great tit", "Swiss breeding birds", "waterfowl"):
        cells = SETS[name](pathlib.Path(data))
        with tempfile.TemporaryDirectory() as folder:
            each = [judged(whimbrel, pathlib.Path(folder), cells, seed) for seed in range(1, int(seeds) + 1)]
            found = [cell for part in each for cell in part]
        for label, low, high in (("1", 1, 1), ("2 to 3", 2, 3), ("more", 4, 1 << 30)):
            own = [cell for cell in found if low <= cell[0] <= high]
            if not own:
                continue
            total = max(sum(y for _, y, _, _ in own), 1)
            deviances = [sum(deviance(y, means[k]) for _, y, means, _ in own) / len(own) for k in range(3)]
            sums = [sum(means[k] for _, _, means, _ in own) / total for k in range(3)]
            shares = [sum(inside[k] for *_, inside in own) / len(own) for k in range(4)]
            cells_of = [
                ", ".join(f"{x:.3g}" for x in deviances),
                ", ".join(f"{x:.2f}" for x in sums),
                ", ".join(f"{x:.3f}" for x in shares[:2]),
                ", ".join(f"{x:.3f}" for x in shares[2:]),
            ]
            print(f"| {name} | {label} | {len(own)} | " + " | ".join(cells_of) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
