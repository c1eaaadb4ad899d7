"""Utility and membership inference of a private network on MNIST.

Usage: python benches/membership.py --binary target/release/whimbrel [--data DIR] [--cache DIR]

Runs jobs/mnist/private.toml with epsilon 3 and 8, and without noise, and prints a Markdown table: the accuracy on
the held-out half of the images, and the advantage of an attack that takes a group of 30 images for a client of the
run if its mean loss is below a threshold (Yeom et al. 2018): the true positive rate over the 1,000 clients less the
false positive rate over 1,000 groups of held-out images. The threshold is the mean loss of the clients; beside it
stands the largest advantage over all thresholds, which is 0.04 to 0.06 by chance. No attack against the unit
`client` has more than (e^epsilon - 1 + 2 delta)/(e^epsilon + 1). DIR holds mnist/ (by default jobs/data).
"""

import argparse
import csv
import json
import math
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def job(epsilon, data):
    text = (ROOT / "jobs" / "mnist" / "private.toml").read_text().replace("../data/", f"{data}/")
    if epsilon is None:
        return text[: text.index("[privacy]")]
    return text.replace("epsilon = 8.0", f"epsilon = {epsilon:.1f}") + "noise_seed = 1\n"


def run(asked, epsilon):
    folder = asked.cache / f"membership-{epsilon or 'none'}"
    if not (folder / "summary.json").exists():
        file = folder.with_suffix(".toml")
        file.write_text(job(epsilon, asked.data.resolve()))
        command = [asked.binary, "run", file, "--out", folder, "--force", "--quiet"]
        subprocess.run(command, check=True)
    return folder


def rate(losses, threshold):
    return sum(loss <= threshold for loss in losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=ROOT / "jobs" / "data")
    parser.add_argument("--cache", type=Path, default=ROOT / "target" / "membership")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    print("| epsilon | accuracy | advantage | standard error | over all thresholds | bound |")
    print("|---|---|---|---|---|---|")
    for epsilon in (3, 8, None):
        folder = run(asked, epsilon)
        summary = json.loads((folder / "summary.json").read_text())
        with open(folder / "clients.csv") as file:
            rows = list(csv.DictReader(file))
        inside = [float(row["loss"]) for row in rows]
        outside = [float(row["test_loss"]) for row in rows]
        mean = sum(inside) / len(inside)
        hits, false = rate(inside, mean), rate(outside, mean)
        error = math.sqrt(hits * (1 - hits) / len(inside) + false * (1 - false) / len(outside))
        largest = max(rate(inside, t) - rate(outside, t) for t in inside)
        bound = 1.0
        if epsilon:
            odds = math.exp(epsilon)
            bound = (odds - 1 + 2 * summary["delta"]) / (odds + 1)
        print(
            f"| {epsilon or 'none'} | {summary['test_accuracy']:.3f} | {hits - false:.3f} | {error:.3f} "
            f"| {largest:.3f} | {bound:.3f} |"
        )


if __name__ == "__main__":
    main()
