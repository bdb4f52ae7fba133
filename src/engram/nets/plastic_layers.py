"""Plastic layers: a weight shared by all tasks, the embedding of the task in training, and what is reserved.

    DGMw  "weights"    x ── conv(x, m ∘ W) ── norm ── activation ──────────▶      m has the shape of W
    DGMa  "units"      x ── conv(x, W) ────── norm ── activation ── · m ──▶      m has one entry per unit

DGMa multiplies last: a closed unit then sends exactly 0 onwards, whatever shift its normalisation has. (The
authors multiply before batch normalisation, and a closed unit sends its shift through unreserved weights.)
A layer holds tensors; the graph computes with them (graph.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from engram.masking import annealing, growth, masks
from engram.masking.masks import IN_AXIS, OUT_AXIS, Variant
from engram.nets.graph import Operation


def laid_out(block: Tensor) -> Tensor:
    """With the same strides, hence for the same kernel, whether it is all of a weight or a part.

    For convolutions they are those that a CPU computes with fastest. Weights, embeddings and reservations have them
    too: what is multiplied entry by entry should lie in memory in one order.
    """
    return block.contiguous(memory_format=torch.contiguous_format if block.dim() == 2 else torch.channels_last)


def mask_units(x: Tensor, mask: Tensor) -> Tensor:
    """DGMa: activations (B, C, ...) times the mask (C,) of their units."""
    return _masked(x, mask.reshape(-1, *[1] * (x.dim() - 2)))


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    # Eq. 1. A binary mask selects: a closed entry is +0 even where x is negative (-0) or not finite (nan). Training
    # asks for speed rather than for equal bits and gives the mask as numbers: a product is 25 times faster.
    return x.masked_fill(~mask, 0) if mask.dtype == torch.bool else x * mask


class PlasticLayer(nn.Module):
    """A weight without bias, the embedding of the task in training, and what earlier tasks reserved."""

    embedding: nn.Parameter
    reserved: Tensor
    start_free: Tensor

    def __init__(
        self,
        operation: Operation,
        n_in: int,
        n_out: int,
        *,
        variant: Variant,
        generator: torch.Generator,
        init: growth.Init = growth.dcgan_init,
    ) -> None:
        super().__init__()
        self.layout = operation.layout
        self.variant: Variant = variant
        self.init = init
        self.weight = nn.Parameter(laid_out(init(operation.weight_shape(n_in, n_out), generator)))
        self.embedding = nn.Parameter(self._zero_embedding())
        self.register_buffer("reserved", torch.zeros_like(self.embedding, dtype=torch.bool))
        # a buffer, because a layer restored at its grown size must still know its capacity at the start
        self.register_buffer("start_free", torch.tensor(self.embedding.numel()))

    def _zero_embedding(self) -> Tensor:
        n_out = self.weight.shape[OUT_AXIS[self.layout]]
        return torch.zeros_like(self.weight) if self.variant == "weights" else self.weight.new_zeros(n_out)

    def opened(self, mask: Tensor) -> Tensor:
        """The weight that a mask of today's size computes with."""
        return laid_out(self.weight if mask.dim() == 1 else _masked(self.weight, mask))

    def soft_mask(self, s: float) -> Tensor:
        """The mask to train with."""
        return masks.soft_mask(self.embedding, s)

    def binary_mask(self) -> Tensor:
        """The mask that remains of the task."""
        return masks.binarise(self.embedding)

    def mask_output(self, x: Tensor, mask: Tensor) -> Tensor:
        """After normalisation and activation: DGMa's mask; nothing for DGMw, whose mask is in the weight."""
        return mask_units(x, mask) if self.variant == "units" else x

    def compensate_gradients(self, s: float, s_max_i: float) -> None:
        """After `backward`: HAT's compensation of the embedding's gradient."""
        if self.embedding.grad is not None:
            self.embedding.grad = annealing.compensate(self.embedding.grad, self.embedding, s, s_max_i)

    def gate(self, reserved_in: Tensor | None = None) -> Tensor:
        """What may still learn (Eq. 5); spreads over the weight.

        For DGMa, `reserved_in` (n_in,) tells which inputs are reserved; without it all are, as for noise.
        """
        if self.variant == "weights":
            return masks.weight_gate(self.reserved)
        if reserved_in is None:
            n_in = self.weight.shape[IN_AXIS[self.layout]]
            reserved_in = torch.ones(n_in, dtype=torch.bool, device=self.weight.device)
        return masks.unit_gate(reserved_in, self.reserved, self.layout)

    def gate_gradients(self, gate: Tensor) -> None:
        """After `backward`: no gradient for what earlier tasks rely on.

        A zero gradient is a zero update only for an optimiser that starts fresh with the task and has no
        weight decay: left-over momentum and decay both move a weight without asking for its gradient.
        """
        if self.weight.grad is not None:
            masks.close_(self.weight.grad, gate)

    @torch.no_grad()
    def clamp_(self) -> None:
        """After the optimiser's step: the embedding within its bounds."""
        annealing.clamp_embedding_(self.embedding)

    def reserve_(self, opened: Tensor) -> masks.Usage:
        """At the end of a task: reserve what its binary mask opened; returns what of it was new."""
        usage = masks.count_usage(opened, self.reserved)
        self.reserved = masks.accumulate(self.reserved, opened)
        return usage

    def size(self, newly_reserved: int = 0) -> growth.LayerSize:
        """For `plan_growth`; `newly_reserved`: by the task that has just ended."""
        n_in, n_out = self.weight.shape[IN_AXIS[self.layout]], self.weight.shape[OUT_AXIS[self.layout]]
        return growth.LayerSize(
            inputs=n_in,
            units=n_out,
            area=self.weight[0, 0].numel(),
            reserved=int(self.reserved.sum()),
            start_free=int(self.start_free),
            newly_reserved=newly_reserved,
        )

    def grow_(self, new_in: int, new_out: int, *, generator: torch.Generator) -> None:
        """Before the next task: new, larger parameters and a fresh embedding. Optimisers must be rebuilt."""
        w = growth.grow_weight(self.weight, new_in, new_out, self.layout, generator=generator, init=self.init)
        self.weight = nn.Parameter(laid_out(w))
        self.embedding = nn.Parameter(self._zero_embedding())
        self.reserved = like(self.weight, growth.grow_mask(self.reserved, new_in, new_out, self.layout))

    def release_(self, reserved: Tensor, kept: Tensor, *, generator: torch.Generator) -> None:
        """After a class is forgotten: this alone stays reserved, and all but the weights `kept` are drawn afresh.

        `reserved` has the shape of a mask, `kept` that of the weight. Optimisers must be rebuilt.
        """
        fresh = self.init(self.weight.shape, generator).to(self.weight)
        self.weight = nn.Parameter(laid_out(torch.where(kept, self.weight.detach(), fresh)))
        self.embedding = nn.Parameter(self._zero_embedding())
        self.reserved = like(self.weight, reserved)

    def saved(self, in_training: bool) -> dict[str, Tensor]:
        """For a checkpoint; between tasks every embedding is 0, and is left out."""
        state = dict(self.state_dict())
        if not in_training:
            del state["embedding"]
        return state

    def restore_(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Take over a saved state, of any size. Optimisers must be rebuilt."""
        self.weight = nn.Parameter(laid_out(saved["weight"].to(device)))
        embedding = saved["embedding"].to(device) if "embedding" in saved else self._zero_embedding()
        self.embedding = nn.Parameter(like(self.weight, embedding))
        self.reserved = like(self.weight, saved["reserved"].to(device))
        self.start_free = saved["start_free"].to(device)


def like(weight: Tensor, entries: Tensor) -> Tensor:
    """Mask entries of weights in their order in memory; those of units stay as they are."""
    return laid_out(entries) if entries.dim() == weight.dim() else entries
