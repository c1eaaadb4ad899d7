"""fedmix against fedavg and local on images: writers of MNIST's digits, and Fashion-MNIST split by label.

Usage: python benches/personal_images.py --binary target/release/whimbrel [--data DIR] [--rounds N] [--steps 0.1]
       [--cache DIR] [writers] [clothes]

Runs jobs/personal/writers.toml and clothes.toml with each method, the local step chosen on the validation rows
where --steps names several, and prints a Markdown table: the average accuracy over clients (weighted by their
training rows), the bottom decile, and for each client-wise difference to fedmix its weighted mean with the
paired standard error over clients. DIR holds mnist/ and fashion-mnist/ (by default what jobs/data leads to).
"""

import argparse
import csv
import json
import re
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("fedmix", "fedavg", "local")
BOOTSTRAPS = 2000


def job(name, method, data, rounds, steps):
    text = (ROOT / "jobs" / "personal" / f"{name}.toml").read_text()
    text = text.replace("../data/", f"{data}/").replace('kind = "fedmix"', f'kind = "{method}"')
    if method != "fedmix":
        text = text.replace("components = 3\n", "")
    if rounds:
        text = re.sub(r"rounds = \d+", f"rounds = {rounds}", text)
    if len(steps) == 1:
        return re.sub(r"\nstep = [0-9.]+", f"\nstep = {steps[0]}", text)
    return text + f"search = {{ step = [{', '.join(steps)}] }}\n"


def run(asked, name, method):
    folder = asked.cache / f"{name}-{method}-{asked.rounds or 'own'}"
    file = folder.with_suffix(".toml")
    text = job(name, method, asked.data.resolve(), asked.rounds, asked.steps.split(","))
    if not (folder / "summary.json").exists() or not file.exists() or file.read_text() != text:
        file.write_text(text)
        began = time.time()
        subprocess.run([asked.binary, "run", file, "--out", folder, "--force", "-q"], check=True)
        (folder / "elapsed").write_text(f"{time.time() - began:.0f}")
    summary = json.loads((folder / "summary.json").read_text())
    with open(folder / "clients.csv") as lines:
        clients = {
            line["client"]: (float(line["rows"]), float(line["test_accuracy"]))
            for line in csv.DictReader(lines)
            if line["test_accuracy"]
        }
    step = re.search(r"^step = (.*)$", (folder / "job.toml").read_text(), re.M)
    return summary, clients, step.group(1) if step else "", (folder / "elapsed").read_text()


def decile(accuracies):
    """The bottom decile over clients, as the program reports it."""
    return sorted(accuracies)[max(0, -(-len(accuracies) // 10) - 1)]


def average(weights, values):
    return sum(w * v for w, v in zip(weights, values)) / sum(weights)


def paired(ours, other):
    """Weighted mean difference over clients with its standard error; difference of the bottom deciles with
    the standard error of a bootstrap over clients."""
    import random

    names = sorted(ours.keys() & other.keys())
    weights = [ours[name][0] for name in names]
    differences = [ours[name][1] - other[name][1] for name in names]
    mean = average(weights, differences)
    error = sum((w * (d - mean)) ** 2 for w, d in zip(weights, differences)) ** 0.5 / sum(weights)
    pairs = [(ours[name][1], other[name][1]) for name in names]
    apart = lambda pairs: decile([a for a, _ in pairs]) - decile([b for _, b in pairs])
    draw = random.Random(1)
    drawn = [apart(draw.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAPS)]
    centre = sum(drawn) / BOOTSTRAPS
    spread = (sum((d - centre) ** 2 for d in drawn) / (BOOTSTRAPS - 1)) ** 0.5
    return mean, error, apart(pairs), spread


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--data", type=Path, default=ROOT / "jobs" / "data")
    parser.add_argument("--cache", type=Path, default=ROOT / "target" / "personal-images")
    parser.add_argument("--rounds", type=int, help="in place of the jobs' own")
    parser.add_argument("--steps", default="0.1")
    parser.add_argument("names", nargs="*", default=["writers", "clothes"])
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    print("| data | method | test accuracy | bottom decile | fedmix minus it | bottom decile | step | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in asked.names or ["writers", "clothes"]:
        ours = None
        for method in METHODS:
            summary, clients, step, seconds = run(asked, name, method)
            ours = ours or clients
            cells = [name, method, f"{100 * summary['test_accuracy']:.2f}", f"{100 * summary['test_accuracy_p10']:.2f}"]
            if method == "fedmix":
                cells += ["", ""]
            else:
                mean, error, apart, spread = (100 * x for x in paired(ours, clients))
                cells += [f"{mean:+.2f} ± {error:.2f}", f"{apart:+.2f} ± {spread:.2f}"]
            print("| " + " | ".join(cells + [step, seconds]) + " |", flush=True)


if __name__ == "__main__":
    main()
