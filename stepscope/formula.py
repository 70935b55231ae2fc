"""The first column of a ``Job``: what adapters, a place to step and a loss in pieces add to the kit's step on paper.

LoRA and QLoRA are thin matrices beside frozen weights, which may be in 4 bits.

A step with the optimizer's states on the host sends every gradient there and every new weight back: 4 B a parameter in
bf16, whatever the batch is. (Offloaded activations, which ``blocks_ledger`` lists, go there and back in every
micro-batch.) Seconds are bytes divided by the link's rate; what of them hides behind the arithmetic is a measurement.

The head and the loss of some tokens at a time, each run again (lesson 09, section 4): logits of T tokens and V words
are three tensors of T · V numbers at the start of the backward. In n pieces each of them has T · V / n, in float32; the
price is one more product with the head.

``operations_table`` shows the list of operations that all of it is read off.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from memkit.formats.records import tensor_bytes
from memkit.formula.liveness import GRADIENT_OPS, SENDS_VIEWS, Allocation, Allocations
from memkit.formula.model import TransformerOperations, addition, model_of
from memkit.formula.operations import NEW, SAME, Operation, Region, Tensor, scope
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    of_blocks,
    parameter_ledger,
)
from memkit.formula.run import (
    Run,
    allocate_persistent,
    run_of,
    write_states,
    write_update,
    write_weights,
)
from memkit.formula.states import (
    StateTensor,
    gradient_tensors,
    optimizer_tensors,
    shared_tensors,
    weight_tensors,
)
from memkit.models import ModelConfig
from memkit.recipes import Precision
from memkit.setup import TrainingSetup
from memkit.units import in_columns
from stepscope.optimizers import SharesMaps
from stepscope.setup import MIN_OFFLOADED, AdapterConfig, Job, Place

# --- what is trained, and what is frozen beside it --------------------------------------------------------------------

NF4 = "nf4"
"""What the weights of QLoRA have for a dtype. No operation reads them but ``gemm_4bit``."""

NF4_BLOCK, NF4_SCALE_BLOCK = 64, 256
"""Values that share a scale, and scales that share one of their own (Dettmers et al. 2023, section 3)."""


GRADIENT_OPS["gemm_4bit"] = "mm"
SENDS_VIEWS.add("gemm_4bit")


@lru_cache(maxsize=64)
def adapters_of_block(
    config: ModelConfig, adapter: AdapterConfig, mlp: str
) -> tuple[Parameter, ...]:
    """The thin matrices of one block, two beside each target, in the order of the layers."""
    matrices = []
    for weight in block_parameters(config, mlp):
        name = weight.name.removesuffix(".weight")
        if weight.is_matrix_product and name.rpartition(".")[2] in adapter.targets:
            (num_outputs, num_inputs), (out_axis, in_axis) = weight.shape, weight.axes.split()
            pair = {
                "lora_a": ((adapter.rank, num_inputs), f"r {in_axis}"),
                "lora_b": ((num_outputs, adapter.rank), f"{out_axis} r"),
            }
            for thin, (shape, axes) in pair.items():
                full_name = f"{name}.{thin}.weight"
                matrices.append(Parameter(name=full_name, shape=shape, kind="adapter", axes=axes))
    return tuple(matrices)


@lru_cache(maxsize=64)
def trained_parameters(config: ModelConfig, adapter: AdapterConfig | None) -> tuple[Parameter, ...]:
    """Every parameter that the optimizer gets: all of the model's, or the adapters' alone."""
    if adapter is None:
        return parameter_ledger(config)
    return tuple(of_blocks(config, lambda config, mlp: adapters_of_block(config, adapter, mlp)))


def count_adapter_parameters(config: ModelConfig, adapter: AdapterConfig) -> int:
    """Parameters that LoRA trains."""
    return sum(p.times * p.count for p in trained_parameters(config.one_of_each, adapter))


def is_in_4_bits(parameter: Parameter, adapter: AdapterConfig | None) -> bool:
    """Whether QLoRA keeps this frozen weight in 4 bits: the linear layers of the blocks, but not the head."""
    has_4_bits = adapter is not None and adapter.base == NF4
    return has_4_bits and parameter.is_matrix_product and parameter.kind in ("attention", "mlp")


def frozen_tensors(
    parameter: Parameter, precision: Precision, adapter: AdapterConfig
) -> tuple[StateTensor, ...]:
    """A frozen weight, or what stands for it in 4 bits.

    Source: ``quantize_4bit`` of bitsandbytes 0.50: codes, their scales and the two maps, for each tensor anew.
    """
    if not is_in_4_bits(parameter, adapter):
        return weight_tensors(parameter, precision)
    num_scales = -(-parameter.count // NF4_BLOCK)
    rows = {
        "NF4 codes": ("uint8", -(-parameter.count // 2), 1),
        "NF4 scales": ("uint8", num_scales),
        "scales of scales": ("float32", -(-num_scales // NF4_SCALE_BLOCK)),
        "mean scale": ("float32",),
        "map of scales": ("float32", 256),
        "NF4 map": ("float32", 16),
    }
    of_one = {"parameter": parameter.name, "part": "weights", "times": parameter.times}
    return tuple(
        StateTensor(role=role, shape=tuple(shape), dtype=dtype, **of_one)
        for role, (dtype, *shape) in rows.items()
    )


def shared_maps(adapter: AdapterConfig | None) -> tuple[StateTensor, ...]:
    """The map of scales that bitsandbytes keeps once in a process, and copies for each layer in 4 bits."""
    has_4_bits = adapter is not None and adapter.base == NF4
    what = {"parameter": "all", "role": "map of scales", "part": "weights"}
    return (StateTensor(shape=(256,), dtype="float32", **what),) if has_4_bits else ()


def trained_precision(precision: Precision, adapter: AdapterConfig | None) -> Precision:
    """The dtypes of what is trained: the recipe's, or those of adapters, whose numbers all have one dtype."""
    if adapter is None:
        return precision
    dtypes = dict.fromkeys(("weight_dtype", "gradient_dtype", "compute_dtype"), adapter.dtype)
    return Precision(name="adapter", **dtypes)


# --- what stands between steps ----------------------------------------------------------------------------------------


def job_state_ledger(job: Job) -> tuple[StateTensor, ...]:
    """Every persistent tensor of the run: weights, then gradients, then the optimizer's.

    With an adapter the model's own weights are frozen: they have no gradient and no state.
    """
    trained = trained_parameters(job.model, job.adapter)
    precision = trained_precision(job.precision, job.adapter)
    tensors: list[StateTensor] = []
    if job.adapter is not None:
        for parameter in parameter_ledger(job.model):
            tensors += frozen_tensors(parameter, job.precision, job.adapter)
        tensors += shared_maps(job.adapter)
    for parameter in trained:
        tensors += weight_tensors(parameter, precision)
    for parameter in trained:
        tensors += gradient_tensors(parameter, precision)
    for parameter in trained:
        states = optimizer_tensors(parameter, precision, job.optimizer)
        if is_offloaded(parameter, job.place):
            states = (replace(tensor, is_in_host=True) for tensor in states)
        tensors += states
    return (*tensors, *shared_tensors(trained, job.optimizer))


def job_state_bytes(job: Job) -> dict[str, int]:
    """Bytes of what stands between steps by part, before rounding, without what the host's memory holds.

    On the host are torch's ``step`` scalars, what an optimizer there keeps, and paged states: unified memory, which
    torch's allocator does not count, and which the driver moves between host and card.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> from stepscope import AdapterConfig
    >>> lora = AdapterConfig(rank=16, targets=("query", "value"))
    >>> job_state_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, adapter=lora))
    {'weights': 13510385664, 'gradients': 33554432, 'optimizer_states': 67108864}
    """
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for tensor in job_state_ledger(replace(job, model=job.model.one_of_each)):
        if not tensor.is_in_host:
            totals[tensor.part] += tensor.times * tensor.num_bytes
    return totals


def is_offloaded(parameter: Parameter, place: Place) -> bool:
    """Whether this parameter's states are the host's, and its step is done there."""
    return place.is_on_host and parameter.count >= MIN_OFFLOADED


def host_bytes(setup: Job) -> dict[str, int]:
    """Bytes that an optimizer on the host keeps there: a copy of weights and gradients, both pinned, and the states."""
    precision = trained_precision(setup.precision, setup.adapter)
    totals = {"weights": 0, "gradients": 0, "optimizer_states": 0}
    for parameter in trained_parameters(setup.model, setup.adapter):
        if is_offloaded(parameter, setup.place):
            tensors = weight_tensors(parameter, precision) + gradient_tensors(parameter, precision)
            for tensor in tensors + optimizer_tensors(parameter, precision, setup.optimizer):
                totals[tensor.part] += tensor.num_bytes
    return totals


def link_bytes(setup: Job) -> dict[str, int]:
    """Bytes that cross the link in one step, by what moves and where to; gradients leave in every micro-batch.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> link_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, place="on the host"))
    {'gradients to the host': 13476831232, 'weights to the card': 13476831232}
    """
    kept = host_bytes(setup)
    if not kept["weights"]:
        return {}
    gradients = setup.grad_accum_steps * kept["gradients"]
    return {"gradients to the host": gradients, "weights to the card": kept["weights"]}


# --- how it runs ------------------------------------------------------------------------------------------------------


class JobRun(Run):
    """The run of a job on one card."""

    def check(self, setup: Job) -> None:
        shares_maps = isinstance(setup.optimizer.record, SharesMaps)
        if setup.place == Place.IN_BACKWARD and shares_maps:
            raise ValueError(
                f"{setup.optimizer.name} with place='in backward' has no formula for its peak; trace it"
            )

    def left_out(self, setup: Job) -> str:
        return super().left_out(setup) if not setup.adapter or setup.device == "cpu" else ""

    def write_weights(self, setup: Job, record: Allocations) -> None:
        if setup.place.is_on_host:  # whose copies are the host's
            setup = replace(setup, precision=replace(setup.precision, master_dtype=None))
        if not setup.adapter:
            return super().write_weights(setup, record)
        for parameter in parameter_ledger(setup.model):
            frozen = frozen_tensors(parameter, setup.precision, setup.adapter)
            allocate_persistent(record, "empty", frozen)
        allocate_persistent(record, "create_dynamic_map", shared_maps(setup.adapter))
        write_weights(setup, record, *self.trained(setup))

    def write_states(self, setup: Job, record: Allocations) -> None:
        in_host = setup.device == "cpu"  # whose memory counts there
        precision, parameters = self.trained(setup) if in_host else self.on_card(setup)
        write_states(setup, record, precision, parameters)

    def write_step(self, setup: Job, record: Allocations) -> None:
        write_update(setup, record, *self.on_card(setup), "optimizer")

    def has_optimizer_step(self, setup: Job) -> bool:
        return setup.place != Place.IN_BACKWARD

    def gradient_dtypes(self, setup: Job) -> tuple[str, ...]:
        return () if setup.adapter else super().gradient_dtypes(setup)

    def use(
        self, setup: Job, *, makes_states: bool = False
    ) -> Callable[[Allocations, Allocation], bool] | None:
        frees = setup.place.frees_gradients
        return partial(self.step_at_once, setup, makes_states=makes_states) if frees else None

    def step_at_once(
        self, setup: Job, record: Allocations, block: Allocation, *, makes_states: bool
    ) -> bool:
        """What an optimizer that frees gradients does with a finished one. Returns whether it frees this one."""
        parameter, (_, where) = block.gradient_of.parameter, block.finished_by
        precision, _ = self.trained(setup)
        if setup.place.is_on_host:
            return is_offloaded(parameter, setup.place)
        num_events = len(record.events)
        if makes_states:
            write_states(setup, record, precision, [parameter])
        where = where if len(record.events) == num_events else parameter.name
        write_update(setup, record, precision, [parameter], where)
        return True

    def trained(self, setup: Job) -> tuple[Precision, tuple[Parameter, ...]]:
        """The dtypes of what is trained, and its parameters."""
        adapter = setup.adapter
        return trained_precision(setup.precision, adapter), trained_parameters(setup.model, adapter)

    def on_card(self, setup: Job) -> tuple[Precision, tuple[Parameter, ...]]:
        """The same of those that step on the card."""
        precision, parameters = self.trained(setup)
        return precision, tuple(p for p in parameters if not is_offloaded(p, setup.place))


JOB_RUN = JobRun()


@run_of.register
def _(setup: Job) -> Run:
    return JOB_RUN


# --- adapters in the list of operations -------------------------------------------------------------------------------


@addition(lambda setup: isinstance(setup, Job) and setup.adapter is not None)
class WithAdapters(TransformerOperations):
    """A transformer of which LoRA is trained: ``linear`` writes more operations than a plain one, and parameters
    without a gradient make the list keep less.

    Source: ``lora.Linear.forward`` of peft 0.21; ``Linear4bit.forward`` and ``_gemm_4bit_default_impl`` of
    bitsandbytes 0.50.
    """

    setup: Job

    num_first = 2  # frozen, the first block may need no table for its backward

    @classmethod
    def axis_sizes(cls, setup: Job) -> dict[str, int]:
        return super().axis_sizes(setup) | {"r": setup.adapter.rank}

    def tensor_of(self, parameter: Parameter) -> Tensor:
        """All that is no adapter is frozen, in QLoRA some of it in 4 bits."""
        adapter, is_adapter = self.setup.adapter, parameter.kind == "adapter"
        dtype = adapter.dtype if is_adapter else self.weight_dtype
        dtype = NF4 if is_in_4_bits(parameter, adapter) else dtype
        how = {"parameter": parameter, "needs_grad": is_adapter}
        return Tensor(parameter.axes, parameter.count, dtype, **how)

    def parameters_of_block(self, number: int) -> tuple[Parameter, ...]:
        """The adapters too."""
        adapters = adapters_of_block(self.model, self.setup.adapter, self.model.mlp_of(number))
        return super().parameters_of_block(number) + adapters

    def core_output_by(self) -> str:
        """A frozen projection after the core may not keep what the kernel keeps."""
        return self.kernel

    @scope
    def linear(self, x: Tensor, name: str, label: str = "") -> Tensor:
        """W x, and beside an adapter W x + (α / r) B A x, of which the second is in the adapter's dtype.

        Kept are A x, and x in that dtype, cast anew for each adapter.
        """
        label = label or name.rpartition(".")[2]
        weight = self.parameters.get(f"{name}.weight")
        in_4_bits = weight is not None and weight.dtype == NF4
        y = self.linear_in_4_bits(x, name, label) if in_4_bits else super().linear(x, name, label)
        if f"{name}.lora_a.weight" not in self.parameters:
            return y
        graph, adapter, label = self.graph, self.setup.adapter, y.base.name
        narrow = graph.cast(x, adapter.dtype)
        dropped = self.dropout(graph.view("view", narrow), f"{name} adapter", adapter.dropout)
        thin = super().linear(dropped, f"{name}.lora_a", "A x")
        up = super().linear(thin, f"{name}.lora_b", "lora_b")
        scaled = graph.op("mul", [up], up.axes)
        wider = y.dtype if y.dtype == scaled.dtype else "float32"
        total = graph.op("add", [y, scaled], y.axes, wider, ways=(SAME, SAME), name=label)
        self.copy_for_loop(sum(total.num_bytes for each in (y, scaled) if each.dtype != wider))
        graph.hold(y, scaled)
        graph.bind(narrow)
        return graph.cast(total, y.dtype, label)

    @scope
    def linear_in_4_bits(self, x: Tensor, name: str, label: str) -> Tensor:
        """A frozen weight in NF4 is made wide for the product, and in the backward once more.

        It runs in the dtype that the model was loaded in and gives back its input's, whatever autocast says: no policy
        and no autocast knows ``gemm_4bit``. The scales, which are in 8 bits themselves, are made float32 first.
        """
        graph = self.graph
        codes = self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        scale_bytes = tensor_bytes(-(-codes.count // NF4_BLOCK), "float32")
        weight_bytes = tensor_bytes(codes.count, self.weight_dtype)
        wide = graph.cast(x, self.weight_dtype)
        # In the backward the weight stands beside the gradient, or with its scales before the gradient is there.
        scratch_bytes = max(weight_bytes, weight_bytes + scale_bytes - wide.num_bytes)
        out = self.multiply(
            "gemm_4bit", wide, codes, [bias] if bias else [], label, scratch_bytes=scratch_bytes
        )
        graph.bind(wide)
        without_mean = graph.scratch(scale_bytes)
        scales = graph.scratch(scale_bytes)
        graph.hold(without_mean)  # an argument of ``+ absmax_offset``, without a name
        graph.scratch(weight_bytes)
        graph.hold(scales)
        return graph.cast(out, x.dtype)


# --- the loss in pieces -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CastsAgain(Region):
    """A piece of the loss; ``cast`` is the weight that it casts where it is run again, and not before."""

    cast: Tensor | None = None

    def restore(self, walk, op: Operation) -> None:
        """The cast is made first."""
        made = []
        if self.cast is not None and self not in walk.was_run_again:
            made = [walk.new(self.cast.num_bytes, "_to_copy", op.where)]
            walk.block_of[self.cast] = made[0]
        super().restore(walk, op)
        walk.drop(*made)


@addition(lambda setup: isinstance(setup, Job) and setup.loss_pieces > 1)
class WithLossInPieces(TransformerOperations):
    """A transformer whose head and loss are a checkpointed region for each piece of the tokens.

    Raises: ValueError: tokens that are no whole number of pieces.
    """

    setup: Job
    read_weight: Tensor | None = None  # the head's, or the one cast of it that the forward reads

    @classmethod
    def axis_sizes(cls, setup: Job) -> dict[str, int]:
        """With t, the tokens of a piece."""
        if setup.tokens_per_micro_batch % setup.loss_pieces:
            words = f"loss_pieces={setup.loss_pieces} of {setup.tokens_per_micro_batch} tokens are not equal"
            raise ValueError(f"{words} and have no formula; trace it")
        return super().axis_sizes(setup) | {"t": setup.tokens_per_micro_batch // setup.loss_pieces}

    def loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        """The sum of the pieces' losses, divided by the number of targets."""
        graph, num_pieces = self.graph, self.setup.loss_pieces
        n = graph.view("flatten", self.norm("norm", x))
        self.enter("loss")
        parts = graph.view("chunk", n, ["t h"] * num_pieces, (NEW,))
        wanted = graph.view("chunk", targets, ["t"] * num_pieces)
        losses = [
            graph.checkpoint(self.loss_of_piece, part, of_part, region=CastsAgain())
            for part, of_part in zip(parts, wanted, strict=True)
        ]
        total = losses[0]
        for loss in losses[1:]:
            total = graph.op("add", [total, loss], "", ways=(SAME, SAME))
        return graph.op("div", [total], "")

    def loss_of_piece(self, part: Tensor, targets: Tensor) -> Tensor:
        """The head and the summed cross-entropy of a piece, on a float32 copy of its logits."""
        graph, weight = self.graph, self.parameters[f"{self.head_name}.weight"]
        dtype = self.dtype if self.autocast else weight.dtype
        is_first = self.read_weight is None
        self.read_weight = self.read_weight or graph.cast(weight, dtype, "head weight")
        if is_first or self.read_weight is weight:
            kept = self.read_weight
        else:
            # Autocast's cache has the first piece's cast until the forward ends, so that the gradients of all pieces
            # meet there; what a piece is run again with, it casts anew.
            kept = graph.region.cast = Tensor(weight.axes, weight.count, dtype, "head weight")
        narrow = graph.cast(part, dtype)
        how = {"name": "logits", "by": "linear", "out_by": None, "keeps": [narrow, kept]}
        flops = 2 * part.count * self.model.vocab_size
        logits = graph.op("mm", [narrow, self.read_weight], "t v", dtype, flops=flops, **how)
        return self.cross_entropy(graph.cast(logits, "float32"), targets)


# --- the list of operations as a table --------------------------------------------------------------------------------


def operations_table(setup: TrainingSetup, unit: int | None = None) -> str:
    """The operations of a unit of blocks, or of all. Views, which make nothing, are left out.

    ``gone``: in the backward of that line, whose operation is the last to need it, or after it in the forward; a cast
    that autocast remembers and nobody keeps goes when autocast is left.

    >>> from memkit import models
    >>> for line in operations_table(TrainingSetup(model=models.TINY_GPT2, seq_len=64), unit=1).splitlines()[2:5]:
    ...     print(line[:63].rstrip())
    1   blocks.0.norm_1     layer_norm  norm 1 input, weight, bias
    2   blocks.0.attention  addmm       norm 1 output, weight, bias
    3   blocks.0.attention  attention   query, key and value, one s
    """
    graph = model_of(setup).graph
    graph.find_last_uses()
    number, numbers, last, keeper = 0, {}, {}, {}
    for op in graph.operations:
        if unit in (None, op.unit):
            number += not op.is_view
            numbers[op] = number
            last |= dict.fromkeys(op.last_uses, number)
            for x in op.keeps if op.region is None else ():
                keeper.setdefault(x.base, number)
    rows = [["", "module", "operation", "reads", "makes", "bytes", "keeps", "gone"]]
    for op, number in numbers.items():
        if not op.is_view:
            last_line = "with autocast" if op.is_remembered else "after {}"
            gone = [
                f"backward of {keeper[x]}" if x in keeper else last_line.format(last.get(x, "…"))
                for x in op.makes
            ]
            names = (map(_name, tensors) for tensors in (op.reads, op.makes, op.keeps))
            reads, makes, *more = (", ".join(dict.fromkeys(x)) for x in (*names, gone))
            size = f"{sum(x.num_bytes for x in op.makes):,}"
            rows.append([str(number), op.where, op.kind, reads, makes, size, *more])
    return in_columns(rows, "<<<<<><<")


def _name(x: Tensor) -> str:
    """What a tensor is called, or its shape in letters."""
    name = x.parameter.name.rpartition(".")[2] if x.parameter else x.base.name
    return name or x.axes.replace(" ", "·") or "1"
