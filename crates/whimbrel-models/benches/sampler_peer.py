"""NumPy's side of the benchmark `sampler`: reads numbers of steps, answers with the nanoseconds of
processor time per ULA step on the toy model (2 latent coordinates, 5 rows, standard normal prior).
The noise of all steps is drawn at once, which favours NumPy."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import sys
import time

import numpy as np

rng = np.random.default_rng(1)
rows, y = rng.standard_normal((5, 2)), rng.standard_normal(5)
gamma, weight = 1e-4, 1 / 0.1**2
spread = np.sqrt(2 * gamma)
print(np.__version__, flush=True)
z = np.zeros(2)
for line in sys.stdin:
    steps = int(line)
    start = time.process_time_ns()
    noise = spread * rng.standard_normal((steps, 2))
    for m in range(steps):
        gradient = weight * (rows.T @ (rows @ z - y)) + z
        z = z - gamma * gradient + noise[m]
    print((time.process_time_ns() - start) / steps, flush=True)
