"""Posteriors of personal parts beside their baselines, as Markdown tables (docs/benchmarks/bayes.md).

Usage: python benches/bayes.py --binary target/release/whimbrel [--data DIR] [--cache DIR] [--seeds 1,2,3,4,5]
       [--threads 2] [--images cifar10|fashion] [--rounds 200] [--grid 10-5-2,90-5-2] [--steps 0.03,0.1]
       [--out FILE] [toy] [images] [outside]

toy: the six settings of FedSOUL's supplement, S3.1, and the setting with two samples. images: S3.2, 100 clients of
which 10, 50 or 90 have 5 or 10 images and the others 25, two or five classes a client (--grid: a part of it). outside: S3.3 in the form of
the main paper, MNIST inside and Fashion-MNIST outside (jobs/bayes/digits.toml).

A baseline's local step is the one of --steps with the best mean over the seeds of the very figure that is reported,
which favours the baselines; for images `fedsoul`'s step of the shared layers is chosen likewise, from two. Runs are kept in --cache, so that an interrupted table goes on where it stopped. DIR holds
mnist/, fashion-mnist/ and cifar10/ (by default what jobs/data leads to).
"""

import argparse
import functools
import gzip
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINES = ("fedavg", "fedrep", "apfl")
# Shares of a step of gradient descent that `fedsoul` chooses from for the layers of images: with a whole one units die.
PHI = (0.25, 0.5)
TOY = {
    "b = 100, k = 20, d = 2 (S6)": {},
    "d = 5 (S5)": {"latent": 5},
    "two samples": {"samples": 2},
    "b = 50 (S1)": {"clients": 50},
    "k = 5 (S4)": {"raw": 5},
    "k = 50 (S3)": {"raw": 50},
    "b = 200 (S2)": {"clients": 200},
}


def summary_of(asked, name, text):
    """The summary of a run of this job, from the cache if present; None if it failed."""
    folder = asked.cache / re.sub(r"[^a-z0-9.=-]+", "_", name)
    file, kept = folder.with_suffix(folder.suffix + ".toml"), folder / "summary.json"
    if not kept.exists() or not file.exists() or file.read_text() != text:
        file.write_text(text)
        command = [asked.binary, "run", file, "--out", folder, "--force", "-q", "--threads", str(asked.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            # A step at which local training diverges is a step that is not chosen.
            print(f"{name}: {done.stderr.strip()}", file=sys.stderr)
            return None
    return json.loads(kept.read_text())


def runs(asked, name, job, key):
    """The figure of every seed, or None for a failed run."""
    found = [summary_of(asked, f"{name}-{seed}", job(seed)) for seed in asked.seeds]
    return None if any(one is None for one in found) else [one.get(key) for one in found], found


def mean(values):
    return sum(values) / len(values)


def best_step(asked, name, job, key, larger, steps=None):
    """The step with the best mean of a figure, and the summaries of its runs."""
    steps = steps or asked.steps
    tried = [(step, *runs(asked, f"{name}-{step}", lambda seed: job(seed, step), key)) for step in steps]
    tried = [one for one in tried if one[1]]
    return (max if larger else min)(tried, key=lambda one: mean(one[1]))


def toy_job(setting, method):
    toy = {"clients": 100, "raw": 20, "latent": 2, "samples": 5, **setting}

    def job(seed, step=None):
        step = f"step = {step}\n" if step else ""
        return (
            f'name = "toy"\nseed = {seed}\n[data]\nsource = "synthetic-representation"\nclients = {toy["clients"]}\n'
            f'raw = {toy["raw"]}\nlatent = {toy["latent"]}\nsmall = {{ share = 0.9, samples = {toy["samples"]} }}\n'
            f'large = 10\nnoise = 0.1\n[model]\nkind = "linear-representation"\nlatent = {toy["latent"]}\n[privacy]\nmin_group = 1\n[method]\n'
            f"{method}{step}evaluate = {{ every = 1000 }}\n"
        )

    return job


def toy(asked, put):
    put("| setting | `fedsoul` | coverage of 90 % intervals | `fedavg` | `fedrep` | `apfl` | seeds in which `fedrep` is ahead |")
    put("|---|---|---|---|---|---|---|")
    soul = 'kind = "fedsoul"\nkernel = "ula"\nrounds = 1000\nsteps = 10\nburn_in = 5\n'
    for name, setting in TOY.items():
        errors, found = runs(asked, f"toy-{name}-fedsoul", toy_job(setting, soul), "prediction_error")
        cells = [f"{mean(errors):.4f}", f"{mean([one['coverage_90'] for one in found]):.3f}"]
        ahead = 0
        for baseline in BASELINES:
            method = f'kind = "{baseline}"\nrounds = 300\nlocal_epochs = 5\n'
            job = toy_job(setting, method)
            step, theirs, _ = best_step(asked, f"toy-{name}-{baseline}", job, "prediction_error", larger=False)
            cells.append(f"{mean(theirs):.4f} ({step})")
            if baseline == "fedrep":
                ahead = sum(a < b for a, b in zip(theirs, errors))
        put("| " + " | ".join([name] + cells + [f"{ahead} of {len(errors)}"]) + " |")


@functools.cache
def pool_of(data, images):
    """(pixels, label) of images, shuffled, and their shape."""
    if images == "cifar10":
        raw = gzip.decompress((data / "cifar10/data_batch_1.first4000.bin.gz").read_bytes())
        pool = [(raw[at + 1 : at + 3073], raw[at]) for at in range(0, len(raw), 3073)]
        shape = [3, 32, 32]
    else:
        pixels = gzip.decompress((data / "fashion-mnist/train-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((data / "fashion-mnist/train-labels-idx1-ubyte.gz").read_bytes())[8:]
        pool = [(pixels[784 * i : 784 * (i + 1)], labels[i]) for i in range(20000)]
        shape = [1, 28, 28]
    random.Random(1).shuffle(pool)
    return pool, shape


def image_data(asked, small, samples, classes, seed):
    """Two files in LEAF's format: `small` clients with few images, the others with 25, and ten test images each."""
    files = [asked.cache / f"{asked.images}-{small}-{samples}-{classes}-{seed}-{part}.json" for part in ("train", "test")]
    pool, shape = pool_of(asked.data, asked.images)
    if all(file.exists() for file in files):
        return files, shape
    draw = random.Random(seed)
    by_class = {label: [pixels for pixels, of in pool if of == label] for label in range(10)}
    parts = [{"users": [], "num_samples": [], "user_data": {}} for _ in files]
    dealt = [0] * 10
    for client in range(100):
        # Those that were dealt least often, so that no class runs out of images.
        own = sorted(range(10), key=lambda label: (dealt[label], draw.random()))[:classes]
        for label in own:
            dealt[label] += 1
        images = samples if client < small else 25
        for part, count in zip(parts, (images, 10)):
            y = [own[i % classes] for i in range(count)]
            x = [[round(pixel / 255, 4) for pixel in by_class[label].pop()] for label in y]
            name = f"client-{client:03}"
            part["users"].append(name)
            part["num_samples"].append(count)
            part["user_data"][name] = {"x": x, "y": y}
    for file, part in zip(files, parts):
        file.write_text(json.dumps(part))
    return files, shape


def images(asked, put):
    put("| small clients | their images | classes a client | `fedsoul` | its ECE | `fedavg` | ECE | `fedrep` | ECE | `apfl` | ECE |")
    put("|---|---|---|---|---|---|---|---|---|---|---|")
    for small, samples, classes in asked.grid:
        rows = small * samples + (100 - small) * 25
        soul = f'kind = "fedsoul"\nrounds = {asked.rounds}\nsteps = 20\nburn_in = 18\n'
        name = f"{asked.images}-{asked.rounds}-{small}-{samples}-{classes}"

        def job(method, step_of=lambda step: step):
            def text(seed, step):
                (train, test), shape = image_data(asked, small, samples, classes, seed)
                return (
                    f'name = "images"\nseed = {seed}\n[data]\nsource = "leaf"\npath = "{train}"\ntests = "{test}"\n'
                    f'shape = {shape}\nvalidation = 0.0\n[model]\nkind = "lenet"\n[method]\n{method}step = {step_of(step)}\n'
                    f"evaluate = {{ every = 100000 }}\n"
                )

            return text

        # A share of a step of gradient descent on the mean loss of a row.
        soul = job(soul, lambda share: f"{{ phi = {share / rows:.2e} }}")
        share, right, found = best_step(asked, f"{name}-fedsoul", soul, "test_accuracy", True, PHI)
        cells = [f"{100 * mean(right):.1f} ({share})", f"{mean([one['test_ece'] for one in found]):.3f}"]
        for baseline in BASELINES:
            method = f'kind = "{baseline}"\nrounds = {asked.rounds}\nbatch = 5\n'
            step, right, found = best_step(asked, f"{name}-{baseline}", job(method), "test_accuracy", True)
            cells += [f"{100 * mean(right):.1f} ({step})", f"{mean([one['test_ece'] for one in found]):.3f}"]
        put("| " + " | ".join([str(small), str(samples), str(classes)] + cells) + " |")


def outside(asked, put):
    put("| method | test accuracy | ECE | AUROC of the entropy, each seed | mean | effective samples, R-hat |")
    put("|---|---|---|---|---|---|")
    text = (ROOT / "jobs/bayes/digits.toml").read_text().replace("../data/", f"{asked.data.resolve()}/")
    head, soul = text.split("[method]\n")
    elsewhere = re.search(r"^outside = .*$", soul, re.M).group(0)
    rounds = re.search(r"^rounds = (\d+)$", soul, re.M).group(1)

    def job(method):
        def whole(seed, step=None):
            step = f"step = {step}\n" if step else ""
            return head.replace("seed = 1", f"seed = {seed}") + "[method]\n" + method + step

        return whole

    def row(label, auroc, found):
        keys = ("test_accuracy", "test_ece")
        cells = [f"{mean([one[key] for one in found]):.3f}" for key in keys]
        cells += [" ".join(f"{one:.3f}" for one in auroc), f"{mean(auroc):.3f}"]
        chains = [mean([one.get(key, math.nan) for one in found]) for key in ("ess_median", "r_hat_median")]
        cells.append("" if math.isnan(chains[0]) else f"{chains[0]:.0f}, {chains[1]:.2f}")
        put("| " + " | ".join([label] + cells) + " |")

    row("`fedsoul`", *runs(asked, "outside-fedsoul", job(soul), "outside_auroc"))
    for baseline in BASELINES:
        method = f'kind = "{baseline}"\nrounds = {rounds}\nbatch = 16\n{elsewhere}\nevaluate = {{ every = 100000 }}\n'
        step, auroc, found = best_step(asked, f"outside-{baseline}", job(method), "outside_auroc", larger=True)
        row(f"`{baseline}` (step {step})", auroc, found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--data", type=Path, default=ROOT / "jobs" / "data")
    parser.add_argument("--cache", type=Path, default=Path("target/bayes"))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--images", choices=("cifar10", "fashion"), default="cifar10")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--grid", help="small clients - their images - classes a client, ...")
    parser.add_argument("--steps", default="0.01,0.03,0.1", help="local steps that baselines choose from")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*", default=["toy", "images", "outside"])
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    asked.cache, asked.seeds = asked.cache.resolve(), [int(seed) for seed in asked.seeds.split(",")]
    asked.steps = [float(step) for step in asked.steps.split(",")]
    whole = [(small, samples, classes) for classes in (2, 5) for samples in (5, 10) for small in (10, 50, 90)]
    asked.grid = [tuple(map(int, one.split("-"))) for one in asked.grid.split(",")] if asked.grid else whole
    lines = []

    def put(line):
        lines.append(line)
        print(line, flush=True)

    for name in asked.names:
        {"toy": toy, "images": images, "outside": outside}[name](asked, put)
        put("")
    if asked.out:
        asked.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
