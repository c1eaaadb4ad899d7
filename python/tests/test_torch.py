"""Modules of PyTorch as learners: to a tolerance, as they are not reproducible to the bit."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import whimbrel  # noqa: E402
from torch import nn  # noqa: E402
from whimbrel.torch import TorchLearner  # noqa: E402


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


class Branching(nn.Module):
    """What it does depends on the numbers, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any) -> Any:
        scores = self.inner(x)
        return scores * 2 if float(x.sum()) > 1e9 else scores


def training(learner: TorchLearner, rows: int, batches: list, **changes: Any) -> SimpleNamespace:
    rng = np.random.default_rng(rows)
    params = learner.start((4,), 2, rows)
    model = {"weights": None, "mu": 0.0, "centre": None, "shift": None, "frozen": []}
    model.update({name: value for name, value in changes.items() if name in model})
    asked = {"rate": 0.1, "optimiser": ("sgd", [0.0, 0.0])}
    asked.update({name: value for name, value in changes.items() if name in asked})
    inputs = rng.normal(size=(rows, 4)).astype(np.float32)
    return SimpleNamespace(
        inputs=inputs,
        targets=(inputs[:, 0] > 0).astype(np.int64),
        seed=0,
        batches=[np.asarray(batch) for batch in batches],
        models=[SimpleNamespace(params=params, **model)],
        **asked,
    )


def by_torch(module: nn.Module, learner: TorchLearner, client: SimpleNamespace) -> np.ndarray:
    """The same local steps by `torch.optim`."""
    (model,) = client.models
    torch.nn.utils.vector_to_parameters(torch.from_numpy(model.params.copy()), module.parameters())
    kind, constants = client.optimiser
    if kind == "sgd":
        momentum, decay = constants
        rule = torch.optim.SGD(module.parameters(), client.rate, momentum, weight_decay=decay)
    else:
        beta1, beta2, epsilon, decay = constants
        rule = torch.optim.Adam(module.parameters(), client.rate, (beta1, beta2), epsilon, decay)
    for at in client.batches:
        rule.zero_grad()
        x, y = torch.from_numpy(client.inputs[at]), torch.from_numpy(client.targets[at])
        losses = nn.functional.cross_entropy(module(x), y, reduction="none")
        weights = 1.0 if model.weights is None else torch.from_numpy(model.weights[at])
        loss = (losses * weights).mean()
        flat = torch.nn.utils.parameters_to_vector(module.parameters())
        if model.centre is not None:
            loss = loss + model.mu / 2 * (flat - torch.from_numpy(model.centre)).square().sum()
        if model.shift is not None:
            loss = loss + (flat * torch.from_numpy(model.shift)).sum()
        loss.backward()
        rule.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("module", [network, Branching], ids=["vmap", "loop"])
@pytest.mark.filterwarnings("ignore:clients train one after the other")
def test_clients_together_train_as_each_alone_does_in_torch(module: Any) -> None:
    learner = TorchLearner(module(), device="cpu")
    rng = np.random.default_rng(0)
    length = 44
    vector = lambda: rng.normal(0, 0.1, length).astype(np.float32)
    clients = [
        training(learner, 9, [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        training(learner, 3, [[0, 1, 2]], weights=np.array([0.2, 1.0, 0.0], np.float32)),
        training(learner, 7, [[5, 1], [2, 3], [0]] * 3, mu=0.5, centre=vector(), rate=0.05),
        training(learner, 5, [[0, 1, 2, 3, 4]] * 4, shift=vector()),
        training(learner, 6, [[0, 1], [2, 3]], optimiser=("sgd", [0.9, 0.01])),
        training(learner, 8, [[0, 1, 2], [3, 4, 5]] * 2, optimiser=("adam", [0.9, 0.999, 1e-8, 0.0]), rate=0.01),
        training(learner, 4, []),
    ]
    trained = learner.train(clients)
    for client, (found,) in zip(clients, trained, strict=True):
        np.testing.assert_allclose(found, by_torch(module(), learner, client), atol=1e-5)
    assert learner._vmaps is (module is network)


def test_clients_that_start_from_one_array_train_as_from_copies() -> None:
    learner = TorchLearner(network(), device="cpu")
    start = learner.start((4,), 2, 1)
    trained = []
    for params in (lambda: start, start.copy):
        clients = [training(learner, rows, [[0, 1], [2, 3]]) for rows in (5, 6)]
        for client in clients:
            client.models[0].params = params()
        trained.append(np.concatenate([model for models in learner.train(clients) for model in models]))
    np.testing.assert_array_equal(*trained)
    assert not np.array_equal(trained[0][:44], trained[0][44:])


def test_frozen_parameters_stay() -> None:
    learner = TorchLearner(network(), device="cpu")
    client = training(learner, 6, [[0, 1, 2], [3, 4, 5]], frozen=[(0, 30)])
    ((found,),) = learner.train([client])
    before = client.models[0].params
    np.testing.assert_array_equal(found[:30], before[:30])
    assert (found[30:] != before[30:]).all()


def test_convolutions_have_the_gradients_of_torch() -> None:
    learner = TorchLearner(convolutional(), device="cpu")
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(2, 5, 1, 10, 10), dtype=np.uint8)
    params = [learner.start((1, 10, 10), 3, seed) for seed in (1, 2)]
    model = {"weights": None, "mu": 0.0, "centre": None, "shift": None, "frozen": []}
    clients = [
        SimpleNamespace(
            inputs=images[c], targets=rng.integers(3, size=5), seed=0, batches=[np.arange(5)], rate=1.0,
            optimiser=("sgd", [0.0, 0.0]), models=[SimpleNamespace(params=params[c], **model)],
        )
        for c in range(2)
    ]
    trained = learner.train(clients)
    assert learner._vmaps
    for client, (found,), start in zip(clients, trained, params, strict=True):
        batch = whimbrel.Batch(client.inputs / np.float32(255), client.targets, 0)
        _, gradient = learner.loss_and_grad(start, batch, None)
        np.testing.assert_allclose(start - found, gradient, atol=1e-5)


def job(kind: str = "fedavg", **keys: Any) -> dict:
    return {
        "seed": 2,
        "data": {"source": "synthetic-mixture", "clients": 7, "components": 2, "dimension": 4},
        "model": {"kind": "own"},
        "method": {"kind": kind, "rounds": 6, "batch": 16, "step": 0.3, **keys},
    }


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("fedavg", {}), ("fedmix", {"components": 2}), ("local", {}), ("fedrep", {}), ("ditto", {}), ("pfedme", {"step": 0.05})],
)
def test_methods_train_modules(kind: str, keys: dict) -> None:
    learner = TorchLearner(network(), device="cpu", clients_at_once=4)
    run = whimbrel.run(job(kind, **keys), whimbrel.TEMPORARY, learner=learner, progress=False)
    assert run.metrics["objective"][-1] < run.metrics["objective"][0]
    # A module trained by its clients one at a time ends at the same place, to the rounding of some hundred steps.
    alone = TorchLearner(network(), device="cpu", clients_at_once=1)
    other = whimbrel.run(job(kind, **keys), whimbrel.TEMPORARY, learner=alone, progress=False)
    np.testing.assert_allclose(run.model["parameters"], other.model["parameters"], atol=1e-3)
    again = pickle.loads(pickle.dumps(run))
    np.testing.assert_array_equal(again.model["parameters"], run.model["parameters"])


def test_a_linear_module_is_softmax_regression() -> None:
    learner = TorchLearner(nn.Linear(4, 2), device="cpu")
    asked = job(rounds=150, batch="full")
    ours = whimbrel.run(asked, whimbrel.TEMPORARY, learner=learner, progress=False)
    theirs = whimbrel.run({**asked, "model": {"kind": "softmax"}}, whimbrel.TEMPORARY, progress=False)
    # One minimum of the loss, from two starts.
    assert ours.metrics["objective"][-1] == pytest.approx(theirs.metrics["objective"][-1], abs=1e-3)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.used(x)


class Detached(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("module", "kind", "words"),
    [
        (Unused(), ValueError, "gradient of spare.weight, spare.bias is None"),
        (Detached(4, 2), ValueError, "gradient of weight, bias is None"),
        (nn.Linear(4, 2).double(), TypeError, "float64"),
        (nn.Linear(4, 1), ValueError, "predictions"),
        (nn.Linear(4, 3), ValueError, "predictions"),
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), ValueError, "GroupNorm"),
        (nn.ReLU(), ValueError, "no parameters"),
        (nn.Linear(5, 2), RuntimeError, "shapes cannot be multiplied"),
        (len, TypeError, "nn.Module"),
    ],
)
def test_wrong_modules_are_exceptions(module: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        learner = TorchLearner(module, device="cpu")
        whimbrel.run(job(), whimbrel.TEMPORARY, learner=learner, progress=False)


def test_outputs_of_a_wrong_shape_are_told_from_training() -> None:
    learner = TorchLearner(nn.Linear(4, 1), device="cpu")
    with pytest.raises(ValueError, match=r"shape \(2, 1\) for 2 inputs"):
        learner.train([training(learner, 6, [[0, 1]])])


def test_a_module_that_diverges_is_a_numerical_error() -> None:
    learner = TorchLearner(network(), device="cpu")
    with pytest.raises(whimbrel.NumericalError):
        asked = job(step=1e30, optimiser={"kind": "sgd", "weight_decay": 1.0})
        whimbrel.run(asked, whimbrel.TEMPORARY, learner=learner, progress=False)


def test_a_module_of_numbers_and_a_module_with_dropout() -> None:
    rng = np.random.default_rng(0)
    learner = TorchLearner(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), device="cpu")
    params = learner.start((4,), 0, 1)
    batch = whimbrel.Batch(rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32), 3)
    predicted = learner.predict(params, batch.inputs)
    losses = learner.losses(params, batch)
    np.testing.assert_allclose(losses, (predicted - batch.targets) ** 2 / 2, rtol=1e-5)
    # Evaluations have no dropout, training has: by its seed.
    dropped = [learner.loss_and_grad(params, batch._replace(seed=seed), None)[0] for seed in (3, 3, 4)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert not np.array_equal(dropped[0], dropped[2]) and not np.array_equal(dropped[0], losses)
    before = torch.random.get_rng_state()
    learner.loss_and_grad(params, batch, None)
    assert torch.equal(before, torch.random.get_rng_state())


class Residual(nn.Module):
    """A module with its head in the middle of `named_parameters`, a frozen parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)
        self.inner = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("shift", torch.full((6,), 0.1))

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.first(x))
        return self.head(h + self.scale * torch.relu(self.inner(h)) + self.shift)


@pytest.mark.parametrize("kind", ["fedavg", "fedrep", "ditto", "local", "scaffold"])
def test_a_trained_module_is_saved_and_loaded_elsewhere(kind: str, tmp_path: Any) -> None:
    learner = TorchLearner(Residual(), head="head", device="cpu")
    run = whimbrel.run(job(kind), whimbrel.TEMPORARY, learner=learner, progress=False)
    client = None if kind in ("fedavg", "scaffold") else next(iter(run.clients))
    x = np.random.default_rng(0).normal(size=(50, 4))
    rows = whimbrel._whimbrel.Rows(x, run.model.info["columns"])
    wanted = run.predict(rows, client)["p_1"]
    torch.save(learner.state_dict(run, client), tmp_path / "weights.pt")
    elsewhere = Residual()
    elsewhere.load_state_dict(torch.load(tmp_path / "weights.pt"))
    for module in (elsewhere, learner.module(run, client)):
        found = module(torch.from_numpy(x).float()).softmax(1)[:, 1].detach().numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert not np.allclose(wanted, wanted[0])


def test_a_mixture_has_several_modules() -> None:
    learner = TorchLearner(network(), device="cpu")
    run = whimbrel.run(job("fedmix", components=2), whimbrel.TEMPORARY, learner=learner, progress=False)
    client = next(iter(run.clients))
    with pytest.raises(ValueError, match="mixture of 2"):
        learner.module(run, client)
    x = np.random.default_rng(0).normal(size=(9, 4))
    wanted = run.predict(whimbrel._whimbrel.Rows(x, run.model.info["columns"]), client)["p_1"]
    inputs = torch.from_numpy(x).float()
    found = sum(w * m(inputs).softmax(1)[:, 1].detach().numpy() for w, m in learner.modules(run, client))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda outputs, y: (outputs - y) ** 2])
def test_a_loss_of_ones_own_replaces_the_default(loss: Any) -> None:
    rng = np.random.default_rng(0)
    module = nn.Linear(4, 1)
    ours, plain = TorchLearner(module, loss=loss, device="cpu"), TorchLearner(module, device="cpu")
    params = plain.start((4,), 0, 1)
    batch = whimbrel.Batch(rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32), 3)
    for found, half in zip(ours.loss_and_grad(params, batch, None), plain.loss_and_grad(params, batch, None)):
        np.testing.assert_allclose(found, 2 * half, rtol=1e-5)


def test_a_loss_that_is_a_mean_is_refused() -> None:
    learner = TorchLearner(network(), loss=nn.functional.cross_entropy, device="cpu")
    with pytest.raises(ValueError, match='reduction="none"'):
        whimbrel.run(job(), whimbrel.TEMPORARY, learner=learner, progress=False)


def test_arrays_and_data_sets_of_images_train_modules_and_networks() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=80)
    images = rng.integers(100, size=(80, 1, 12, 12), dtype=np.uint8)
    images[labels == 1, :, :6] += 100
    clients = np.arange(80) % 4
    asked = {"seed": 1, "model": {"kind": "own"}, "method": {"kind": "fedavg", "rounds": 5, "batch": 10, "step": 0.1}}
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2))
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(images / 255.0), torch.from_numpy(labels))
    learner = lambda: TorchLearner(module, pretrained=True, device="cpu")
    first = whimbrel.run(
        asked, whimbrel.TEMPORARY, data=(images, labels), clients=clients, learner=learner(), progress=False
    )
    parts = {c: torch.utils.data.Subset(tensors, np.flatnonzero(clients == c).tolist()) for c in range(4)}
    second = whimbrel.run(asked, whimbrel.TEMPORARY, data=parts, learner=learner(), progress=False)
    np.testing.assert_allclose(first.model["parameters"], second.model["parameters"], atol=1e-5)
    assert first.metrics["objective"][-1] < first.metrics["objective"][0]
    network = {**asked, "model": {"kind": "lenet"}}
    trained = whimbrel.run(network, whimbrel.TEMPORARY, data=tensors, clients=clients, progress=False)
    assert trained.metrics["objective"][-1] < trained.metrics["objective"][0]
