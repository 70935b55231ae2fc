"""A small transformer that GPT-2 and Llama both are, and the training step that the book predicts, traces and runs.

Each line that makes a tensor autograd keeps is a named line in the ledger of ``memkit.formula.activations``. Shapes:
B micro-batch, S sequence, D hidden size, A heads, K key/value heads, H head size, F intermediate size, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint as recompute

from memkit.low_precision import SixteenBitAdamW
from memkit.models import ModelConfig
from memkit.recipes import Optimizer, OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.strategies import TORCH_NAMES, Strategy
from memkit.units import as_one_of

SDPA_BACKENDS = {  # flash has no float32 kernel
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
}


class PythonRMSNorm(nn.RMSNorm):
    """RMSNorm as most model files write it: float32 inside, one Python line an operation."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, setup: TrainingSetup, **where):
        super().__init__()
        config = setup.model
        self.config, self.setup = config, setup
        hidden = config.hidden_size
        if config.fuses_qkv:
            width = config.query_size + 2 * config.kv_size
            self.qkv = nn.Linear(hidden, width, config.has_qkv_bias, **where)
        else:
            self.query = nn.Linear(hidden, config.query_size, config.has_qkv_bias, **where)
            self.key = nn.Linear(hidden, config.kv_size, config.has_qkv_bias, **where)
            self.value = nn.Linear(hidden, config.kv_size, config.has_qkv_bias, **where)
        self.output = nn.Linear(config.query_size, hidden, config.has_output_bias, **where)
        if config.has_qk_norm:
            self.query_norm = make_norm(setup, config.head_dim, **where)
            self.key_norm = make_norm(setup, config.head_dim, **where)

    def forward(self, x_BSD: Tensor, shared: dict[str, Tensor]) -> Tensor:
        config = self.config
        if config.fuses_qkv:
            widths = [config.query_size, config.kv_size, config.kv_size]
            q, k, v = self.qkv(x_BSD).split(widths, dim=-1)
        else:
            q, k, v = self.query(x_BSD), self.key(x_BSD), self.value(x_BSD)
        q, k, v = (t.unflatten(-1, (-1, config.head_dim)) for t in (q, k, v))
        if config.has_qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q_BASH, k_BKSH, v_BKSH = (t.transpose(1, 2) for t in (q, k, v))
        if config.position == "rotary":
            q_BASH, k_BKSH = rotate(q_BASH, **shared["rotary"]), rotate(k_BKSH, **shared["rotary"])
        strategy = self.setup.recomputation
        core = run_again(self.core, strategy) if strategy.scope == "core" else self.core
        y_BASH = core(q_BASH, k_BKSH, v_BKSH, shared)
        return self.output(y_BASH.transpose(1, 2).flatten(2))

    def core(
        self, q_BASH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, shared: dict[str, Tensor]
    ) -> Tensor:
        """Scores, softmax and weighted sum: the part that selective recomputation runs twice."""
        dropout = self.setup.dropout if self.training else 0.0
        groups = self.config.num_heads // self.config.num_kv_heads
        is_flash = self.setup.attention == "flash" and not self.setup.uses_efficient_kernel
        if groups > 1 and not is_flash:  # only the flash kernels read grouped heads as they are
            k_BKSH, v_BKSH = (t.repeat_interleave(groups, dim=1) for t in (k_BKSH, v_BKSH))
        if self.setup.attention != "stored":
            return F.scaled_dot_product_attention(
                q_BASH,
                k_BKSH,
                v_BKSH,
                dropout_p=dropout,
                is_causal=True,
                enable_gqa=groups > 1 and is_flash,
            )
        scores_BASS = (q_BASH * (1 / math.sqrt(self.config.head_dim))) @ k_BKSH.transpose(-2, -1)
        scores_BASS = scores_BASS.masked_fill(shared["mask"], -math.inf)
        weights_BASS = F.dropout(torch.softmax(scores_BASS, dim=-1), dropout)
        return weights_BASS @ v_BKSH


def rotate(x_BASH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): turn each pair (i, i + H/2) by an angle that grows with the position."""
    left, right = x_BASH.chunk(2, dim=-1)
    return x_BASH * cos_SH + torch.cat((-right, left), dim=-1) * sin_SH


class MLP(nn.Module):
    def __init__(self, setup: TrainingSetup, **where):
        super().__init__()
        config = setup.model
        self.is_gated = config.mlp == "swiglu"
        hidden, inner = config.hidden_size, config.intermediate_size
        if self.is_gated:
            self.gate = nn.Linear(hidden, inner, config.has_mlp_bias, **where)
        self.up = nn.Linear(hidden, inner, config.has_mlp_bias, **where)
        self.down = nn.Linear(inner, hidden, config.has_mlp_bias, **where)

    def forward(self, x_BSD: Tensor) -> Tensor:
        if self.is_gated:
            return self.down(F.silu(self.gate(x_BSD)) * self.up(x_BSD))
        return self.down(F.gelu(self.up(x_BSD)))


def make_norm(setup: TrainingSetup, width: int = 0, **where) -> nn.Module:
    rms_norm = nn.RMSNorm if setup.uses_fused_norm else PythonRMSNorm
    kind = {"layernorm": nn.LayerNorm, "rmsnorm": rms_norm}[setup.model.norm]
    return kind(width or setup.model.hidden_size, eps=1e-5, **where)


MLPS: dict[str, Callable[..., nn.Module]] = {"gelu": MLP, "swiglu": MLP}
"""An MLP in PyTorch, by the kind that ``ModelConfig.mlp_of`` names."""


class Block(nn.Module):
    def __init__(self, setup: TrainingSetup, mlp: str = "", **where):
        super().__init__()
        self.dropout = setup.dropout
        self.norm_1, self.norm_2 = make_norm(setup, **where), make_norm(setup, **where)
        self.attention = Attention(setup, **where)
        self.mlp = MLPS[mlp or setup.model.mlp](setup, **where)

    def forward(self, x_BSD: Tensor, shared: dict[str, Tensor]) -> Tensor:
        dropped = partial(F.dropout, p=self.dropout, training=self.training)
        x_BSD = x_BSD + dropped(self.attention(self.norm_1(x_BSD), shared))
        return x_BSD + dropped(self.mlp(self.norm_2(x_BSD)))


def initialise(module: nn.Module) -> nn.Module:
    """Normal values of deviation 0.02 in every matrix."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return module


class Transformer(nn.Module):
    """A decoder-only language model; ``forward`` returns the mean cross-entropy of the next tokens.

    ``make_policy`` makes a policy of one's own for each region that runs again, in place of the strategy's.
    ``device`` overrides the setup's; on ``"meta"`` a model of any size is made at once, without data.

    Shapes: inputs and targets are [B, S] token ids; the loss is a scalar.

    >>> from memkit import TrainingSetup, count_parameters, models
    >>> model = Transformer(TrainingSetup(model=models.TINY_LLAMA, device="cpu"))
    >>> sum(p.numel() for p in model.parameters()) == count_parameters(models.TINY_LLAMA)
    True
    """

    def __init__(
        self, setup: TrainingSetup, device: str | None = None, make_policy: Callable | None = None
    ):
        super().__init__()
        config, self.make_policy = setup.model, make_policy
        if device is not None:
            as_one_of("device", str(device).split(":")[0], ("cuda", "cpu", "meta"))
            if str(device).startswith("cuda") and not torch.cuda.is_available():
                raise ValueError(
                    f"device={str(device)!r}: there is no CUDA card here; trace_memory needs none"
                )
        where = {
            "device": device or setup.device,
            "dtype": getattr(torch, setup.precision.weight_dtype),
        }
        self.config, self.setup = config, setup
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size, **where)
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.max_seq_len, config.hidden_size, **where)
        self.blocks = nn.ModuleList(
            self.make_block(layer, **where) for layer in range(config.num_layers)
        )
        self.norm = make_norm(setup, **where)
        self.head = self.make_head(**where)
        if config.ties_embeddings:
            self.head.weight = self.token_embedding.weight
        self.initialise()

    def make_block(self, layer: int, **where) -> Block:
        """The block of this number."""
        return Block(self.setup, self.config.mlp_of(layer), **where)

    def make_head(self, **where) -> nn.Linear:
        """The last layer; where it is tied, its table is replaced by the embedding's."""
        return nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False, **where)

    def initialise(self) -> None:
        """Weights are set when all of the model is made."""
        initialise(self)

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        setup = self.setup
        x_BSD = self.token_embedding(inputs_BS)
        if self.config.position == "learned":
            positions_S = torch.arange(inputs_BS.shape[1], device=inputs_BS.device)
            x_BSD = x_BSD + self.position_embedding(positions_S)
        x_BSD = F.dropout(x_BSD, setup.dropout, self.training)
        shared = self.shared_tensors(inputs_BS)
        for stage in self.stages():
            x_BSD = stage(x_BSD, shared)
        logits_BSV = self.head(self.norm(x_BSD))
        if setup.upcasts_logits:
            logits_BSV = logits_BSV.float()
        return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())

    def stages(self) -> list[Callable[[Tensor, dict], Tensor]]:
        """Single blocks, and regions of blocks that are run again, by the setup's strategy."""
        stages, strategy = [], self.setup.recomputation
        for numbers, is_run_again in strategy.regions(len(self.blocks)):
            blocks = [self.blocks[number] for number in numbers]
            if is_run_again:
                region = blocks[0] if len(blocks) == 1 else partial(in_turn, blocks)
                blocks = [run_again(region, strategy, self.make_policy)]
            elif strategy.scope == "host":
                blocks = [partial(on_host, block) for block in blocks]
            stages += blocks
        return stages

    def shared_tensors(self, inputs_BS: Tensor) -> dict:
        """What all blocks use and autograd keeps once: the causal mask (stored attention) and the rotary tables."""
        config, setup, device = self.config, self.setup, inputs_BS.device
        seq_len, shared = inputs_BS.shape[1], {}
        if setup.attention == "stored":
            shared["mask"] = torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).triu_(1)
        if config.position == "rotary":
            where = {"device": device, "dtype": torch.float32}
            half = torch.arange(0, config.head_dim, 2, **where) / config.head_dim
            angle_SH = torch.outer(torch.arange(seq_len, **where), 10000.0**-half)
            angle_SH = torch.cat((angle_SH, angle_SH), dim=-1)
            dtype = getattr(torch, setup.precision.compute_dtype)
            cos_SH, sin_SH = angle_SH.cos().to(dtype), angle_SH.sin().to(dtype)
            shared["rotary"] = {"cos_SH": cos_SH, "sin_SH": sin_SH}
        return shared


aten = torch.ops.aten
NAME_OF = {getattr(aten, name).default: op for op, names in TORCH_NAMES.items() for name in names}


def saving_policy(strategy: Strategy) -> Callable:
    """The strategy's policy for one region, as ``create_selective_checkpoint_contexts`` takes it."""
    saves = strategy.policy()

    def policy(_context, op, *args, **kwargs) -> recompute.CheckpointPolicy:
        choice = recompute.CheckpointPolicy
        return choice.MUST_SAVE if saves(NAME_OF.get(op, "")) else choice.PREFER_RECOMPUTE

    return policy


def run_again(
    run: Callable, strategy: Strategy, make_policy: Callable[[], Callable] | None = None
) -> Callable:
    """A function whose saved tensors are dropped, and which runs again in the backward."""
    if strategy.is_reentrant:
        return partial(recompute.checkpoint, run, use_reentrant=True)
    if strategy.saved_ops and not make_policy:
        make_policy = partial(saving_policy, strategy)
    contexts = recompute.noop_context_fn
    if make_policy:
        contexts = lambda: recompute.create_selective_checkpoint_contexts(make_policy())
    how = {"use_reentrant": False, "context_fn": contexts, "early_stop": strategy.stops_early}
    return partial(recompute.checkpoint, run, **how)


def in_turn(blocks: Sequence[nn.Module], x_BSD: Tensor, shared: dict) -> Tensor:
    """Several blocks as one function."""
    for block in blocks:
        x_BSD = block(x_BSD, shared)
    return x_BSD


def on_host(block: nn.Module, x_BSD: Tensor, shared: dict) -> Tensor:
    """A block whose saved tensors are copied to the host and back, each as often as it is saved."""
    with torch.autograd.graph.save_on_cpu():
        return block(x_BSD, shared)


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable, lr: float = 3e-4
) -> torch.optim.Optimizer:
    """The optimizer of an ``OptimizerConfig``. Raises: ImportError: the optimizer's library is not there."""
    keywords = config.record.keywords(config.implementation)
    return class_of(config.record)(parameters, lr=lr, **keywords)


def class_of(record: Optimizer) -> type[torch.optim.Optimizer]:
    """An optimizer's class. Raises: ImportError: the library that has it is not there."""
    module, name = record.made_by.split(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(
            f"optimizer {record.name!r} is {module}.{name}: pip install {library}"
        ) from error


def make_step_optimizer(
    setup: TrainingSetup, named: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer | None:
    """The setup's optimizer for the parameters that are trained, ``SixteenBitAdamW`` where the precision needs it.

    Gradients wider than the weights are asked of autograd by ``grad_dtype``. Without parameters nothing is made, but
    what no program here runs is refused.

    Raises: ValueError: no optimizer here keeps the copies that the precision wants.
    """
    precision, optimizer = setup.precision, setup.optimizer
    trained = [parameter for parameter in named.values() if parameter.requires_grad]
    if not precision.has_copies and not precision.state_dtype:
        return make_optimizer(optimizer, trained) if trained else None
    has_master, has_remainder = bool(precision.master_dtype), bool(precision.remainder_dtype)
    is_known = has_master != has_remainder and optimizer.name == "AdamW"
    if not is_known or precision.state_dtype or precision.weight_dtype != "bfloat16":
        raise ValueError(f"precision {precision.name!r} with {optimizer.name} is a formula only")
    for parameter in trained:
        parameter.grad_dtype = getattr(torch, precision.gradient_dtype)
    if not trained:
        return None
    copies_gradients = bool(precision.main_gradient_dtype)
    write = "master" if has_master else "kahan"
    return SixteenBitAdamW(trained, write=write, copies_gradients=copies_gradients)


def random_batches(
    config: ModelConfig, setup: TrainingSetup
) -> Callable[[], tuple[Tensor, Tensor]]:
    """A source of (inputs, targets), each [B, S] random token ids: for memory, any tokens will do."""
    shape = (setup.micro_batch_size, setup.seq_len)

    def next_batch():
        return tuple(torch.randint(config.vocab_size, shape, device=setup.device) for _ in range(2))

    return next_batch


def training_build(
    setup: TrainingSetup,
    next_batch=None,
    make_model: Callable[[TrainingSetup], nn.Module] = Transformer,
    make_optimizer: Callable | None = None,
) -> Callable[[], Callable[[], Tensor]]:
    """The ``build`` of a setup, for ``trace_memory`` and ``measure_memory``: makes model, optimizer; returns the step.

    The step is what a training script runs: for each micro-batch forward and backward, then the optimizer,
    then ``zero_grad``. It returns the last micro-batch's mean loss, detached.

    ``make_model`` and ``make_optimizer`` are what another package makes of a setup with more in it.

    Raises: ValueError: plain torch cannot run the setup's precision or optimizer, or it is another function's to make.

    >>> from memkit import TrainingSetup, models, training_build
    >>> step = training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=16, device="cpu"))()
    >>> step().shape
    torch.Size([])
    """
    if make_optimizer is None and setup.built_by != TrainingSetup.built_by:
        raise ValueError(
            f"a {type(setup).__name__} has more in it than training_build makes: {setup.built_by}(setup)"
        )
    precision, make_optimizer = setup.precision, make_optimizer or make_step_optimizer
    make_optimizer(setup, {})  # refuses here, before a model is made

    def build():
        model = make_model(setup)
        optimizer = make_optimizer(setup, dict(model.named_parameters()))
        batches = next_batch or random_batches(setup.model, setup)
        compute_dtype = getattr(torch, precision.compute_dtype)

        def kernels():
            if setup.attention in SDPA_BACKENDS and setup.device == "cuda":
                return sdpa_kernel(SDPA_BACKENDS[setup.attention])
            return nullcontext()

        def forward() -> Tensor:
            inputs, targets = batches()
            with torch.autocast(setup.device, compute_dtype, enabled=precision.uses_autocast):
                return model(inputs, targets) / setup.grad_accum_steps

        def step() -> Tensor:
            for _ in range(setup.grad_accum_steps):
                # around the backward too: a checkpoint runs the forward again there
                with kernels():
                    loss = forward()
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=setup.sets_grads_to_none)
            return loss.detach() * setup.grad_accum_steps

        return step

    return build


def strategy_build(
    setup: TrainingSetup, strategy: Strategy, make_policy: Callable[[], Callable] | None = None
) -> Callable:
    """``training_build`` of a setup under a strategy, or under a policy of one's own in the strategy's regions."""
    return training_build(
        setup.under(strategy), make_model=partial(Transformer, make_policy=make_policy)
    )
