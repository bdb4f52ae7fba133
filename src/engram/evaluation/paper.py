"""The paper's own figures (Ostapenko et al. 2019, tables 1 to 4), quoted for comparison; used for nothing else."""

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

TABLE_2: dict[tuple[str, str], dict[str, dict[int, float]]] = {
    ("joint", ""): {"top-1": {30: 57.35, 50: 49.88}, "top-5": {30: 84.70, 50: 78.24}},
    ("icarl", "K=1000"): {"top-1": {30: 29.38, 50: 28.98}, "top-5": {30: 69.98, 50: 59.49}},
    ("icarl", "K=2000"): {"top-1": {30: 39.38, 50: 29.96}, "top-5": {30: 70.57, 50: 60.07}},
    ("dgmw", "K=1000"): {"top-1": {30: 36.87, 50: 18.84}, "top-5": {30: 69.13, 50: 43.12}},
    ("dgmw", "K=2000"): {"top-1": {30: 41.93, 50: 22.56}, "top-5": {30: 69.20, 50: 51.84}},
    ("dgmw", "r=0.75"): {"top-1": {30: 50.80, 50: 38.22}, "top-5": {30: 78.27, 50: 64.64}},
    ("dgmw", "r=0.5"): {"top-1": {30: 48.80, 50: 40.72}, "top-5": {30: 79.40, 50: 71.72}},
    ("dgmw", "r=0.25"): {"top-1": {30: 46.93, 50: 35.04}, "top-5": {30: 75.80, 50: 65.60}},
    ("dgmw", "r=0.1"): {"top-1": {30: 41.67, 50: 30.48}, "top-5": {30: 71.80, 50: 61.04}},
    ("dgmw", "r=0"): {"top-1": {30: 32.14, 50: 17.82}, "top-5": {30: 62.53, 50: 40.76}},
}
"""ImageNet-50: (method, what it stores) -> measure -> classes seen -> per cent."""

TABLE_3: dict[str, dict[str, tuple[float, float, float]]] = {
    "mnist": {"dgmw": (5.58e4, 3.83e5, 96.46), "mergan": (5.18e5, 5.18e5, 97.00)},
    "svhn": {"dgmw": (5.58e4, 3.99e5, 74.38), "mergan": (5.18e5, 5.18e5, 66.78)},
}
"""Data set -> method -> the generator's parameters at first and at last, and A_10 in per cent."""

TABLE_4: dict[str, dict[str, dict[int, float]]] = {
    "dgma": {"weights": {5: 6.7, 10: 14.0}, "masks": {5: 0.4, 10: 0.8}, "total": {5: 7.1, 10: 14.8}},
    "dgmw": {"weights": {5: 1.1, 10: 2.0}, "masks": {5: 3.8, 10: 9.9}, "total": {5: 4.9, 10: 11.9}},
}
"""MNIST: method -> part -> tasks learned -> disc space in MB."""


def paper_accuracy(dataset: str, method: str, classes: int) -> float | None:
    """The paper's A_t, in per cent; None where it gives none.

    >>> paper_accuracy("mnist", "dgma", 10), paper_accuracy("mnist", "si", 10)
    (97.92, None)
    """
    return TABLE_1.get(dataset, {}).get(method, {}).get(classes)
