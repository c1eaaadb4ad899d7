"""Own models: the protocol of a learner, and the bridge through which compiled code calls one."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Array = np.ndarray


class Batch(NamedTuple):
    """Some samples of a client."""

    inputs: Array
    """`(n, *shape)`: `float32`, with pixels divided by 255; symbols are `int64`."""
    targets: Array
    """`(n,)`: classes from 0 as `int64`, or numbers as `float32`."""
    seed: int
    """Seed for random draws in training, such as dropout."""


@runtime_checkable
class Learner(Protocol):
    """A model over one flat vector of `float32` parameters.

    The methods below are required. Optional attributes:

    - `name`: the name in jobs (`learner` in `[model]`), by default `"own"`;
    - `head`: the number of parameters at the end of the vector that form the last layer, which `fedrep`
      keeps on the clients; a number, or a method of `(shape, classes)`;
    - `losses(params, batch)`: the loss of each sample in evaluation mode. The default is the losses of
      `loss_and_grad`, so a learner with dropout needs it;
    - `train(clients)` and `clients_at_once`: the local steps of several clients together (`Training`);
      returns a list of trained parameters for each client.
    """

    def start(self, shape: tuple[int, ...], classes: int, seed: int) -> Array:
        """Initial parameters for inputs of this shape; `classes` is 0 for numeric targets."""
        ...

    def loss_and_grad(self, params: Array, batch: Batch, weights: Array | None) -> tuple[Array, Array]:
        """The loss of each sample, and the gradient of `mean(weights * losses)`, or of `mean(losses)`."""
        ...

    def predict(self, params: Array, inputs: Array) -> Array:
        """Class probabilities, `(n, classes)`, or one number per input, `(n,)`."""
        ...


@dataclass
class Trainee:
    """A model in training. Its `params` may be shared with other models and must not be modified.

    With `g` the gradient of the weighted mean loss of a minibatch, a step descends along
    `g + shift + mu (params - centre)` plus weight decay; `frozen` ranges do not change.
    """

    params: Array
    weights: Array | None
    mu: float
    centre: Array | None
    shift: Array | None
    frozen: list[tuple[int, int]]


@dataclass
class Training:
    """A client's local steps: its samples, the indices of each minibatch, and the optimiser.

    `inputs` are as stored: pixels are `uint8`, to be divided by 255. `optimiser` is
    `("sgd", [momentum, weight_decay])` or `("adam", [beta1, beta2, epsilon, weight_decay])`, as PyTorch
    defines them.
    """

    inputs: Array
    targets: Array
    seed: int
    batches: list[Array]
    rate: float
    optimiser: tuple[str, list[float]]
    models: list[Trainee]


_REQUIRED = ("start", "loss_and_grad", "predict")

# Registered learners by name: the learner, its registration, and the number of users.
_offered: dict[str, list[Any]] = {}
_lock = threading.Lock()


@contextmanager
def offered(learner: Learner | None) -> Iterator[None]:
    """Registers the learner under its name for jobs that are read meanwhile."""
    if learner is None:
        yield
        return
    missing = [name for name in _REQUIRED if not callable(getattr(learner, name, None))]
    if missing:
        raise TypeError(f"{type(learner).__name__} is not a learner: it lacks {', '.join(missing)}")
    from ._whimbrel import OwnLearner

    name = str(getattr(learner, "name", "own"))
    with _lock:
        held = _offered.get(name)
        if held is None or held[0] is not learner:
            held = _offered[name] = [learner, OwnLearner(name, partial(Bridge, learner)), 0]
        held[2] += 1
    try:
        yield
    finally:
        with _lock:
            held[2] -= 1
            if held[2] == 0:
                del _offered[name]
                held.clear()


class Bridge:
    """A learner for inputs of one shape: converts bytes to arrays and back, with checks."""

    def __init__(self, learner: Any, shape: tuple[int, ...], classes: int) -> None:
        self._learner, self._shape, self._classes = learner, tuple(shape), classes
        first = _floats(learner.start(self._shape, classes, 0), None, "start")
        if first.ndim != 1:
            raise ValueError(f"`start` returned an array of shape {first.shape}: parameters are one flat vector")
        head = getattr(learner, "head", 0)
        head = int(head(self._shape, classes) if callable(head) else head)
        if not 0 <= head <= len(first):
            raise ValueError(f"a `head` of {head} parameters of {len(first)}")
        self._length = len(first)
        self.sizes = (len(first) - head, head)
        trains = hasattr(learner, "train")
        self.clients_at_once = max(1, int(getattr(learner, "clients_at_once", 1))) if trains else 0

    def start(self, seed: int) -> Array:
        return self._parameters(self._learner.start(self._shape, self._classes, seed), "start")

    def losses(self, params: Any, batch: Any) -> Array:
        params, batch = self._vector(params), self._batch(batch)
        if hasattr(self._learner, "losses"):
            losses = self._learner.losses(params, batch)
        else:
            losses, _ = _pair(self._learner.loss_and_grad(params, batch, None))
        return _finite(_floats(losses, batch.targets.shape, "losses"), "losses")

    def loss_and_grad(self, params: Any, batch: Any, weights: bytearray | None) -> tuple[Array, Array]:
        params, batch = self._vector(params), self._batch(batch)
        given = None if weights is None else np.frombuffer(weights, np.float32)
        losses, gradient = _pair(self._learner.loss_and_grad(params, batch, given))
        losses = _finite(_floats(losses, batch.targets.shape, "losses"), "losses")
        return losses, _finite(self._parameters(gradient, "gradient"), "gradient")

    def predict(self, params: bytearray, batch: Any) -> Array:
        batch = self._batch(batch)
        n = len(batch.targets)
        shape = (n, self._classes) if self._classes else (n,)
        found = self._learner.predict(self._vector(params), batch.inputs)
        return _finite(_floats(found, shape, "predictions"), "predictions").reshape(-1)

    def train(self, clients: Sequence[Any]) -> list[list[Array]]:
        # Equal parameters arrive as one object and stay one array.
        arrays: dict[int, Array] = {}
        trainings = [self._training(arrays, *client) for client in clients]
        trained = list(self._learner.train(trainings))
        expected = [len(training.models) for training in trainings]
        if [len(models) for models in trained] != expected:
            raise ValueError(f"`train` returned {list(map(len, trained))} models for {expected} of the clients")
        return [[self._parameters(model, "model") for model in models] for models in trained]

    def _vector(self, params: bytearray) -> Array:
        return np.frombuffer(params, np.float32)

    def _parameters(self, values: Any, what: str) -> Array:
        return _floats(values, (self._length,), what)

    def _samples(self, inputs: Any, targets: Any) -> tuple[Array, Array]:
        values, of = np.frombuffer(inputs[1], inputs[0]), np.frombuffer(targets[1], targets[0])
        return values.reshape(-1, *self._shape), of if of.dtype.kind == "f" else of.astype(np.int64)

    def _batch(self, batch: Any) -> Batch:
        inputs, targets, seed = batch
        values, of = self._samples(inputs, targets)
        if values.dtype == np.uint8:
            values = values / np.float32(255)
        elif values.dtype == np.uint16:
            values = values.astype(np.int64)
        return Batch(values, of, seed)

    def _training(
        self, arrays: dict[int, Array], samples: Any, batches: Any, rate: float, optimiser: Any, models: Any
    ) -> Training:
        (inputs, targets, seed), (places, lengths) = samples, batches
        values, of = self._samples(inputs, targets)
        ends = np.cumsum(lengths, dtype=np.intp)
        each = np.split(np.frombuffer(places, np.uint32).astype(np.int64), ends[:-1]) if lengths else []
        return Training(values, of, seed, each, rate, optimiser, [_trainee(arrays, *model) for model in models])


def _trainee(
    arrays: dict[int, Array],
    params: bytearray,
    weights: bytearray | None,
    mu: float,
    centre: bytearray | None,
    shift: bytearray | None,
    frozen: list[tuple[int, int]],
) -> Trainee:
    def of(values: bytearray | None) -> Array | None:
        if values is None:
            return None
        return arrays.setdefault(id(values), np.frombuffer(values, np.float32))

    start = arrays.setdefault(id(params), np.frombuffer(params, np.float32))
    return Trainee(start, of(weights), mu, of(centre), of(shift), frozen)


def _pair(found: Any) -> tuple[Any, Any]:
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise TypeError(f"`loss_and_grad` must return a pair of losses and gradient, got {type(found).__name__}")
    return found[0], found[1]


def _floats(values: Any, shape: tuple[int, ...] | None, what: str) -> Array:
    """A contiguous array of `float32` with this shape."""
    if values is None:
        raise TypeError(f"the learner's {what}: expected an array, got None")
    if not isinstance(values, np.ndarray):
        raise TypeError(f"the learner's {what}: expected a NumPy array, got {type(values).__name__}")
    if values.dtype != np.float32:
        raise TypeError(f"the learner's {what}: expected float32, got {values.dtype}")
    if shape is not None and values.shape != shape:
        raise ValueError(f"the learner's {what}: expected shape {shape}, got {values.shape}")
    return np.ascontiguousarray(values)


def _finite(values: Array, what: str) -> Array:
    # A finite sum needs no further check; an infinite one may be an overflow of finite numbers.
    if not math.isfinite(float(values.sum(dtype=np.float64))) and not np.isfinite(values).all():
        from ._whimbrel import NumericalError

        raise NumericalError(f"the learner's {what}: not finite; a smaller `step` in [method] may help")
    return values
