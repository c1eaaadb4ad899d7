"""Personal models on the synthetic mixture of App. I.1.5: every method with its own search, as a Markdown table.

Usage: python benches/personal.py --binary target/release/whimbrel [--out table.md] [--cache DIR] [names]

The job is jobs/personal/mixture.toml with the method exchanged. Each method chooses its settings on the
validation rows over the grid in METHODS, for each seed apart; what is reported is on the test rows, the mean of
seeds 1 to 3. Runs are kept in --cache, so that an interrupted table goes on where it stopped.
"""

import argparse
import json
import subprocess
from pathlib import Path

SEEDS = (1, 2, 3)
TRAINING = "rounds = 200\nlocal_epochs = 1\nbatch = 128\ndecay = { factor = 0.1, at = [0.5, 0.75] }\n"
STEPS = "0.5, 2.0, 5.0"
DITHER = "codec = { kind = \"dithering\", levels = 4 }"


def method(kind, search=f"step = [{STEPS}]", keys="", training=TRAINING, data="", tables=""):
    search = f"search = {{ {search} }}\n" if search else ""
    return {"method": f'kind = "{kind}"\n{training}{keys}{search}', "data": data, "tables": tables}


BOLD = "step = [3.0, 5.0, 8.0]"
FIXED = "components = 3\nstep = 5.0\n"
MORE_ROUNDS = TRAINING.replace("200", "1000")
METHODS = {
    "fedmix": method("fedmix", keys="components = 3\n"),
    "fedmix, M = 2": method("fedmix", keys="components = 2\n"),
    "fedmix, M = 4": method("fedmix", keys="components = 4\n"),
    "fedavg": method("fedavg"),
    "fedavg+": method("fedavg+"),
    "fedprox": method("fedprox", f"step = [{STEPS}], mu = [0.01, 0.1]"),
    "fedopt": method("fedopt", f"step = [{STEPS}], server_step = [0.01, 0.1]"),
    "scaffold": method("scaffold"),
    "local": method("local"),
    "ditto": method("ditto", f"step = [{STEPS}], lambda = [0.01, 0.1]"),
    "apfl": method("apfl"),
    "pfedme": method("pfedme", "step = [0.05, 0.5, 5.0], lambda = [1.0, 15.0]"),
    "clustered": method("clustered"),
    "mocha": method("mocha", "lambda = [100.0, 1000.0, 3000.0, 10000.0]", training="rounds = 200\nlocal_epochs = 1\n"),
    "d-fedmix, complete": method("d-fedmix", "", FIXED + 'topology = { kind = "complete" }\n'),
    "d-fedmix, Erdos-Renyi(0.5)": method("d-fedmix", "", FIXED),
    "d-fedmix, ring": method("d-fedmix", "", FIXED + 'topology = { kind = "ring" }\n'),
    "fedmix, 20 % of clients, 1,000 rounds": method(
        "fedmix", "", FIXED + "participation = 0.2\n", training=MORE_ROUNDS
    ),
    "fedmix over diana": method(
        "fedmix", BOLD, 'components = 3\nchannels = "diana"\n', tables=f"\n[uplink]\n{DITHER}\n"
    ),
    "fedmix over mcm": method(
        "fedmix",
        BOLD,
        'components = 3\nchannels = "mcm"\n',
        tables=f"\n[uplink]\n{DITHER}\n\n[downlink]\n{DITHER}\n",
    ),
    "fedmix, test_samples = 1000": method("fedmix", "", FIXED, data="test_samples = 1000\n"),
}


def job(name, seed):
    asked = METHODS[name]
    return (
        f'name = "job"\nseed = {seed}\n\n[data]\nsource = "synthetic-mixture"\nclients = 300\ncomponents = 3\n'
        f"dimension = 150\nalpha = 0.4\nunseen = 0.2\n{asked['data']}\n[model]\nkind = \"logistic\"\n\n"
        f"[method]\n{asked['method']}evaluate = {{ every = 1000 }}\n{asked['tables']}"
    )


def run(binary, cache, name, seed):
    folder = cache / f"{name}-{seed}".replace(" ", "_").replace(",", "").replace("/", "")
    kept = folder.with_suffix(".json")
    text = job(name, seed)
    if kept.exists():
        found = json.loads(kept.read_text())
        if found["job"] == text:
            return found["summary"]
    file = folder.with_suffix(".toml")
    file.write_text(text)
    subprocess.run([binary, "run", file, "--out", folder, "--force", "-q"], check=True)
    summary = json.loads((folder / "summary.json").read_text())
    written = (folder / "job.toml").read_text().splitlines()
    chosen = [line for line in written if line.split(" = ")[0] in ("step", "mu", "lambda", "server_step")]
    summary["chosen"] = ", ".join(chosen) if "search" in text else "step = 5.0"
    kept.write_text(json.dumps({"job": text, "summary": summary}))
    return summary


def row(name, found, exact):
    def mean(key):
        values = [one[key] for one in found if one.get(key) is not None]
        return f"{100 * sum(values) / len(values):.1f}" if len(values) == len(found) else ""

    def times_fewer(key):
        sent = sum(one[key] for one in found)
        times = sum(one[key] for one in exact) / sent if exact and sent else 0.0
        return f"{times:.1f}" if times >= 0.1 else ""

    chosen = sorted({one["chosen"] for one in found})
    cells = [name, mean("test_accuracy"), mean("test_accuracy_p10"), mean("bayes_accuracy")]
    cells += [mean("unseen_accuracy"), mean("bayes_accuracy_unseen"), times_fewer("bits_up"), times_fewer("bits_down")]
    each = " ".join(f"{100 * one['test_accuracy']:.1f}" for one in found)
    return "| " + " | ".join(cells + [each, "; ".join(chosen)]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--cache", type=Path, default=Path("target/personal"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    lines = [
        "| method | test | bottom decile | Bayes | unseen | Bayes, unseen | times fewer bits up | down | seeds | chosen |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    exact = None
    for name in METHODS:
        if asked.names and name not in asked.names + ["fedmix"]:
            continue
        found = [run(asked.binary, asked.cache, name, seed) for seed in SEEDS]
        exact = found if name == "fedmix" else exact
        lines.append(row(name, found, exact))
        print(lines[-1], flush=True)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
