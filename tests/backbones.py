"""Tiny ONNX files in the place of networks that others trained: a few fixed operations, written in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Side = int | str


def save(
    path: Path,
    nodes: Sequence[Any],
    *,
    inputs: Sequence[tuple[str, int, Sequence[Side]]],
    outputs: Sequence[tuple[str, int, Sequence[Side]]],
    weights: dict[str, Any],
    **options: Any,
) -> Path:
    """A graph of these nodes; a side that is a text is free."""
    import onnx

    taken, given = ([helper.make_tensor_value_info(*one) for one in some] for some in (inputs, outputs))
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "stand-in", taken, given, held)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, str(path), **options)
    return path


def backbone(
    path: Path,
    *,
    size: Side = 16,
    channels: Side = 3,
    batch: Side = "batch",
    seed: int = 0,
    width: int = 24,
    last: bool = False,
    bytes_: bool = False,
    maps: bool = False,
    together: bool = False,
    gain: float = 1.0,
    **options: Any,
) -> Path:
    """Grey, scaled to 4x4, mixed by fixed random weights: `features` (N, width), of any size; and `maps`.

    `last`: (N, H, W, C); `bytes_`: uint8; `maps`: they come first; `together`: every row less the mean over the batch.
    """
    draws = np.random.default_rng(seed)
    kind = TensorProto.UINT8 if bytes_ else TensorProto.FLOAT
    shape = [batch, size, size, channels] if last else [batch, channels, size, size]
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["numbers"], ["planes"], perm=[0, 3, 1, 2] if last else [0, 1, 2, 3]),
        helper.make_node("ReduceMean", ["planes", "one"], ["grey"], keepdims=1),
        helper.make_node("Mul", ["grey", "gain"], ["light"]),
        helper.make_node("Conv", ["light", "looks"], ["found"], strides=[2, 2]),
        helper.make_node("Relu", ["found"], ["rectified"]),
        helper.make_node("Transpose", ["rectified"], ["maps"], perm=[0, 2, 3, 1] if last else [0, 1, 2, 3]),
        helper.make_node("Shape", ["light"], ["n"], start=0, end=2),
        helper.make_node("Concat", ["n", "side"], ["four"], axis=0),
        helper.make_node("Resize", ["light", "", "", "four"], ["small"], mode="linear", antialias=1),
        helper.make_node("Flatten", ["small"], ["row"]),
        helper.make_node("MatMul", ["row", "mix"], ["mixed"]),
        helper.make_node("ReduceMean", ["mixed", "zero"], ["middle"], keepdims=1),
        helper.make_node("Mul", ["middle", "share"], ["off"]),
        helper.make_node("Sub", ["mixed", "off"], ["features"]),
    ]
    of_maps: list[Side] = ["batch", "h", "w", width] if last else ["batch", width, "h", "w"]
    outputs: list[tuple[str, int, list[Side]]] = [
        ("features", TensorProto.FLOAT, ["batch", width]),
        ("maps", TensorProto.FLOAT, of_maps),
    ]
    weights = {
        "one": np.array([1]),
        "zero": np.array([0]),
        "gain": np.array(gain, np.float32),
        "side": np.array([4, 4]),
        "share": np.array(float(together), np.float32),
        "looks": draws.standard_normal((width, 1, 4, 4)).astype(np.float32) / 4,
        "mix": draws.standard_normal((16, width)).astype(np.float32),
    }
    return save(
        path,
        nodes,
        inputs=[("images", kind, shape)],
        outputs=outputs[::-1] if maps else outputs,
        weights=weights,
        **options,
    )
