"""PyTorch's side of the benchmark `nn`: reads `MODEL THREADS STEPS` lines, answers with the mean
milliseconds of a training step (forward, backward, SGD): of processor time on one thread, of elapsed
time on several."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


def conv_norm(inputs, outputs, size=3, stride=1, groups=1, relu=True):
    layers = [
        nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return layers + ([nn.ReLU6(inplace=True)] if relu else [])


def mobilenet(classes):
    layers, width = conv_norm(3, 32, stride=2), 32
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    blocks += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, channels, repetitions, first_stride in blocks:
        for repetition in range(repetitions):
            stride = first_stride if repetition == 0 else 1
            wide = expansion * width
            body = conv_norm(width, wide, 1) if expansion > 1 else []
            body += conv_norm(wide, wide, 3, stride, groups=wide)
            body += conv_norm(wide, channels, 1, relu=False)
            if stride == 1 and width == channels:
                layers.append(Residual(nn.Sequential(*body)))
            else:
                layers += body
            width = channels
    layers += conv_norm(width, 1280, 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*layers)


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 80)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128),
        nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(128, 62),
    )  # fmt: skip


def case(name):
    last = torch.channels_last
    if name == "logistic":
        return nn.Linear(784, 10), torch.rand(128, 784), 10
    if name == "cnn":
        return cnn(), torch.rand(128, 1, 28, 28), 62
    if name == "cnn-channels-last":
        images = torch.rand(128, 1, 28, 28).to(memory_format=last)
        return cnn().to(memory_format=last), images, 62
    if name == "mobilenet-v2":
        images = torch.rand(128, 3, 32, 32).to(memory_format=last)
        return mobilenet(10).to(memory_format=last), images, 10
    if name == "lstm":
        return Characters(), torch.randint(80, (32, 80)), 80
    raise SystemExit(f"no case {name}")


def main():
    print(torch.__version__, flush=True)
    cases = {}
    for line in sys.stdin:
        name, threads, steps = line.split()
        torch.set_num_threads(int(threads))
        if name not in cases:
            model, x, classes = case(name)
            y = torch.randint(classes, (len(x),))
            cases[name] = model, torch.optim.SGD(model.parameters(), lr=0.01), x, y
        model, optimiser, x, y = cases[name]
        clock = time.thread_time if threads == "1" else time.perf_counter
        begin = clock()
        for _ in range(int(steps)):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
        print(1e3 * (clock() - begin) / int(steps), flush=True)


main()
