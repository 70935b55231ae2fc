"""A plan as code: in plain PyTorch, as arguments of Hugging Face's trainer, as DeepSpeed's or Accelerate's file.

Each is text that runs as it is: the plain loop on a ``model`` whose blocks are ``model.blocks`` and a source
``batches`` of (inputs, targets); the trainer's with today's names. What a library has no key for is said in a comment.
"""

import json

from memkit.fitting.launch_config import accelerate_yaml, casts_to_bf16
from memkit.fitting.plans import TrainingPlan
from memkit.setup.strategies import FULL, NONE
from memkit.sharding.deepspeed import key_bytes
from memkit.units import aligned_table, as_one_of, format_bytes

OPTIM = {"AdamW": "adamw_torch_fused", "torchao 8-bit AdamW": "adamw_torch_8bit"}
"""What the trainer's ``optim`` calls an optimizer."""


def plain_code(plan: TrainingPlan, lr: float = 3e-4) -> str:
    """One optimizer step in plain PyTorch."""
    setup, steps = plan.setup, plan.setup.grad_accum_steps
    lines = ["import torch"]
    lines += [*checkpoint_lines(plan), ""]
    lines += ["model = model.to(torch.bfloat16)"] if setup.precision.weight_dtype == "bfloat16" else []
    imported, made = optimizer_lines(plan, lr)
    lines += imported
    loss = f"model(inputs, targets) / {steps}" if steps > 1 else "model(inputs, targets)"
    forward = [f"    loss = {loss}"]
    if setup.precision.uses_autocast:
        where = f'torch.autocast("{setup.device}", torch.{setup.precision.compute_dtype})'
        forward = [f"    with {where}:", f"        loss = {loss}"]
    batch = f"micro-batches of {setup.micro_batch_size} × {setup.seq_len}"
    return "\n".join([
        *lines, *adapter_lines(plan), *spread_lines(plan), *made, "", "def step():",
        f"    for _ in range({steps}):  # {batch}",
        "        inputs, targets = next(batches)",
        *(f"    {line}" for line in forward), "        loss.backward()",
        *([] if setup.optimizer.frees_gradients else ["    optimizer.step()", "    optimizer.zero_grad()"]),
        f"    return loss.detach() * {steps}" if steps > 1 else "    return loss.detach()",
    ])  # fmt: skip


def optimizer_lines(plan: TrainingPlan, lr: float) -> tuple[list[str], list[str]]:
    """What is imported for the optimizer, and how it is made."""
    optimizer = plan.setup.optimizer
    trained = "[p for p in model.parameters() if p.requires_grad]" if plan.setup.adapter else "model.parameters()"
    if plan.layout and plan.layout.stage == 1:
        made = f"optimizer = ZeroRedundancyOptimizer({trained}, torch.optim.AdamW, lr={lr}, fused=True)"
        return ["from torch.distributed.optim import ZeroRedundancyOptimizer"], [made]
    if optimizer.name == "torchao 8-bit AdamW":
        return ["from torchao.optim import AdamW8bit"], [f"optimizer = AdamW8bit({trained}, lr={lr})"]
    if optimizer.is_on_host:
        made = f"optimizer = CPUOffloadOptimizer({trained}, torch.optim.AdamW, fused=True, lr={lr})"
        return ["from torchao.optim import CPUOffloadOptimizer"], [made]
    if optimizer.frees_gradients:
        return [], [
            f"optimizers = {{p: torch.optim.AdamW([p], lr={lr}, fused=True) for p in {trained}}}", "",
            "def step_and_free(p):", "    optimizers[p].step()", "    optimizers[p].zero_grad()", "",
            "for p in optimizers:", "    p.register_post_accumulate_grad_hook(step_and_free)",
        ]  # fmt: skip
    return [], [f"optimizer = torch.optim.AdamW({trained}, lr={lr}, fused=True)"]


def spread_lines(plan: TrainingPlan) -> list[str]:
    """The model over the ranks: DDP, or each block a group of ``fully_shard``."""
    layout = plan.layout
    if layout is None:
        return []
    head = [f"# torchrun --nproc-per-node {layout.world_size}, after torch.distributed.init_process_group()"]
    if not layout.is_fully_sharded:
        return [*head, "from torch.nn.parallel import DistributedDataParallel", "",
                "model = DistributedDataParallel(model)"]  # fmt: skip
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
        *([f"choices = dict({', '.join(choices)})"] if choices else []), "for block in model.blocks:",
        f"    fully_shard(block, reshard_after_forward={layout.stage == 3}{more})",
        f"fully_shard(model{more})  # the rest stays whole from the forward's start to the backward's end",
    ]  # fmt: skip


def adapter_lines(plan: TrainingPlan) -> list[str]:
    """LoRA by peft; QLoRA wants the model loaded in 4 bits."""
    adapter = plan.setup.adapter
    if adapter is None:
        return []
    lines = ["from peft import LoraConfig, get_peft_model", ""]
    if adapter.base == "nf4":
        lines += ["# load the model with quantization_config=BitsAndBytesConfig(load_in_4bit=True,",
                  '#     bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)']  # fmt: skip
    targets = tuple(PEFT_NAMES.get(name, name) for name in adapter.targets)
    config = f"LoraConfig(r={adapter.rank}, lora_alpha={2 * adapter.rank}, target_modules=targets)"
    return [*lines, f"targets = {list(targets)}", f"model = get_peft_model(model, {config})"]


PEFT_NAMES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj", "qkv": "c_attn",
}  # fmt: skip
"""What Hugging Face's Llama calls the layers, and GPT-2 its fused one."""


def checkpoint_lines(plan: TrainingPlan) -> list[str]:
    """The recomputation, by wrapping each block's forward."""
    strategy = plan.setup.recomputation
    if strategy == NONE:
        return []
    lines = ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
    how = "use_reentrant=False"
    if strategy.saved_ops:
        lines += ["from torch.utils.checkpoint import create_selective_checkpoint_contexts", ""]
        lines += strategy.code.splitlines()[:-1]
        how += ", context_fn=context_fn"
    blocks = "model.blocks" if strategy.period == 1 else f"model.blocks[::{strategy.period}]"
    return [*lines, "", f"for block in {blocks}:", f"    block.forward = partial(checkpoint, block.forward, {how})"]


def trainer_code(plan: TrainingPlan, name: str = "MODEL") -> str:
    """The plan for TRL's ``SFTTrainer``, by arguments of TRL 1 and transformers 5."""
    rows = [f"    {key}={value!r}," for key, value in trainer_arguments(plan).items()]
    dtype = plan.setup.precision.weight_dtype
    strategy, notes = plan.setup.recomputation, []
    if plan.setup.optimizer.place != "after backward":
        notes += [f"# an optimizer {plan.setup.optimizer.place} has no argument"]
    if plan.layout:
        notes += ["# start it by: accelerate launch --config_file accelerate.yaml train.py"]
    if strategy not in (NONE, FULL):
        notes += [f"# activation_checkpointing runs whole blocks again; {strategy.name!r} has no argument"]
    return "\n".join([
        "import torch", "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "from trl import SFTConfig, SFTTrainer", "",
        f'model = AutoModelForCausalLM.from_pretrained("{name}", dtype=torch.{dtype})', *notes, *adapter_lines(plan),
        "args = SFTConfig(",
        *rows, ")", f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        "trainer = SFTTrainer(model, args=args, processing_class=tokenizer, train_dataset=dataset)",
        "trainer.train()",
    ])  # fmt: skip


def trainer_arguments(plan: TrainingPlan) -> dict:
    """Arguments of ``SFTConfig``; but for ``max_length`` and ``packing`` they are ``TrainingArguments``' too.

    FSDP recomputes by a key of Accelerate's file, and the trainer refuses its own beside it.
    """
    setup = plan.setup
    in_file = plan.layout is not None and plan.layout.is_fully_sharded
    found = {
        "output_dir": "out", "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.grad_accum_steps, "max_length": setup.seq_len, "packing": True,
        "bf16": casts_to_bf16(plan), "optim": OPTIM[setup.optimizer.name],
        "activation_checkpointing": setup.recomputation != NONE and not in_file,
        "learning_rate": 3e-4, "warmup_steps": 100,
    }  # fmt: skip
    if found["activation_checkpointing"]:
        found["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    return found


def deepspeed_config(plan: TrainingPlan) -> dict:
    """The plan as DeepSpeed's JSON. Its bf16 keeps a float32 master copy, whatever the plan's weights are."""
    setup, layout = plan.setup, plan.layout
    zero: dict = {"stage": layout.stage if layout else 0}
    if layout and layout.offloads:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.grad_accum_steps, "gradient_clipping": 1.0,
        "bf16": {"enabled": True}, "zero_optimization": zero,
    }  # fmt: skip


def deepspeed_worth(plan: TrainingPlan) -> str:
    """What DeepSpeed's keys take on each card, those that the file leaves at their defaults too, a line each.

    Not in the file: JSON has no comments. The plan's peak is torch's, with its own buckets in it, not these.
    """
    found = key_bytes(deepspeed_config(plan), plan.setup.model, plan.layout.dp_size if plan.layout else 1)
    rows = [[key, f"{format_bytes(abs(size))}{' moved to the host' * (size < 0)}"] for key, size in found.items()]
    return aligned_table([["DeepSpeed's key", "bytes on each card, at most"], *rows]) if rows else ""


def code_of(plan: TrainingPlan, kind: str = "plain") -> str:
    """One of ``KINDS`` as text.

    Raises: ValueError: no such kind.
    """
    return KINDS[as_one_of("kind", kind, KINDS)](plan)


KINDS = {
    "plain": plain_code,
    "trainer": trainer_code,
    "deepspeed": lambda plan: json.dumps(deepspeed_config(plan), indent=2),
    "accelerate": accelerate_yaml,
}
