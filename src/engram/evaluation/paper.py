"""The paper's own figures (Ostapenko et al. 2019, table 1), quoted for comparison; never used for anything else."""

from __future__ import annotations

TABLE_1: dict[str, dict[str, dict[int, float]]] = {
    "mnist": {
        "joint": {5: 99.87, 10: 99.24},
        "icarl": {10: 55.8},
        "ewc-s": {10: 79.7},
        "rwalk-s": {10: 82.5},
        "si-s": {10: 78.7},
        "ewcm": {5: 70.62, 10: 77.03},
        "dgr": {5: 90.39, 10: 85.40},
        "mergan": {5: 99.15, 10: 96.83},
        "dgmw": {5: 98.75, 10: 96.46},
        "dgma": {5: 99.17, 10: 97.92},
    },
    "svhn": {
        "joint": {5: 92.99, 10: 88.72},
        "ewcm": {5: 39.84, 10: 33.02},
        "dgr": {5: 61.29, 10: 47.28},
        "mergan": {5: 74.83, 10: 49.43},
        "dgmw": {5: 83.93, 10: 74.38},
        "dgma": {5: 81.07, 10: 66.89},
    },
    "cifar10": {
        "joint": {5: 83.40, 10: 77.82},
        "dgmw": {5: 72.45, 10: 56.21},
        "dgma": {5: 71.91, 10: 51.75},
    },
    "imagenet50": {
        "joint": {30: 57.35, 50: 49.88},
        "icarl": {30: 29.38, 50: 28.98},
        "dgmw": {30: 32.14, 50: 17.82},
        "dgma": {30: 25.93, 50: 15.16},
    },
}
"""Data set -> method -> classes seen -> A_t in per cent."""


def paper_accuracy(dataset: str, method: str, classes: int) -> float | None:
    """The paper's A_t, in per cent; None where it gives none.

    >>> paper_accuracy("mnist", "dgma", 10), paper_accuracy("mnist", "si", 10)
    (97.92, None)
    """
    return TABLE_1.get(dataset, {}).get(method, {}).get(classes)
