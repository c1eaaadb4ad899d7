"""Automatic rank and ridge on real counts, against simpler models on the same held-out cells.

    python3 benches/birds.py WHIMBREL DATA [SPLITS] [SET ...]

WHIMBREL is the program, DATA the folder with `birds/` and `imputation/`. Every table is dealt to ten
clients SPLITS times (16), by rows and by cells, each time with another hold-out of 10 %; `rank` and
`lambda` are left to the program. One line of a Markdown table per set: means over held-out cells,
pooled over the splits. "columns" and "effects" are the two baselines.
Standard library only.
"""

import collections
import pathlib
import random
import sys
import tempfile

from low_rank import CLIENTS, known, owners, pooled, read, run


def waterfowl(data):
    # A visit without a bird has no count.
    rows = read(data / "birds/waterfowl_flanders.csv.gz")
    return [(r["site"], r["winter"] + "-" + r["period"], int(r["birds"]) if known(r["birds"]) else 0) for r in rows]


def tits(data, species=None):
    rows = read(data / "birds/swiss_tits.csv.gz")
    return [
        (r["site"], "-".join([r["species"], r["year"], r["rep"]]), int(r["count"]))
        for r in rows
        if known(r["count"]) and species in (None, r["species"])
    ]


def breeding_birds(data):
    rows = read(data / "birds/mhb2014_counts.csv.gz")
    species = [k for k in rows[0] if k not in ("site", "visit")]
    first = [r for r in rows if r["visit"] == "1"]
    return [(r["site"], s, int(r[s])) for r in first for s in species if known(r[s])]


def hubbard(data, key):
    """Counts summed by `key`."""
    cells = collections.Counter()
    for r in read(data / "birds/hubbard_brook.csv.gz"):
        if known(r["count"]) and key(r):
            cells[r["plot"], key(r)] += int(r["count"])
    return [(row, column, count) for (row, column), count in cells.items()]


def visit(r):
    return r["year"] + "-" + r["rep"]


def mallard(data):
    rows = enumerate(read(data / "birds/mallard_swiss.csv.gz"))
    return [(i, k, int(r[k])) for i, r in rows for k in ("y1", "y2", "y3") if known(r[k])]


def skylark(data):
    rows = read(data / "birds/skylark.csv.gz")
    return [(r["site"], r["year"], int(r["count"])) for r in rows if known(r["count"])]


def aravo(data):
    rows = read(data / "imputation/aravo_counts.csv.gz")
    return [(r["site"], s, int(r[s])) for r in rows for s in r if s != "site"]


SETS = {
    "skylark": skylark,
    "mallard": mallard,
    "great tit": lambda data: tits(data, "Great tit"),
    "crested tit": lambda data: tits(data, "Crested tit"),
    "Hubbard Brook, species": lambda data: hubbard(data, lambda r: r["species"]),
    "Hubbard Brook, visits": lambda data: hubbard(data, visit),
    "Hubbard Brook, ovenbird": lambda data: hubbard(data, lambda r: r["species"] == "OVEN" and visit(r)),
    "Aravo plants": aravo,
    "Swiss tits": tits,
    "Swiss breeding birds": breeding_birds,
    "waterfowl": waterfowl,
}


def split(whimbrel, cells, how, seed, folder):
    """The summary of one split."""
    draw = random.Random(seed)
    if how == "rows":
        owner = owners((row for row, _, _ in cells), draw)
        clients = [owner[str(row)] for row, _, _ in cells]
    else:
        clients = [draw.randrange(CLIENTS) for _ in cells]
    names = ("observer", "site", "month", "count")
    return run(whimbrel, folder, [dict(zip(names, (client, *cell))) for client, cell in zip(clients, cells)], seed)


def line(name, runs):
    cells = sum(r["held_out"] for r in runs)
    fit = pooled(runs, lambda r: r["holdout_deviance"])
    columns, effects = (pooled(runs, lambda r: r["baselines"][b]) for b in ("column_means", "row_column_effects"))
    ranks = collections.Counter(r["rank"] for r in runs)
    seconds = sum(r["seconds"] for r in runs) / len(runs)
    return " | ".join(
        [
            f"| {name}",
            f"{len(runs)} x {cells // len(runs)}",
            f"{columns:.3f}",
            f"{effects:.3f}",
            f"{fit:.3f}",
            f"{fit / min(columns, effects):.3f}",
            ", ".join(f"{rank}: {count}" for rank, count in sorted(ranks.items())),
            f"{100 * pooled(runs, lambda r: r['coverage']):.1f} %",
            f"{seconds:.1f} |",
        ]
    )


def main(whimbrel, data, splits="16", *names):
    whimbrel = pathlib.Path(whimbrel).resolve()
    print("| table | splits x cells | columns | effects | fit | fit / best | rank: splits | coverage | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names or SETS:
        cells = SETS[name](pathlib.Path(data))
        deals = [(how, seed) for how in ("rows", "cells") for seed in range(1, int(splits) + 1)]
        with tempfile.TemporaryDirectory() as folder:
            runs = [split(whimbrel, cells, how, seed, pathlib.Path(folder)) for how, seed in deals]
        print(line(name, runs), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
