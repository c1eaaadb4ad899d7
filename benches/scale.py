"""Scaling with threads of a run with many small clients: seconds to the first round, seconds per round.

Usage: python3 benches/scale.py [--binary target/release/whimbrel] [--clients 100000] [--share 0.1]
           [--rounds 40] [--threads 1,2,4,8,16]

Each client has 20 rows x 20 columns drawn from ten components; a mixture of ten components with one
covariance is fitted by FedEM with one-level dithering. The start ends when the first evaluation,
before the first exchange, is written: it covers drawing the data, federated k-means, enrolment and that
evaluation. "first s" is when the first sampled round is over, after two exchanges with everyone
and "round s" the mean of those after it: both are read off the journal, whose lines are written at
once where a round has some 10,000 clients. No checkpoint is written before the end. Beside wall time
stands processor time of all threads ("cpu"), which other programs on the machine disturb less. Needs
Python 3 and Linux.
"""

import argparse
import os
import random
import re
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
[simulation]
checkpoint_seconds = 3600
"""


def processor(pid):
    """Processor time of a process in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(binary, path, out, threads, rounds):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    log = open(out + ".log", "w")
    begin = time.monotonic()
    process = subprocess.Popen(
        [binary, "run", path, "--out", out], env=environment, stdout=log, stderr=log
    )
    metrics, journal = os.path.join(out, "metrics.jsonl"), os.path.join(out, "journal")
    start, seen = None, {}
    read, tail = 0, b""
    while True:
        time.sleep(0.005)
        now = time.monotonic() - begin
        if start is None and os.path.exists(metrics) and os.path.getsize(metrics) > 0:
            start = now, processor(process.pid)
        if start and os.path.getsize(journal) > read:
            with open(journal, "rb") as file:
                file.seek(read)
                text = file.read()
            read, tail, text = read + len(text), text[-20:], tail + text
            for number in re.findall(rb'"round":(\d+),', text):
                seen.setdefault(int(number), (now, processor(process.pid)))
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
    whole = time.monotonic() - begin
    if status != 0:
        raise SystemExit(open(out + ".log").read())
    each = [(after - before) / (rounds - 2) for after, before in zip(seen[rounds], seen[2])]
    return start, seen[2], each, whole, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/whimbrel")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", default="1,2,4,8,16")
    given = parser.parse_args()
    print(f"{given.clients} clients, a share of {given.share} in each of {given.rounds} rounds")
    print("threads  start s   cpu  speed-up  first s   cpu  round s    cpu  speed-up  whole s   cpu  peak MB")
    alone = None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scale.toml")
        with open(path, "w") as file:
            file.write(job(given.clients, given.share, given.rounds))
        for threads in [int(n) for n in given.threads.split(",")]:
            out = os.path.join(folder, f"out{threads}")
            start, first, each, whole, usage = measure(
                given.binary, path, out, threads, given.rounds
            )
            alone = alone or (start[0], each[0])
            print(
                f"{threads:7}  {start[0]:7.2f} {start[1]:5.1f}  {alone[0] / start[0]:8.2f}  "
                f"{first[0]:7.2f} {first[1]:5.1f}  {each[0]:7.4f} {each[1]:6.3f}  {alone[1] / each[0]:8.2f}  "
                f"{whole:7.2f} {usage.ru_utime + usage.ru_stime:5.1f}  {usage.ru_maxrss / 1000:7.0f}",
                flush=True,
            )


main()
