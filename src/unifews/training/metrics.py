"""Metrics of a classifier, in percent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError, unknown_name

Scores = NDArray[Any]


def accuracy(scores: Scores, y: NDArray[Any]) -> float:
    """Fraction of rows whose largest score is the label's; scores [rows, classes], y [rows]. Equals micro-F1."""
    if y.ndim != 1:
        raise InputError("accuracy needs one class per row; for labels in several columns take 'f1' or 'auc'.")
    return 100 * float((scores.argmax(1) == y).mean())


def micro_f1(scores: Scores, y: NDArray[Any]) -> float:
    """2·TP / (2·TP + FP + FN) over all labels together; a positive score predicts the label. y [rows] or 0/1 [rows, labels]."""
    if y.ndim == 1:
        return accuracy(scores, y)
    predicted, true = scores > 0, y > 0
    hits = np.count_nonzero(predicted & true)
    together = np.count_nonzero(predicted) + np.count_nonzero(true)
    return 100 * 2 * hits / together if together else 100.0


def roc_auc(scores: Scores, y: NDArray[Any]) -> float:
    """The probability that a positive row scores above a negative one, ties counting half; mean over labels that have both.

    Two classes are ranked by the difference of their scores.
    """
    if y.ndim == 1:
        if scores.shape[1] != 2:
            raise InputError(f"ROC-AUC needs two classes or labels in columns; there are {scores.shape[1]} classes.")
        scores, y = scores[:, 1:] - scores[:, :1], y[:, None]
    values = [_auc(scores[:, j], y[:, j] > 0) for j in range(y.shape[1]) if 0 < np.count_nonzero(y[:, j]) < len(y)]
    if not values:
        raise InputError("ROC-AUC needs positive and negative rows; every label is all one or all zero here.")
    return 100 * float(np.mean(values))


def _auc(score: NDArray[Any], positive: NDArray[np.bool_]) -> float:
    # Mann-Whitney: the mean rank of the positives, ranks of equal scores shared.
    _, where, size = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(size) - (size - 1) / 2)[where]
    p, n = np.count_nonzero(positive), np.count_nonzero(~positive)
    return float((rank[positive].sum() - p * (p + 1) / 2) / (p * n))


METRICS = {"accuracy": accuracy, "f1": micro_f1, "auc": roc_auc}
NAMES = {"accuracy": "accuracy", "f1": "micro-F1", "auc": "ROC-AUC"}


def evaluate(metric: str, scores: Scores, y: NDArray[Any]) -> float:
    """The score by a metric's name."""
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    return METRICS[metric](scores, y)
