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
from engram.masking.masks import close_, random_mask
from engram.methods.classifier import load_optimiser, normalise, optimiser_state
from engram.methods.dgm.mask_counts import Opened
from engram.methods.dgm.settings import DGMSettings
from engram.methods.learner import State
from engram.nets.candidates import Candidates
from engram.nets.critic import Critic, Replayed
from engram.nets.masked_generator import MaskedGenerator
from engram.nets.pruning import relevance, top_units, unit_limits
from engram.nets.reachability import prune, reachable_units
from engram.nets.subnetwork import Subnetwork, parameters_of
from engram.seeding import generator


class TaskTrainer:
    """One task's training of the generator: its critic, its optimisers, its masks.

    `known` is how many classes the critic tells apart: the task's own, or all seen where it is the classifier as well.
    It goes on from the critic `before`, if there is one, which has learned the first `old` of those classes. `images`:
    of the task, where a round is a pass over them. `counts`: by layer, how much masks that are not learned open.
    `units`: by node, the numbers of those that the task sees; without them it sees all.
    """

    def __init__(
        self,
        net: MaskedGenerator,
        ctx: Context[DGMSettings],
        *,
        task: int,
        classes: int,
        known: int,
        images: int = 0,
        before: Critic | None = None,
        old: int = 0,
        counts: Sequence[Opened] | None = None,
        units: Sequence[Tensor] | None = None,
    ) -> None:
        self.seen = None if units is None else Candidates(net, units)
        """The part of the network that the task sees, where that is not all."""
        self.net = net = net if self.seen is None else self.seen.net
        """What the task sees of the network; everything here is of its size."""
        self.ctx, self.known = ctx, known
        self.settings = ctx.settings
        self.steps = self.settings.gan.steps_of(images=images, classes=classes)
        """B in the annealing: steps per round."""
        net.begin(classes, generator=generator(ctx.seed, "private", task))
        self.critic = new_critic(ctx, known, task)
        if before is not None:
            self.critic.take_over(before, classes=old)
        self.optimisers: Optimisers = gan_optimisers(
            self.settings, critic=self.critic.parameters(), generator=net.parameters()
        )
        self.gates = net.gates()
        self.random: list[Tensor] = []
        """The masks of a control that takes them at random from the first step on."""
        if counts is not None:
            draws = generator(ctx.seed, "random masks", task)
            self.random = [
                random_mask(layer.reserved, one.free, one.reserved, generator=draws)
                for layer, one in zip(net.plastic, counts, strict=True)
            ]
        self.opened: list[Opened] = []
        """By layer, what the masks opened when they were fixed, before units were left out."""
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
        sizes = [layer.size() for layer in net.plastic]
        entries = sum(layer.embedding.numel() for layer in net.plastic)
        self.n_free = entries - sum(size.reserved for size in sizes)
        counted = (entries, self.n_free)
        if self.settings.masks.alpha == "units":
            start = unit_limits(net.graph, self.settings.generator.width, 1)
            counted = sum(size.units for size in sizes), sum(start[edge.target - 1] for edge in net.graph.edges)
        self.pressure = self.settings.masks.lambda_ru * alpha(*counted)
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
            self.start_at(task)
        hook = self._finetune_hook(epoch, batch) if self.fixed else self._mask_hook(epoch, batch)
        with self.ctx.autocast():
            fake = self.trained(z, classes, hook.masks)
        gan_batch = GanBatch(
            real=normalise(task.images[rows].to(device)),
            fake=fake.float(),
            u=u,
            rows=size,
            targets=told if self.known > 1 else None,
            fake_targets=told if self.known > 1 else None,
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

    def _chosen(self, task: int) -> list[Tensor]:
        """The binary masks that the task's rounds of mask learning end with; what cannot be reached is left out."""
        graph, variant = self.net.graph, self.net.variant
        masks = prune(graph, self.random or self.net.binary_masks(), variant)
        if self.settings.masks.choice != "shuffled":
            return masks
        draws = generator(self.ctx.seed, "shuffled masks", task)
        pairs = [(mask, layer.reserved) for mask, layer in zip(masks, self.net.plastic, strict=True)]
        counts = [Opened.of(mask, reserved) for mask, reserved in pairs]
        shuffled = [
            random_mask(reserved, one.free, one.reserved, generator=draws)
            for (_, reserved), one in zip(pairs, counts, strict=True)
        ]
        return prune(graph, shuffled, variant)

    def fix_masks(self, task: int) -> None:
        """Binarise, leave out what cannot be reached, and see that something is left.

        Masks that are open everywhere are the paper's worst case, no error: the task reserves all that was free.
        """
        graph, ratio = self.net.graph, self.settings.masks.max_units_ratio
        fixed = self._chosen(task)
        self.opened = [Opened.of(mask, layer.reserved) for mask, layer in zip(fixed, self.net.plastic, strict=True)]
        shares = [mask.float().mean().item() for mask in fixed]
        if not reachable_units(graph, fixed)[-1].any():
            raise DivergedError(
                f"the masks of task {task + 1} have collapsed: no path leads to the image (open shares by layer "
                f"{', '.join(f'{share:.3f}' for share in shares)}); lower masks.lambda_ru"
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

    def start_at(self, task: Task) -> None:
        """Of vectors: the task's own parameters begin where these lie, and anew once it is known which units are left.

        A few steps are then enough, where a head that knows nothing takes thousands. Images begin at random.
        """
        if not self.net.graph.draws_vectors:
            return
        device, draws = self.ctx.device, generator(self.ctx.seed, "start", task.index, int(bool(self.fixed)))
        classes = within(task.class_indices, task.targets)
        self.trained.start_at(normalise(task.images.to(device)), classes.to(device), generator=draws)
        if self.fixed:
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
        """Put the averaged weights in place; the binary masks, of what the task sees."""
        if not self.fixed:
            self.fix_masks(task)
        self.average.put(self._trained_parameters())
        self.write_back()
        return self.fixed

    def write_back(self) -> None:
        """The whole network knows what its parts have learned."""
        if self.subnetwork is not None:
            self.subnetwork.write_back()
        if self.seen is not None:
            self.seen.write_back()

    def of_whole(self, masks: Sequence[Tensor]) -> Sequence[Tensor]:
        """Masks of what the task sees -> of the whole network."""
        return masks if self.seen is None else self.seen.spread(masks)

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
        state: State = {
            "classes": own.classes,
            "known": self.known,
            "steps": self.steps,
            "opened": [[one.free, one.reserved] for one in self.opened],
            "random": {str(number): mask for number, mask in enumerate(self.random)},
            "task_params": dict(own.state_dict()),
            "critic": dict(self.critic.state_dict()),
            "optimisers": {name: optimiser_state(optimiser) for name, optimiser in self.optimisers.items()},
            "fixed": {str(number): mask for number, mask in enumerate(self.fixed)},
            "average": self.average.state(),
        }
        if self.seen is not None:
            state["seen"] = {
                "units": {str(node): units for node, units in enumerate(self.seen.units) if units is not None},
                "embeddings": {str(number): layer.embedding.detach() for number, layer in enumerate(self.net.plastic)},
            }
        return state

    @classmethod
    def of(cls, state: State, net: MaskedGenerator, ctx: Context[DGMSettings]) -> TaskTrainer:
        """Back from a state; the network's shared layers have been restored before."""
        seen = state.get("seen")
        units = None if seen is None else list(seen["units"].values())
        trainer = cls(net, ctx, task=0, classes=state["classes"], known=state["known"], units=units)
        net = trainer.net
        if seen is not None:
            for layer, embedding in zip(net.plastic, seen["embeddings"].values(), strict=True):
                layer.embedding.data.copy_(embedding)
        trainer.steps, trainer.opened = state["steps"], [Opened(*pair) for pair in state["opened"]]
        trainer.random = [mask.to(ctx.device) for mask in state["random"].values()]
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
        if trainer.random:  # nothing to learn, so no sparsity term; the embeddings get no gradient
            self.masks = [mask.float() for mask in trainer.random]

    def terms(self) -> Sequence[Term]:
        assert self.masks is not None
        trainer = self.trainer
        if trainer.random:
            return []
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
