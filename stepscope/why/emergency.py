"""The emergency table: how a job died, what that mostly is, and what to type first.

The book prints these rows in chapter 07, and ``stepscope why`` names one of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One way to die: when it does, what that mostly is, what to type first, and the chapter that tells more."""

    dies: str
    cause: str
    first: str
    chapter: str


EMERGENCY = {
    "neighbour": Row(
        'at once; the message has "Process N has ... in use"',
        "another process holds the card, often your own dead kernel",
        "nvidia-smi, end it by its number if it is not this job; or CUDA_VISIBLE_DEVICES for another card",
        "07",
    ),
    "loading": Row(
        "while the model is loaded",
        "two copies of the weights are there at once, or they are float32",
        'torch.load(file, map_location="cpu", mmap=True); from_pretrained(..., dtype=torch.bfloat16)',
        "08",
    ),
    "forward": Row(
        "in the forward of the first step",
        "activations",
        "half the batch, accumulated twice; model.gradient_checkpointing_enable(); of a transformer "
        'attn_implementation="sdpa"',
        "04",
    ),
    "backward": Row(
        "in the loss, or in .backward()",
        "the logits, up to three times: as they are, in float32, and their gradient",
        "the loss in pieces: use_liger_kernel=True, or from torch 2.13 F.linear_cross_entropy(..., "
        "options=torch.nn.LinearCrossEntropyOptions()); else half the batch, accumulated twice",
        "09",
    ),
    "step": Row(
        "in optimizer.step(), or in step 2",
        "the optimizer's states, made in the first step, or its temporaries for all parameters at once",
        'AdamW(..., fused=True); optim="adamw_bnb_8bit"',
        "09",
    ),
    "compile": Row(
        "only with torch.compile",
        "blocks that run again at once, copies for trying kernels, the pool of CUDA graphs",
        'torch.compile(mode="default") in place of "max-autotune" or "reduce-overhead"; one shape; each block '
        "by itself",
        "08",
    ),
    "evaluation": Row(
        "at the first evaluation",
        "the logits of every batch are kept until its end, or a forward keeps a graph, or generate() its cache",
        "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1); torch.no_grad(); "
        "a smaller per_device_eval_batch_size",
        "08",
    ),
    "saving": Row(
        "when it saves, or when it resumes",
        "the whole state dict on one card, or a checkpoint on the card beside the model",
        'torch.load(file, map_location="cpu", mmap=True), then del; a sharded checkpoint',
        "08",
    ),
    "growing": Row(
        "a little more memory with each step",
        "a name, a list, a hook or a cycle keeps it",
        "total += loss.item() in place of loss; stepscope report train.py --steps 6 names the line",
        "07",
    ),
    "longest": Row(
        "at the same late step in every run",
        "the longest batch",
        "stepscope report train.py --batches 500; shorten, or group by length",
        "08",
    ),
    "holes": Row(
        "at another late step in each run",
        "what is reserved is in pieces that are too small, or a neighbour grew",
        "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF up to torch 2.9; not beside a "
        "sleeping vLLM)",
        "07",
    ),
    "card 0": Row(
        "on card 0 only",
        "nn.DataParallel gathers there, or every rank loads onto cuda:0",
        "torchrun --nproc-per-node N train.py with DDP or FSDP; torch.cuda.set_device(local_rank)",
        "11",
    ),
    "engine": Row(
        "when the engine of an RL run starts or wakes",
        "its share of the card, not your answers",
        "vllm_gpu_memory_utilization (vLLM's own: gpu_memory_utilization)",
        "13",
    ),
    "host": Row(
        "without any message: Killed, 137, -9",
        "the host's memory ran out, not the card's",
        "dmesg | grep -i oom; fewer num_workers; load with mmap=True",
        "08",
    ),
    "shared memory": Row(
        "a worker ends with a Bus error",
        "/dev/shm is full, in which DataLoader's workers hand batches over",
        "docker run --shm-size=16g (or --ipc=host); fewer num_workers",
        "07",
    ),
    "outside": Row(
        "CUDA error: out of memory; ..._ALLOC_FAILED; NCCL's Cuda failure",
        "no room beside PyTorch's pool, where CUDA, cuBLAS, cuDNN and NCCL take theirs",
        "leave them 1 to 2 GiB of the card: a smaller batch; torch.cuda.set_per_process_memory_fraction(1 - 2 / GiB); "
        "nvidia-smi",
        "07",
    ),
}
"""By a short name, in the order in which a job comes by: start, steps, between the steps, many cards, no message."""
