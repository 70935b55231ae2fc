"""The step of a ``Job`` in PyTorch: LoRA beside frozen weights, experts, an optimizer that steps in the backward.

``LoRALinear`` does what ``lora.Linear`` of peft does, in the same order, so that both keep the same tensors;
QLoRA is the same beside weights that bitsandbytes keeps in 4 bits.

``Experts`` is the module of transformers 5 (``experts_implementation="grouped_mm"``). A router chooses K of E experts
for each of T tokens. Each token is copied K times, the copies are sorted by expert, and one grouped product multiplies
each expert's rows by its own matrix. No row is dropped. The weights of all experts are one parameter of three
dimensions. ``grouped_mm`` is on no list of autocast's: it runs in the weights' dtype.

Source: ``grouped_mm_experts_forward`` and ``Qwen3MoeTopKRouter`` of transformers 5.23.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memkit.program import transformer as kit
from memkit.program.hooks import tensors_in
from memkit.program.transformer import class_of, make_step_optimizer
from memkit.program.transformer import make_optimizer as make_one
from memkit.recipes import OptimizerConfig
from memkit.setup import TrainingSetup
from stepscope.experts import EXPERTS
from stepscope.optimizers import Muon
from stepscope.setup import AdapterConfig, Job, Place


class LoRALinear(nn.Module):
    """y = W x + (α / r) B A x with W frozen; B starts at zero, so that training starts at W. α is 2r."""

    def __init__(self, base: nn.Module, adapter: AdapterConfig):
        super().__init__()
        where = {"device": base.weight.device, "dtype": getattr(torch, adapter.dtype)}
        self.base, self.scale, self.dropout = base, 2.0, adapter.dropout
        self.lora_a = nn.Linear(base.in_features, adapter.rank, bias=False, **where)
        self.lora_b = nn.Linear(adapter.rank, base.out_features, bias=False, **where)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        dtype, x = y.dtype, x.to(self.lora_a.weight.dtype)
        y = y + self.lora_b(self.lora_a(F.dropout(x, self.dropout, self.training))) * self.scale
        return y.to(dtype)


def add_adapters(module: nn.Module, adapter: AdapterConfig) -> nn.Module:
    """Freeze a module and put an adapter beside each target in it; changes the module, and returns it.

    With ``base="nf4"`` every linear layer in it is quantized first.

    Raises: ImportError: 4 bits are asked for, and bitsandbytes is not there.
    """
    module.requires_grad_(False)
    names = [n for n, layer in module.named_modules() if n and isinstance(layer, nn.Linear)]
    for path in names:  # no list of layers: each is freed once it is in 4 bits
        parent, _, name = path.rpartition(".")
        base = module.get_submodule(path)
        base = in_4_bits(base) if adapter.base == "nf4" else base
        layer = LoRALinear(base, adapter) if name in adapter.targets else base
        setattr(module.get_submodule(parent), name, layer)
    return module


def bitsandbytes_layers() -> ModuleType:
    """``bitsandbytes.nn``. Raises: ImportError: it is not there."""
    try:
        return import_module("bitsandbytes.nn")
    except ImportError as error:
        raise ImportError("base='nf4' needs bitsandbytes: pip install bitsandbytes") from error


def in_4_bits(layer: nn.Linear) -> nn.Module:
    """bitsandbytes' ``Linear4bit`` of the same weight in NF4, doubly quantized, which computes in the weight's dtype.

    Its scales and maps become buffers, so that a trace counts them as weights.

    Raises: ImportError: bitsandbytes is not there.
    """
    bnb = bitsandbytes_layers()
    narrow = bnb.Linear4bit(1, 1, bias=False)  # its own weight is replaced
    weight = bnb.Params4bit(
        layer.weight.detach(), quant_type="nf4", compress_statistics=True, module=narrow
    )
    narrow.weight, narrow.bias = weight._quantize(layer.weight.device), layer.bias
    narrow.in_features, narrow.out_features = layer.in_features, layer.out_features
    narrow.compute_dtype, narrow.compute_type_is_set = layer.weight.dtype, True
    state = narrow.weight.quant_state
    # one for all layers, beside each layer's own
    maps = import_module("bitsandbytes.functional").name2qmap
    for number, tensor in enumerate(tensors_in([vars(state), vars(state.state2), maps])):
        narrow.register_buffer(f"quantization_{number}", tensor, persistent=False)
    return narrow


class Experts(nn.Module):
    """What stands in the place of an MLP; P is the number of copies, T · K."""

    def __init__(self, setup: TrainingSetup, **where):
        super().__init__()
        config, hidden_size = setup.model, setup.model.hidden_size
        self.num_experts, self.num_chosen = config.num_experts, config.experts_per_token
        self.router = nn.Parameter(torch.empty(self.num_experts, hidden_size, **where))
        gate_up = self.num_experts, 2 * config.expert_size, hidden_size
        self.gate_up = nn.Parameter(torch.empty(gate_up, **where))
        down = self.num_experts, hidden_size, config.expert_size
        self.down = nn.Parameter(torch.empty(down, **where))

    def forward(self, x_BSD: Tensor) -> Tensor:
        x_TD = x_BSD.flatten(0, 1)
        return self.weighted_sum(x_TD, *self.route(x_TD)).to(x_BSD.dtype).view_as(x_BSD)

    def route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Which experts a token goes to, and how much each of them counts."""
        scores_TE = torch.softmax(F.linear(x_TD, self.router), -1, dtype=torch.float32)
        weights_TK, experts_TK = scores_TE.topk(self.num_chosen)
        return (weights_TK / weights_TK.sum(-1, keepdim=True)).to(x_TD.dtype), experts_TK

    def weighted_sum(self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
        experts_P, order_P = experts_TK.flatten().sort()
        rows_E = torch.histc(experts_P.float(), self.num_experts, 0, self.num_experts - 1)
        offsets_E = rows_E.cumsum(0, dtype=torch.int32)
        y_PD = self.mlp(x_TD[order_P // self.num_chosen], offsets_E)
        y_PD = y_PD * weights_TK.flatten()[order_P].unsqueeze(-1)
        place_P = torch.empty_like(order_P)
        place_P[order_P] = torch.arange(len(order_P), device=order_P.device)
        return y_PD[place_P].unflatten(0, weights_TK.shape).sum(1)

    def mlp(self, x_PD: Tensor, offsets_E: Tensor) -> Tensor:
        """Each row by its own expert."""
        gate_PF, up_PF = grouped_linear(x_PD, self.gate_up, offsets_E).chunk(2, -1)
        return grouped_linear(F.silu(gate_PF) * up_PF, self.down, offsets_E)


def grouped_linear(x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """x Wᵀ, where rows up to the first offset have the first W, and so on."""
    return F.grouped_mm(x.to(weights.dtype), weights.transpose(-2, -1), offs=offsets)


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients, and one state (Chen et al. 2023, arXiv:2302.06675, program 1)."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, foreach=True):
        choices = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "foreach": foreach}
        super().__init__(parameters, choices)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            lists = [weights] if group["foreach"] else [[p] for p in weights]
            for some in lists:
                self.update(some, group["lr"], *group["betas"], group["weight_decay"])

    def update(
        self, weights: list[Tensor], lr: float, beta1: float, beta2: float, weight_decay: float
    ) -> None:
        """All of these at once, with one temporary like each."""
        means, gradients = [self.state[p]["exp_avg"] for p in weights], [p.grad for p in weights]
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        directions = torch._foreach_lerp(means, gradients, 1 - beta1)
        torch._foreach_sign_(directions)
        torch._foreach_add_(weights, directions, alpha=-lr)
        torch._foreach_lerp_(means, gradients, 1 - beta2)


class Steps:
    """Optimizers that step one after another; with none, the steps were done in the backward."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers
        self.in_backward: dict[nn.Parameter, torch.optim.Optimizer | Steps] = {}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def make_optimizer(
    config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer | Steps:
    """The optimizer of an ``OptimizerConfig`` for parameters by name. Muon takes the matrices of ``blocks``, its
    ``rest`` all others: tables, head, norms and biases.

    Raises: ImportError: the optimizer's library is not there.
    """
    named = list(named)
    record = config.record
    if not isinstance(record, Muon):
        return make_one(config, [parameter for _, parameter in named])
    hidden = [p for name, p in named if p.ndim == 2 and name.startswith("blocks.")]
    rest = [p for name, p in named if p.ndim != 2 or not name.startswith("blocks.")]
    optimizers = [class_of(record)(hidden, lr=3e-4)] if hidden else []
    if rest:
        optimizers.append(make_one(replace(config, record=record.rest), rest))
    return Steps(*optimizers)


def step_in_backward(config: OptimizerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> Steps:
    """An optimizer for each parameter, which steps as soon as the gradient is there and frees it."""
    steps = Steps()
    steps.in_backward = {p: make_optimizer(config, [(name, p)]) for name, p in named}
    # torch holds a hook where Python's collector does not look: one that knew its parameter would keep it for ever
    known = weakref.ref(steps)

    def step_and_free(parameter: nn.Parameter) -> None:
        optimizer = known().in_backward[parameter]
        optimizer.step()
        optimizer.zero_grad()

    for parameter in steps.in_backward:
        parameter.register_post_accumulate_grad_hook(step_and_free)
    return steps


def make_job_optimizer(
    job: Job, named: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer | Steps:
    """The job's optimizer for the parameters that are trained. Without parameters nothing is made, but what no program
    here runs is refused.

    Raises: ValueError: no optimizer here keeps the copies that the precision wants, or steps on the host.
    """
    precision = job.precision
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if job.place.is_on_host:
        raise ValueError(f"place={job.place!r} is a formula only: torchao's needs a CUDA card")
    copies = precision.master_dtype or precision.remainder_dtype or precision.main_gradient_dtype
    has_more = copies or precision.state_dtype
    if job.adapter is None and (has_more or precision.weight_dtype != precision.gradient_dtype):
        if job.place != Place.AFTER_BACKWARD:
            raise ValueError(
                f"precision {precision.name!r} with place={job.place!r} is a formula only"
            )
        return make_step_optimizer(job, trained) or Steps()
    if not trained:
        return Steps()
    if job.place == Place.IN_BACKWARD:
        return step_in_backward(job.optimizer, trained.items())
    return make_optimizer(job.optimizer, trained.items())


kit.MLPS[EXPERTS] = Experts


class Transformer(kit.Transformer):
    """The kit's. With an adapter its blocks are frozen beside it and, in QLoRA, in 4 bits before the next block is
    made. With ``loss_pieces`` the logits of so many tokens at a time are made, and made again in the backward."""

    setup: Job

    def __init__(self, setup: Job, *more):
        super().__init__(setup, *more)
        self.loss_pieces = setup.loss_pieces

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        if self.loss_pieces == 1:
            return super().forward(inputs_BS, targets_BS)
        hidden_TD, targets_T = self.hidden(inputs_BS).flatten(0, 1), targets_BS.flatten()
        chunks = (x.chunk(self.loss_pieces) for x in (hidden_TD, targets_T))
        pieces = zip(*chunks, strict=True)
        total = sum(checkpoint(self.loss_of_piece, *piece, use_reentrant=False) for piece in pieces)
        return total / targets_T.numel()

    def hidden(self, inputs_BS: Tensor) -> Tensor:
        """What the head reads: the kit's forward up to its last line but one."""
        x_BSD = self.token_embedding(inputs_BS)
        if self.config.position == "learned":
            positions_S = torch.arange(inputs_BS.shape[1], device=inputs_BS.device)
            x_BSD = x_BSD + self.position_embedding(positions_S)
        x_BSD = F.dropout(x_BSD, self.setup.dropout, self.training)
        shared = self.shared_tensors(inputs_BS)
        for stage in self.stages():
            x_BSD = stage(x_BSD, shared)
        return self.norm(x_BSD)

    def loss_of_piece(self, hidden_TD: Tensor, targets_T: Tensor) -> Tensor:
        """The summed cross-entropy of some tokens."""
        return F.cross_entropy(self.head(hidden_TD).float(), targets_T, reduction="sum")

    def make_block(self, layer: int, **where) -> kit.Block:
        block, adapter = super().make_block(layer, **where), self.setup.adapter
        return block if adapter is None else add_adapters(kit.initialise(block), adapter)

    def make_head(self, **where) -> nn.Linear:
        if self.setup.adapter is not None and self.config.ties_embeddings:
            # no second table: beside frozen weights it would be the run's peak
            where["device"] = "meta"
        return super().make_head(**where)

    def initialise(self) -> None:
        if self.setup.adapter is None:
            return super().initialise()
        for module in set(self.children()) - {self.blocks}:
            kit.initialise(module.requires_grad_(False))


def job_build(setup: Job, make_model: Callable[[Job], nn.Module] = Transformer) -> Callable:
    """The ``build`` of a job, for ``trace_memory``, ``trace_script`` and ``measure_memory``: the kit's build, with
    adapters beside frozen weights, experts, and an optimizer that may step in the backward.

    Raises: ValueError: plain torch cannot run the job's precision, or its optimizer steps on the host. ImportError: a
    library that it needs is not there.

    >>> from memkit import models, trace_memory
    >>> from stepscope import AdapterConfig
    >>> job = Job(model=models.TINY_LLAMA, seq_len=64, adapter=AdapterConfig(rank=8, targets=("query", "value")))
    >>> trace_memory(job_build(job)).at("backward").gradients
    114688
    """
    if setup.adapter is not None and setup.adapter.base == "nf4":
        bitsandbytes_layers()  # loaded here: a trace pretends that there is a card
    return kit.training_build(setup, None, make_model, make_job_optimizer)
