"""Processor time of a round of fedmix (three components) and of fedavg on jobs/personal/mixture.toml, one thread.

Usage: python benches/personal_cost.py --binary target/release/whimbrel [--repeats 3]

The difference between 500 and 100 rounds, without evaluations, so that reading and starting do not count.
"""

import argparse
import resource
import subprocess
import tempfile
from pathlib import Path

JOB = Path(__file__).resolve().parent.parent / "jobs" / "personal" / "mixture.toml"


def seconds(binary, kind, rounds, folder):
    text = JOB.read_text().replace("rounds = 200", f"rounds = {rounds}")
    text = text.replace("evaluate = { every = 10 }", "evaluate = { every = 100000 }")
    if kind != "fedmix":
        text = text.replace('kind = "fedmix"\ncomponents = 3', f'kind = "{kind}"')
    job = folder / "job.toml"
    job.write_text(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [binary, "run", job, "--out", folder / "run", "--force", "-q", "--threads", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.repeats):
            cost = {}
            for kind in ("fedavg", "fedmix"):
                rounds = [seconds(asked.binary, kind, rounds, Path(folder)) for rounds in (500, 100)]
                cost[kind] = (rounds[0] - rounds[1]) / 400 * 1e3
            ratio = cost["fedmix"] / cost["fedavg"]
            print(f"fedavg {cost['fedavg']:.2f} ms, fedmix {cost['fedmix']:.2f} ms, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
