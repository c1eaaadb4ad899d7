"""How a run of many small clients scales with threads: seconds to the first round, seconds per round.

Usage: python3 benches/scale.py [--binary target/release/whimbrel] [--clients 100000] [--share 0.1]
           [--rounds 40] [--threads 1,2,4,8,16]

Each client has 20 rows x 20 columns drawn from ten components; a mixture of ten components with one
covariance is fitted by FedEM with one-level dithering. The start ends when the first evaluation,
before the first round, is written: it covers drawing the data, federated k-means, the openings
and that evaluation. Seconds per round include the last evaluation's share. Needs Python 3 alone.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time


def job(clients, share, rounds):
    draw = random.Random(5)
    means = [[round(3 * draw.gauss(0, 1), 3) for _ in range(20)] for _ in range(10)]
    covariance = [[1.0 if i == j else 0.0 for j in range(20)] for i in range(20)]
    return f"""name = "scale"
seed = 1
[data]
source = "mixture"
clients = {clients}
rows = 20
means = {means}
covariance = {covariance}
heterogeneity = {{ dirichlet = 0.2 }}
[model]
kind = "gmm"
components = 10
covariance = "tied"
[method]
kind = "fedem"
rounds = {rounds}
participation = {share}
evaluate = {{ every = {rounds} }}
[uplink]
codec = {{ kind = "dithering", levels = 1 }}
"""


def measure(binary, path, out, threads, rounds):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    log = open(out + ".log", "w")
    begin = time.monotonic()
    process = subprocess.Popen(
        [binary, "run", path, "--out", out], env=environment, stdout=log, stderr=log
    )
    metrics, start = os.path.join(out, "metrics.jsonl"), None
    while start is None:
        time.sleep(0.005)
        if os.path.exists(metrics) and os.path.getsize(metrics) > 0:
            start = time.monotonic() - begin
        elif process.poll() is not None:
            raise SystemExit(open(out + ".log").read())
    _, status, usage = os.wait4(process.pid, 0)
    whole = time.monotonic() - begin
    if status != 0:
        raise SystemExit(open(out + ".log").read())
    rows = [json.loads(line) for line in open(metrics)]
    each = (rows[-1]["seconds"] - rows[0]["seconds"]) / rounds
    return start, each, whole, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/whimbrel")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", default="1,2,4,8,16")
    given = parser.parse_args()
    print(f"{given.clients} clients, a share of {given.share} in each of {given.rounds} rounds")
    print("threads  start s  speed-up  round s  speed-up  whole s  processor s  peak MB")
    first = None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scale.toml")
        with open(path, "w") as file:
            file.write(job(given.clients, given.share, given.rounds))
        for threads in [int(n) for n in given.threads.split(",")]:
            out = os.path.join(folder, f"out{threads}")
            start, each, whole, usage = measure(given.binary, path, out, threads, given.rounds)
            first = first or (start, each)
            processor, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000
            print(
                f"{threads:7}  {start:7.2f}  {first[0] / start:8.2f}  {each:7.4f}  "
                f"{first[1] / each:8.2f}  {whole:7.2f}  {processor:11.1f}  {peak:7.0f}",
                flush=True,
            )


main()
