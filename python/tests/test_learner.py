"""Own learners: one in NumPy against the built-in one, and what is wrong with others."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whimbrel


class Logistic:
    """Multinomial logistic regression over inputs of any shape, weights before intercepts."""

    def __init__(self, starts: list[np.ndarray] | None = None) -> None:
        self.starts = starts
        self.seen: dict[int, np.ndarray] = {}

    def start(self, shape: tuple[int, ...], classes: int, seed: int) -> np.ndarray:
        length = classes * (int(np.prod(shape)) + 1)
        if self.starts is None or seed == 0:
            return np.random.default_rng(seed).normal(0, 0.1, length).astype(np.float32)
        return self.seen.setdefault(seed, self.starts[len(self.seen) % len(self.starts)])

    def scores(self, params: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        X = inputs.reshape(len(inputs), -1)
        classes = len(params) // (X.shape[1] + 1)
        return X @ params[: -classes].reshape(classes, -1).T + params[-classes:]

    def predict(self, params: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        scores = self.scores(params, inputs)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def loss_and_grad(self, params: np.ndarray, batch: whimbrel.Batch, weights: Any) -> Any:
        p, n = self.predict(params, batch.inputs), len(batch.targets)
        losses = -np.log(p[np.arange(n), batch.targets])
        p[np.arange(n), batch.targets] -= 1
        p *= (np.ones(n, np.float32) if weights is None else weights)[:, None] / n
        gradient = np.concatenate([(p.T @ batch.inputs.reshape(n, -1)).ravel(), p.sum(axis=0)])
        return losses, gradient.astype(np.float32)


class Line:
    """Linear regression without an intercept."""

    name = "line"

    def start(self, shape: tuple[int, ...], classes: int, seed: int) -> np.ndarray:
        assert classes == 0
        return np.zeros(shape, np.float32)

    def predict(self, params: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        return inputs @ params

    def loss_and_grad(self, params: np.ndarray, batch: whimbrel.Batch, weights: Any) -> Any:
        errors = batch.inputs @ params - batch.targets
        weighted = errors if weights is None else errors * weights
        return errors**2 / 2, batch.inputs.T @ weighted / np.float32(len(errors))


METHODS = {
    "fedavg": {"kind": "fedavg"},
    "fedprox": {"kind": "fedprox", "mu": 0.1},
    "fedmix": {"kind": "fedmix", "components": 2},
    "scaffold": {"kind": "scaffold"},
    "ditto": {"kind": "ditto"},
    "momentum": {"kind": "fedavg", "optimiser": {"kind": "sgd", "momentum": 0.5, "weight_decay": 0.01}},
    "adam": {"kind": "fedavg", "optimiser": {"kind": "adam"}, "step": 0.01},
}


def job(method: str | dict, rounds: int = 8, **model: Any) -> dict:
    asked = METHODS[method] if isinstance(method, str) else method
    return {
        "seed": 2,
        "data": {"source": "synthetic-mixture", "clients": 5, "components": 2, "dimension": 4},
        "model": {"kind": "own", **model},
        "method": {"rounds": rounds, "batch": 16, "step": 0.2, **asked},
    }


def parameters(run: whimbrel.Run) -> np.ndarray:
    shared = run.model["parameters"]
    own = [run.client_model(c).values() for c in run.clients if has_own(run, c)]
    return np.concatenate([shared, *(np.ravel(part) for parts in own for part in parts)])


def has_own(run: whimbrel.Run, client: str) -> bool:
    return (run.folder / "clients" / client / "model.safetensors").is_file()


def starts_of(built_in: dict) -> list[np.ndarray]:
    """Where the built-in model starts: after a round of steps that move nothing."""
    still = {**built_in, "method": {**built_in["method"], "rounds": 1, "step": 1e-30}}
    still["method"].pop("optimiser", None)
    start = whimbrel.run(still, whimbrel.TEMPORARY, progress=False).model["parameters"]
    # Two classes of four features and an intercept; scaffold keeps its control variates behind them.
    return list(start.reshape(-1, 10)[: built_in["method"].get("components", 1)])


@pytest.mark.parametrize("method", METHODS)
def test_a_numpy_learner_ends_where_the_built_in_one_does(method: str) -> None:
    own = job(method)
    built_in = {**own, "model": {"kind": "softmax"}}
    learner = Logistic(starts_of(built_in))
    theirs = whimbrel.run(built_in, whimbrel.TEMPORARY, progress=False)
    ours = whimbrel.run(own, whimbrel.TEMPORARY, learner=learner, progress=False)
    # The same minibatches and steps in float32: some hundred of them, with a rounding error of 1e-7 each.
    np.testing.assert_allclose(parameters(ours), parameters(theirs), atol=1e-4)
    for name in ("objective", "test_accuracy"):
        np.testing.assert_allclose(ours.metrics[name], theirs.metrics[name], atol=1e-3)


def test_models_of_the_clients_own_end_at_their_minima() -> None:
    ridge = {"kind": "sgd", "weight_decay": 0.1}
    own = job({"kind": "local", "batch": "full", "step": 0.5, "optimiser": ridge}, rounds=150)
    theirs = whimbrel.run({**own, "model": {"kind": "softmax"}}, whimbrel.TEMPORARY, progress=False)
    ours = whimbrel.run(own, whimbrel.TEMPORARY, learner=Logistic(), progress=False)
    # A step shrinks the distance to the minimum by 1 - 0.5 * 0.1 at least: 150 of them by 4e-4.
    np.testing.assert_allclose(parameters(ours), parameters(theirs), atol=1e-3)


def test_a_learner_of_numbers_finds_the_least_squares(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = X @ [1.0, -2.0]
    lines = [f"{'abc'[i % 3]},{x[0]!r},{x[1]!r},{t!r}" for i, (x, t) in enumerate(zip(X.tolist(), y.tolist()))]
    (tmp_path / "rows.csv").write_text("\n".join(["client,u,v,y", *lines]) + "\n")
    data = {"source": "csv", "path": "rows.csv", "client": "client", "target": "y"}
    asked = {**job("fedavg", 60, learner="line", classifies=False), "data": data}
    run = whimbrel.run(asked, tmp_path / "out", learner=Line(), progress=False)
    np.testing.assert_allclose(run.model["parameters"], [1.0, -2.0], atol=1e-3)
    predicted = whimbrel.Run(tmp_path / "out", Line()).predict("rows.csv")["prediction"]
    np.testing.assert_allclose(predicted, y, atol=1e-2)
    with pytest.raises(ValueError, match="learner of the name"):
        whimbrel.Run(tmp_path / "out").predict("rows.csv")


def test_a_run_with_a_learner_is_pickled_adapted_and_resumed(tmp_path: Path) -> None:
    run = whimbrel.run(job("fedmix"), whimbrel.TEMPORARY, learner=Logistic(), progress=False)
    rng = np.random.default_rng(1)
    rows = [",".join([*map(repr, x), str(int(x[0] > 0))]) for x in rng.normal(size=(30, 4)).tolist()]
    names = run.model.info["columns"]
    (tmp_path / "new.csv").write_text("\n".join([",".join([*names, "target"]), *rows]) + "\n")
    again = pickle.loads(pickle.dumps(run))
    for one, folder in [(run, "first"), (again, "second")]:
        one.adapt("new.csv", tmp_path / folder)
    found = [one.predict("new.csv", str(tmp_path / f))["p_1"] for one, f in [(run, "first"), (again, "second")]]
    np.testing.assert_array_equal(*found)


class Clients(Logistic):
    """Trains the clients of a group itself, by hand."""

    clients_at_once = 3

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []

    def train(self, clients: list[whimbrel.Training]) -> list[list[np.ndarray]]:
        self.groups.append(len(clients))
        return [[self.descend(client, model) for model in client.models] for client in clients]

    def descend(self, client: whimbrel.Training, model: whimbrel.Trainee) -> np.ndarray:
        w = model.params.copy()
        for at in client.batches:
            weights = None if model.weights is None else model.weights[at]
            batch = whimbrel.Batch(client.inputs[at], client.targets[at], 0)
            w -= np.float32(client.rate) * self.loss_and_grad(w, batch, weights)[1]
        return w


def test_a_learner_can_train_several_clients_at_once() -> None:
    learner = Clients()
    together = whimbrel.run(job("fedmix"), whimbrel.TEMPORARY, learner=learner, progress=False)
    alone = whimbrel.run(job("fedmix"), whimbrel.TEMPORARY, learner=Logistic(), progress=False)
    np.testing.assert_allclose(parameters(together), parameters(alone), atol=1e-5)
    assert 1 <= max(learner.groups) <= 3 and sum(learner.groups) == 5 * 8


def test_a_head_is_kept_by_fedrep_and_missed_where_there_is_none() -> None:
    asked = job({"kind": "fedrep"})
    with pytest.raises(ValueError, match="no head"):
        whimbrel.run(asked, whimbrel.TEMPORARY, learner=Logistic(), progress=False)
    learner = Logistic()
    learner.head = lambda shape, classes: classes  # type: ignore[attr-defined]
    run = whimbrel.run(asked, whimbrel.TEMPORARY, learner=learner, progress=False)
    # Two classes of four features: the intercepts stay with the clients.
    assert run.model["parameters"].shape == (8,)
    assert all(sum(part.size for part in run.client_model(c).values()) == 2 for c in run.clients)


def broken(**changes: Callable) -> Logistic:
    learner = Logistic()
    for name, change in changes.items():
        setattr(learner, name, change)
    return learner


def grad_of(change: Callable) -> Logistic:
    plain = Logistic()
    return broken(loss_and_grad=lambda *given: change(*plain.loss_and_grad(*given)))


@pytest.mark.parametrize(
    ("learner", "kind", "words"),
    [
        (object(), TypeError, "lacks start, loss_and_grad, predict"),
        (grad_of(lambda losses, g: (losses, None)), TypeError, "gradient: expected an array, got None"),
        (grad_of(lambda losses, g: (losses, g[:-1])), ValueError, r"\(9,\)"),
        (grad_of(lambda losses, g: (losses, g.astype(np.float64))), TypeError, "float64"),
        (grad_of(lambda losses, g: (losses, g.tolist())), TypeError, "NumPy array"),
        (grad_of(lambda losses, g: (losses, g * np.float32("nan"))), ArithmeticError, "not finite"),
        (grad_of(lambda losses, g: (losses.sum(), g)), TypeError, "losses"),
        (grad_of(lambda losses, g: g), TypeError, "pair"),
        (broken(predict=lambda params, inputs: inputs), ValueError, "predictions"),
        (broken(start=lambda *_: np.zeros((2, 2), np.float32)), ValueError, "flat"),
        (broken(start=lambda *_: None), TypeError, "None"),
        (broken(loss_and_grad=lambda *_: 1 / 0), ZeroDivisionError, "division"),
    ],
)
def test_wrong_learners_are_exceptions(learner: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        whimbrel.run(job("fedavg"), whimbrel.TEMPORARY, learner=learner, progress=False)


def test_a_job_without_its_learner_and_a_learner_without_its_job_are_refused() -> None:
    with pytest.raises(ValueError, match="learner=..."):
        whimbrel.run(job("fedavg"), whimbrel.TEMPORARY, progress=False)
    plain = {**job("fedavg"), "model": {"kind": "softmax"}}
    with pytest.raises(ValueError, match='this one has kind = "softmax"'):
        whimbrel.run(plain, whimbrel.TEMPORARY, learner=Logistic(), progress=False)
    with pytest.raises(ValueError, match="mocha"):
        whimbrel.run(job({"kind": "mocha", "step": None, "batch": None}), whimbrel.TEMPORARY, learner=Logistic())
