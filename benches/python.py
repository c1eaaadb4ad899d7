"""Costs of Python, Ray and Flower: the figures of docs/benchmarks/python.md.

    python benches/python.py cli WHIMBREL     a job of 10 s through Python and on the command line
    python benches/python.py ray              microseconds per no-op client-round, 2 shards x 500 clients
    python benches/python.py million [N]      a million clients (or N) in two actors: time and memory
    python benches/python.py flower           the same FedAvg job on Flower's simulation and here
    python benches/python.py estep            nanoseconds per point of the E-step, diagonal
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import whimbrel


def seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cli(binary: str) -> None:
    job = {
        "seed": 1,
        "data": {"source": "mixture", "clients": 100, "rows": 2000},
        "model": {"kind": "gmm", "components": 8, "covariance": "full"},
        "method": {"kind": "fedem", "rounds": 1000, "step": 0.1},
        "uplink": {"codec": {"kind": "dithering", "levels": 1}},
    }
    from whimbrel._job import to_toml

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(to_toml(job))
        for turn in range(3):
            out = Path(folder) / f"cli{turn}"
            line = seconds(lambda: subprocess.run([binary, "-q", "run", path, "--out", out], check=True,
                                                  stdout=subprocess.DEVNULL))
            python = seconds(lambda: whimbrel.run(path, Path(folder) / f"py{turn}"))
            print(f"command line {line:.2f} s, Python {python:.2f} s, {100 * (python / line - 1):+.1f} %")


def noop_job(clients: int, rounds: int, columns: int = 1000) -> dict:
    """Full gradients of one row each: 8 kB up and down, next to no arithmetic."""
    return {
        "seed": 1,
        "data": {"source": "toy", "clients": clients, "rows": 1, "dims": columns},
        "model": {"kind": "linear", "ridge": 0.1, "intercept": False},
        "method": {"kind": "sgd", "rounds": rounds, "step": 1e-6, "evaluate": {"every": rounds}},
    }


def actors() -> list[int]:
    """The processes of the shards."""
    names = ((int(pid), Path("/proc", pid, "cmdline")) for pid in os.listdir("/proc") if pid.isdigit())
    found = []
    for pid, name in names:
        try:
            found += [pid] if name.read_bytes().startswith(b"ray::_Shard") else []
        except OSError:
            pass  # it ended meanwhile
    return found


def cpu(pids: list[int]) -> float:
    """Processor time in seconds."""
    def of(pid: int) -> float:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return sum(map(of, pids))


def ray() -> None:
    import ray as rays
    from whimbrel import ray as on_ray

    rays.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    clients, rounds, first = 1000, 400, 40
    marks: list[tuple[float, float, float, float]] = []
    spent = 0.0

    class Clocked(on_ray._Driver):
        def ask(self, batches):
            nonlocal spent
            # The exchange before the first round counts as well.
            if len(self._asked) in (first, rounds):
                marks.append((time.perf_counter(), spent, cpu([os.getpid()]), cpu(actors())))
            self._asked.append(len(batches))
            begin = time.perf_counter()
            answers = super().ask(batches)
            spent += time.perf_counter() - begin
            return answers

    Clocked._asked = []
    on_ray._Driver = Clocked
    on_ray.run(noop_job(clients, rounds), 2, whimbrel.TEMPORARY, progress=False)
    each = [1e6 * (b - a) / (rounds - first) / clients for a, b in zip(*marks, strict=True)]
    print("{:.1f} us per client-round, {:.1f} of it in Ray and the actors; processor time: "
          "{:.1f} us in the driver, {:.1f} in the actors".format(*each))


def million(clients: str = "1000000") -> None:
    import ray as rays

    rays.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    job = {
        "seed": 1,
        "data": {"source": "mixture", "clients": int(clients), "rows": 2},
        "model": {"kind": "gmm", "components": 2, "covariance": "tied", "init": "moments"},
        "method": {"kind": "fedem", "rounds": 3, "step": 0.1, "evaluate": {"every": 3},
                   "allow_degenerate": True},
    }
    peak, over = {"driver": 0.0, "actors": 0.0}, threading.Event()

    def resident(pid: int) -> float:
        try:
            return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
        except OSError:
            return 0.0

    def watch() -> None:
        while not over.wait(0.5):
            peak["driver"] = max(peak["driver"], resident(os.getpid()))
            peak["actors"] = max(peak["actors"], sum(map(resident, actors())))

    watching = threading.Thread(target=watch)
    watching.start()
    took = seconds(lambda: whimbrel.ray.run(job, 2, whimbrel.TEMPORARY, progress=False))
    over.set()
    watching.join()
    print(f"{clients} clients in 2 actors, enrolment, 3 rounds and 2 evaluations: {took:.0f} s, at most "
          f"{peak['driver']:.1f} GiB in the driver and {peak['actors']:.1f} GiB in the actors")


def flower() -> None:
    from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    clients, rounds, columns, rows = 100, 10, 1000, 10
    rng = np.random.default_rng(0)
    X = rng.normal(size=(clients * rows, columns))
    y = (X[:, 0] > 0).astype(float)
    client_app, server_app, clock = ClientApp(), ServerApp(), {}

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        own = slice(int(context.node_config["partition-id"]) * rows, None)
        A, b = X[own][:rows], y[own][:rows]
        w = message.content["w"].to_numpy_ndarrays()[0]
        w = w - 0.1 * A.T @ (1 / (1 + np.exp(-A @ w)) - b) / rows
        return Message(content=RecordDict({"w": ArrayRecord([w])}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.05)
        w = np.zeros(columns)
        for turn in range(rounds + 1):
            if turn == 1:  # The first round starts the workers.
                clock["begin"] = time.perf_counter()
            content = RecordDict({"w": ArrayRecord([w])})
            sent = [Message(content=content, dst_node_id=n, message_type=MessageType.TRAIN) for n in nodes]
            replies = grid.send_and_receive(sent)
            w = np.mean([r.content["w"].to_numpy_ndarrays()[0] for r in replies], axis=0)
        clock["end"] = time.perf_counter()

    run_simulation(server_app, client_app, num_supernodes=clients,
                   backend_config={"client_resources": {"num_cpus": 1}})
    theirs = (clock["end"] - clock["begin"]) / rounds / clients
    lengths = (200, 2200)
    owners = np.repeat(np.arange(clients), rows)

    def fit(length):
        whimbrel.LogisticRegression(
            ridge=1e-3, fit_intercept=False, max_iter=length,
            method={"kind": "sgd", "step": 0.1, "evaluate": {"every": length}},
        ).fit(X, y, clients=owners)

    fit(lengths[0])  # The first one pays for what the others find ready.
    short, long = (seconds(lambda n=n: fit(n)) for n in lengths)
    ours = (long - short) / (lengths[1] - lengths[0]) / clients
    print(f"Flower's simulation {1e6 * theirs:.0f} us, Whimbrel {1e6 * ours:.2f} us per client-round: "
          f"{theirs / ours:.0f} times")


def estep() -> None:
    rng = np.random.default_rng(0)
    rows, d, k = 200_000, 2, 2
    X = rng.normal(size=(rows, d)) + 6 * rng.integers(2, size=(rows, 1))
    fit = whimbrel.GaussianMixture(k, covariance_type="diag", method={"kind": "em", "rounds": 400}).fit(X)
    at, clock = fit.history_["round"], fit.history_["seconds"]
    ours = (clock[-1] - clock[1]) / (at[-1] - at[1]) / rows
    print(f"Whimbrel {1e9 * ours:.0f} ns per point and round (K = {k}, d = {d}, diagonal)")
    try:
        from pfl.internal.distribution import DiagonalGaussian
        from pfl.internal.distribution.mixture import Mixture
        from pfl.model.gaussian_mixture_model import GaussianMixtureModel
    except ImportError:
        return
    parts = [(1 / k, DiagonalGaussian(np.full(d, 6.0 * c), np.ones(d))) for c in range(k)]
    model, some = GaussianMixtureModel(d, Mixture(parts)), X[:2000]
    theirs = seconds(lambda: model.get_mixture_statistics(some, 1.0, 1.0)) / len(some)
    print(f"pfl-research {1e6 * theirs:.0f} us: {theirs / ours:.0f} times")


if __name__ == "__main__":
    name, *rest = sys.argv[1:] or ["--help"]
    commands = {"cli": cli, "ray": ray, "million": million, "flower": flower, "estep": estep}
    if name not in commands:
        sys.exit(__doc__)
    commands[name](*rest)
