"""Milliseconds per client-step of the built-in `cnn` in PyTorch: the adapter alone, and through
`whimbrel.run(job, device=...)` and `whimbrel.run(job, learner=...)`.

    python benches/torch_device.py [--clients 64] [--batch 128] [--steps 10] [--device cuda] [--threads N]

Needs NumPy, PyTorch and the installed package.
"""

from __future__ import annotations

import argparse
import os
import platform
import time

import numpy as np
import torch
import whimbrel
from torch_clients import CLASSES, RATE, cnn, measured, trainings
from whimbrel.torch import NetworkLearner, TorchLearner


def rounds(asked, model: dict, **keys) -> float:
    """Rounds of fedavg: milliseconds per client-step, with the codec, the sums and the transfers."""
    rng, rows = np.random.default_rng(0), 2 * asked.batch
    images = rng.integers(256, size=(asked.clients * rows, 1, 28, 28), dtype=np.uint8)
    labels = np.arange(len(images)) % CLASSES
    owners = np.repeat(np.arange(asked.clients), rows)

    def seconds(count: int) -> float:
        job = {
            "model": model,
            "method": {"kind": "fedavg", "rounds": count, "batch": asked.batch, "step": RATE,
                       "local_epochs": asked.steps // 2, "evaluate": {"every": 1000}},
        }
        begin = time.perf_counter()
        whimbrel.run(job, whimbrel.TEMPORARY, data=(images, labels), clients=owners, progress=False,
                     threads=asked.threads, **keys)
        return time.perf_counter() - begin

    seconds(1)
    took = min(seconds(asked.rounds + 1) for _ in range(2)) - min(seconds(1) for _ in range(2))
    return 1e3 * took / asked.rounds / (asked.clients * asked.steps)


def tensors() -> list[tuple[str, list[int], bool]]:
    """The tensors of `cnn` for images of 28 x 28."""
    shapes = {"conv1": [32, 1, 3, 3], "conv2": [64, 32, 3, 3], "dense": [128, 9216], "head": [CLASSES, 128]}
    parts = [(f"{name}.weight", shape, f"{name}.bias", shape[:1]) for name, shape in shapes.items()]
    return [(name, shape, False) for w, of_w, b, of_b in parts for name, shape in ((w, of_w), (b, of_b))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    gpu = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor() or "CPU"
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, {gpu}, {asked.threads} threads")
    print(f"{asked.clients} clients, minibatches of {asked.batch}, {asked.steps} local steps")
    say = lambda name, ms: print(f"  {name:52} {ms:7.3f} ms per client-step", flush=True)
    for tf32 in (False, True) if asked.device == "cuda" else (None,):
        learner = NetworkLearner("cnn", tensors(), device=asked.device, tf32=tf32)
        start = np.random.default_rng(1).normal(0, 0.02, sum(learner._sizes)).astype(np.float32)
        clients = trainings(asked, 2 * asked.batch, start, True)
        say(f"the adapter alone, tf32={tf32}", measured(asked, asked.steps, lambda: learner.train(clients)))
        say(f"whimbrel.run, device={asked.device}, tf32={tf32}",
            rounds(asked, {"kind": "cnn"}, device=asked.device, tf32=tf32))
    own = TorchLearner(cnn(), device=asked.device)
    say("whimbrel.run, learner=TorchLearner", rounds(asked, {"kind": "own"}, learner=own))


if __name__ == "__main__":
    main()
