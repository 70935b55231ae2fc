"""A plan as code: in plain PyTorch, as arguments of Hugging Face's trainer, as Accelerate's file.

Each is text that runs as it is. The plain loop takes a ``model`` and a source ``batches`` of (inputs, targets), each
target the token that follows; the model is this book's, or one of ``transformers`` (``MODELS``). What a library has no
key for, and where its run differs from the plan, ``differences`` says.

Of Accelerate's file, stages 2 and 3 are FSDP2; DDP has no keys of its own; for ``ZeroRedundancyOptimizer`` (stage 1)
there is no key, and the file says so. Each key that moves bytes carries a comment: the plan's peak beside that of the
same plan with the opposite value, both by formula.
"""

from dataclasses import replace

from memkit.fitting.plans import TrainingPlan, plan_of
from memkit.setup.optimizers import Place
from memkit.setup.recipes import AUTOCAST_BF16, AUTOCAST_FP16, FP32
from memkit.setup.strategies import FULL, NONE
from memkit.units import as_one_of, format_bytes

MODELS = ("book", "transformers")
BLOCKS = "max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)"
"""A model's layers are its longest module list, whatever the model calls it."""

LOSSES = {
    "book": ["def loss_of(inputs, targets):", "    return model(inputs, targets)"],
    "transformers": [
        "def loss_of(inputs, targets):  # the model's own would make a float32 copy of the logits",
        "    logits = model(input_ids=inputs, use_cache=False).logits",
        "    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())",
    ],
}


def plain_code(plan: TrainingPlan, lr: float = 3e-4, library: str = "book") -> str:
    """One optimizer step in plain PyTorch, for a model of one of ``MODELS``.

    Raises: ValueError: an unknown library.
    """
    as_one_of("library", library, MODELS)
    setup, steps = plan.setup, plan.setup.grad_accum_steps
    imports, made = optimizer_lines(plan, lr)
    loss = f"loss_of(inputs, targets) / {steps}" if steps > 1 else "loss_of(inputs, targets)"
    forward = [f"        loss = {loss}"]
    if setup.precision.uses_autocast:
        where = f'torch.autocast("{setup.device}", torch.{setup.precision.compute_dtype})'
        forward = [f"        with {where}:", f"            loss = {loss}"]
    backward, steps_by_itself = "loss.backward()", ["    optimizer.step()", "    optimizer.zero_grad()"]
    if plan.scales_loss:
        made = [*made, f'scaler = torch.amp.GradScaler("{setup.device}")']
        backward = "scaler.scale(loss).backward()"
        steps_by_itself = ["    scaler.step(optimizer)", "    scaler.update()", "    optimizer.zero_grad()"]
    is_narrow = setup.precision.weight_dtype != "float32" and not is_in_4_bits(plan)
    parts = [
        ["import torch", *imports], [f"model = model.to(torch.{setup.precision.weight_dtype})"] if is_narrow else [],
        adapter_lines(plan, library), checkpoint_lines(plan), spread_lines(plan), made, LOSSES[library],
        [
            "def step():",
            f"    for _ in range({steps}):  # micro-batches of {setup.micro_batch_size} × {setup.seq_len}",
            "        inputs, targets = next(batches)", *forward, f"        {backward}",
            *([] if setup.optimizer.place == Place.IN_BACKWARD else steps_by_itself),
            f"    return loss.detach() * {steps}" if steps > 1 else "    return loss.detach()",
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def is_in_4_bits(plan: TrainingPlan) -> bool:
    """Whether the frozen weights are NF4."""
    return plan.setup.adapter is not None and plan.setup.adapter.base == "nf4"


def optimizer_lines(plan: TrainingPlan, lr: float) -> tuple[list[str], list[str]]:
    """What is imported for the optimizer, and how it is made."""
    optimizer, record = plan.setup.optimizer, plan.setup.optimizer.record
    trained = "[p for p in model.parameters() if p.requires_grad]" if plan.setup.adapter else "model.parameters()"
    module, name = record.made_by.split(":")
    imports = [] if module == "torch.optim" else [f"from {module} import {name}"]
    made_by = f"torch.optim.{name}" if module == "torch.optim" else name
    keywords = record.keywords("fused" if optimizer.is_on_host else optimizer.implementation)
    more = ", ".join(f"{key}={value!r}" for key, value in {"lr": lr, **keywords}.items())
    if plan.layout and plan.layout.stage == 1:
        imports.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
        return imports, [f"optimizer = ZeroRedundancyOptimizer({trained}, {made_by}, {more})"]
    if optimizer.is_on_host:
        imports.append("from torchao.optim import CPUOffloadOptimizer")
        frees = ", offload_gradients=True" if optimizer.frees_gradients else ""
        return imports, [f"optimizer = CPUOffloadOptimizer({trained}, {made_by}{frees}, {more})"]
    if optimizer.place == Place.IN_BACKWARD:
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
        return [*head, "from torch.nn.parallel import DistributedDataParallel", "",
                "model = DistributedDataParallel(model)"]
    names, choices = ["fully_shard"], []
    if layout.param_dtype:
        names.append("MixedPrecisionPolicy")
        choices.append(f"mp_policy=MixedPrecisionPolicy(param_dtype=torch.{layout.param_dtype})")
    if layout.offloads:
        names.append("CPUOffloadPolicy")
        choices.append("offload_policy=CPUOffloadPolicy()")
    more = ", **choices" if choices else ""
    return [
        *head, f"from torch.distributed.fsdp import {', '.join(sorted(names))}", "",
        *([f"choices = dict({', '.join(choices)})"] if choices else []), f"for block in {BLOCKS}:",
        f"    fully_shard(block, reshard_after_forward={layout.stage == 3}{more})",
        f"fully_shard(model{more})  # the rest stays whole from the forward's start to the backward's end",
    ]


def adapter_lines(plan: TrainingPlan, library: str = "transformers") -> list[str]:
    """LoRA by peft; QLoRA wants the model loaded in 4 bits."""
    adapter = plan.setup.adapter
    if adapter is None:
        return []
    lines = ["from peft import LoraConfig, get_peft_model", ""]
    if adapter.base == "nf4":
        lines += ["# load the model with quantization_config=BitsAndBytesConfig(load_in_4bit=True,",
                  '#     bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,',
                  f"#     bnb_4bit_compute_dtype=torch.{plan.setup.precision.compute_dtype})"]
    targets = adapter.targets if library == "book" else tuple(PEFT_NAMES.get(name, name) for name in adapter.targets)
    config = f"LoraConfig(r={adapter.rank}, lora_alpha={2 * adapter.rank}, target_modules=targets)"
    return [*lines, f"targets = {list(targets)}", f"model = get_peft_model(model, {config})"]


PEFT_NAMES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj", "qkv": "c_attn",
}
"""What Hugging Face's Llama calls the layers, and GPT-2 its fused one."""


def checkpoint_lines(plan: TrainingPlan) -> list[str]:
    """The recomputation, by wrapping each layer's forward."""
    strategy = plan.setup.recomputation
    if strategy == NONE:
        return []
    lines = ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
    arguments = "use_reentrant=False"
    if strategy.saved_ops:
        imported = "CheckpointPolicy, create_selective_checkpoint_contexts"
        names = imported if strategy.saves_every_second else imported.partition(", ")[2]
        lines += [f"from torch.utils.checkpoint import {names}", ""]
        lines += strategy.code.splitlines()[:-1]
        arguments += ", context_fn=context_fn"
    chosen = BLOCKS if strategy.period == 1 else f"{BLOCKS}[::{strategy.period}]"
    wrapped = f"    block.forward = partial(checkpoint, block.forward, {arguments})"
    return [*lines, "", f"for block in {chosen}:", wrapped]


def differences(plan: TrainingPlan) -> list[str]:
    """Where a run of the trainer's code is not the plan that was traced, a sentence each."""
    setup, notes = plan.setup, []
    if setup.optimizer.place != Place.AFTER_BACKWARD:
        notes.append(f"an optimizer {setup.optimizer.place} has no argument: this run steps after the backward")
    if setup.recomputation not in (NONE, FULL):
        notes.append(f"{setup.recomputation.name!r} has no argument: this run recomputes whole blocks")
    notes.append("SFTTrainer takes the loss in pieces, never all the logits: its peak may be lower than the plan's")
    if plan.scales_loss and setup.adapter is not None:
        notes.append("the trainer scales the loss under autocast alone, which makes norms and softmax float32")
    if not setup.optimizer.record.trainer_name:
        notes.append(f"{setup.optimizer.name} has no value of optim: pass optimizers=(...) to the trainer")
    return notes


def trainer_code(plan: TrainingPlan, name: str = "MODEL") -> str:
    """The plan for TRL's ``SFTTrainer``, by arguments of TRL 1 and transformers 5."""
    rows = [f"    {key}={value!r}," for key, value in trainer_arguments(plan).items()]
    dtype = plan.setup.precision.weight_dtype
    notes = [f"# {words}" for words in differences(plan)]
    if plan.layout:
        notes += ["# start it by: accelerate launch --config_file accelerate.yaml train.py"]
    return "\n".join([
        "import torch", "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "from trl import SFTConfig, SFTTrainer", "",
        f'model = AutoModelForCausalLM.from_pretrained("{name}", dtype=torch.{dtype})', *notes, *adapter_lines(plan),
        "args = SFTConfig(",
        *rows, ")", f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        "trainer = SFTTrainer(model, args=args, processing_class=tokenizer, train_dataset=dataset)",
        "trainer.train()",
    ])


def trainer_arguments(plan: TrainingPlan) -> dict:
    """Arguments of ``SFTConfig``; but for ``max_length`` and ``packing`` they are ``TrainingArguments``' too.

    FSDP recomputes by a key of Accelerate's file, and the trainer refuses its own beside it.
    """
    setup = plan.setup
    in_file = plan.layout is not None and plan.layout.is_fully_sharded
    arguments = {
        "output_dir": "out", "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.grad_accum_steps, "max_length": setup.seq_len, "packing": True,
        "bf16": casts_down(plan) and not plan.scales_loss, "fp16": plan.scales_loss,
        "optim": setup.optimizer.record.trainer_name or "adamw_torch_fused",
        "activation_checkpointing": setup.recomputation != NONE and not in_file,
        "learning_rate": 3e-4, "warmup_steps": 100,
    }
    if arguments["activation_checkpointing"]:
        arguments["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    return arguments


def accelerate_config(plan: TrainingPlan) -> dict:
    """Accelerate's keys for a plan, as ``ClusterConfig`` takes them; those of FSDP2 under ``fsdp_config``."""
    layout = plan.layout
    kinds = {True: "FSDP", False: "MULTI_GPU"}
    keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[layout.is_fully_sharded] if layout else "NO",
        "mixed_precision": half_of(plan) if casts_down(plan) or plan.scales_loss else "no", "num_machines": 1,
        "num_processes": layout.world_size if layout else 1,
    }
    if layout and layout.is_fully_sharded:
        keys["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.stage == 3, "fsdp_offload_params": layout.offloads,
            "fsdp_activation_checkpointing": plan.setup.recomputation == FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    return keys


def half_of(plan: TrainingPlan) -> str:
    """The 16-bit dtype that is computed in, as the libraries spell it."""
    return "fp16" if plan.scales_loss else "bf16"


def casts_down(plan: TrainingPlan) -> bool:
    """Whether float32 weights are computed with in 16 bits: by autocast, or by what FSDP2 gathers."""
    return plan.setup.precision.uses_autocast or bool(plan.layout and plan.layout.param_dtype)


def opposites(plan: TrainingPlan) -> dict[str, tuple[str, TrainingPlan]]:
    """By key that moves bytes: the opposite value, and the plan with it."""
    setup, layout = plan.setup, plan.layout
    ways = {}
    if layout is None or not layout.is_fully_sharded:
        if casts_down(plan):
            ways["mixed_precision"] = "no", (replace(setup, precision=FP32), layout)
    else:
        if casts_down(plan):
            ways["mixed_precision"] = "no", (setup, replace(layout, param_dtype=None))
        reshards, offloads, again = layout.stage == 3, layout.offloads, setup.recomputation == FULL
        other = replace(layout, stage=2 if reshards else 3)
        ways["fsdp_reshard_after_forward"] = as_yaml(not reshards), (setup, other)
        other = replace(layout, offloads=not offloads)
        ways["fsdp_offload_params"] = as_yaml(not offloads), (setup, other)
        if setup.recomputation in (NONE, FULL):
            other = replace(setup, recomputation=NONE if again else FULL)
            ways["fsdp_activation_checkpointing"] = as_yaml(not again), (other, layout)
    if layout:
        halves = AUTOCAST_FP16 if plan.scales_loss else AUTOCAST_BF16
        alone = replace(setup, precision=halves) if layout.param_dtype else setup
        ways["num_processes"] = "1", (alone, None)
    return {key: (value, plan_of(way[0], plan.card, way[1])) for key, (value, way) in ways.items()}


def accelerate_yaml(plan: TrainingPlan) -> str:
    """The file, each key that moves bytes with what its opposite would do to the peak."""
    worth = {key: worth_of(plan, *other) for key, other in opposites(plan).items()}
    lines = [f"# {plan.name}: {format_bytes(plan.peak_bytes)}", *notes_on(plan)]
    for key, value in accelerate_config(plan).items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {as_yaml(v)}{worth.get(name, '')}" for name, v in value.items())]
        else:
            lines.append(f"{key}: {as_yaml(value)}{worth.get(key, '')}")
    return "\n".join(lines)


def worth_of(plan: TrainingPlan, value: str, other: TrainingPlan) -> str:
    """A comment that says what a key's other value would do to the peak."""
    more = other.peak_bytes - plan.peak_bytes
    words = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same peak"
    return f"  # {value}: {words}"


def notes_on(plan: TrainingPlan) -> list[str]:
    """What Accelerate's file has no key for."""
    setup, notes = plan.setup, []
    if setup.grad_accum_steps > 1:
        notes.append(f"# in the script: Accelerator(gradient_accumulation_steps={setup.grad_accum_steps})")
    if setup.adapter is not None:
        notes.append("# adapters have no key: in the script, peft's get_peft_model")
    if setup.optimizer.name != "AdamW" or setup.optimizer.place != Place.AFTER_BACKWARD:
        notes.append(f"# {setup.optimizer.name} {setup.optimizer.place} has no key: in the script")
    if plan.layout and plan.layout.stage == 1:
        notes.append("# ZeRO-1 has no key: in the script the optimizer is a ZeroRedundancyOptimizer")
    has_key = plan.layout and plan.layout.is_fully_sharded and setup.recomputation == FULL
    if setup.recomputation != NONE and not has_key:
        notes.append(f"# {setup.recomputation.name} has no key: in the script, around each block")
    return notes


def as_yaml(value: bool | int | str) -> str:
    """A scalar as YAML writes it; ``no`` in quotes, or it would be a false."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'no'" if value == "no" else str(value)


def code_of(plan: TrainingPlan, kind: str = "plain") -> str:
    """One of ``KINDS`` as text; ``plain`` is for the book's model, ``transformers`` the same for one of Hugging Face's.

    None is DeepSpeed's file: its halves keep a float32 copy beside AdamW's states, so that its run was never the plan.

    Raises: ValueError: no such kind.
    """
    return KINDS[as_one_of("kind", kind, KINDS)](plan)


KINDS = {
    "plain": plain_code,
    "transformers": lambda plan: plain_code(plan, library="transformers"),
    "trainer": trainer_code,
    "accelerate": accelerate_yaml,
}
