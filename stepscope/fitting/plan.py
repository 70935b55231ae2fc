"""A plan: a setup on a card, or on each of several, with its peak, its time, and what it gives up in words.

Memory can be bought with three coins: time, precision, and how much of the model is trained. No number adds them up.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from memkit.cards import Card
from memkit.fit import Fit, fit_on
from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.activations import activation_bytes
from memkit.formula.parameters import parameter_ledger
from memkit.models import ModelConfig
from memkit.recipes import Precision
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, NONE, Strategy, groups
from memkit.timeline import Instant
from memkit.units import round_up
from stepscope.experts import num_experts_of
from stepscope.fitting.optimizers import GIVEN_UP, planned
from stepscope.fitting.step import paged_bytes, peak_of, resting_bytes, run_again, seconds_of
from stepscope.formula.job import Standing, host_bytes, standing_of
from stepscope.optimizers import is_quantized
from stepscope.setup import AdapterConfig, Job, Layout, Place, as_job

SUMMED, NARROW_STATES = "gradients summed in 16 bits", "states rounded to bf16"
ROUNDED, ADAPTERS_ONLY, FOUR_BITS = "updates rounded to bf16", "only adapters are trained", "frozen weights in 4 bits"
GIVES_UP = (SUMMED, NARROW_STATES, *GIVEN_UP, ROUNDED, ADAPTERS_ONLY, FOUR_BITS)
"""What a plan may give up besides time, the dearest last."""

OWN_STEP = {"kahan": 32, "master": 24}
"""Bytes that ``SixteenBitAdamW`` makes in float32 for each value of the tensor that it steps; the widened gradient of a
16-bit one, 4, comes on top. ``tests/stepscope/fitting/test_plan_code.py`` traces them."""


def written_by(precision: Precision) -> str:
    """How ``SixteenBitAdamW`` keeps what rounding to 16 bits takes, or '' where torch's optimizers step alone."""
    return "kahan" if precision.remainder_dtype else "master" if precision.master_dtype else ""


def is_narrow(dtype: str) -> bool:
    """Whether a dtype has 16 bits or fewer, so that a small number added to a large one is lost."""
    return dtype_bits(dtype) <= 16


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A way to train on a card, or on each of several: its highest bytes by formula and, where traced, by the trace."""

    setup: Job
    card: Card
    layout: Layout | None = None
    traced_bytes: int | None = None
    host_room_bytes: int | None = None

    @cached_property
    def peak(self) -> Instant:
        """The highest moment of its second step by formula, on each card.

        The formula's step with copies beside 16-bit weights is one fused kernel, and the code's is not.
        """
        peak, setup, write = peak_of(self.setup, self.layout), self.setup, written_by(self.setup.precision)
        if not write:
            return peak
        gradient = 0 if setup.precision.gradient_dtype == "float32" else 4
        largest = max(parameter.count for parameter in parameter_ledger(setup.model))
        stands = resting_bytes(Standing(setup.model, setup.precision, setup.optimizer))
        step = Instant(
            name="optimizer peak", **stands, activations=0, temporary=(OWN_STEP[write] + gradient) * largest, step=2,
        )
        return max(peak, step, key=lambda instant: instant.total_bytes)

    @property
    def peak_bytes(self) -> int:
        """Its highest bytes by formula."""
        return self.peak.total_bytes

    @cached_property
    def least_bytes(self) -> int:
        """Bytes that its peak is never below, at next to no cost: what stands when a backward has begun, or ends.

        Weights, states, and gradients or what autograd keeps, or both where earlier micro-batches left some; under FSDP
        what it keeps alone. A backward begins with gradients of the log-probabilities and of the logits.
        """
        setup, layout = self.setup, self.layout
        inside = layout and layout.param_dtype
        compute = inside or setup.precision.compute_dtype
        num_logits = setup.tokens_per_micro_batch * setup.model.vocab_size
        kept = setup.micro_batch_size * kept_bytes(setup, *([inside, inside] if inside else ()))
        wide = "float32" if setup.precision.uses_autocast else compute
        kept += tensor_bytes(num_logits, wide) + tensor_bytes(num_logits, compute)
        if layout is not None and layout.is_fully_sharded:
            return kept
        states = resting_bytes(standing_of(setup))
        stands = states["weights"] + (states["optimizer_states"] if layout is None or layout.stage == 0 else 0)
        gradients = 0 if setup.place.frees_gradients else states["gradients"]
        return stands + (kept + gradients if setup.grad_accum_steps > 1 else max(kept, gradients))

    @cached_property
    def may_fit(self) -> bool:
        """Whether it has a chance by what its peak is never below, and by the peak if every block ran again."""
        least, strategy = fit_on(self.card, self.least_bytes).is_expected, self.setup.recomputation
        if not least or not strategy.num_again:
            return least
        return replace(self, setup=replace(self.setup, recomputation=whole(strategy.group_size))).fits

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step on paper, to the nanosecond: a sum of floats has no more."""
        return round(seconds_of(self.setup, self.card, self.layout), 9)

    @property
    def fit(self) -> Fit:
        """Whether it fits the card: by the higher of its two peaks."""
        return fit_on(self.card, max(self.peak_bytes, self.traced_bytes or 0))

    @property
    def fits(self) -> bool:
        """Whether it fits by what is expected beside the tensors, and the host's memory, where that is known."""
        return self.fit.is_expected and (self.host_room_bytes is None or self.host_bytes <= self.host_room_bytes)

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that offloading takes, for all ranks together."""
        how = standing_of(self.setup)
        if self.layout is None or not self.layout.offloads:
            return sum(host_bytes(self.setup).values()) + paged_bytes(how)
        return sum(resting_bytes(how).values())

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are float16 on their way, so that small ones are lost without a GradScaler."""
        return "float16" in (self.setup.precision.compute_dtype, self.layout and self.layout.param_dtype)

    @cached_property
    def gives_up(self) -> tuple[str, ...]:
        """Which of ``GIVES_UP``, in that order."""
        setup, precision = self.setup, self.setup.precision
        given = {planned(setup.optimizer.record).gives_up}
        if setup.adapter is not None:
            given |= {ADAPTERS_ONLY, FOUR_BITS} if setup.adapter.base == "nf4" else {ADAPTERS_ONLY}
        else:
            keeps_all = precision.master_dtype or precision.remainder_dtype
            given |= {ROUNDED} if is_narrow(precision.weight_dtype) and not keeps_all else set()
            record = setup.optimizer.record
            moments = {state.dtype or precision.moment_dtype for state in record.states if state.is_moment}
            given |= {NARROW_STATES} if any(map(is_narrow, moments)) and not is_quantized(record) else set()
            given |= {SUMMED} if self.sums_narrow else set()
        return tuple(words for words in GIVES_UP if words in given)

    @property
    def sums_narrow(self) -> bool:
        """Whether gradients of micro-batches or ranks are added up in 16 bits."""
        setup, layout = self.setup, self.layout
        own, accumulates = setup.precision.gradient_dtype, setup.grad_accum_steps > 1
        if layout is None or not layout.is_fully_sharded:
            return is_narrow(own) and (accumulates or (layout is not None and layout.world_size > 1))
        reduced = layout.reduce_dtype or layout.param_dtype or own
        return is_narrow(reduced) or (is_narrow(own) and accumulates)

    @cached_property
    def sacrifice(self) -> int:
        """Orders plans: one dear thing is dearer than all cheaper ones."""
        return sum(2 ** GIVES_UP.index(words) for words in self.gives_up)

    @property
    def name(self) -> str:
        """What is chosen, in one line."""
        return f"{self.kept}, {self.cut}"

    @property
    def cut(self) -> str:
        """What runs again, how the batch is cut, and how the run is spread."""
        setup = self.setup
        again = {NONE: "", FULL: "full recomputation, "}.get(setup.recomputation, f"{setup.recomputation.name}, ")
        spread = f", {self.layout.name}" if self.layout else ""
        if self.layout and self.layout.gradient_as_bucket_view:
            spread += ", gradients in the buckets"
        if self.layout and self.layout.reduce_dtype:
            spread += f", summed in {self.layout.reduce_dtype}"
        return f"{again}{setup.micro_batch_size} × {setup.grad_accum_steps}{spread}"

    @property
    def kept(self) -> str:
        """The precision or adapter, and the optimizer and its place."""
        setup = self.setup
        inside = f"fp32 shards, {'fp16' if self.scales_loss else 'bf16'} inside"
        kept = inside if self.layout and self.layout.param_dtype else setup.precision.name
        place = "" if setup.place == Place.AFTER_BACKWARD else f" {setup.place}"
        if setup.adapter:
            kept = f"{'QLoRA' if setup.adapter.base == 'nf4' else 'LoRA'} of rank {setup.adapter.rank}"
        return f"{kept}, {setup.optimizer.name}{place}"


whole = lru_cache(maxsize=64)(groups)


def plan_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> TrainingPlan:
    """The plan of a setup on a card, or on each of a layout's."""
    return TrainingPlan(setup=as_job(setup), card=card, layout=layout)


class OneSequence(NamedTuple):
    """All that what one sequence keeps for its backward depends on."""

    model: ModelConfig
    seq_len: int
    attention: str
    dropout: float
    uses_fused_norm: bool
    upcasts_logits: bool
    device: str
    weight_dtype: str
    compute_dtype: str
    adapter: AdapterConfig | None
    recomputation: Strategy = NONE


def kept_bytes(setup: Job, weight_dtype: str = "", compute_dtype: str = "") -> int:
    """Activations of one sequence that stand at the end of a forward, at least; FSDP says the dtypes inside it.

    Of regions that run again only the inputs are kept, so their share of what *full* keeps; blocks that do not run
    again keep what they keep under *none*.
    """
    strategy, num_layers, precision = setup.recomputation, setup.model.num_layers, setup.precision
    one = OneSequence(
        model=setup.model, seq_len=setup.seq_len, attention=setup.attention, dropout=setup.dropout,
        uses_fused_norm=setup.uses_fused_norm, upcasts_logits=setup.upcasts_logits, device=setup.device,
        weight_dtype=weight_dtype or precision.weight_dtype, compute_dtype=compute_dtype or precision.compute_dtype,
        adapter=setup.adapter,
    )
    if strategy.scope != "blocks" or strategy.saved_ops or strategy == FULL or len(setup.model.blocks_by_kind) > 1:
        return kept_by(one._replace(recomputation=strategy))
    none, full = kept_by(one), kept_by(one._replace(recomputation=FULL))
    num_regions, num_blocks = run_again(strategy, num_layers)
    return (none * (num_layers - num_blocks) + full * num_regions) // num_layers


@lru_cache(maxsize=512)
def kept_by(one: OneSequence) -> int:
    """What one sequence keeps, but for what all share: rotary tables, positions, a mask of scores, experts' offsets."""
    choices = one._asdict()
    dtypes = {name: choices.pop(name) for name in ("weight_dtype", "compute_dtype")}
    job, model = Job(**choices, precision=Precision(name="", **dtypes)), one.model
    shared = 8 * one.seq_len * (model.head_dim + 1) + (one.seq_len * one.seq_len if one.attention == "stored" else 0)
    shared += model.num_layers * round_up(4 * num_experts_of(model))
    return max(activation_bytes(job) - shared, 0)
