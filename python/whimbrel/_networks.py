"""The built-in networks in PyTorch, with the names and the order of the compiled ones' tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Added to a variance, and the weight of a batch in running statistics.
_EPSILON, _NEW = 1e-5, 0.1

# Expansion, channels, repetitions and first stride of the blocks of MobileNet-v2.
_BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


class Pass:
    """One forward pass: the tensors by name, the mode, and the running statistics that it finds.

    `valid` is 1 for samples and 0 for padding, which statistics leave out.
    """

    def __init__(self, tensors: dict[str, Tensor], training: bool, dropout: bool, valid: Tensor | None) -> None:
        self._tensors, self._training, self._dropout, self._valid = tensors, training, dropout, valid
        self.statistics: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def conv(self, name: str, x: Tensor, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
        bias = self._tensors.get(f"{name}.bias")
        return F.conv2d(x, self[f"{name}.weight"], bias, stride, padding, groups=groups)

    def dense(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def drop(self, x: Tensor, probability: float) -> Tensor:
        return F.dropout(x, probability) if self._training and self._dropout else x

    def normed(self, name: str, x: Tensor, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
        """A convolution and its batch normalisation."""
        x = self.conv(name, x, stride, padding, groups)
        weight, bias, running_mean, running_var = (
            self[f"{name}.norm.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        column = lambda of_channels: of_channels.view(-1, 1, 1)
        if self._training:
            pixels = x.shape[2] * x.shape[3]
            mask = x.new_ones(len(x), 1, 1, 1) if self._valid is None else self._valid.view(-1, 1, 1, 1)
            count = mask.sum() * pixels
            mean = (x * mask).sum((0, 2, 3)) / count
            var = ((x - column(mean)).square() * mask).sum((0, 2, 3)) / count
            unbiased = var.detach() * count / (count - 1).clamp(min=1)
            found = {"running_mean": (running_mean, mean.detach()), "running_var": (running_var, unbiased)}
            for part, (old, new) in found.items():
                self.statistics[f"{name}.norm.{part}"] = (1 - _NEW) * old + _NEW * new
        else:
            mean, var = running_mean, running_var
        scale = weight * torch.rsqrt(var + _EPSILON)
        return x * column(scale) + column(bias - mean * scale)


def _mlp(run: Pass, x: Tensor) -> Tensor:
    x, i = x.flatten(1), 1
    while f"hidden{i}.weight" in run._tensors:
        x, i = run.dense(f"hidden{i}", x).relu(), i + 1
    return run.dense("head", x)


def _cnn(run: Pass, x: Tensor) -> Tensor:
    x = run.conv("conv2", run.conv("conv1", x).relu())
    x = run.drop(F.max_pool2d(x.relu(), 2), 0.25).flatten(1)
    return run.dense("head", run.drop(run.dense("dense", x).relu(), 0.5))


def _lenet(run: Pass, x: Tensor) -> Tensor:
    x = F.max_pool2d(run.conv("conv1", x, padding=2 if x.shape[2] < 32 else 0).relu(), 2)
    x = F.max_pool2d(run.conv("conv2", x).relu(), 2).flatten(1)
    return run.dense("head", run.dense("dense2", run.dense("dense1", x).relu()).relu())


def _mobilenet_v2(run: Pass, x: Tensor) -> Tensor:
    x, number = F.relu6(run.normed("stem", x, 2, 1)), 0
    for expansion, channels, repetitions, first_stride in _BLOCKS:
        for repetition in range(repetitions):
            number += 1
            stride, name, before = (first_stride if repetition == 0 else 1), f"block{number}", x
            if expansion > 1:
                x = F.relu6(run.normed(f"{name}.expand", x))
            x = F.relu6(run.normed(f"{name}.depthwise", x, stride, 1, groups=x.shape[1]))
            x = run.normed(f"{name}.project", x)
            if stride == 1 and before.shape[1] == channels:
                x = x + before
    x = F.relu6(run.normed("last", x)).mean((2, 3))
    return run.dense("head", run.drop(x, 0.2))


def _resnet_18(run: Pass, x: Tensor) -> Tensor:
    x = run.normed("stem", x, 1, 1).relu()
    for stage in range(1, 5):
        for block in (1, 2):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 1 else 1
            body = run.normed(f"{name}.conv2", run.normed(f"{name}.conv1", x, stride, 1).relu(), 1, 1)
            if f"{name}.shortcut.weight" in run._tensors:
                x = run.normed(f"{name}.shortcut", x, stride)
            x = (body + x).relu()
    return run.dense("head", x.mean((2, 3)))


def _lstm(run: Pass, x: Tensor) -> Tensor:
    x = run["embedding.weight"][x.long()]
    for name in ("lstm1", "lstm2"):
        # All steps' inputs in one product; one intercept per gate.
        sums = F.linear(x, run[f"{name}.weight_ih"], run[f"{name}.bias"])
        h = c = torch.zeros_like(sums[:, 0, : sums.shape[2] // 4])
        outputs = []
        for t in range(x.shape[1]):
            i, f, g, o = (sums[:, t] + F.linear(h, run[f"{name}.weight_hh"])).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        x = torch.stack(outputs, 1)
    return run.dense("head", x[:, -1])


FORWARD: dict[str, Callable[[Pass, Tensor], Tensor]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lenet": _lenet,
    "mobilenet-v2": _mobilenet_v2,
    "resnet-18": _resnet_18,
    "lstm": _lstm,
}


class Network(nn.Module):
    """A built-in network as a module. `tensors` are names, shapes, and whether each is a running statistic;
    these are buffers."""

    def __init__(self, kind: str, tensors: Sequence[tuple[str, Sequence[int], bool]]) -> None:
        super().__init__()
        self.kind, self.dropout = kind, True
        for name, shape, is_statistic in tensors:
            *path, last = name.split(".")
            place: Any = self
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            values = torch.zeros(tuple(shape))
            if is_statistic:
                place.register_buffer(last, values)
            else:
                place.register_parameter(last, nn.Parameter(values))

    def forward(self, x: Tensor) -> Tensor:
        return self.scores({**dict(self.named_parameters()), **dict(self.named_buffers())}, x)[0]

    def scores(
        self, tensors: dict[str, Tensor], x: Tensor, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The scores of classes, and in training the new running statistics."""
        run = Pass(tensors, self.training, self.dropout, valid)
        return FORWARD[self.kind](run, x), run.statistics
