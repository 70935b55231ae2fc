"""Loops of others, Accelerate's and Hugging Face's Trainer, and one rank of eight in a group that sends nothing."""

import functools
import tempfile

import accelerate
import torch
import torch.distributed as dist
import transformers as hf
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from training_loop import training
from zoo.language import GROUPED, TOKENS, VOCAB
from zoo.programs import MEASURE, Program

from stepscope.program.sharded import sent_at_once

NUM_RANKS, WIDTH = 8, 256


def accelerated(device):
    """Accelerate's loop: what it prepares, its backward, its clipping, its accumulation."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    net = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    tokens = torch.randint(0, VOCAB, (2, TOKENS), device=device)

    def step():
        for _ in range(2):
            with accelerator.accumulate(net):
                accelerator.backward(net(input_ids=tokens, labels=tokens).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return step


def by_trainer(device):
    """Two of Trainer's own steps."""
    net = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
    rows = [{"input_ids": list(range(TOKENS)), "labels": list(range(TOKENS))}] * 4
    choices = hf.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=device == "cpu",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    return hf.Trainer(net, choices, train_dataset=rows).train


def one_rank():
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)


def stack(device):
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))
    return nn.Sequential(*blocks).to(device)


def loop(net, device):
    return training(net, lambda: net(torch.randn(8, WIDTH, device=device)).pow(2).mean())


def data_parallel(device):
    one_rank()
    net = nn.parallel.DistributedDataParallel(stack(device))
    if not net._comm_hooks:  # a trace gives it one at its birth, a measurement does not
        net.register_comm_hook(None, sent_at_once)
    return loop(net, device)


def fully_sharded(device, **choices):
    one_rank()
    net, mesh = stack(device), init_device_mesh(device, (NUM_RANKS,))
    for block in net:
        fully_shard(block, mesh=mesh, **choices)
    fully_shard(net, mesh=mesh, **choices)
    return loop(net, device)


def tensor_parallel(device):
    one_rank()
    net, mesh = stack(device), init_device_mesh(device, (NUM_RANKS,))
    plan = {
        f"{number}.0": RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(4)
    }
    return loop(parallelize_module(net, mesh, plan), device)


IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PROGRAMS = [
    Program(name="Accelerate's loop", build=accelerated),
    Program(name="Hugging Face's Trainer", build=by_trainer),
    Program(
        name="DDP, one rank of 8",
        build=data_parallel,
        refused={"cpu": "does not follow DDP's reducer"},
    ),
    Program(name="FSDP2, one rank of 8", build=fully_sharded),
    Program(
        name="FSDP2 in bf16, one rank of 8",
        build=functools.partial(fully_sharded, mp_policy=IN_BF16),
        warns=MEASURE,
    ),
    Program(
        name="FSDP2, kept gathered",
        build=functools.partial(fully_sharded, reshard_after_forward=False),
    ),
    Program(name="tensor parallel, one rank of 8", build=tensor_parallel),
]
