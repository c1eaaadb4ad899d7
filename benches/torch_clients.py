"""Milliseconds per client-step of the papers' CNN in PyTorch: a loop over clients, `torch.func.vmap`, and the
adapter `whimbrel.torch.TorchLearner`. Needs only NumPy and PyTorch; if the package is installed, the same through
`whimbrel.run` too.

    python benches/torch_clients.py [--clients 64] [--batch 128] [--steps 10] [--device cuda]
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

CLASSES = 62
RATE = 0.01


def cnn() -> nn.Module:
    """Two convolutions of 3 x 3, max pooling, dropout, 128 units: `kind = "cnn"`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES),
    )


def adapter():
    """The adapter's file, without the package."""
    path = Path(__file__).parents[1] / "python" / "whimbrel" / "torch.py"
    spec = importlib.util.spec_from_file_location("whimbrel_torch", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["whimbrel_torch"] = module
    spec.loader.exec_module(module)
    return module


def measured(asked, steps: int, work) -> float:
    """Milliseconds per client-step: the best of three after a warm-up."""
    best = float("inf")
    for turn in range(4):
        begin = time.perf_counter()
        work()
        if asked.device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
        best = min(best, took) if turn else best
    return 1e3 * best / (asked.clients * steps)


def loop(asked, x, y) -> float:
    clients = min(asked.clients, 8)
    models = [cnn().to(asked.device) for _ in range(clients)]
    rules = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]

    def work() -> None:
        for c, (model, rule) in enumerate(zip(models, rules, strict=True)):
            for t in range(asked.steps):
                rule.zero_grad()
                cross_entropy(model(x[c, t]), y[c, t]).backward()
                rule.step()

    return measured(SimpleNamespace(clients=clients, device=asked.device), asked.steps, work)


def plain_vmap(asked, x, y) -> float:
    models = [cnn().to(asked.device) for _ in range(asked.clients)]
    params, _ = stack_module_state(models)
    params = {name: p.detach() for name, p in params.items()}

    def objective(params, x, y):
        return cross_entropy(functional_call(models[0], params, (x,)), y)

    gradients = vmap(grad(objective), randomness="different")

    def work() -> None:
        for t in range(asked.steps):
            found = gradients(params, x[:, t], y[:, t])
            for name, p in params.items():
                p.sub_(RATE * found[name])

    with torch.no_grad():
        return measured(asked, asked.steps, work)


def trainings(asked, rows: int, start, shared: bool) -> list:
    """Clients as the compiled half hands them over: pixels in bytes, the places of each minibatch, and parameters that
    start from one array where they are equal."""
    rng = np.random.default_rng(0)
    steps = [np.arange(t * asked.batch, (t + 1) * asked.batch) % rows for t in range(asked.steps)]
    model = dict(weights=None, mu=0.0, centre=None, shift=None, frozen=[])
    return [
        SimpleNamespace(
            inputs=rng.integers(256, size=(rows, 1, 28, 28), dtype=np.uint8),
            targets=rng.integers(CLASSES, size=rows),
            seed=c, batches=steps, rate=RATE, optimiser=("sgd", [0.0, 0.0]),
            models=[SimpleNamespace(params=start if shared else start.copy(), **model)],
        )
        for c in range(asked.clients)
    ]


def through_run(asked, whimbrel, together: int) -> float:
    """Rounds of fedavg: milliseconds per client-step, including the codec, the fold and the transfers."""
    from whimbrel import _whimbrel
    from whimbrel.torch import TorchLearner

    rng, rows = np.random.default_rng(0), 2 * asked.batch
    X = rng.integers(256, size=(asked.clients * rows, 784)) / 255
    y = np.arange(len(X)) % CLASSES
    columns = [f"x{j}" for j in range(784)]
    owners = [str(c) for c in np.repeat(np.arange(asked.clients), rows)]
    held = _whimbrel.Rows(X, columns, ("y", y.astype(float)), [("client", owners)])
    learner = TorchLearner(cnn(), device=asked.device, clients_at_once=together)

    def job(rounds: int) -> dict:
        return {
            "data": {"source": "csv", "path": held, "client": "client", "target": "y",
                     "columns": columns, "shape": [1, 28, 28]},
            "model": {"kind": "own"},
            "method": {"kind": "fedavg", "rounds": rounds, "batch": asked.batch, "step": RATE,
                       "local_epochs": asked.steps // 2, "evaluate": {"every": 1000}},
        }

    def seconds(rounds: int) -> float:
        begin = time.perf_counter()
        whimbrel.run(job(rounds), whimbrel.TEMPORARY, learner=learner, progress=False)
        return time.perf_counter() - begin

    few, many = (1, 6)
    seconds(few)
    took = min(seconds(many) for _ in range(2)) - min(seconds(few) for _ in range(2))
    return 1e3 * took / (many - few) / (asked.clients * asked.steps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    gpu = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor() or "CPU"
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}, {gpu}")
    print(f"{asked.clients} clients, minibatches of {asked.batch}, {asked.steps} local steps")
    adapted = adapter()
    x = torch.rand(asked.clients, asked.steps, asked.batch, 1, 28, 28, device=asked.device)
    y = torch.randint(CLASSES, x.shape[:3], device=asked.device)
    say = lambda name, ms: print(f"  {name:48} {ms:7.3f} ms per client-step", flush=True)
    say("a loop over clients", loop(asked, x, y))
    say("torch.func.vmap", plain_vmap(asked, x, y))
    del x, y
    learner = adapted.TorchLearner(cnn(), device=asked.device)
    start = learner.start((1, 28, 28), CLASSES, 0)
    for shared in (True, False):
        clients = trainings(asked, 2 * asked.batch, start, shared)
        name = "TorchLearner.train, " + ("one start" if shared else "a start for each client")
        say(name, measured(asked, asked.steps, lambda: learner.train(clients)))
    try:
        import whimbrel
    except ImportError:
        print("whimbrel is not installed: not measured through whimbrel.run")
        return
    for together in (64, 16, 8):
        say(f"whimbrel.run, fedavg, {together} clients at once", through_run(asked, whimbrel, together))


if __name__ == "__main__":
    main()
