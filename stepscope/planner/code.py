"""A plan as code in plain PyTorch: each choice of the plan has its own lines, and the text is put together from them.

The text needs a source ``batches`` of (inputs, targets) token ids from its reader, each target the token that follows.
Its model is this book's, which the reader hands over as ``model``, or one that ``transformers`` loads. What PyTorch has
no line for is not printed: ``why_not`` says why, and the planner then offers the next plan. ``run_code`` executes the
very text in a trace before it is shown.

A choice is a text that begins with the names that it imports, each in a line of its own; ``code_of`` brings those of
all choices to the top.
"""

import re
from dataclasses import dataclass
from inspect import cleandoc

from memkit.strategies import NONE
from memkit.units import as_one_of
from stepscope.formula import trained_precision
from stepscope.hugging_face import config_of
from stepscope.optimizers import is_paged
from stepscope.planner.plan import FirstGroups, TrainingPlan, written_by
from stepscope.setup import TARGETS, Place

MODELS = ("plain", "transformers")
"""Whose model a text trains: this book's, or one of transformers."""

BLOCKS = "max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)"
"""A model's layers are its longest module list, whatever the model calls it."""

RATE_OF_WEIGHTS, RATE_OF_ADAPTERS = 2e-5, 2e-4
"""Learning rates of all weights (Llama 2, arXiv:2307.09288) and of adapters (QLoRA up to 13B, arXiv:2305.14314)."""

LLAMA_LAYERS = "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
ADAPTED = {
    "gpt2": {"qkv": "c_attn", "output": "attn.c_proj", "up": "c_fc", "down": "mlp.c_proj"},
    "llama": dict(zip(TARGETS[1:], LLAMA_LAYERS, strict=True)),
}
"""What the families of transformers call the layers; its Qwen2 is named as its Llama."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """A plan's text, and what whoever runs it has to know.

    ``libraries`` are the modules that it imports names from. ``loads_model``: by ``from_pretrained``; else ``model`` is
    the reader's. ``pages_states``: by memory that CUDA's driver moves.
    """

    text: str
    libraries: tuple[str, ...]
    loads_model: bool
    pages_states: bool


IMPORT = re.compile(r"^from (.+) import (.+)\n", re.MULTILINE)
"""A line of a choice that imports one name."""


def code_of(plan: TrainingPlan, model: str = "plain") -> Code:
    """The plan as code for a model of ``MODELS``.

    None is a launcher's file: nothing here can run it, and Accelerate's sums gradients in the dtype that it computes
    in, DeepSpeed's halves keep a float32 copy beside AdamW's states, so that their runs are other plans.

    Raises: ValueError: no such model, or no line of PyTorch says the plan.
    """
    if reason := why_not(plan, as_one_of("model", model, MODELS)):
        raise ValueError(f"model={model!r} cannot say {plan.name}; not offered are {reason}")
    loads_model = model == "transformers"
    rate = RATE_OF_ADAPTERS if plan.setup.adapter else RATE_OF_WEIGHTS
    choices = (
        f"learning_rate = {rate}  # yours to choose, with a schedule: no byte depends on it",
        *(loaded_model_texts(plan) if loads_model else own_model_texts(plan)),
        recomputation_text(plan),
        layout_text(plan),
        optimizer_text(plan),
        step_text(plan),
    )
    named: dict[str, list[str]] = {}
    for module, name in sorted({found for text in choices for found in IMPORT.findall(text)}):
        named.setdefault(module, []).append(name)
    imports = [f"from {module} import {', '.join(names)}" for module, names in named.items()]
    bodies = [IMPORT.sub("", text).strip() for text in choices if text]
    return Code(
        text="\n\n".join(["\n".join(["import torch", *imports]), *bodies]),
        libraries=tuple(named),
        loads_model=loads_model,
        pages_states=is_paged(plan.setup.optimizer.record),
    )


def why_not(plan: TrainingPlan, model: str) -> str:
    """Why the plan is not offered for a model of ``MODELS``, as the end of a sentence; empty where it is."""
    setup, layout = plan.setup, plan.layout
    if model == "plain":
        return ""
    if setup.recomputation.scope == "core":
        return "the attention core run again: in their models it is no module"
    inside = (layout and layout.param_dtype) or setup.precision.compute_dtype
    if inside == "float32" and setup.model.num_kv_heads < setup.model.num_heads:
        return "products in float32: the attention of transformers then stores the scores of grouped heads"
    return ""


# --- the model --------------------------------------------------------------------------------------------------------


def own_model_texts(plan: TrainingPlan) -> tuple[str, ...]:
    """This book's model in the plan's dtype, the adapters beside its frozen layers, and its loss."""
    setup, dtype, adapter = plan.setup, plan.setup.precision.weight_dtype, plan.setup.adapter
    cast = f"model = model.to(torch.{dtype})" if dtype != "float32" else ""
    beside = adapter and cleandoc(f"""
        from stepscope.program import add_adapters
        from stepscope.setup import AdapterConfig
        targets = {adapter.targets}
        adapter = AdapterConfig(rank={adapter.rank}, targets=targets, base="{adapter.base}")
        model.requires_grad_(False)
        for block in model.blocks:
            add_adapters(block, adapter)
        """)
    pieces = f"model.loss_pieces = {setup.loss_pieces}  # the logits of one piece of the tokens at a time"
    return cast, beside or "", pieces if setup.loss_pieces > 1 else ""


def loaded_model_texts(plan: TrainingPlan) -> tuple[str, ...]:
    """What ``transformers`` loads, peft's adapters beside it, and a loss that makes no float32 copy of all logits."""
    setup, dtype, adapter = plan.setup, plan.setup.precision.weight_dtype, plan.setup.adapter
    choices, more, in_4_bits = {"device_map": setup.device, "use_cache": False}, "", ""
    # GPT-2's gelu_new, operation by operation, keeps a third more
    if config_of(setup.model)["model_type"] == "gpt2":
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), setup.dropout)
        choices |= {"activation_function": "gelu_pytorch_tanh"} | drops
    if adapter is not None and adapter.base == "nf4":
        more = ", quantization_config=in_4_bits"
        in_4_bits = cleandoc(f"""
            from transformers import BitsAndBytesConfig
            in_4_bits = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.{dtype},
            )
            """)
    keywords = ", ".join(f"{key}={value!r}".replace("'", '"') for key, value in choices.items())
    loaded = cleandoc(f"""
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(
            "MODEL", dtype=torch.{dtype}{more},
            {keywords},
        )
        """)
    return in_4_bits, loaded, loaded_loss_text(setup.loss_pieces), peft_text(plan)


def loaded_loss_text(num_pieces: int) -> str:
    """The mean over the targets, as a whole or in pieces; -100 is no target, as in torch's own."""
    if num_pieces == 1:
        return cleandoc("""
            from torch.nn.functional import cross_entropy
            body, head = model.base_model, model.get_output_embeddings()

            def loss_of(inputs, targets):  # the model's own would make a float32 copy of the logits
                logits = head(body(input_ids=inputs).last_hidden_state)
                return cross_entropy(logits.flatten(0, 1), targets.flatten())

            model.forward = loss_of
            """)
    return cleandoc(f"""
        from torch.nn.functional import cross_entropy
        from torch.utils.checkpoint import checkpoint
        body, head = model.base_model, model.get_output_embeddings()

        def loss_of_piece(hidden, targets):
            return cross_entropy(head(hidden).float(), targets, reduction="sum")

        def loss_of(inputs, targets):  # the logits of one piece are there at a time, and made again in the backward
            hidden, targets = body(input_ids=inputs).last_hidden_state.flatten(0, 1), targets.flatten()
            pieces = zip(hidden.chunk({num_pieces}), targets.chunk({num_pieces}))
            total = sum(checkpoint(loss_of_piece, *piece, use_reentrant=False) for piece in pieces)
            return total / (targets != -100).sum()

        model.forward = loss_of
        """)


def peft_text(plan: TrainingPlan) -> str:
    """LoRA by peft, which puts its layers into the loaded model."""
    adapter = plan.setup.adapter
    if adapter is None:
        return ""
    names = ADAPTED["gpt2" if plan.setup.model.fuses_qkv else "llama"]
    config = f"LoraConfig(r={adapter.rank}, lora_alpha={2 * adapter.rank}, target_modules=targets)"
    return cleandoc(f"""
        from peft import LoraConfig
        from peft import get_peft_model
        targets = {[names[target] for target in adapter.targets]}
        adapted = get_peft_model(model, {config})  # its layers are now the model's
        """)


# --- how it runs ------------------------------------------------------------------------------------------------------

CHECKPOINT = """from functools import partial
from torch.utils.checkpoint import checkpoint
"""


def recomputation_text(plan: TrainingPlan) -> str:
    """What runs again, by wrapping each layer's forward."""
    strategy, arguments, policy = plan.setup.recomputation, "use_reentrant=False", ""
    if strategy == NONE:
        return ""
    if strategy.scope == "core":
        return CHECKPOINT + cleandoc(f"""
            for block in model.blocks:
                core = block.attention.core
                block.attention.core = partial(checkpoint, core, {arguments})
            """)
    if strategy.saved_ops:
        names = ["CheckpointPolicy"] * strategy.saves_every_second
        for name in (*names, "create_selective_checkpoint_contexts"):
            policy += f"from torch.utils.checkpoint import {name}\n"
        policy += "\n".join([*strategy.code.splitlines()[:-1], "", ""])
        arguments = f"{arguments}, context_fn=context_fn"
    regions = strategy.regions(plan.setup.model.num_layers)
    size = len(regions[0][0])
    num_again = sum(len(blocks) for blocks, is_again in regions if is_again)
    if size == 1:
        chosen = BLOCKS if strategy.period == 1 else f"{BLOCKS}[::{strategy.period}]"
        chosen += (
            f"[:{num_again}]" if strategy.num_segments or isinstance(strategy, FirstGroups) else ""
        )
        wrapped = f"""
            for block in {chosen}:
                block.forward = partial(checkpoint, block.forward, {arguments})
            """
    else:
        wrapped = f"""
            def in_turn(runs, x, *args, **kwargs):
                for run in runs:
                    x = run(x, *args, **kwargs)
                return x

            blocks = {BLOCKS}
            for start in range(0, {num_again}, {size}):  # the first of a group runs all of it, the others hand on
                group = blocks[start:start + {size}]
                run = partial(in_turn, [block.forward for block in group])
                group[0].forward = partial(checkpoint, run, {arguments})
                for block in group[1:]:
                    block.forward = lambda x, *args, **kwargs: x
            """
    return CHECKPOINT + policy + cleandoc(wrapped)


def layout_text(plan: TrainingPlan) -> str:
    """The model over the ranks: DDP, or each block a group of ``fully_shard``."""
    layout = plan.layout
    if layout is None:
        return ""
    head = f"# torchrun --nproc-per-node {layout.world_size}, after torch.distributed.init_process_group()"
    if not layout.is_fully_sharded:
        view = ", gradient_as_bucket_view=True" if layout.gradient_as_bucket_view else ""
        return cleandoc(f"""
            from torch.nn.parallel import DistributedDataParallel
            {head}
            model = DistributedDataParallel(model{view})
            """)
    names = ["fully_shard"]
    choices = [f'mesh=init_device_mesh("{plan.setup.device}", ({layout.world_size},))']
    dtypes = {"param_dtype": layout.param_dtype, "reduce_dtype": layout.reduce_dtype}
    if policy := ", ".join(f"{key}=torch.{dtype}" for key, dtype in dtypes.items() if dtype):
        names.append("MixedPrecisionPolicy")
        choices.append(f"mp_policy=MixedPrecisionPolicy({policy})")
    if layout.offloads:
        names.append("CPUOffloadPolicy")
        choices.append("offload_policy=CPUOffloadPolicy()")
    return "\n".join(
        [
            "from torch.distributed.device_mesh import init_device_mesh",
            *(f"from torch.distributed.fsdp import {name}" for name in names),
            head,
            "choices = dict(",
            *(f"    {choice}," for choice in choices),
            ")",
            f"for block in {BLOCKS}:",
            f"    fully_shard(block, reshard_after_forward={layout.stage == 3}, **choices)",
            "fully_shard(model, **choices)  # the rest stays whole from the forward's start to the backward's end",
        ]
    )


def optimizer_text(plan: TrainingPlan) -> str:
    """How the optimizer is made, and where it steps."""
    setup, place, record = plan.setup, plan.setup.place, plan.setup.optimizer.record
    library, _, name = record.made_by.partition(":")
    imports = f"from {library} import {name}\n"
    if library == "torch.optim":
        name, imports = f"torch.optim.{name}", ""
    keywords = {"lr": "learning_rate"} | record.keywords(setup.optimizer.implementation)
    if plan.rounds_at_random:
        keywords["bf16_stochastic_round"] = True
    more = ", ".join(f"{key}={value}" for key, value in keywords.items())
    trained = "model.parameters()"
    if setup.adapter:
        trained = f"[p for p in {trained} if p.requires_grad]"
    if write := written_by(setup):
        imports, dtype = "from memkit.low_precision import SixteenBitAdamW\n", ""
        if setup.precision.gradient_dtype != setup.precision.weight_dtype:
            dtype = "for p in model.parameters():\n"
            dtype += f"    p.grad_dtype = torch.{setup.precision.gradient_dtype}\n\n"
        made = f'optimizer = SixteenBitAdamW({trained}, lr=learning_rate, write="{write}")'
        return f"{imports}{dtype}{made}"
    if place == Place.IN_BACKWARD:
        return imports + cleandoc(f"""
            optimizers = {{p: {name}([p], {more}) for p in {trained}}}

            def step_and_free(p):  # no gradient is there with the others, so that none is clipped by their norm
                optimizers[p].step()
                optimizers[p].zero_grad()

            for p in optimizers:
                p.register_post_accumulate_grad_hook(step_and_free)
            """)
    if place.is_on_host:
        precision = trained_precision(setup.precision, setup.adapter)
        dtype = f"torch.{precision.master_dtype or precision.weight_dtype}"
        made = cleandoc(f"""
            on_host = {{p: p.detach().to("cpu", {dtype}) for p in {trained}}}  # what is stepped
            optimizer = {name}(on_host.values(), {more})

            def to_host(p):
                on_host[p].grad, p.grad = p.grad.to("cpu", {dtype}), None
            """)
        if place.frees_gradients:
            made += "\n\nfor p in on_host:\n    p.register_post_accumulate_grad_hook(to_host)"
        return imports + made
    if plan.layout and plan.layout.stage == 1:
        imports += "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        return f"{imports}optimizer = ZeroRedundancyOptimizer({trained}, {name}, {more})"
    return f"{imports}optimizer = {name}({trained}, {more})"


def step_text(plan: TrainingPlan) -> str:
    """One optimizer step: micro-batches, clipping, the update."""
    setup, steps = plan.setup, plan.setup.grad_accum_steps
    is_on_host, scales = setup.place.is_on_host, plan.scales_loss
    forward = [f"        loss = model(inputs, targets){f' / {steps}' * (steps > 1)}"]
    if setup.precision.uses_autocast:
        where = f'torch.autocast("{setup.device}", torch.{setup.precision.compute_dtype})'
        forward = [f"        with {where}:", f"    {forward[0]}"]
    clipped = "on_host.values()" if is_on_host else "model.parameters()"
    stepped = ["scaler.step(optimizer)", "scaler.update()"] if scales else ["optimizer.step()"]
    update = [
        *["for p in on_host:", "    to_host(p)"] * (setup.place == Place.ON_HOST),
        *["scaler.unscale_(optimizer)"] * scales,
        f"torch.nn.utils.clip_grad_norm_({clipped}, 1.0)",
        *stepped,
        "optimizer.zero_grad()",
        *["for p, copy in on_host.items():", "    p.data.copy_(copy)"] * is_on_host,
    ]
    return "\n".join(
        [
            *[f'scaler = torch.amp.GradScaler("{setup.device}")', ""] * scales,
            "def step():  # of token ids: nothing padded on the left, nothing packed",
            f"    for _ in range({steps}):  # micro-batches of {setup.micro_batch_size} × {setup.seq_len}",
            "        inputs, targets = next(batches)",
            *forward,
            "        scaler.scale(loss).backward()" if scales else "        loss.backward()",
            *(f"    {line}" for line in update if setup.place != Place.IN_BACKWARD),
            f"    return loss.detach(){f' * {steps}' * (steps > 1)}",
        ]
    )
