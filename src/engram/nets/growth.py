"""How much each node of a graph grows after a task. A pure function of sizes."""

from __future__ import annotations

from collections.abc import Sequence

from engram.masking.growth import LayerGrowth, LayerSize, Rule, grow_layer
from engram.masking.masks import Variant
from engram.nets.graph import Graph


def plan_growth(
    graph: Graph, layers: Sequence[LayerSize], variant: Variant, rule: Rule = "refill"
) -> list[LayerGrowth]:
    """By edge, front to back: what a node gains, the edges that read it gain as inputs.

    Of several edges into one node the neediest decides for all. The noise never grows. The last node grows like the
    others: its readers are the tasks' heads, and an old head goes on seeing the channels it was trained with.
    """
    gained = [0] * (graph.nodes + 1)
    plan: dict[int, LayerGrowth] = {}
    for node in range(1, graph.nodes + 1):
        writers = graph.incoming[node]
        inputs = [gained[graph.edges[number].source] for number in writers]
        wished = [
            grow_layer(layers[number], new, variant, rule=rule).new_units
            for number, new in zip(writers, inputs, strict=True)
        ]
        gained[node] = max(wished)
        for number, new in zip(writers, inputs, strict=True):
            plan[number] = grow_layer(layers[number], new, variant, at_least=gained[node], rule=rule)
    return [plan[number] for number in range(len(layers))]
