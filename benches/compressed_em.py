"""Compressed fedem and vr-fedem against exact EM from the same start, as a Markdown table.

Usage: python benches/compressed_em.py --binary target/release/whimbrel [--jobs 2] [--out table.md] [filters]

Every run is the command line's: a job file with defaults but for what the table names. A set's rows
are shared out by this script (`client` column): iid, by class (Dirichlet 0.3 over the clients), or
with one client that holds nine tenths. The start is federated k-means; the exact run has the same
seed, so the same start. The gap is the difference of the objectives (negative log-likelihood per row,
nats) after the same number of rounds. Starts at which exact EM itself is degenerate are left out, and
counted. Every run uses one thread; --jobs says how many run at a time. Results are kept in --cache as
they come, so that an interrupted table resumes where it stopped; --finished makes the table of what is
there and runs nothing.
"""

import argparse
import csv
import gzip
import itertools
import json
import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
CLIENTS = 10
# The distance from exact EM, in nats per row, up to which bits are counted.
NEAR = 0.01


def rows_of(path, label, header=0):
    """Features and classes of a file; `label` is the class's column."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        lines = [line for line in csv.reader(file) if line][header:]
    classes = [line[label] for line in lines]
    return [line[:label] + line[label + 1 :] if label >= 0 else line[:label] for line in lines], classes


def synthetic():
    """Five correlated components of unequal sizes in eight columns far from zero and of different
    scales."""
    draw = random.Random(11)
    rows, classes = [], []
    parts = []
    for _ in range(5):
        mean = [draw.gauss(0, 2) for _ in range(8)]
        mixing = [[draw.gauss(0, 1) * 0.6 for _ in range(8)] for _ in range(8)]
        parts.append((mean, mixing))
    for _ in range(4000):
        k = draw.choices(range(5), [5, 4, 3, 2, 1])[0]
        mean, mixing = parts[k]
        z = [draw.gauss(0, 1) for _ in range(8)]
        row = [m + sum(a * b for a, b in zip(line, z)) for m, line in zip(mean, mixing)]
        rows.append([f"{100 * 3 ** j + 3 ** j * x:.6f}" for j, x in enumerate(row)])
        classes.append(str(k))
    return rows, classes


def far(rows):
    """The same rows, shifted by 1000 in every column."""
    return [[f"{1000 + float(x):.6f}" for x in row] for row in rows]


def abalone():
    return rows_of(DATA / "classics" / "abalone.csv.gz", 0)


# name: (rows, components, [data.prepare], reg_covar)
SETS = {
    "magic": (lambda: rows_of(DATA / "uci-dense" / "magic04.csv.gz", -1), 5, "standardize = true", 1e-4),
    "digits": (
        lambda: rows_of(DATA / "classics" / "digits.csv.gz", -1),
        10,
        "drop_constant = true\npca = 10",
        1e-3,
    ),
    "wine": (lambda: rows_of(DATA / "classics" / "wine_data.csv", -1, 1), 3, "standardize = true", 1e-1),
    "breast-cancer": (
        lambda: rows_of(DATA / "classics" / "breast_cancer.csv", -1, 1),
        2,
        "standardize = true",
        1e-2,
    ),
    "usps": (lambda: rows_of(DATA / "usps" / "zip.train.csv.gz", 0), 10, "pca = 20", 1e-3),
    "synthetic": (synthetic, 5, "standardize = false", 1e-6),
    "abalone": (abalone, 4, "standardize = true", 1e-3),
    "abalone-far": (lambda: (far(abalone()[0]), abalone()[1]), 4, "standardize = false", 1e-4),
    "iris": (lambda: rows_of(DATA / "classics" / "iris.csv", -1, 1), 3, "standardize = true", 1e-2),
}
COVARIANCES = ["full", "diagonal", "tied"]
LEVELS = [1, 8, "auto"]
SPLITS = ["iid", "by-class", "dominant"]
PARTICIPATIONS = [1.0, 0.5, 0.2, 0.1]
METHODS = ["fedem", "vr-fedem"]


def share_out(classes, split, draw):
    """The client of each row."""
    if split == "dominant":
        return [0 if draw.random() < 0.9 else draw.randrange(1, CLIENTS) for _ in classes]
    if split == "iid":
        return [i % CLIENTS for i in draw.sample(range(len(classes)), len(classes))]
    shares = {}
    for name in sorted(set(classes)):
        drawn = [draw.gammavariate(0.3, 1) + 1e-9 for _ in range(CLIENTS)]
        shares[name] = drawn
    held = [draw.choices(range(CLIENTS), shares[name])[0] for name in classes]
    # Nobody is left without rows.
    for client in range(CLIENTS):
        while held.count(client) < 5:
            held[draw.randrange(len(held))] = client
    return held


def write_rows(folder, name, split):
    path = folder / f"{name}-{split}.csv"
    if path.exists():
        return path
    rows, classes = SETS[name][0]()
    held = share_out(classes, split, random.Random(f"{name} {split}"))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"x{j + 1}" for j in range(len(rows[0]))] + ["client"])
        writer.writerows(row + [f"c{client:02}"] for row, client in zip(rows, held))
    return path


def job(name, covariance, method, uplink, split, participation, seed, rounds, folder, extra=""):
    _, components, prepare, reg = SETS[name]
    return f"""seed = {seed}
[data]
source = "csv"
path = "{folder / f"{name}-{split}.csv"}"
client = "client"
[data.prepare]
{prepare}
[model]
kind = "gmm"
components = {components}
covariance = "{covariance}"
reg_covar = {reg}
[method]
kind = "{method}"
rounds = {rounds}
participation = {participation}
evaluate = {{ every = {max(rounds // 100, 1)} }}
{extra}
[uplink]
{uplink}
"""


def run(binary, folder, key, text):
    """The summary of a run, from the cache if present."""
    kept = folder / "results" / f"{key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    own = f"{os.getpid()}-{threading.get_ident()}"
    path = folder / f"job-{own}.toml"
    path.write_text(text)
    out = folder / f"run-{own}"
    command = [binary, "run", path, "--out", out, "--force", "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if lines else {}
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    curve = [(row.get("bits_up"), row.get("objective")) for row in map(json.loads, lines)]
    found = {
        "curve": curve,
        "exit": done.returncode,
        "ending": result.get("ending"),
        "objective": result.get("objective"),
        "repairs": result.get("repairs"),
        "dead": result.get("dead"),
        "bits_up": result.get("bits_up"),
        "message": done.stderr.strip()[-300:] if done.returncode else "",
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def runs_of(asked, folder, cell, seed):
    """The exact and the compressed run of a cell and a seed: names in the cache, and jobs."""
    name, covariance, split, participation, levels, method = cell
    exact_key = f"exact {name} {covariance} {split} {seed} {asked.rounds}"
    exact_job = job(name, covariance, "fedem", "", split, 1.0, seed, asked.rounds, folder)
    bucket = f", bucket = {asked.bucket}" if asked.bucket else ""
    frame = f'\nframe = "{asked.frame}"' if asked.frame else ""
    written = f'"{levels}"' if levels == "auto" else levels
    uplink = f'codec = {{ kind = "dithering", levels = {written}{bucket} }}{frame}'
    key = (
        f"{method} {name} {covariance} {split} {participation} {levels} {seed} "
        f"{asked.rounds} {asked.bucket} {asked.frame}{asked.channels and f' {asked.channels}'}"
    )
    extra = ""
    if asked.channels:
        extra = f'channels = "{asked.channels}"'
        uplink += f"\n[downlink]\ncodec = {{ kind = \"dithering\", levels = {levels}{bucket} }}"
    text = job(name, covariance, method, uplink, split, participation, seed, asked.rounds, folder, extra)
    return (exact_key, exact_job), (key, text)


def result(folder, key):
    kept = folder / "results" / f"{key}.json"
    return json.loads(kept.read_text()) if kept.exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--cache", default="/tmp/compressed-em")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--finished", action="store_true", help="the table of the runs in the cache")
    parser.add_argument("--again", type=int, default=0, help="rounds for the runs above 0.05, once more")
    parser.add_argument("--bucket", type=int, default=64, help="0: one norm for all")
    parser.add_argument("--channels", default="", help="mcm, rand-mcm, artemis, ...: a compressed downlink")
    parser.add_argument("--frame", default="", help="fisher or raw; the default of the program")
    for name, all_of in [
        ("sets", list(SETS)),
        ("covariances", COVARIANCES),
        ("levels", LEVELS),
        ("splits", SPLITS),
        ("participations", PARTICIPATIONS),
        ("methods", ["fedem"]),
    ]:
        parser.add_argument(f"--{name}", nargs="*", default=all_of)
    asked = parser.parse_args()
    folder = Path(asked.cache).resolve()
    (folder / "results").mkdir(parents=True, exist_ok=True)

    cells = [
        (name, covariance, split, float(participation), levels, method)
        for name, covariance, split, participation, levels, method in itertools.product(
            asked.sets, asked.covariances, asked.splits, asked.participations, asked.levels, asked.methods
        )
    ]
    if not asked.finished:
        for name, split in {(cell[0], cell[2]) for cell in cells}:
            write_rows(folder, name, split)
        # Seeds outermost: an interrupted table has all of its cells, with fewer seeds. Of the runs
        # of one cell the exact one is shared, so it goes first.
        work = [runs_of(asked, folder, cell, seed) for seed in asked.seeds for cell in cells]
        exact = {pair[0][0]: pair[0] for pair in work}
        for part in [exact.values(), [pair[1] for pair in work]]:
            with ThreadPoolExecutor(asked.jobs) as pool:
                list(pool.map(lambda item: run(asked.binary, folder, *item), part))

    gaps, collapsed, left_out, parts, above, reached = [], 0, 0, {}, [], {}
    for cell in cells:
        name, covariance, split, participation, levels, method = cell
        own, repairs, bits, exact_bits, to_reach = [], 0, [], [], []
        for seed in asked.seeds:
            exact, found = [result(folder, key) for key, _ in runs_of(asked, folder, cell, seed)]
            if exact is None or found is None:
                continue
            if exact["exit"] != 0 or exact["objective"] is None or exact["repairs"]:
                left_out += 1
                continue
            if found["exit"] != 0 or found["objective"] is None:
                collapsed += 1
                own.append(float("inf"))
                continue
            own.append(found["objective"] - exact["objective"])
            if own[-1] > 0.05:
                above.append((cell, seed, exact["objective"], own[-1]))
            near = [sent for sent, value in found["curve"] if value <= exact["objective"] + NEAR]
            to_reach.append(near[0] if near else float("inf"))
            repairs += int(found["repairs"] or 0)
            bits.append(found["bits_up"])
            exact_bits.append(exact["bits_up"])
        if not own:
            continue
        gaps += own
        part = parts.setdefault((method, name, covariance, levels), [[], 0, [], []])
        reached.setdefault((method, participation, levels), []).extend(
            ((name, covariance, split, seed), bits) for seed, bits in zip(asked.seeds, to_reach)
        )
        part[0] += own
        part[1] += repairs
        part[2] += bits
        part[3] += exact_bits
        own.sort()
        line = (
            f"| {name} | {covariance} | {split} | {participation:g} | {levels} | {method} | {len(own)} "
            f"| {shown(own[len(own) // 2])} | {shown(own[-1])} | {repairs} "
            f"| {mean(bits)} ({mean(exact_bits)}) |"
        )
        print(line, flush=True)
    good = sum(gap <= 0.05 for gap in gaps)
    summary = (
        f"{len(gaps)} runs of {asked.rounds} rounds: {good} ({100 * good / max(len(gaps), 1):.1f} %) at most "
        f"0.05 nats per row above exact EM, {collapsed} collapsed; {left_out} left out because exact EM is "
        "degenerate there."
    )
    print(summary)
    print("\n".join(bits_table(reached)))
    longer = list(again(asked, folder, above)) if asked.again else []
    print("\n".join(longer))
    if asked.out:
        lines = [*table(parts), "", summary, "", *bits_table(reached), "", *longer]
        Path(asked.out).write_text("\n".join(lines) + "\n")


def again(asked, folder, above):
    """The runs above 0.05 with more rounds, as a table."""
    asked_again = argparse.Namespace(**{**vars(asked), "rounds": asked.again})

    def longer_of(cell, seed):
        key, text = runs_of(asked_again, folder, cell, seed)[1]
        return result(folder, key) if asked.finished else run(asked.binary, folder, key, text)

    with ThreadPoolExecutor(asked.jobs) as pool:
        longer = list(pool.map(lambda run: longer_of(*run[:2]), above))
    found = [
        (cell, seed, gap, late["objective"] - exact)
        for (cell, seed, exact, gap), late in zip(above, longer)
        if late is not None and late["objective"] is not None
    ]
    yield "| set | covariance | split | p | levels | method | seed | gap | after more rounds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (name, covariance, split, participation, levels, method), seed, gap, late in found:
        yield (
            f"| {name} | {covariance} | {split} | {participation:g} | {levels} | {method} | {seed} "
            f"| {gap:.4f} | {late:.4f} |"
        )
    closed = sum(late <= 0.05 for *_, late in found)
    yield ""
    yield f"{closed} of {len(found)} runs above 0.05 are at most 0.05 above exact EM after {asked.again} rounds."


def shown(gap):
    return "collapsed" if gap == float("inf") else f"{gap:.4f}"


def mean(bits):
    return f"{sum(bits) / len(bits) / 1e6:.2f}" if bits else "-"


def bits_table(reached):
    """Bits sent up until the objective is within `NEAR` of exact EM, by participation and levels."""
    yield f"| method | p | levels | runs | within {NEAR} nats | median Mbit up to get there |"
    yield "|---|---|---|---|---|---|"
    for (method, participation, levels), found in reached.items():
        bits = sorted(bits for _, bits in found)
        within = sum(b < float("inf") for b in bits)
        middle = bits[len(bits) // 2]
        shown_bits = f"{middle / 1e6:.3f}" if middle < float("inf") else "not reached"
        yield f"| {method} | {participation:g} | {levels} | {len(bits)} | {within} | {shown_bits} |"


def table(parts):
    """One line per method, set, covariance and number of levels, over splits, participations and
    seeds."""
    yield "| method | set | covariance | levels | runs | within 0.05 | median gap | largest | repairs | Mbit up (exact) |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (method, name, covariance, levels), (own, repairs, bits, exact_bits) in parts.items():
        own = sorted(own)
        good = sum(gap <= 0.05 for gap in own)
        yield (
            f"| {method} | {name} | {covariance} | {levels} | {len(own)} | {good} "
            f"| {shown(own[len(own) // 2])} | {shown(own[-1])} | {repairs} | {mean(bits)} ({mean(exact_bits)}) |"
        )


if __name__ == "__main__":
    main()
