"""The gradients of a convolutional critic, written out: the same sums as autograd's, with fewer and larger calls.

Small batches spend much of their time between calls. Here each convolution is called once for all images of a step:
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
from engram.nets.classifier import LEAK, ConvTrunk, gradient_of_input
from engram.nets.critic import Critic, CriticBatch, CriticTerms, images_of, plain_terms
from engram.ops.convolutions import channels_last, weight_gradient


class WrittenOutCritic(Critic):
    """A critic on a `ConvTrunk`, in float32."""

    def backward(self, batch: CriticBatch) -> CriticTerms:
        """Put the gradients of the critic's loss in place; the terms that it adds up."""
        self.zero_grad()
        assert isinstance(self.trunk, ConvTrunk)
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
    def forward(ctx: Any, x: Tensor, trunk: ConvTrunk) -> Tensor:
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
    def __init__(self, trunk: ConvTrunk, x: Tensor, *, input_gradients: int) -> None:
        """x (B, C, H, W), not to be used any more; the input gradients of its last so many images are wanted."""
        x = channels_last(x)
        self.convolutions = [part for part in trunk.convolutions if isinstance(part, nn.Conv2d)]
        self.plain = len(x) - input_gradients
        self.inputs: list[Tensor] = []
        self.deltas: list[Tensor] = []
        """By layer: the gradient of its pre-activations."""
        for convolution in self.convolutions:
            self.inputs.append(x)
            x = F.leaky_relu_(convolution(x), LEAK)
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
        delta = direction.view(self.last.shape).contiguous(memory_format=torch.channels_last)
        for convolution, output in zip(reversed(self.convolutions), reversed(self.outputs), strict=True):
            delta = _leaked_(delta, output)
            self.deltas.insert(0, delta)
            if output is not self.outputs[0]:
                delta = gradient_of_input(convolution, delta)
        last = delta[self.plain :]
        return gradient_of_input(self.convolutions[0], last) if len(last) else self.inputs[0][self.plain :]

    @torch.no_grad()
    def forth(self, gradient: Tensor) -> Tensor:
        """The gradient of a loss of the input gradients -> that of the directions that led to them, (…, features)."""
        for convolution, given, output in zip(self.convolutions, self.inputs, self.outputs, strict=True):
            # an input gradient is linear in every weight, with this in the place of what the layer was given
            given[self.plain :] = gradient
            gradient = F.conv2d(gradient, convolution.weight, stride=convolution.stride, padding=convolution.padding)
            gradient = _leaked_(gradient, output[self.plain :])
        return gradient.flatten(1)

    @torch.no_grad()
    def put_gradients(self) -> None:
        """Those of all weights and biases, in the place of what was there."""
        for convolution, given, delta in zip(self.convolutions, self.inputs, self.deltas, strict=True):
            stride, padding = convolution.stride[0], convolution.padding[0]
            assert isinstance(padding, int)
            assert convolution.bias is not None
            convolution.weight.grad = weight_gradient(given, convolution.weight, delta, stride=stride, padding=padding)
            convolution.bias.grad = delta[: self.plain].sum((0, 2, 3))  # a bias does not change an input gradient


def _leaked_(gradient: Tensor, output: Tensor) -> Tensor:
    """In place, the gradient before a leaky ReLU, given what came out of it."""
    return torch.ops.aten.leaky_relu_backward(gradient, output, LEAK, True, grad_input=gradient)  # type: ignore[no-any-return]
