"""The program of PEFT's method comparison on Llama-3.2-3B, written again in our own words, for ``trace_script``.

Batches of four lines, padded to the longest, bf16 weights and float32 adapters, no recomputation, AdamW. Outputs, loss,
batch and gradients of a step live until the next step replaces them; the outputs hold the logits and, since the cache
is on in training too, keys and values. The allocator's cache is emptied every ten steps, and batches come in buckets of
twenty from long to short, so a longest batch meets an emptied cache: here it is emptied before every step.

What the published figures hang on and nobody recorded is the longest batch: ``LENGTHS`` has it, fitted on one run.

Source: github.com/huggingface/peft at 5d602fd, method_comparison/MetaMathQA (run.py, utils.py). Nothing is copied.
"""

import dataclasses
import json
from collections.abc import Callable

import torch

from dev.bench.public_programs import TRANSFORMERS, with_torchvision_operators
from memkit.fit import workspace_bytes
from stepscope import trace_script
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replay import Player

FITTED_ON = "tinylora/llama-3.2-3B-weight-tying"
LENGTHS = (200, 100, 691)
"""Tokens of three steps: states are made by the first, the last is the longest batch of the run.

On the fitted run 690 to 692 are equally near, 4 MiB."""
L40S = (8, 9)


def build(train: dict, adapter: dict | None, lengths: tuple[int, ...]) -> Callable:
    """The benchmark's steps."""
    with_torchvision_operators()
    import peft
    import transformers

    _, options = TRANSFORMERS["meta-llama/Llama-3.2-3B-Instruct"]

    def make():
        config = transformers.LlamaConfig(**options)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(
            "cuda"
        )
        if adapter:
            of_type = peft.PEFT_TYPE_TO_CONFIG_MAPPING[adapter["peft_type"]]
            known = {field.name for field in dataclasses.fields(of_type)}
            model = peft.get_peft_model(
                model, of_type(**{k: v for k, v in adapter.items() if k in known})
            )
        optimizer = optimizer_of(model, train)
        if adapter:
            # the benchmark's first measure; leaving it makes lora_A trained again
            with model.disable_adapter():
                pass
        model.train()
        alive, coming = {}, iter(lengths)

        def step():
            shape = (train["batch_size"], next(coming))
            ids, mask = (torch.ones(shape, dtype=torch.long, device="cpu") for _ in range(2))
            mask[1:, -1] = 0  # shorter lines: attention gets a mask
            alive["batch"] = {"input_ids": ids.to("cuda"), "attention_mask": mask.to("cuda")}
            alive["batch"]["labels"] = alive["batch"]["input_ids"].clone()
            optimizer.zero_grad()
            alive["outputs"] = model(**alive["batch"], num_items_in_batch=shape[0] * shape[1])
            alive["loss"] = alive["outputs"].loss
            alive["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), train["grad_norm_clip"])
            optimizer.step()

        return step

    return make


def optimizer_of(model, train: dict):
    """The optimizer that a run names: torch's, or PEFT's LoRA+ and LoRA-FA."""
    from peft import optimizers

    match train["optimizer_type"]:
        case "lora+":
            return optimizers.create_loraplus_optimizer(
                model, torch.optim.AdamW, **train["optimizer_kwargs"]
            )
        case "lora-fa":
            return optimizers.create_lorafa_optimizer(model, **train["optimizer_kwargs"])
        case name:
            return getattr(torch.optim, name)(model.parameters(), **train["optimizer_kwargs"])


def reserved_bytes(row: dict[str, str], lengths: tuple[int, ...] = LENGTHS) -> int:
    """The greatest reserved bytes of a row's three steps."""
    adapter = json.loads(row["peft_config"]) if row["peft_config"] else None
    trace = trace_script(
        build(json.loads(row["train_config"]), adapter, lengths), steps=len(lengths)
    )
    allocator, step = CachingAllocator(), None
    player = Player(allocator, workspace_bytes(L40S))
    for event in trace.events:
        if event.step != step:
            allocator.empty_cache()
            step = event.step
        player.play(event)
    return allocator.peak["reserved"]
