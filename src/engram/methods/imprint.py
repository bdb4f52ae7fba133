"""Imprinting one task into the plastic generator: the first two movements of Dynamic Generative Memory.

    masks    WGAN-GP on the task's images; weights and masks learn together while s anneals
    polish   the masks are binary and fixed; the weights they open go on learning at a falling rate, and their moving
             average is what remains

Gradients of weights that earlier tasks rely on are closed throughout (Eq. 5). The optimisers start fresh with the
task, so a closed gradient is a closed weight, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engram import parallel
from engram.data.stream import Task
from engram.errors import DivergedError
from engram.methods.adversarial import Critic, critic_gradients, gan_optimisers, generator_terms, new_critic
from engram.methods.dgm_settings import DGMwSettings
from engram.methods.learner import State, Surroundings
from engram.methods.rarity import draw_rows, odds
from engram.methods.solver import Examples, load_optimiser, normalise, optimiser_state
from engram.nets.generator import PlasticGenerator
from engram.nets.part import Part, parameters_of
from engram.plastic.losses import alpha, sparsity
from engram.plastic.masks import close_
from engram.plastic.relevance import foremost, limits, relevance
from engram.plastic.schedule import s_max_of_epoch, unit_scale, weight_scale
from engram.plastic.wiring import alive_units, prune
from engram.seeding import generator


class Imprint:
    """One task's training of the generator: its critic, its optimisers, its masks.

    `known` is how many classes the critic tells apart: the task's own, or all seen where it is the solver as well. It
    goes on from the critic `before`, if there is one.
    """

    def __init__(
        self,
        net: PlasticGenerator,
        around: Surroundings,
        *,
        task: int,
        classes: int,
        known: int,
        before: Critic | None = None,
    ) -> None:
        self.net, self.around, self.known = net, around, known
        self.settings: DGMwSettings = around.settings
        self.steps = self.settings.steps * classes
        """B in the annealing: steps per round."""
        net.begin(classes, generator=generator(around.seed, "private", task))
        self.critic = new_critic(around, known, task)
        if before is not None:  # old columns, where it has any, come first
            self.critic.take_over(before, classes=known - classes)
        self.optimisers = gan_optimisers(around, critic=self.critic.parameters(), generator=net.parameters())
        self.gates = net.gates()
        self.fixed: list[Tensor] = []
        """The binary masks, once they are fixed."""
        self.part: Part | None = None
        """What they leave of the network, which is trained from then on; derived."""
        self.averaged: list[Tensor] = []
        self.odds: Tensor | None = None
        """How often each of the task's images is drawn; derived, not state."""
        self.free = [
            torch.empty_like(layer.embedding, requires_grad=False).copy_(~layer.reserved) for layer in net.plastic
        ]
        """By layer, which mask entries are free, in numbers; the same for all of a task."""
        entries = sum(layer.embedding.numel() for layer in net.plastic)
        self.n_free = entries - sum(layer.size().reserved for layer in net.plastic)
        self.pressure = self.settings.lambda_ru * alpha(entries, self.n_free)
        """lambda_RU times alpha = S_t / S_free."""

    def scale_at_end(self, epoch: int) -> float:
        """s at the end of the epoch (counted from 1): s_max^i in both variants."""
        return s_max_of_epoch(epoch, self.mask_epochs, self.settings.s_max)

    @property
    def mask_epochs(self) -> int:
        """How many epochs the first movement has."""
        return max(1, round(self.settings.masking * self.settings.epochs))

    def step(self, task: Task, epoch: int, batch: int, replay: Examples | None = None) -> Mapping[str, Tensor]:
        """One step of critic and generator, on one batch of fakes. `replay`: normalised images and their columns."""
        settings, device, size = self.settings, self.around.device, self.settings.batch_size
        draws = generator(self.around.seed, "gan", task.index, epoch, batch)
        if self.odds is None:
            self.odds = odds(task.images, task.targets, settings.rare)
        rows = parallel.own(draw_rows(self.odds, size, generator=draws))
        real = normalise(task.images[rows].to(device))
        columns = task.targets[rows].to(device)
        classes = columns - task.columns[0]  # within the task
        targets = columns if self.known == len(task.seen) else classes
        z = parallel.own(torch.randn(size, settings.noise, generator=draws)).to(device)
        u = parallel.own(torch.rand(size, generator=draws))

        if epoch >= self.mask_epochs and not self.fixed:
            self.fix_masks(task.index)
        s = s_max_i = 1.0
        masks: Sequence[Tensor] | None = None
        if self.fixed:
            self._set_rate(epoch, batch)
        else:
            s_max_i = s_max_of_epoch(epoch + 1, self.mask_epochs, settings.s_max)
            if self.net.variant == "weights":
                s = weight_scale(epoch + 1, self.mask_epochs, batch + 1, self.steps, settings.s_max)
            else:
                s = unit_scale(epoch + 1, self.mask_epochs, settings.s_max)
            masks = self.net.soft_masks(s)
        with self.around.lowered():
            fake = self.trained(z, classes, masks)
        fake = fake.float()

        terms = critic_gradients(
            self.around,
            self.critic,
            real,
            fake.detach(),
            targets=targets if self.known > 1 else None,
            replay=replay,
            u=u,
            penalty_every=settings.penalty_every,
            penalty_weight=settings.lambda_gp,
            rows=size,
        )
        self.optimisers["critic"].step()

        adversarial, aux = generator_terms(self.around, self.critic, fake, targets if len(task.classes) > 1 else None)
        losses = {"critic": terms.adversarial, "generator": adversarial}
        loss = adversarial
        if aux is not None:
            loss = loss + settings.lambda_aux * aux
            losses["class"] = aux
        if masks is not None:
            losses["sparsity"] = sparsity(zip(masks, self.free, strict=True), n_free=self.n_free)
            loss = loss + self.pressure * losses["sparsity"]
        self.optimisers["generator"].zero_grad()
        parallel.backward(loss, self.trained.parameters(), rows=size)
        self._generator_step(s, s_max_i)
        return parallel.mean(losses, rows=size)

    def _generator_step(self, s: float, s_max_i: float) -> None:
        """Compensate, gate, step, clamp; then the moving average."""
        if not self.fixed:
            for layer in self.net.plastic:
                layer.compensate_gradients(s, s_max_i)
        self.trained.gate_gradients(self.gates)
        self.optimisers["generator"].step()
        if not self.fixed:
            for layer in self.net.plastic:
                layer.clamp_()
        with torch.no_grad():
            # entries that the gate holds are equal on both sides, and lerp between equals changes no bit
            for mean, now in zip(self.averaged, self._voices() if self.averaged else [], strict=True):
                mean.lerp_(now, 1 - self.settings.average)

    def fix_masks(self, task: int) -> None:
        """Binarise, leave out what cannot be heard, and see that something is left to choose."""
        wiring, variant = self.net.wiring, self.net.variant
        fixed = prune(wiring, self.net.binary_masks(), variant)
        shares = [mask.float().mean().item() for mask in fixed]
        silent = not alive_units(wiring, fixed, variant)[-1].any()
        if silent or min(shares) == 1:
            what, remedy = ("closed", "lower") if silent else ("open", "raise")
            raise DivergedError(
                f"the masks of task {task + 1} have collapsed: all {what} (open shares by layer "
                f"{', '.join(f'{share:.3f}' for share in shares)}); {remedy} method.lambda_ru"
            )
        if self.settings.most_units:
            fixed = self._foremost(fixed)
            if not alive_units(wiring, fixed, variant)[-1].any():
                raise DivergedError(
                    f"task {task + 1}: of so few units no way leads to the image; raise method.most_units, "
                    f"which is {self.settings.most_units}, or set it to 0 to keep all"
                )
        self._fix(fixed)
        if self.settings.average:
            self.averaged = [parameter.detach().clone() for parameter in self._voices()]

    @torch.no_grad()
    def _foremost(self, masks: list[Tensor]) -> list[Tensor]:
        """The masks without the units that matter least, where there are more than a task may have."""
        net, private = self.net, self.net.private
        assert private is not None
        weights = [layer.opened(mask) for layer, mask in zip(net.plastic, masks, strict=True)]
        alive = alive_units(net.wiring, masks, net.variant)
        norms = [
            (norm.get_parameter("scale") * living, norm.get_parameter("shift") * living)
            for norm, living in zip(private.norms, alive, strict=True)
        ]
        shares = relevance(net.wiring, weights, norms, private.head)
        most = limits(net.wiring, self.settings.width, self.settings.most_units)
        return foremost(net.wiring, masks, net.variant, shares, most)

    @torch.no_grad()
    def _fix(self, masks: list[Tensor]) -> None:
        """From here on the part that the masks leave is trained; it goes on with its share of Adam's moments."""
        self.fixed, self.part = masks, Part(self.net, masks)
        before = self.optimisers["generator"].state
        self.optimisers |= gan_optimisers(self.around, generator=self._voices())
        for (full, axes), small in zip(parameters_of(self.net), self._voices(), strict=True):
            # a fused step reads moments in the order in which their parameter lies in memory
            self.optimisers["generator"].state[small] = {
                name: torch.empty_like(small).copy_(self.part.cut(value, axes)) if value.dim() else value
                for name, value in before.get(full, {}).items()
            }
        self.gates = self.part.gates
        for layer, gate in zip(self.part.net.plastic, self.gates, strict=True):
            # what was still half open has moments, and those alone would move it
            for value in self.optimisers["generator"].state[layer.weight].values():
                if value.dim():
                    close_(value, gate)

    @torch.no_grad()
    def finish(self, task: int) -> list[Tensor]:
        """Put the averaged weights in place; the binary masks."""
        if not self.fixed:
            self.fix_masks(task)
        for now, mean in zip(self._voices() if self.averaged else [], self.averaged, strict=True):
            now.copy_(mean)
        self.settle()
        return self.fixed

    def settle(self) -> None:
        """The whole network knows what the part has learned."""
        if self.part is not None:
            self.part.take_back()

    @property
    def trained(self) -> PlasticGenerator:
        return self.net if self.part is None else self.part.net

    def _voices(self) -> list[nn.Parameter]:
        """What is trained under fixed masks."""
        return [parameter for parameter, _ in parameters_of(self.trained)]

    def _set_rate(self, epoch: int, batch: int) -> None:
        """Down to 0 over the second movement, in a straight line."""
        done = (epoch - self.mask_epochs) + batch / self.steps
        left = 1 - done / (self.settings.epochs - self.mask_epochs)
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = self.settings.learning_rate * left

    def state(self) -> State:
        assert self.net.private is not None
        self.settle()
        return {
            "classes": self.net.private.classes,
            "known": self.known,
            "private": dict(self.net.private.state_dict()),
            "critic": dict(self.critic.state_dict()),
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "fixed": {str(number): mask for number, mask in enumerate(self.fixed)},
            "averaged": {str(number): mean for number, mean in enumerate(self.averaged)},
        }

    @classmethod
    def of(cls, state: State, net: PlasticGenerator, around: Surroundings) -> Imprint:
        """Back from a state; the network's shared layers have been restored before."""
        imprint = cls(net, around, task=0, classes=state["classes"], known=state["known"])
        assert net.private is not None
        net.private.load_state_dict(state["private"])
        imprint.critic.load_state_dict(state["critic"])
        if state["fixed"]:
            imprint._fix([mask.to(around.device) for mask in state["fixed"].values()])
        for name, optimiser in imprint.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])
        if state["averaged"]:
            saved = zip(imprint._voices(), state["averaged"].values(), strict=True)
            imprint.averaged = [torch.empty_like(now, requires_grad=False).copy_(mean) for now, mean in saved]
        return imprint
