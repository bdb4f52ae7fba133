"""The gradients of a convolutional or dense critic, written out: the same sums as autograd's, in fewer, larger calls.

Small batches spend much of their time between calls. Here each layer is called once for all images of a step:
real, fake and replayed ones, and the interpolates of the penalty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram import distributed
from engram.masking.losses import gradient_penalty
from engram.nets.classifier import LEAK, ConvTrunk
from engram.nets.classifier import gradient_of_input as gradient_of_image
from engram.nets.critic import Critic, CriticBatch, CriticTerms, images_of, plain_terms
from engram.nets.dense import DenseTrunk
from engram.ops.convolutions import channels_last, weight_gradient

TRUNKS = (ConvTrunk, DenseTrunk)
"""Those whose gradients are written out: layers with leaky ReLU and nothing else."""


class WrittenOutCritic(Critic):
    """A critic on one of `TRUNKS`, in float32."""

    def backward(self, batch: CriticBatch) -> CriticTerms:
        """Put the gradients of the critic's loss in place; the terms that it adds up."""
        self.zero_grad()
        assert isinstance(self.trunk, TRUNKS)
        images, interpolates = images_of(batch), batch.interpolates
        plain, share = len(images), distributed.share(batch.rows)
        trace = Trace(self.trunk, torch.cat([images, interpolates]), input_gradients=len(interpolates))
        features = trace.features
        with torch.no_grad():
            answers = self.heads(features[:plain])
        scores, classes = (answer.requires_grad_() for answer in answers)
        terms = plain_terms(scores, classes, batch)
        told = [(self.score, scores), (self.classes, classes)] if terms.classes is not None else [(self.score, scores)]
        gradients = torch.autograd.grad(terms.plain * share, [answer for _, answer in told])
        direction = torch.zeros_like(features)
        direction[plain:] = self.score.weight.detach()
        for (head, _), gradient in zip(told, gradients, strict=True):
            head.put_gradients(features[:plain], gradient.view(plain, -1))
            direction[:plain].addmm_(gradient.view(plain, -1), head.weight.detach())
        input_gradients = trace.back(direction).requires_grad_()
        if len(interpolates):
            penalty = gradient_penalty(input_gradients)
            (gradient,) = torch.autograd.grad(penalty * (batch.penalty_weight * share), input_gradients)
            assert self.score.weight.grad is not None
            self.score.weight.grad += trace.forth(gradient).sum(0)
            terms = replace(terms, penalty=penalty)
        trace.put_gradients()
        distributed.add_up(self.parameters())
        return terms

    def held(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and class scores through which gradients reach the images, and nothing of the critic."""
        features: Tensor = _Held.apply(x, self.trunk)  # type: ignore[no-untyped-call]
        return self.heads(features, held=True)


class _Held(torch.autograd.Function):
    """A trunk without normalisation that is held still: gradients of its images, none of its weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, trunk: ConvTrunk | DenseTrunk) -> Tensor:
        ctx.trace = Trace(trunk, x.detach(), input_gradients=len(x))
        features: Tensor = ctx.trace.features
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.trace.back(gradient), None


class Trace:
    """Images in a trunk without normalisation; the way back, and forth again.

    It serves a loss of the features plus one of the last images' input gradients: `back`, `forth`, then
    `put_gradients`. That is what differentiating `forward` and `pull_back` comes to.
    """

    @torch.no_grad()
    def __init__(self, trunk: ConvTrunk | DenseTrunk, x: Tensor, *, input_gradients: int) -> None:
        """x (B, C, H, W) or (B, D), not to be used any more; the input gradients of its last so many are wanted."""
        parts = trunk.convolutions if isinstance(trunk, ConvTrunk) else trunk.layers
        self.layers = [part for part in parts if isinstance(part, nn.Conv2d | nn.Linear)]
        x = x if x.dim() == 2 else channels_last(x)
        self.plain = len(x) - input_gradients
        self.inputs: list[Tensor] = []
        self.deltas: list[Tensor] = []
        """By layer: the gradient of its pre-activations."""
        for layer in self.layers:
            self.inputs.append(x)
            x = F.leaky_relu_(layer(x), LEAK)
        self.last = x
        self.outputs = [*self.inputs[1:], x]
        """By layer: its activations, which have the signs of its pre-activations."""

    @property
    def features(self) -> Tensor:
        """(B, features)"""
        return self.last.flatten(1)

    @torch.no_grad()
    def back(self, direction: Tensor) -> Tensor:
        """Gradients of the features, (B, features) -> those of the last images, (input_gradients, C, H, W)."""
        delta = direction.view(self.last.shape)
        delta = delta.clone() if delta.dim() == 2 else delta.contiguous(memory_format=torch.channels_last)
        for layer, output in zip(reversed(self.layers), reversed(self.outputs), strict=True):
            delta = _leaked_(delta, output)
            self.deltas.insert(0, delta)
            if output is not self.outputs[0]:
                delta = gradient_of_input(layer, delta)
        last = delta[self.plain :]
        return gradient_of_input(self.layers[0], last) if len(last) else self.inputs[0][self.plain :]

    @torch.no_grad()
    def forth(self, gradient: Tensor) -> Tensor:
        """The gradient of a loss of the input gradients -> that of the directions that led to them, (…, features)."""
        for layer, given, output in zip(self.layers, self.inputs, self.outputs, strict=True):
            # an input gradient is linear in every weight, with this in the place of what the layer was given
            given[self.plain :] = gradient
            gradient = without_bias(layer, gradient)
            gradient = _leaked_(gradient, output[self.plain :])
        return gradient.flatten(1)

    @torch.no_grad()
    def put_gradients(self) -> None:
        """Those of all weights and biases, in the place of what was there."""
        for layer, given, delta in zip(self.layers, self.inputs, self.deltas, strict=True):
            assert layer.bias is not None
            if isinstance(layer, nn.Linear):
                layer.weight.grad, layer.bias.grad = delta.T @ given, delta[: self.plain].sum(0)
                continue
            stride, padding = layer.stride[0], layer.padding[0]
            assert isinstance(padding, int)
            layer.weight.grad = weight_gradient(given, layer.weight, delta, stride=stride, padding=padding)
            layer.bias.grad = delta[: self.plain].sum((0, 2, 3))  # a bias does not change an input gradient


def gradient_of_input(layer: nn.Conv2d | nn.Linear, delta: Tensor) -> Tensor:
    """From the gradient of what leaves a layer to that of what enters it."""
    return delta @ layer.weight if isinstance(layer, nn.Linear) else gradient_of_image(layer, delta)


def without_bias(layer: nn.Conv2d | nn.Linear, x: Tensor) -> Tensor:
    """What a layer makes of x, its bias left out."""
    if isinstance(layer, nn.Linear):
        return x @ layer.weight.T
    return F.conv2d(x, layer.weight, stride=layer.stride, padding=layer.padding)


def _leaked_(gradient: Tensor, output: Tensor) -> Tensor:
    """In place, the gradient before a leaky ReLU, given what came out of it."""
    return torch.ops.aten.leaky_relu_backward(gradient, output, LEAK, True, grad_input=gradient)  # type: ignore[no-any-return]
