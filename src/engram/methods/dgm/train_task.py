"""Training one task into the masked generator: the first two phases of Dynamic Generative Memory.

    masks      WGAN-GP on the task's images; weights and masks learn together while s anneals
    finetune   the masks are binary and fixed; the weights they open go on learning at a falling rate, and their moving
               average is what remains

Gradients of weights that earlier tasks rely on are closed throughout (Eq. 5). The optimisers start fresh with the
task, so a closed gradient is a closed weight, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engram import distributed
from engram.context import Context
from engram.data.examples import within
from engram.data.stream import Task
from engram.errors import DivergedError
from engram.gan.average import WeightAverage
from engram.gan.oversampling import draw_rows, sampling_weights
from engram.gan.step import GanBatch, Optimisers, Term, gan_optimisers, gan_step, new_critic, set_rate
from engram.masking.annealing import s_max_of_epoch, unit_scale, weight_scale
from engram.masking.losses import alpha, sparsity
from engram.masking.masks import close_
from engram.methods.classifier import load_optimiser, normalise, optimiser_state
from engram.methods.dgm.settings import DGMSettings
from engram.methods.learner import State
from engram.nets.critic import Critic
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import relevance, top_units, unit_limits
from engram.nets.reachability import prune, reachable_units
from engram.nets.subnetwork import Subnetwork, parameters_of
from engram.seeding import generator

Replayed = tuple[Tensor, Tensor]
"""Images (B, C, H, W) in [-1, 1] and their class indices."""


class TaskTrainer:
    """One task's training of the generator: its critic, its optimisers, its masks.

    `known` is how many classes the critic tells apart: the task's own, or all seen where it is the classifier as well.
    It goes on from the critic `before`, if there is one, which has learned the first `old` of those classes.
    """

    def __init__(
        self,
        net: MaskedGenerator,
        ctx: Context[DGMSettings],
        *,
        task: int,
        classes: int,
        known: int,
        before: Critic | None = None,
        old: int = 0,
    ) -> None:
        self.net, self.ctx, self.known = net, ctx, known
        self.settings = ctx.settings
        self.steps = self.settings.gan.steps * classes
        """B in the annealing: steps per round."""
        net.begin(classes, generator=generator(ctx.seed, "private", task))
        self.critic = new_critic(ctx, known, task)
        if before is not None:
            self.critic.take_over(before, classes=old)
        self.optimisers: Optimisers = gan_optimisers(
            self.settings, critic=self.critic.parameters(), generator=net.parameters()
        )
        self.gates = net.gates()
        self.fixed: list[Tensor] = []
        """The binary masks, once they are fixed."""
        self.subnetwork: Subnetwork | None = None
        """What they leave of the network, which is trained from then on; derived."""
        self.average = WeightAverage(self.settings.generator.ema_decay)
        self.weights: Tensor | None = None
        """How often each of the task's images is shown; derived, not state."""
        self.free = [
            torch.empty_like(layer.embedding, requires_grad=False).copy_(~layer.reserved) for layer in net.plastic
        ]
        """By layer, which mask entries are free, in numbers; the same for all of a task."""
        entries = sum(layer.embedding.numel() for layer in net.plastic)
        self.n_free = entries - sum(layer.size().reserved for layer in net.plastic)
        self.pressure = self.settings.masks.lambda_ru * alpha(entries, self.n_free)
        """lambda_RU times alpha = S_t / S_free."""

    def scale_at_end(self, epoch: int) -> float:
        """s at the end of the epoch (counted from 1): s_max^i in both variants."""
        return s_max_of_epoch(epoch, self.mask_epochs, self.settings.masks.s_max)

    @property
    def mask_epochs(self) -> int:
        """How many epochs the first phase has."""
        return max(1, round(self.settings.masks.fraction * self.settings.gan.epochs))

    def step(self, task: Task, epoch: int, batch: int, replayed: Replayed | None = None) -> Mapping[str, Tensor]:
        """One step of critic and generator; `replayed`: for the critic's class term."""
        settings, device, size = self.settings, self.ctx.device, self.settings.gan.batch_size
        draws = generator(self.ctx.seed, "gan", task.index, epoch, batch)
        if self.weights is None:
            self.weights = sampling_weights(task.images, task.targets, settings.gan.rare_power)
        rows = distributed.own(draw_rows(self.weights, size, generator=draws))
        targets = task.targets[rows].to(device)
        classes = within(task.class_indices, targets)
        told = targets if self.known == len(task.seen) else classes
        z = distributed.own(torch.randn(size, settings.generator.latent_dim, generator=draws)).to(device)
        u = distributed.own(torch.rand(size, generator=draws))

        if epoch >= self.mask_epochs and not self.fixed:
            self.fix_masks(task.index)
        hook = self._finetune_hook(epoch, batch) if self.fixed else self._mask_hook(epoch, batch)
        with self.ctx.autocast():
            fake = self.trained(z, classes, hook.masks)
        gan_batch = GanBatch(
            real=normalise(task.images[rows].to(device)),
            fake=fake.float(),
            u=u,
            rows=size,
            targets=told if self.known > 1 else None,
            fake_targets=told if len(task.classes) > 1 else None,
            replayed=replayed,
        )
        return gan_step(self.critic, self.trained, self.optimisers, gan_batch, settings, hook)

    # ---------------------------------------------------------------- the two phases

    def _mask_hook(self, epoch: int, batch: int) -> _MaskHook:
        s_max = self.settings.masks.s_max
        s_max_i = s_max_of_epoch(epoch + 1, self.mask_epochs, s_max)
        if self.net.variant == "weights":
            s = weight_scale(epoch + 1, self.mask_epochs, batch + 1, self.steps, s_max)
        else:
            s = unit_scale(epoch + 1, self.mask_epochs, s_max)
        return _MaskHook(self, s, s_max_i)

    def _finetune_hook(self, epoch: int, batch: int) -> _FinetuneHook:
        """The rate falls to 0 over the phase, in a straight line."""
        done = (epoch - self.mask_epochs) + batch / self.steps
        left = 1 - done / (self.settings.gan.epochs - self.mask_epochs)
        set_rate(self.optimisers, self.settings.gan.learning_rate * left)
        return _FinetuneHook(self)

    def fix_masks(self, task: int) -> None:
        """Binarise, leave out what cannot be reached, and see that something is left to choose."""
        graph, variant, ratio = self.net.graph, self.net.variant, self.settings.masks.max_units_ratio
        fixed = prune(graph, self.net.binary_masks(), variant)
        shares = [mask.float().mean().item() for mask in fixed]
        closed = not reachable_units(graph, fixed)[-1].any()
        if closed or min(shares) == 1:
            what, remedy = ("closed", "lower") if closed else ("open", "raise")
            raise DivergedError(
                f"the masks of task {task + 1} have collapsed: all {what} (open shares by layer "
                f"{', '.join(f'{share:.3f}' for share in shares)}); {remedy} masks.lambda_ru"
            )
        if ratio:
            fixed = self._top_units(fixed)
            if not reachable_units(graph, fixed)[-1].any():
                raise DivergedError(
                    f"task {task + 1}: with so few units no path leads to the image; raise masks.max_units_ratio, "
                    f"which is {ratio}, or set it to 0 to keep all"
                )
        self._fix(fixed)
        self.average.start(self._trained_parameters())

    @torch.no_grad()
    def _top_units(self, masks: list[Tensor]) -> list[Tensor]:
        """The masks without the units that matter least, where there are more than a task may have."""
        net, own = self.net, self.net.task_params
        assert own is not None
        weights = [layer.opened(mask) for layer, mask in zip(net.plastic, masks, strict=True)]
        norms = [
            (norm.get_parameter("scale") * units, norm.get_parameter("shift") * units)
            for norm, units in zip(own.norms, reachable_units(net.graph, masks), strict=True)
        ]
        shares = relevance(net.graph, weights, norms, own.head)
        limits = unit_limits(net.graph, self.settings.generator.width, self.settings.masks.max_units_ratio)
        return top_units(net.graph, masks, net.variant, shares, limits)

    @torch.no_grad()
    def _fix(self, masks: list[Tensor]) -> None:
        """From here on the subnetwork that the masks leave is trained, with its share of Adam's moments."""
        self.fixed, self.subnetwork = masks, Subnetwork(self.net, masks)
        before = self.optimisers["generator"].state
        self.optimisers |= gan_optimisers(self.settings, generator=self._trained_parameters())
        moments = self.optimisers["generator"].state
        for (full, axes), small in zip(parameters_of(self.net), self._trained_parameters(), strict=True):
            # a fused step reads moments in the order in which their parameter lies in memory
            moments[small] = {
                name: torch.empty_like(small).copy_(self.subnetwork.cut(value, axes)) if value.dim() else value
                for name, value in before.get(full, {}).items()
            }
        self.gates = self.subnetwork.gates
        for layer, gate in zip(self.subnetwork.net.plastic, self.gates, strict=True):
            # what was still half open has moments, and those alone would move it
            for value in moments[layer.weight].values():
                if value.dim():
                    close_(value, gate)

    @torch.no_grad()
    def finish(self, task: int) -> list[Tensor]:
        """Put the averaged weights in place; the binary masks."""
        if not self.fixed:
            self.fix_masks(task)
        self.average.put(self._trained_parameters())
        self.write_back()
        return self.fixed

    def write_back(self) -> None:
        """The whole network knows what the subnetwork has learned."""
        if self.subnetwork is not None:
            self.subnetwork.write_back()

    @property
    def trained(self) -> MaskedGenerator:
        """The network that a step moves: the whole, or the subnetwork."""
        return self.net if self.subnetwork is None else self.subnetwork.net

    def _trained_parameters(self) -> list[nn.Parameter]:
        """What is trained under fixed masks."""
        return [parameter for parameter, _ in parameters_of(self.trained)]

    # ---------------------------------------------------------------- state

    def state(self) -> State:
        """For a checkpoint."""
        own = self.net.task_params
        assert own is not None
        self.write_back()
        return {
            "classes": own.classes,
            "known": self.known,
            "task_params": dict(own.state_dict()),
            "critic": dict(self.critic.state_dict()),
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "fixed": {str(number): mask for number, mask in enumerate(self.fixed)},
            "average": self.average.state(),
        }

    @classmethod
    def of(cls, state: State, net: MaskedGenerator, ctx: Context[DGMSettings]) -> TaskTrainer:
        """Back from a state; the network's shared layers have been restored before."""
        trainer = cls(net, ctx, task=0, classes=state["classes"], known=state["known"])
        assert net.task_params is not None
        net.task_params.load_state_dict(state["task_params"])
        trainer.critic.load_state_dict(state["critic"])
        if state["fixed"]:
            trainer._fix([mask.to(ctx.device) for mask in state["fixed"].values()])
        for name, optimiser in trainer.optimisers.items():
            load_optimiser(optimiser, state["optimisers"][name])
        trainer.average.load(state["average"], trainer._trained_parameters())
        return trainer


class _MaskHook:
    """While masks are learned: the sparsity term; compensated, gated gradients; embeddings within their bounds."""

    def __init__(self, trainer: TaskTrainer, s: float, s_max_i: float) -> None:
        self.trainer, self.s, self.s_max_i = trainer, s, s_max_i
        self.masks: Sequence[Tensor] | None = trainer.net.soft_masks(s)

    def terms(self) -> Sequence[Term]:
        assert self.masks is not None
        trainer = self.trainer
        taken = sparsity(zip(self.masks, trainer.free, strict=True), n_free=trainer.n_free)
        return [Term("sparsity", taken, trainer.pressure)]

    def after_backward(self) -> None:
        for layer in self.trainer.net.plastic:
            layer.compensate_gradients(self.s, self.s_max_i)
        self.trainer.net.gate_gradients(self.trainer.gates)

    def after_step(self) -> None:
        for layer in self.trainer.net.plastic:
            layer.clamp_()


class _FinetuneHook:
    """Under fixed masks: gated gradients, and the moving average."""

    masks: Sequence[Tensor] | None = None

    def __init__(self, trainer: TaskTrainer) -> None:
        self.trainer = trainer

    def terms(self) -> Sequence[Term]:
        return []

    def after_backward(self) -> None:
        self.trainer.trained.gate_gradients(self.trainer.gates)

    def after_step(self) -> None:
        self.trainer.average.update(self.trainer._trained_parameters())
