"""A plan as code: plain PyTorch for this book's model or one of ``transformers``, and for its ``Trainer``.

The first two need a source ``batches`` of (inputs, targets), each target the token that follows, and the book's text a
``model``; the trainer's needs a ``dataset`` of rows of so many token ids (``input_ids``, and the same as ``labels``).
What a library has no argument for is not printed for it: ``why_not`` says why, and the planner then offers the next
plan. ``plan_run`` executes the very text in a trace before it is shown.
"""

from memkit.recipes import AUTOCAST_BF16
from memkit.strategies import FULL, NONE
from memkit.units import as_one_of
from stepscope.fitting.optimizers import planned
from stepscope.fitting.plan import TrainingPlan, written_by
from stepscope.hugging_face import config_of
from stepscope.setup import Place

LIBRARIES = {"plain": "book", "transformers": "transformers", "trainer": "transformers"}
"""Whose model a kind of text trains."""

BLOCKS = "max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)"
"""A model's layers are its longest module list, whatever the model calls it."""

LOSSES = {
    "plain": [],
    "transformers": [
        "logits_of = model.forward", "",
        "def loss_of(inputs, targets):  # the model's own loss would make a float32 copy of the logits",
        "    logits = logits_of(input_ids=inputs).logits",
        "    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())", "",
        "model.forward = loss_of",
    ],
    "trainer": [
        "logits_of = model.forward", "",
        "def loss_of(input_ids, labels, num_items_in_batch=None, **_):  # its own makes a float32 copy of the logits",
        "    logits = logits_of(input_ids=input_ids).logits",
        "    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)  # the token that follows",
        "    logits, targets = logits.flatten(0, 1), targets.flatten()",
        '    total = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")',
        '    return {"loss": total / (num_items_in_batch or targets.numel())}', "",
        "model.forward = loss_of",
    ],
}
ADAPTED = {
    "gpt2": {"qkv": "c_attn", "output": "attn.c_proj", "up": "c_fc", "down": "mlp.c_proj"},
    "llama": {
        "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj", "up": "up_proj",
        "down": "down_proj",
    },
}
"""What the families of transformers call the layers; its Qwen2 is named as its Llama."""


def plain_code(plan: TrainingPlan, lr: float = 3e-4, kind: str = "plain") -> str:
    """One optimizer step in plain PyTorch, for the book's model (``plain``) or one of ``transformers``."""
    setup, steps = plan.setup, plan.setup.grad_accum_steps
    imports, made = optimizer_lines(plan, lr)
    loss = f"model(inputs, targets) / {steps}" if steps > 1 else "model(inputs, targets)"
    forward = [f"        loss = {loss}"]
    if setup.precision.uses_autocast:
        where = f'torch.autocast("{setup.device}", torch.{setup.precision.compute_dtype})'
        forward = [f"        with {where}:", f"            loss = {loss}"]
    backward, steps_by_itself = "loss.backward()", ["    optimizer.step()", "    optimizer.zero_grad()"]
    if plan.scales_loss:
        made = [*made, f'scaler = torch.amp.GradScaler("{setup.device}")']
        backward = "scaler.scale(loss).backward()"
        steps_by_itself = ["    scaler.step(optimizer)", "    scaler.update()", "    optimizer.zero_grad()"]
    parts = [
        ["import torch", *imports], model_lines(plan, kind), LOSSES[kind], checkpoint_lines(plan),
        spread_lines(plan), made,
        [
            "def step():",
            f"    for _ in range({steps}):  # micro-batches of {setup.micro_batch_size} × {setup.seq_len}",
            "        inputs, targets = next(batches)", *forward, f"        {backward}",
            *([] if setup.place == Place.IN_BACKWARD else steps_by_itself),
            f"    return loss.detach() * {steps}" if steps > 1 else "    return loss.detach()",
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def model_lines(plan: TrainingPlan, kind: str) -> list[str]:
    """The model in the plan's dtype, its adapters beside it: the reader's, or loaded by ``transformers``."""
    setup, dtype = plan.setup, plan.setup.precision.weight_dtype
    is_in_4_bits = setup.adapter is not None and setup.adapter.base == "nf4"
    if kind == "plain":
        lines = [f"model = model.to(torch.{dtype})"] if dtype != "float32" else []
        return [*lines, *own_adapter_lines(plan)]
    choices, more = {"device_map": setup.device, "use_cache": False}, ""
    if config_of(setup.model)["model_type"] == "gpt2":  # its gelu_new, operation by operation, keeps a third more
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), setup.dropout)
        choices |= {"activation_function": "gelu_pytorch_tanh"} | drops
    loaders = "AutoModelForCausalLM"
    if is_in_4_bits:
        loaders += ", BitsAndBytesConfig"
        more = ", quantization_config=in_4_bits"
    lines = [f"from transformers import {loaders}{', Trainer, TrainingArguments' if kind == 'trainer' else ''}", ""]
    if is_in_4_bits:
        lines += [
            "in_4_bits = BitsAndBytesConfig(",
            '    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,',
            f"    bnb_4bit_compute_dtype=torch.{dtype},", ")",
        ]
    told = [f"{key}={value!r}".replace("'", '"') for key, value in choices.items()]
    lines += ["model = AutoModelForCausalLM.from_pretrained(", f'    "MODEL", dtype=torch.{dtype}{more},',
              f"    {', '.join(told)},", ")"]
    if setup.adapter is None:
        return lines
    targets = [ADAPTED["gpt2" if setup.model.fuses_qkv else "llama"][each] for each in setup.adapter.targets]
    config = f"LoraConfig(r={setup.adapter.rank}, lora_alpha={2 * setup.adapter.rank}, target_modules=targets)"
    return [
        *lines, "", "from peft import LoraConfig, get_peft_model", "", f"targets = {targets}",
        f"model = get_peft_model(model, {config})",
    ]


def own_adapter_lines(plan: TrainingPlan) -> list[str]:
    """The book's adapters beside the layers of its model, which is frozen; in QLoRA every block is put in 4 bits."""
    adapter = plan.setup.adapter
    if adapter is None:
        return []
    return [
        "from stepscope.program import add_adapters", "from stepscope.setup import AdapterConfig", "",
        f"targets = {adapter.targets}",
        f'adapter = AdapterConfig(rank={adapter.rank}, targets=targets, base="{adapter.base}")',
        "model.requires_grad_(False)", "for block in model.blocks:", "    add_adapters(block, adapter)",
    ]


def optimizer_lines(plan: TrainingPlan, lr: float) -> tuple[list[str], list[str]]:
    """What is imported for the optimizer, and how it is made."""
    optimizer, record, place = plan.setup.optimizer, plan.setup.optimizer.record, plan.setup.place
    trained = "[p for p in model.parameters() if p.requires_grad]" if plan.setup.adapter else "model.parameters()"
    module, name = record.made_by.split(":")
    imports = [] if module == "torch.optim" else [f"from {module} import {name}"]
    made_by = f"torch.optim.{name}" if module == "torch.optim" else name
    is_fused = place.is_on_host and "fused" in record.implementations  # the host's processor has such a kernel too
    keywords = record.keywords("fused" if is_fused else optimizer.implementation)
    precision = plan.setup.precision
    if write := written_by(precision):
        made = [f'optimizer = SixteenBitAdamW(model.parameters(), lr={lr}, write="{write}")']
        if precision.gradient_dtype != precision.weight_dtype:
            made = ["for p in model.parameters():", f"    p.grad_dtype = torch.{precision.gradient_dtype}", "", *made]
        return ["from memkit.low_precision import SixteenBitAdamW"], made
    more = ", ".join(f"{key}={value!r}" for key, value in {"lr": lr, **keywords}.items())
    if plan.layout and plan.layout.stage == 1:
        imports.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
        return imports, [f"optimizer = ZeroRedundancyOptimizer({trained}, {made_by}, {more})"]
    if place.is_on_host:
        imports.append("from torchao.optim import CPUOffloadOptimizer")
        frees = ", offload_gradients=True" if place.frees_gradients else ""
        return imports, [f"optimizer = CPUOffloadOptimizer({trained}, {made_by}{frees}, {more})"]
    if place == Place.IN_BACKWARD:
        return imports, [
            f"optimizers = {{p: {made_by}([p], {more}) for p in {trained}}}", "",
            "def step_and_free(p):", "    optimizers[p].step()", "    optimizers[p].zero_grad()", "",
            "for p in optimizers:", "    p.register_post_accumulate_grad_hook(step_and_free)",
        ]
    return imports, [f"optimizer = {made_by}({trained}, {more})"]


def spread_lines(plan: TrainingPlan) -> list[str]:
    """The model over the ranks: DDP, or each block a group of ``fully_shard``."""
    layout = plan.layout
    if layout is None:
        return []
    head = [f"# torchrun --nproc-per-node {layout.world_size}, after torch.distributed.init_process_group()"]
    if not layout.is_fully_sharded:
        view = ", gradient_as_bucket_view=True" if layout.gradient_as_bucket_view else ""
        return [*head, "from torch.nn.parallel import DistributedDataParallel", "",
                f"model = DistributedDataParallel(model{view})"]
    names, choices = ["fully_shard"], [f'mesh=init_device_mesh("{plan.setup.device}", ({layout.world_size},))']
    dtypes = {key: getattr(layout, key) for key in ("param_dtype", "reduce_dtype")}
    if said := ", ".join(f"{key}=torch.{dtype}" for key, dtype in dtypes.items() if dtype):
        names.append("MixedPrecisionPolicy")
        choices.append(f"mp_policy=MixedPrecisionPolicy({said})")
    if layout.offloads:
        names.append("CPUOffloadPolicy")
        choices.append("offload_policy=CPUOffloadPolicy()")
    return [
        *head, "from torch.distributed.device_mesh import init_device_mesh",
        f"from torch.distributed.fsdp import {', '.join(sorted(names))}", "", "choices = dict(",
        *(f"    {choice}," for choice in choices), ")", f"for block in {BLOCKS}:",
        f"    fully_shard(block, reshard_after_forward={layout.stage == 3}, **choices)",
        "fully_shard(model, **choices)  # the rest stays whole from the forward's start to the backward's end",
    ]


def checkpoint_lines(plan: TrainingPlan) -> list[str]:
    """The recomputation, by wrapping each layer's forward."""
    strategy = plan.setup.recomputation
    if strategy == NONE:
        return []
    if strategy.scope == "core":
        return [
            "from functools import partial", "from torch.utils.checkpoint import checkpoint", "",
            "for block in model.blocks:", "    core = block.attention.core",
            "    block.attention.core = partial(checkpoint, core, use_reentrant=False)",
        ]
    lines = ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
    arguments = "use_reentrant=False"
    if strategy.saved_ops:
        imported = "CheckpointPolicy, create_selective_checkpoint_contexts"
        names = imported if strategy.saves_every_second else imported.partition(", ")[2]
        lines += [f"from torch.utils.checkpoint import {names}", ""]
        lines += strategy.code.splitlines()[:-1]
        arguments += ", context_fn=context_fn"
    regions = strategy.regions(plan.setup.model.num_layers)
    size, num_again = len(regions[0][0]), sum(len(blocks) for blocks, is_again in regions if is_again)
    if size == 1:
        chosen = BLOCKS if strategy.period == 1 else f"{BLOCKS}[::{strategy.period}]"
        chosen += f"[:{num_again}]" if strategy.num_segments or strategy.num_again else ""
        return [
            *lines, "", f"for block in {chosen}:",
            f"    block.forward = partial(checkpoint, block.forward, {arguments})",
        ]
    return [
        *lines, "", "def in_turn(runs, x, *args, **kwargs):", "    for run in runs:",
        "        x = run(x, *args, **kwargs)", "    return x", "", f"blocks = {BLOCKS}",
        f"for start in range(0, {num_again}, {size}):  # the first of a group runs all of it, the others hand on",
        f"    group = blocks[start:start + {size}]",
        "    run = partial(in_turn, [block.forward for block in group])",
        f"    group[0].forward = partial(checkpoint, run, {arguments})",
        "    for block in group[1:]:", "        block.forward = lambda x, *args, **kwargs: x",
    ]


def why_not(plan: TrainingPlan, kind: str) -> str:
    """Why a kind of text cannot say the plan, as the end of a sentence; empty where it can.

    Source: ``TrainingArguments`` of transformers 5.23.
    """
    setup, layout = plan.setup, plan.layout
    is_moved = setup.place != Place.AFTER_BACKWARD
    if setup.recomputation.scope == "core" and kind != "plain":
        return "the attention core run again: in their models it is no module"
    is_grouped = setup.model.num_kv_heads < setup.model.num_heads
    inside = (layout and layout.param_dtype) or setup.precision.compute_dtype
    if LIBRARIES[kind] == "transformers" and inside == "float32" and is_grouped:
        return "products in float32: the attention of transformers then stores the scores of grouped heads"
    if kind == "trainer":
        if layout is not None:
            return "plans for several cards: the trainer spreads its run only where it is launched on the cards"
        if is_moved:
            return "optimizers in the backward or on the host: the trainer has no argument for them"
        if written_by(setup.precision):
            return "copies beside 16-bit weights: no optimizer of the trainer keeps them"
        if plan.scales_loss and setup.adapter is not None:
            return "adapters in float16: the trainer scales the loss under autocast alone"
    return ""


def trainer_code(plan: TrainingPlan) -> str:
    """The plan for Hugging Face's ``Trainer``, by arguments of transformers 5."""
    setup, record = plan.setup, plan.setup.optimizer.record
    rows = [f"    {key}={value!r},".replace("'", '"') for key, value in trainer_arguments(plan).items()]
    own, more = [], ""
    if not planned(record).trainer_name:  # an optimizer that optim= does not name, or names another one by
        imports, made = optimizer_lines(plan, 3e-4)
        own, more = [*imports, *made, ""], ", optimizers=(optimizer, None)"
    wrapped = [] if setup.recomputation == NONE or asks_for_full(plan) else [*checkpoint_lines(plan), ""]
    return "\n".join([
        "import torch", *model_lines(plan, "trainer"), "", *LOSSES["trainer"], "", *wrapped, *own,
        "args = TrainingArguments(", *rows, ")",
        f"trainer = Trainer(model, args, train_dataset=dataset{more})",
        f"trainer.train()  # rows of {setup.seq_len} tokens",
    ])


def asks_for_full(plan: TrainingPlan) -> bool:
    """Whether an argument of the trainer asks for full recomputation.

    Not beside adapters: it would make the frozen embedding's output require a gradient, which keeps it once more.
    """
    return plan.setup.recomputation == FULL and plan.setup.adapter is None


def trainer_arguments(plan: TrainingPlan) -> dict:
    """Arguments of ``TrainingArguments``."""
    setup, is_full = plan.setup, asks_for_full(plan)
    arguments = {
        "output_dir": "out", "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.grad_accum_steps, "num_train_epochs": 1,
        "bf16": setup.precision == AUTOCAST_BF16, "fp16": plan.scales_loss,
        "optim": planned(setup.optimizer.record).trainer_name or "adamw_torch_fused",
        "activation_checkpointing": is_full,
        "learning_rate": 3e-4, "warmup_steps": 100, "save_strategy": "no", "report_to": "none",
    }
    if is_full:
        arguments["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    return arguments


def code_of(plan: TrainingPlan, kind: str = "plain") -> str:
    """The text of a kind, one of ``LIBRARIES``.

    None is a launcher's file: nothing here can run it, and Accelerate's sums gradients in the dtype that it computes
    in, DeepSpeed's halves keep a float32 copy beside AdamW's states, so that their runs are other plans.

    Raises: ValueError: no such kind, or it cannot say the plan.
    """
    if reason := why_not(plan, as_one_of("kind", kind, LIBRARIES)):
        raise ValueError(f"kind={kind!r} cannot say {plan.name}; not offered are {reason}")
    return trainer_code(plan) if kind == "trainer" else plain_code(plan, kind=kind)

