"""Operations in plain NumPy, float64, one row or one number at a time: definitions that share nothing with the texts."""

from __future__ import annotations

import itertools
import math

import numpy as np


def rows_of(x):
    """The indices of all rows of (..., d)."""
    return itertools.product(*map(range, x.shape[:-1]))


def each_row(function, x, *others):
    """`function` of every row of x and of the same row of the others, stacked."""
    out = [function(x[i], *(y[i] for y in others)) for i in rows_of(x)]
    ones = (np.ones(y.shape[x.ndim - 1 :]) for y in (x, *others))
    last = np.shape(out[0] if out else function(*ones))
    return np.reshape(np.array(out), (*x.shape[:-1], *last))


def projection(op, x, w, b=None):
    y = np.zeros((*x.shape[:-1], w.shape[1]))
    for i in rows_of(x):
        for k in range(w.shape[1]):
            y[i][k] = math.fsum(x[i][j] * w[j, k] for j in range(w.shape[0])) + (0.0 if b is None else b[k])
    return y


def softmax(op, s, see=None):
    see = np.broadcast_to(True if see is None else see, s.shape)

    def one(row, seen):
        z = math.fsum(math.exp(x) for x, there in zip(row, seen, strict=True) if there)
        return [math.exp(x) / z if there else 0.0 for x, there in zip(row, seen, strict=True)]

    return each_row(one, s, see)


def logsumexp(op, s, see=None):
    see = np.broadcast_to(True if see is None else see, s.shape)

    def one(row, seen):
        z = math.fsum(math.exp(x) for x, there in zip(row, seen, strict=True) if there)
        return math.log(z) if z else -math.inf

    return each_row(one, s, see)


def layer_norm(op, x, g=None, b=None):
    d = x.shape[-1]

    def one(row):
        mean = math.fsum(row) / d if d else 0.0
        variance = math.fsum((t - mean) ** 2 for t in row) / d if d else 0.0
        return [(t - mean) / math.sqrt(variance + op.eps) for t in row]

    return each_row(one, x) * (1.0 if g is None else g) + (0.0 if b is None else b)


def rms_norm(op, x, g=None):
    def one(row):
        rms = math.sqrt(math.fsum(t * t for t in row) / max(len(row), 1) + op.eps)
        return [t / rms for t in row]

    return each_row(one, x) * (1.0 if g is None else g)


def scale_norm(op, x, g):
    """By the three published formulas, not by the fields' meaning."""

    def one(row):
        length, d = math.hypot(*row), max(len(row), 1)
        divisor = {
            ("norm", "max"): max(length, op.eps),
            ("rms", "add"): math.sqrt(length**2 / d + op.eps),
            ("rms", "max"): max(length / math.sqrt(d), op.eps),
            ("norm", "add"): math.sqrt(length**2 + op.eps),
        }[op.length, op.guard]
        return [float(g) * t / divisor for t in row]

    return each_row(one, x)


def normal_cdf(x, mean=0.0, deviation=1.0):
    return 0.5 * math.erfc(-(x - mean) / (deviation * math.sqrt(2.0)))


def logistic(x):
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else 1.0 - 1.0 / (1.0 + math.exp(x))


NUMBERS = {
    "relu": lambda x: x if x > 0 else 0.0,
    "squared_relu": lambda x: x**2 if x > 0 else 0.0,
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_tanh": lambda x: x * logistic(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)),
    "laplace": lambda x: normal_cdf(x, math.sqrt(0.5), math.sqrt(1.0 / (4.0 * math.pi))),
}


def activation(op, x):
    return np.array([NUMBERS[op.kind](t) for t in x.ravel().tolist()]).reshape(x.shape)


def glu(op, value, gate):
    return value * activation(op, gate)


def depthwise_conv(op, x, w, b=None):
    n, r = x.shape[-2], w.shape[0]
    left = r - 1 if op.padding == "causal" else r // 2
    y = np.zeros(x.shape)
    for t in range(n):
        for j in range(r):
            if 0 <= t + j - left < n:
                y[..., t, :] += w[j] * x[..., t + j - left, :]
    return y if b is None else y + b


def strided_conv(op, x, w, b=None):
    """Output by output, as many as have a first position to read (tail="pad") or all of them (else)."""
    (*lead, n, d), (r, _, e), c, (before, after) = x.shape, w.shape, op.stride, op.padding
    padded = np.concatenate([np.zeros((*lead, before, d)), x, np.zeros((*lead, after + r + c, d))], axis=-2)
    length, starts = before + n + after, range(0, before + n + after, c)
    if op.tail == "pad":
        starts = [s for s in starts if s == 0 or s - c + r < length]
    else:
        starts = [s for s in starts if s + r <= length]
    starts = starts if n else []
    y = np.zeros((*lead, len(starts), e))
    for t, s in enumerate(starts):
        for j in range(r):
            y[..., t, :] += np.einsum("...d,de->...e", padded[..., s + j, :], w[j])
    return y if b is None else y + b


def lookup(op, table, ids):
    return np.array([table[i] for i in ids.ravel().tolist()]).reshape(*ids.shape, table.shape[1])


def reduced(op, loss, count):
    if op.reduction == "none":
        return loss
    return np.sum(loss) / (max(count, 1) if op.reduction == "mean" else 1)


def cross_entropy(op, logits, targets):
    counts = np.ones(targets.shape, bool) if op.ignore is None else targets != op.ignore

    def one(row, target, there):
        return -math.log(math.exp(row[target]) / math.fsum(map(math.exp, row))) if there else 0.0

    loss = [one(logits[i], targets[i], counts[i]) for i in rows_of(logits)]
    return reduced(op, np.array(loss).reshape(targets.shape), counts.sum())


def temperature_kl(op, student, teacher):
    def one(s, t):
        p, q = ([math.exp(x / op.temperature) for x in row] for row in (t, s))
        p, q = ([x / math.fsum(row) for x in row] for row in (p, q))
        return op.temperature**2 * math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    return reduced(op, each_row(one, student, teacher), math.prod(student.shape[:-1]))
