"""PyTorch modules as learners: the local steps of many clients as one program.

`TorchLearner(module)` is a learner for `whimbrel.run(job, learner=...)` in a job whose `[model]` has
`kind = "own"`. The parameters of clients that train together are stacked, and `torch.func.vmap` computes
their gradients in one program, on a GPU if available. Modules that `vmap` refuses train one client at a
time. Results are not bit-reproducible: they depend on the device, the version of PyTorch, and which
clients train together.

A module's parameters form one flat vector in the order of `named_parameters`, with those of the head last.
`module`, `modules` and `state_dict` return trained modules in their own order. `module(run)` does so for the
built-in networks, which `whimbrel.run(job, device=...)` trains here.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from ._learner import Batch, Bridge, Trainee, Training
    from ._run import Run

__all__ = ["TorchLearner", "module"]

Loss = Callable[[Tensor, Tensor], Tensor]

# Samples per forward pass of an evaluation.
_EVALUATED = 1024


class TorchLearner:
    """A `torch.nn.Module` as a learner.

    The module returns one score per class, `(n, classes)`, trained by cross-entropy, or one number per
    input, `(n,)` or `(n, 1)`, trained by half the squared error; `loss(outputs, targets)` replaces these: a
    module such as `nn.HuberLoss()`, or a function that returns one loss per sample. Trainable parameters must
    be `float32`; other parameters and buffers do not change. Each model is initialised by its layers'
    `reset_parameters`, or with `pretrained` by the module's weights. `head` is the name of the submodule
    that `fedrep` keeps on the clients, by default the last one with parameters. `device` is PyTorch's, by
    default a GPU if available. At most `clients_at_once` clients train together: their parameters,
    gradients and activations must fit into the device's memory. `tf32` allows or forbids products in
    TensorFloat-32 on a GPU, which are faster and less precise; by default PyTorch's setting holds.

    >>> from torch import nn
    >>> network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = TorchLearner(network, device="cpu")
    >>> learner.start((4,), 2, seed=0).shape, learner.head
    ((114,), 34)
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Loss | None = None,
        head: str | None = None,
        pretrained: bool = False,
        device: str | torch.device | None = None,
        clients_at_once: int = 64,
        tf32: bool | None = None,
        name: str = "own",
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"TorchLearner takes a torch.nn.Module, got {type(module).__name__}")
        self.name, self.clients_at_once = name, clients_at_once
        self._pretrained, self._tf32 = pretrained, tf32
        self._losses = _losses if loss is None else _each_loss(loss)
        self._device = _device(device)
        self._module = copy.deepcopy(module).to(self._device).train()
        self._names, self.head = _parts(self._module, head)
        named = dict(self._module.named_parameters())
        self._shapes = [named[name].shape for name in self._names]
        self._sizes = [shape.numel() for shape in self._shapes]
        # The places of running statistics, which only built-in networks have.
        self._statistics: Tensor | None = None
        self._vmaps: bool | None = None

    def module(self, run: Run, client: str | None = None) -> nn.Module:
        """The trained module of a run, or of one of its clients, on the processor and in evaluation mode."""
        return _only(self.modules(run, client), "modules")

    def state_dict(self, run: Run, client: str | None = None) -> dict[str, Tensor]:
        """The `state_dict` of `module`, for `load_state_dict` of the same architecture."""
        return self.module(run, client).state_dict()

    def modules(self, run: Run, client: str | None = None) -> list[tuple[float, nn.Module]]:
        """The modules that predict, with their weights: several for a mixture (`fedmix`)."""
        _, models = _learned(run, client, self)
        return [(weight, self._with(w)) for weight, w in models]

    def _with(self, w: np.ndarray) -> nn.Module:
        """A copy of the module with these parameters."""
        if w.size != sum(self._sizes):
            raise ValueError(f"the run's model has {w.size} parameters, the module has {sum(self._sizes)}")
        copied = copy.deepcopy(self._module).cpu().eval()
        places = {**dict(copied.named_parameters()), **dict(copied.named_buffers())}
        with torch.no_grad():
            each = zip(self._names, self._shapes, torch.from_numpy(w.copy()).split(self._sizes), strict=True)
            for name, shape, values in each:
                places[name].copy_(values.view(shape))
        return copied

    def start(self, shape: tuple[int, ...], classes: int, seed: int) -> np.ndarray:
        """Initial parameters."""
        with self._alone(seed):
            if not self._pretrained:
                for layer in self._module.modules():
                    reset = getattr(layer, "reset_parameters", None)
                    if callable(reset):
                        reset()
            named = dict(self._module.named_parameters())
            each = [named[name].detach().reshape(-1) for name in self._names]
            return torch.cat(each).cpu().numpy()

    def loss_and_grad(
        self, params: np.ndarray, batch: Batch, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The loss of each sample and the gradient of their weighted mean, in training mode."""
        with self._alone(batch.seed):
            x, y = self._tensor(batch.inputs), self._tensor(batch.targets)
            self._prepare(x, y)
            ones = np.ones(len(y), np.float32)
            shares = self._tensor((ones if weights is None else weights) / max(len(y), 1))
            gradient, losses = self._gradient(self._tensor(params), x, y, shares, torch.ones_like(shares))
            return losses.cpu().numpy(), gradient.cpu().numpy()

    def losses(self, params: np.ndarray, batch: Batch) -> np.ndarray:
        """The loss of each sample, in evaluation mode."""
        of = lambda part: self._tensor(batch.targets[part])
        return self._evaluated(params, batch.inputs, lambda outputs, part: self._losses(outputs, of(part)))

    def predict(self, params: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Class probabilities, or one number per input."""

        def predictions(outputs: Tensor, _: slice) -> Tensor:
            has_scores = outputs.ndim == 2 and outputs.shape[1] > 1
            return outputs.softmax(1) if has_scores else outputs.reshape(-1)

        return self._evaluated(params, inputs, predictions)

    def train(self, clients: Sequence[Training]) -> list[list[np.ndarray]]:
        """The local steps of these clients."""
        trained: list[list[np.ndarray]] = [[] for _ in clients]
        busy = [c for c, client in enumerate(clients) if client.models]
        # Clients with different optimisers train separately.
        rule = lambda c: repr(clients[c].optimiser)
        for _, group in groupby(sorted(busy, key=rule), key=rule):
            # The longest first, so that active clients are the head of the stack.
            places = sorted(group, key=lambda c: -len(clients[c].batches))
            with self._alone(clients[places[0]].seed):
                together = self._together([clients[c] for c in places])
            for c, models in zip(places, together, strict=True):
                trained[c] = models
        return trained

    def _together(self, clients: list[Training]) -> list[list[np.ndarray]]:
        lanes = [(c, model) for c, client in enumerate(clients) for model in client.models]
        models = [model for _, model in lanes]
        x = self._tensor(np.concatenate([client.inputs for client in clients]))
        y = self._tensor(np.concatenate([client.targets for client in clients]))
        self._prepare(x, y)
        *found, active = _minibatches(clients, lanes)
        places, shares, valid = map(self._tensor, found)
        host = torch.empty((len(lanes), sum(self._sizes)), pin_memory=self._device.type == "cuda")
        flat = self._starts(models, host)
        rate = self._tensor(np.array([[clients[c].rate] for c, _ in lanes], np.float32))
        mu = self._tensor(np.array([[model.mu] for model in models], np.float32))
        centre = self._stack([model.centre for model in models])
        shift = self._stack([model.shift for model in models])
        moves = self._stack([_moves(model, host.shape[1]) for model in models])
        step = _Optimiser(*clients[0].optimiser)
        for t, k in enumerate(active):
            at = places[t, :k]
            g = self._gradients(flat[:k], x[at], y[at], shares[t, :k], valid[t, :k])
            if shift is not None:
                g += shift[:k]
            if moves is not None:
                g *= moves[:k]
            if centre is not None:
                g += mu[:k] * (flat[:k] - centre[:k])
            if self._statistics is None:
                step(flat[:k], g, rate[:k])
                continue
            # Running statistics take their new values, without a step.
            new = g[:, self._statistics]
            step(flat[:k], g, rate[:k])
            flat[:k, self._statistics] = new
        host.copy_(flat)
        found = iter(host.numpy())
        return [[next(found) for _ in client.models] for client in clients]

    def _starts(self, models: list[Trainee], host: Tensor) -> Tensor:
        """The parameters of all models; `host` is a buffer for them."""
        first = models[0].params
        if all(model.params is first for model in models):
            return self._tensor(first).expand_as(host).contiguous()
        for row, model in zip(host, models, strict=True):
            row.copy_(torch.from_numpy(model.params))
        return host.to(self._device, copy=True)

    def _gradients(self, flat: Tensor, x: Tensor, y: Tensor, shares: Tensor, valid: Tensor) -> Tensor:
        """The gradient of each row of parameters on its minibatch; new values of running statistics."""
        if self._vmaps:

            def objective(flat: Tensor, x: Tensor, y: Tensor, shares: Tensor, valid: Tensor) -> tuple[Tensor, Any]:
                outputs, statistics = self._forward(flat, x, valid)
                return (self._losses(outputs, y) * shares).sum(), statistics

            each = vmap(grad(objective, has_aux=True), randomness="different")
            g, statistics = each(flat, x, y, shares, valid)
            if self._statistics is not None:
                g[:, self._statistics] = statistics[0]
            return g
        each = zip(flat, x, y, shares, valid, strict=True)
        return torch.stack([self._gradient(*one)[0] for one in each])

    def _gradient(
        self, flat: Tensor, x: Tensor, y: Tensor, shares: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            outputs, statistics = self._forward(leaf, x, valid)
            losses = self._losses(outputs, y)
            (gradient,) = torch.autograd.grad((losses * shares).sum(), leaf)
        if self._statistics is not None:
            gradient[self._statistics] = statistics[0].detach()
        return gradient, losses.detach()

    def _forward(self, flat: Tensor, x: Tensor, valid: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The module's outputs with these parameters, and its running statistics, if it has any."""
        each = zip(self._names, self._shapes, flat.split(self._sizes), strict=True)
        tensors = {name: values.view(shape) for name, shape, values in each}
        return self._call(tensors, x / 255 if x.dtype == torch.uint8 else x, valid)

    def _call(
        self, tensors: dict[str, Tensor], x: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return functional_call(self._module, tensors, (x,)), ()

    def _evaluated(self, params: np.ndarray, inputs: np.ndarray, use: Any) -> np.ndarray:
        with self._alone(0):
            self._module.eval()
            try:
                flat, found = self._tensor(params), []
                for first in range(0, max(len(inputs), 1), _EVALUATED):
                    part = slice(first, first + _EVALUATED)
                    outputs, _ = self._forward(flat, self._tensor(inputs[part]), None)
                    found.append(use(outputs, part))
                return torch.cat(found).cpu().numpy()
            finally:
                self._module.train()

    def _prepare(self, x: Tensor, y: Tensor) -> None:
        """Tests outputs, gradients and `vmap` once, on two samples."""
        if self._vmaps is not None or len(y) == 0:
            return
        with self._own_random_state():
            self._try(x[:2], y[:2])

    def _try(self, x: Tensor, y: Tensor) -> None:
        named = dict(self._module.named_parameters())
        leaves = {name: named[name].detach().clone().requires_grad_() for name in self._names}
        with torch.enable_grad():
            outputs, _ = self._call(leaves, x / 255 if x.dtype == torch.uint8 else x, None)
            _check_outputs(outputs, y)
            losses, all_leaves = self._losses(outputs, y), list(leaves.values())
            if losses.shape != y.shape:
                raise ValueError(
                    f"the loss of {len(y)} samples has the shape {tuple(losses.shape)}, expected {tuple(y.shape)}: "
                    'one number per sample (reduction="none")'
                )
            loss = losses.sum()
            found = [None] * len(all_leaves)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, all_leaves, allow_unused=True)
        unused = [name for name, g in zip(leaves, found, strict=True) if g is None]
        if unused:
            raise ValueError(
                f"the gradient of {', '.join(unused)} is None: the loss does not depend on it; "
                "use it in `forward`, or set its requires_grad to False"
            )
        flat = torch.cat([leaf.detach().reshape(-1) for leaf in all_leaves])
        ones = torch.ones_like(y, dtype=flat.dtype)
        one_client = (flat, x, y, ones, ones)
        try:
            self._vmaps = True
            self._gradients(*(torch.stack([part, part]) for part in one_client))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self._vmaps = False
            reason = str(error).strip().split("\n")[0]
            what = f"clients train one at a time: torch.func.vmap refuses the module ({reason})"
            warnings.warn(what, UserWarning, stacklevel=2)

    def _tensor(self, values: np.ndarray) -> Tensor:
        values = values.astype(np.int64) if values.dtype == np.uint16 else np.ascontiguousarray(values)
        tensor = torch.from_numpy(values)
        return tensor.clone() if self._device.type == "cpu" else tensor.to(self._device)

    def _stack(self, rows: list[np.ndarray | None]) -> Tensor | None:
        given = next((row for row in rows if row is not None), None)
        if given is None:
            return None
        return self._tensor(np.stack([np.zeros_like(given) if row is None else row for row in rows]))

    def _own_random_state(self) -> Any:
        return torch.random.fork_rng([self._device] if self._device.type == "cuda" else [])

    @contextmanager
    def _alone(self, seed: int) -> Iterator[None]:
        """Holds the lock, without gradient recording and without changing the caller's random state."""
        with _LOCK, self._own_random_state(), _tf32(self._tf32), torch.no_grad():
            torch.manual_seed(seed)
            yield


# PyTorch's random state and a module's mode are global.
_LOCK = threading.Lock()


class _Optimiser:
    """Steps on stacked parameters, as `torch.optim` defines them."""

    def __init__(self, kind: str, constants: list[float]) -> None:
        self._kind, self._constants = kind, constants
        self._moments: list[Tensor] = []
        self._steps = 0

    def __call__(self, w: Tensor, g: Tensor, rate: Tensor) -> None:
        *constants, decay = self._constants
        if decay:
            g.add_(w, alpha=decay)
        self._steps += 1
        if self._kind == "sgd":
            (momentum,) = constants
            if momentum:
                (velocity,) = self._kept(1, w)
                g = velocity.mul_(momentum).add_(g)
            w.addcmul_(rate, g, value=-1)
            return
        beta1, beta2, epsilon = constants
        mean, square = self._kept(2, w)
        mean.mul_(beta1).add_(g, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square / (1 - beta2**self._steps)).sqrt_().add_(epsilon)
        w.addcdiv_(rate / (1 - beta1**self._steps) * mean, root, value=-1)

    def _kept(self, count: int, w: Tensor) -> list[Tensor]:
        if not self._moments:
            self._moments = [torch.zeros_like(w) for _ in range(count)]
        return [moment[: len(w)] for moment in self._moments]


class NetworkLearner(TorchLearner):
    """A built-in network by name. `tensors` are names, shapes, and whether each is a running statistic."""

    def __init__(
        self,
        kind: str,
        tensors: Sequence[tuple[str, Sequence[int], bool]],
        *,
        device: str | torch.device | None = None,
        clients_at_once: int = 64,
        tf32: bool | None = None,
        dropout: bool = True,
    ) -> None:
        from ._networks import Network

        network = Network(kind, tensors)
        network.dropout = dropout
        super().__init__(
            network, head="head", device=device, clients_at_once=clients_at_once, tf32=tf32, name=kind
        )
        self._names = [name for name, _, _ in tensors]
        self._shapes = [torch.Size(shape) for _, shape, _ in tensors]
        self._sizes = [shape.numel() for shape in self._shapes]
        which = [torch.full((size,), of) for size, (_, _, of) in zip(self._sizes, tensors, strict=True)]
        places = torch.cat(which).nonzero().reshape(-1).to(self._device)
        self._of_statistics = [name for name, _, of in tensors if of]
        self._statistics = places if len(places) else None
        self._vmaps = True

    def start(self, shape: tuple[int, ...], classes: int, seed: int) -> np.ndarray:
        """Zeros: the compiled network draws the initial parameters."""
        return np.zeros(sum(self._sizes), np.float32)

    def _call(
        self, tensors: dict[str, Tensor], x: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        scores, found = self._module.scores(tensors, x, valid)
        return scores, (torch.cat([found[name] for name in self._of_statistics]),) if found else ()


def on_device(device: str, tf32: bool | None) -> Callable[[str, Any, tuple[int, ...], int], Bridge]:
    """Builds built-in networks on a device, for `whimbrel.run(job, device=...)`."""
    from ._learner import Bridge

    place = _device(device)

    def build(kind: str, tensors: Any, shape: tuple[int, ...], classes: int) -> Bridge:
        return Bridge(NetworkLearner(kind, tensors, device=place, tf32=tf32), shape, classes)

    return build


def module(run: Run, client: str | None = None) -> nn.Module:
    """The trained network of a run of a built-in network (`cnn`, `resnet-18`, ...) as a module.

    With `client` the client's personal network. Its `state_dict` has the names of the model's tensors;
    images are `(n, channels, rows, columns)` with pixels in [0, 1], sequences `(n, steps)` of symbols.
    """
    import tomllib

    from ._networks import FORWARD

    kind = tomllib.loads(run.job)["model"]["kind"]
    if kind not in FORWARD:
        raise ValueError(f'`module` is for {", ".join(FORWARD)}; the run has kind = "{kind}"')
    tensors, models = _learned(run, client, None)
    w = _only(models, "run.parameters")
    statistic = lambda name: name.endswith((".running_mean", ".running_var"))
    return NetworkLearner(kind, [(name, shape, statistic(name)) for name, shape in tensors], device="cpu")._with(w)


def _learned(run: Run, client: str | None, learner: TorchLearner | None) -> tuple[list[Any], list[tuple[float, Any]]]:
    from ._run import learned

    return learned(run, client, learner)


def _only(models: list[tuple[float, Any]], all_of_them: str) -> Any:
    if len(models) != 1:
        raise ValueError(f"the model is a mixture of {len(models)}: `{all_of_them}` returns them with their weights")
    return models[0][1]


def _device(device: str | torch.device | None) -> torch.device:
    has_gpu = torch.cuda.is_available()
    found = torch.device(device or ("cuda" if has_gpu else "cpu"))
    if found.type == "cuda" and not has_gpu:
        raise ValueError(f"device {str(device)!r}: PyTorch finds no CUDA device here")
    return found


@contextmanager
def _tf32(allowed: bool | None) -> Iterator[None]:
    """Allows or forbids TensorFloat-32 meanwhile."""
    if allowed is None:
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _each_loss(loss: Loss) -> Loss:
    """A loss per sample: of a module of PyTorch, without its reduction."""
    if not callable(loss):
        raise TypeError(f"`loss` must be a function of outputs and targets, got {type(loss).__name__}")
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        loss = copy.deepcopy(loss)
        loss.reduction = "none"

    def each(outputs: Tensor, y: Tensor) -> Tensor:
        return loss(outputs if y.dtype == torch.int64 else outputs.reshape(y.shape), y)

    return each


def _losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of classes, half the squared error of numbers."""
    if y.dtype == torch.int64:
        return cross_entropy(outputs, y, reduction="none")
    return (outputs.reshape(y.shape) - y) ** 2 / 2


def _minibatches(
    clients: list[Training], lanes: list[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """For each step and model: the indices of its samples, their shares in the gradient, 1 for samples and 0
    for padding, and the number of active models. Short minibatches are padded with shares of zero."""
    steps = max(len(client.batches) for client in clients)
    size = max((len(batch) for client in clients for batch in client.batches), default=0)
    first = np.cumsum([0, *(len(client.targets) for client in clients)])
    # The indices of a client without samples are not used.
    places = np.zeros((steps, len(lanes), size), np.int64)
    shares, valid = np.zeros((2, steps, len(lanes), size), np.float32)
    for lane, (c, model) in enumerate(lanes):
        for t, batch in enumerate(clients[c].batches):
            n = len(batch)
            places[t, lane, :n] = first[c] + batch
            valid[t, lane, :n] = 1
            shares[t, lane, :n] = (1.0 if model.weights is None else model.weights[batch]) / np.float32(n)
    active = [sum(len(clients[c].batches) > t for c, _ in lanes) for t in range(steps)]
    return places, shares, valid, active


def _moves(model: Any, length: int) -> np.ndarray | None:
    """1 for trained parameters, 0 for frozen ones."""
    moves = np.ones(length, np.float32)
    for begin, end in model.frozen:
        moves[begin:end] = 0
    return moves if model.frozen else None


def _parts(module: nn.Module, head: str | None) -> tuple[list[str], int]:
    """The names of the trained parameters, the head's last, and the size of the head."""
    if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        raise ValueError(
            "the module has batch normalisation, whose statistics are not parameters and mix samples: "
            "use GroupNorm or LayerNorm"
        )
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the module has no parameters to train")
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32:
            raise TypeError(f"parameter {name} is {parameter.dtype}: a learner's parameters are float32")
    prefix = list(trained)[-1].rpartition(".")[0] if head is None else head
    of_head = [name for name in trained if name.startswith(f"{prefix}." if prefix else "")]
    if not of_head:
        raise ValueError(f"the module has no trained parameters under {head!r}")
    body = [name for name in trained if name not in set(of_head)]
    return body + of_head, sum(trained[name].numel() for name in of_head)


def _check_outputs(outputs: Any, y: Tensor) -> None:
    if not isinstance(outputs, Tensor):
        raise TypeError(f"the module must return a tensor, got {type(outputs).__name__}")
    if not outputs.dtype.is_floating_point:
        raise TypeError(f"the module must return floating-point numbers, got {outputs.dtype}")
    n = len(y)
    scores = y.dtype == torch.int64
    fits = outputs.ndim == 2 and len(outputs) == n and outputs.shape[1] > int(y.max()) if scores else outputs.numel() == n
    if not fits:
        wanted = f"({n}, classes)" if scores else f"({n},)"
        raise ValueError(f"the module returned shape {tuple(outputs.shape)} for {n} inputs, expected {wanted}")
