"""A plan: a setup on a card, or on each of several, with its peak, its time, what it gives up, and its price.

Memory can be bought with three coins: time, precision, and how much of the model is trained. ``FACTORS`` says what the
last two are taken to be worth in time. Peak and time are those of the second step, by formula: the first one makes the
optimizer's states, and each step after the second is like it.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from memkit.cards import Card
from memkit.fit import Fit, fit_on
from memkit.formats.records import dtype_bits, tensor_bytes
from memkit.formula.activations import activation_bytes
from memkit.formula.estimate import second_step
from memkit.formula.parameters import count_by_kind, count_parameters, parameter_ledger
from memkit.models import ModelConfig
from memkit.recipes import PURE_BF16, Precision
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, FULL_NO_STOP, NONE, Strategy, groups
from memkit.timeline import Instant
from memkit.units import round_up
from stepscope.experts import num_experts_of
from stepscope.formula import host_bytes, job_state_bytes, job_state_ledger
from stepscope.optimizers import Quantized, is_paged
from stepscope.setup import Job, Layout, Place, as_job
from stepscope.sharding import bytes_per_s_among, estimate_sharded, step_traffic

# --- the second step: how high it is, and how long it takes -----------------------------------------------------------

HOST_BYTES_PER_S = 2 * 8 * 5_600 * 10**6
"""What a desktop's memory moves: two channels of 8 bytes at 5,600 million transfers a second (DDR5-5600)."""


def as_high(setup: TrainingSetup) -> TrainingSetup:
    """The setup with two micro-batches at most: a third is as high as the second."""
    return replace(setup, grad_accum_steps=min(setup.grad_accum_steps, 2))


@lru_cache(maxsize=8192)
def peak_of(setup: TrainingSetup, layout: Layout | None = None) -> Instant:
    """The highest moment of the second step, alone or of one rank of ``layout``.

    Remembered for more setups than one job has plans or a slider places.
    """
    if layout is None:
        return second_step(setup).peak
    return estimate_sharded(as_high(setup), layout).for_step(2).peak


def seconds_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> float:
    """Seconds of a step on paper, nothing hidden behind anything: the sum of ``seconds_by_term``."""
    return sum(seconds_by_term(setup, card, layout).values())


def seconds_by_term(
    setup: TrainingSetup, card: Card, layout: Layout | None = None
) -> dict[str, float]:
    """What a step's time on paper is made of, by the rates of the card and of a host.

    The passes through the model; 4-bit weights are made 16-bit ones for each. What an optimizer on the host, or its
    paged states, send over PCIe, and the step that the host's memory makes. What the ranks send each other, by the rate
    that collectives reach, and the shards that come from the host. An optimizer's pass over weights and states on the
    card is left out: every plan has one, and its bytes cross at the card's own rate.
    """
    setup = as_job(setup)
    dtype = (layout and layout.param_dtype) or setup.precision.compute_dtype
    passes, pcie = passes_of(setup), card.pcie_bytes_per_s
    terms = {"passes": least_seconds(setup, card, dtype) * passes / 3}
    weight_bits = dtype_bits(setup.precision.weight_dtype)
    if setup.adapter and setup.adapter.base == "nf4":
        # bitsandbytes leaves experts as they are
        num_packed = parameters_of(setup.model) - experts_of(setup.model)
        unpacked = num_packed * (4 + weight_bits) // 8  # read, and written
        terms["unpacking"] = setup.grad_accum_steps * passes * unpacked / card.memory_bandwidth
    if setup.place.is_on_host:
        kept = kept_on_host(at_rest(setup))
        terms["host"] = (setup.grad_accum_steps * kept["gradients"] + kept["weights"]) / pcie
        terms["host step"] = stepped_bytes(kept) / HOST_BYTES_PER_S
    elif is_paged(setup.optimizer.record):
        terms["paged"] = 2 * paged_bytes(at_rest(setup)) / pcie
    if layout is None:
        return terms
    rate = bytes_per_s_among(card, layout.world_size)
    terms["links"] = step_traffic(setup, layout).sent_bytes / rate
    if layout.offloads:
        share = parameters_of(setup.model) * weight_bits // 8 // layout.dp_size
        gathers = 2 if layout.stage == 3 else 1
        # gathered, and gradients sent
        terms["shards"] = setup.grad_accum_steps * (gathers + 1) * share / pcie
        whole = stepped_bytes(resting_bytes(at_rest(setup)))
        terms["host step"] = whole / HOST_BYTES_PER_S  # all ranks' shares are in one host
    return terms


def stepped_bytes(kept: dict[str, int]) -> int:
    """What a step on the host moves in its memory: gradients are read, weights and states read and written."""
    return kept["gradients"] + 2 * kept["weights"] + 2 * kept["optimizer_states"]


def chosen(setup: Job, names: str) -> dict:
    """Some of its fields."""
    return {name: getattr(setup, name) for name in names.split()}


def at_rest(setup: Job) -> Job:
    """The job by what it keeps between steps alone: the key under which those bytes are remembered."""
    fields = chosen(setup, "model precision optimizer adapter place")
    return Job(**fields, seq_len=1, attention="stored")


resting_bytes = lru_cache(maxsize=512)(job_state_bytes)
kept_on_host = lru_cache(maxsize=256)(host_bytes)


@lru_cache(maxsize=256)
def paged_bytes(resting: Job) -> int:
    """Bytes of paged states, which may stand on the host: at worst each comes to the card and goes in every step."""
    tensors = job_state_ledger(resting) if is_paged(resting.optimizer.record) else ()
    return sum(tensor.num_bytes for tensor in tensors if tensor.is_in_host)


parameters_of = lru_cache(maxsize=64)(count_parameters)


@lru_cache(maxsize=64)
def experts_of(model: ModelConfig) -> int:
    """Parameters of all experts, of which a token uses a few."""
    return count_by_kind(model).get("experts", 0)


def least_seconds(setup: TrainingSetup, card: Card, dtype: str = "") -> float:
    """Seconds of a step's forwards and backwards that no kernel goes below on ``card``, by its data sheet's rates.

    ``dtype`` is that of the products, if it is not the precision's. A pass does 6 FLOPs a token and parameter that it
    uses, of experts a few, and reads each weight three times: forward, and twice in the backward. The larger of the two
    times counts. So a micro-batch of too few tokens waits for the weights.
    """
    model, count = setup.model, parameters_of(setup.model)
    num_used, dtype = count, dtype or setup.precision.compute_dtype
    if num_experts := num_experts_of(model):
        num_used -= experts_of(model) * (num_experts - model.experts_per_token) // num_experts
    rate = card.peak_tflops.get(dtype, card.peak_tflops["float32"]) * 10**12
    arithmetic = 6 * num_used * setup.tokens_per_micro_batch / rate
    weights = 3 * count * dtype_bits(dtype) / 8 / card.memory_bandwidth
    return setup.grad_accum_steps * max(arithmetic, weights)


def one_sequence(setup: Job, **others) -> Job:
    """The job by what one sequence alone depends on, with nothing run again and with ``others``: a key too."""
    how = "attention dropout uses_fused_norm upcasts_logits device"
    fields = chosen(setup, f"model seq_len adapter {how}")
    fields["loss_pieces"] = math.gcd(setup.loss_pieces, setup.seq_len)
    return Job(**fields | others)


def passes_of(setup: Job) -> float:
    """Passes through the model by their FLOPs, three where all is trained and nothing runs again.

    The same for every precision, optimizer, size and number of micro-batches. A frozen weight has no gradient to
    compute.

    >>> from memkit.models import LLAMA_2_7B
    >>> from stepscope import AdapterConfig
    >>> setup = Job(model=LLAMA_2_7B, seq_len=2048, precision=PURE_BF16, adapter=AdapterConfig(rank=16))
    >>> [round(passes_of(replace(setup, recomputation=strategy)), 2) for strategy in ("none", "full")]
    [2.09, 2.86]
    """
    strategy, model = setup.recomputation, setup.model
    adapter = setup.adapter
    # a policy that saves products saves none of 4-bit weights
    if adapter and not strategy.saved_ops:
        adapter = replace(adapter, base="as loaded")
    one = one_sequence(setup, precision=PURE_BF16, device="cpu", adapter=adapter)
    is_plain = strategy.scope == "blocks" and strategy.stops_early and not strategy.saved_ops
    if not is_plain or len(model.blocks_by_kind) > 1:
        return passes_by(one, strategy)
    none, full, whole = (passes_by(one, way) for way in (NONE, FULL, FULL_NO_STOP))
    num_regions, num_blocks = run_again(strategy, model.num_layers)
    stopped = (whole - full) * num_regions  # the end of each region's last block
    return none + ((whole - none) * num_blocks - stopped) / model.num_layers


@lru_cache(maxsize=1024)
def run_again(strategy: Strategy, num_layers: int) -> tuple[int, int]:
    """How many regions run again, and how many blocks are in them."""
    sizes = [len(blocks) for blocks, is_again in strategy.regions(num_layers) if is_again]
    return len(sizes), sum(sizes)


@lru_cache(maxsize=1024)
def passes_by(one: Job, strategy: Strategy) -> float:
    """Passes through the model by their FLOPs."""
    flops = step_flops(replace(one, recomputation=strategy))
    return 3 * flops.total / flops_of(replace(one, adapter=None, loss_pieces=1))


@lru_cache(maxsize=64)
def flops_of(setup: Job) -> int:
    """FLOPs of its step."""
    return step_flops(setup).total


# --- what it keeps, at least ------------------------------------------------------------------------------------------


def kept_bytes(setup: Job, dtype: str | None = None) -> int:
    """Activations of one sequence that stand at the end of a forward, at least; ``dtype`` is what FSDP computes in.

    Of regions that run again only the inputs are kept, so their share of what *full* keeps; blocks that do not run
    again keep what they keep under *none*.
    """
    strategy, model, precision = setup.recomputation, setup.model, setup.precision
    weight_dtype, compute_dtype = precision.weight_dtype, precision.compute_dtype
    dtypes = {"weight_dtype": dtype or weight_dtype, "compute_dtype": dtype or compute_dtype}
    one = one_sequence(setup, precision=Precision(name="", **dtypes))
    is_plain = strategy.scope == "blocks" and not strategy.saved_ops and strategy != FULL
    if not is_plain or len(model.blocks_by_kind) > 1:
        return kept_by(one, strategy)
    none, full = kept_by(one, NONE), kept_by(one, FULL)
    num_regions, num_blocks = run_again(strategy, model.num_layers)
    return (none * (model.num_layers - num_blocks) + full * num_regions) // model.num_layers


@lru_cache(maxsize=512)
def kept_by(one: Job, strategy: Strategy) -> int:
    """What one sequence keeps, but for what all share: rotary tables, positions, a mask of scores, experts' offsets."""
    model, seq_len = one.model, one.seq_len
    shared = 8 * seq_len * (model.head_dim + 1) + 2 * round_up(1) * one.loss_pieces
    shared += seq_len * seq_len if one.attention == "stored" else 0
    shared += model.num_layers * round_up(4 * num_experts_of(model))
    return max(activation_bytes(replace(one, recomputation=strategy)) - shared, 0)


# --- the plan ---------------------------------------------------------------------------------------------------------

SUMMED, NARROW_STATES = "gradients summed in 16 bits", "states rounded to bf16"
IN_8_BITS, IN_4_BITS = "states in 8 bits", "states in 4 bits"
ROUNDED, AT_RANDOM = "updates rounded to bf16", "updates rounded to bf16 at random"
NOT_CLIPPED = "gradients not clipped"
ADAPTERS_ONLY, FOUR_BITS = "only adapters are trained", "frozen weights in 4 bits"

DIGITS = 1.35
"""A little more than full recomputation takes, 4/3 of the time: what runs again gives the same digits."""

FACTORS = {
    AT_RANDOM: 1.05,
    SUMMED: 1.25,
    IN_8_BITS: DIGITS,
    ROUNDED: DIGITS,
    NOT_CLIPPED: DIGITS,
    FOUR_BITS: DIGITS,
    IN_4_BITS: 1.8,
    NARROW_STATES: 2.0,
    ADAPTERS_ONLY: 3.0,
}
"""What a plan may give up besides time, and by which factor its time counts then: a judgement, and no measurement.

States in bf16 are dearer than in 8 bits: with beta2 = 0.999 a second moment in bf16 never falls, for a thousandth is
less than half of its last place (``tests/stepscope/planner/test_search.py``).
"""

GIVES_UP = tuple(FACTORS)

HOST_SHARE = 2
"""A host is taken to have so many times the memory of its cards, unless it is said: a usual size, and no rule."""

LEAST_OF_ALL_AGAIN = 0.95
"""With fewer groups run again the peak is at least this share of what it is with all, which store less, but whose last
one's second forward makes its temporaries beside the logits' gradient: 2 % of a QLoRA's peak on four layers."""

OWN_STEP = {"kahan": 32, "master": 24}
"""Bytes that ``SixteenBitAdamW`` makes in float32 for each value of the tensor that it steps; the widened gradient of a
16-bit one, 4, comes on top. ``tests/stepscope/planner/test_code.py`` traces them."""


def written_by(job: Job) -> str:
    """How ``SixteenBitAdamW`` keeps what rounding to 16 bits takes, or '' where torch's optimizers step alone."""
    if job.place.is_on_host:  # the copy is the host's, and is what steps
        return ""
    return (
        "kahan" if job.precision.remainder_dtype else "master" if job.precision.master_dtype else ""
    )


def is_narrow(dtype: str) -> bool:
    """Whether a dtype has 16 bits or fewer, so that a small number added to a large one is lost."""
    return dtype_bits(dtype) <= 16


@dataclass(frozen=True, kw_only=True)
class FirstGroups(Strategy):
    """Regions of which the first ``num_again`` alone run again.

    Of equal numbers these keep least: the backward has freed what the rest saved before it runs one again.
    """

    num_again: int

    def regions(self, num_layers: int) -> tuple[tuple[range, bool], ...]:
        """The model's blocks in order as (blocks, are run again)."""
        regions = enumerate(super().regions(num_layers))
        return tuple((blocks, number < self.num_again) for number, (blocks, _) in regions)


def first_groups(group_size: int, num_again: int) -> FirstGroups:
    """The first ``num_again`` regions of ``group_size`` blocks run again, and the code that asks for it."""
    end = num_again * group_size
    code = groups(group_size).code.replace("len(model.blocks)", str(end))
    code += f"\nfor block in model.blocks[{end}:]:\n    x = block(x)"
    what = ("block" if group_size == 1 else "group") + "s" * (num_again > 1)
    name = f"first {num_again} {what}" + (f" of {group_size}" if group_size > 1 else "")
    return FirstGroups(name=name, group_size=group_size, num_again=num_again, code=code)


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
        peak, setup, write = peak_of(self.setup, self.layout), self.setup, written_by(self.setup)
        if not write:
            return peak
        each = OWN_STEP[write] + (0 if setup.precision.gradient_dtype == "float32" else 4)
        largest = max(parameter.count for parameter in parameter_ledger(setup.model))
        stands = resting_bytes(at_rest(replace(setup, adapter=None, place=Place.AFTER_BACKWARD)))
        more = {"activations": 0, "temporary": each * largest}
        step = Instant(name="optimizer peak", **stands, **more, step=2)
        return max(peak, step, key=lambda instant: instant.total_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak.total_bytes

    @cached_property
    def resting(self) -> Job:
        """Its setup by what stands between steps."""
        return at_rest(self.setup)

    @cached_property
    def least_bytes(self) -> int:
        """Bytes that its peak is never below, at next to no cost: what stands when a backward has begun, or ends.

        Weights, states, and gradients or what autograd keeps, or both where earlier micro-batches left some; under FSDP
        what it keeps alone. A backward begins with gradients of the log-probabilities and of the logits.
        """
        setup, layout = self.setup, self.layout
        inside = layout and layout.param_dtype
        compute = inside or setup.precision.compute_dtype
        num_logits = setup.tokens_per_micro_batch * setup.model.vocab_size // setup.loss_pieces
        kept = setup.micro_batch_size * kept_bytes(setup, inside)
        wide = "float32" if setup.precision.uses_autocast else compute
        kept += tensor_bytes(num_logits, wide) + tensor_bytes(num_logits, compute)
        if layout is not None and layout.is_fully_sharded:
            return kept
        states = resting_bytes(self.resting)
        stands = states["weights"]
        if layout is None or layout.stage == 0:
            stands += states["optimizer_states"]
        gradients = 0 if setup.place.frees_gradients else states["gradients"]
        return stands + (kept + gradients if setup.grad_accum_steps > 1 else max(kept, gradients))

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step on paper, to the nanosecond: a sum of floats has no more."""
        return round(seconds_of(self.setup, self.card, self.layout), 9)

    @property
    def fit(self) -> Fit:
        """Whether it fits the card: by the higher of its two peaks."""
        return fit_on(self.card, max(self.peak_bytes, self.traced_bytes or 0))

    @cached_property
    def fits(self) -> bool:
        """Whether it fits by what is expected beside the tensors, and the host's memory, where that is known."""
        return self._fits(at_worst=False)

    @cached_property
    def fits_at_worst(self) -> bool:
        """Whether it fits by the highest that may stand beside the tensors."""
        return self._fits(at_worst=True)

    def _fits(self, at_worst: bool) -> bool:
        return self.has_host_room and self.may_fit(at_worst) and has_room(self.fit, at_worst)

    def may_fit(self, at_worst: bool) -> bool:
        """Whether it has a chance by what its peak is never below, and by ``LEAST_OF_ALL_AGAIN``."""
        strategy = self.setup.recomputation
        if not has_room(fit_on(self.card, self.least_bytes), at_worst):
            return False
        if not isinstance(strategy, FirstGroups):
            return True
        all_again = replace(self.setup, recomputation=groups(strategy.group_size))
        peak = replace(self, setup=all_again).peak_bytes
        return has_room(fit_on(self.card, int(LEAST_OF_ALL_AGAIN * peak)), at_worst)

    @property
    def has_host_room(self) -> bool:
        """Whether the host holds what is kept there, where its memory is known."""
        return self.host_room_bytes is None or self.host_bytes <= self.host_room_bytes

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that offloading takes, for all ranks together."""
        if self.layout is not None and self.layout.offloads:
            return sum(resting_bytes(self.resting).values())
        return sum(kept_on_host(self.resting).values()) + paged_bytes(self.resting)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are float16 on their way, so that small ones are lost without a GradScaler."""
        inside = self.layout and self.layout.param_dtype
        return "float16" in (self.setup.precision.compute_dtype, inside)

    @cached_property
    def gives_up(self) -> tuple[str, ...]:
        """Which of ``FACTORS``, in that order."""
        setup, precision, record = self.setup, self.setup.precision, self.setup.optimizer.record
        is_full = not setup.adapter
        keeps_all = precision.master_dtype or precision.remainder_dtype
        rounds = is_full and is_narrow(precision.weight_dtype) and not keeps_all
        moments = (s.dtype or precision.moment_dtype for s in record.states if s.is_moment)
        bits = {state.bits for state in record.states if isinstance(state, Quantized)}
        narrow_states = not bits and any(map(is_narrow, moments))
        given = {
            AT_RANDOM: rounds and self.rounds_at_random,
            ROUNDED: rounds and not self.rounds_at_random,
            SUMMED: is_full and self.sums_narrow,
            IN_8_BITS: 8 in bits,
            IN_4_BITS: 4 in bits,
            NARROW_STATES: is_full and narrow_states,
            NOT_CLIPPED: setup.place == Place.IN_BACKWARD,
            ADAPTERS_ONLY: not is_full,
            FOUR_BITS: not is_full and setup.adapter.base == "nf4",
        }
        return tuple(words for words in FACTORS if given[words])

    @property
    def rounds_at_random(self) -> bool:
        """Whether a rounded update is right on average: torchao's optimizers can round so."""
        setup = self.setup
        is_torchaos = setup.optimizer.record.made_by.startswith("torchao.")
        return is_torchaos and setup.precision.weight_dtype == "bfloat16" and not setup.adapter

    @property
    def sums_narrow(self) -> bool:
        """Whether gradients of micro-batches or ranks are added up in 16 bits."""
        setup, layout = self.setup, self.layout
        own, accumulates = setup.precision.gradient_dtype, setup.grad_accum_steps > 1
        if layout is None or not layout.is_fully_sharded:
            has_ranks = layout is not None and layout.world_size > 1
            return is_narrow(own) and (accumulates or has_ranks)
        reduced = layout.reduce_dtype or layout.param_dtype or own
        return is_narrow(reduced) or (is_narrow(own) and accumulates)

    @cached_property
    def factor(self) -> float:
        """By what its time counts for what it gives up: the product of ``FACTORS``."""
        return math.prod(FACTORS[words] for words in self.gives_up)

    @property
    def price(self) -> float:
        """What orders plans: the seconds of a step times the factor."""
        return self.seconds * self.factor

    @property
    def name(self) -> str:
        """What is chosen, in one line."""
        return f"{self.kept}, {self.cut}"

    @property
    def cut(self) -> str:
        """What runs again, how the batch is cut, and how the run is spread."""
        setup, strategy = self.setup, self.setup.recomputation
        names = {NONE: "", FULL: "full recomputation, "}
        again = names.get(strategy, f"{strategy.name}, ")
        spread = f", {self.layout.name}" if self.layout else ""
        if self.layout and self.layout.gradient_as_bucket_view:
            spread += ", gradients in the buckets"
        if self.layout and self.layout.reduce_dtype:
            spread += f", summed in {self.layout.reduce_dtype}"
        again += f"loss in {setup.loss_pieces} pieces, " * (setup.loss_pieces > 1)
        return f"{again}{setup.micro_batch_size} × {setup.grad_accum_steps}{spread}"

    @property
    def kept(self) -> str:
        """The precision or adapter, and the optimizer and its place."""
        setup, adapter, kept = self.setup, self.setup.adapter, self.setup.precision.name
        if self.layout and self.layout.param_dtype:
            kept = f"fp32 shards, {'fp16' if self.scales_loss else 'bf16'} inside"
        if adapter:
            kept = f"{'QLoRA' if adapter.base == 'nf4' else 'LoRA'} of rank {adapter.rank}"
        place = "" if setup.place == Place.AFTER_BACKWARD else f" {setup.place}"
        return f"{kept}, {setup.optimizer.name}{place}"


def has_room(fit: Fit, at_worst: bool) -> bool:
    """Whether there is room beside the most that may stand beside the tensors, or beside what is expected."""
    return fit.least_bytes >= 0 if at_worst else fit.is_expected


def plan_of(setup: TrainingSetup, card: Card, layout: Layout | None = None) -> TrainingPlan:
    """The plan of a setup on a card, or on each of a layout's."""
    return TrainingPlan(setup=as_job(setup), card=card, layout=layout)
