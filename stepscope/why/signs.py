"""Texts that are no allocator's message and still mean that memory ran out: on the card, beside the pool, on the host.

``SIGNS`` has one record for each: how it reads, which row of the emergency table it is, and in words what it says.
"""

import re
from dataclasses import dataclass

from memkit.units import format_bytes
from stepscope.why.message import SIZE, size_in


@dataclass(frozen=True)
class Sign:
    """One such text: its pattern, the row that it is, and what it says, in which ``{1}`` is the pattern's first group.

    ``is_echo``: it is what a shell or a launcher says of a process that was ended, on a line of its own, of whatever it
    died. ``first`` says what to type where no row does.
    """

    pattern: str
    row: str | None
    says: str
    is_echo: bool = False
    first: str = ""


SIGNS = (
    Sign(
        rf"MPS backend out of memory \(MPS allocated: {SIZE}, other allocations: {SIZE}, max allowed: {SIZE}\)\. "
        rf"Tried to allocate {SIZE}",
        None,
        "On a Mac the card's memory is the machine's: PyTorch has {1}, other allocations {2}, "
        "and may reach {3}; {4} more were asked for",
        first="a smaller batch, or fewer programs beside it; PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 takes the limit "
        "away, and the machine may then swap until it hangs",
    ),
    Sign(
        rf"Free memory on device (?:\S+ )?\(([\d.]+)/{SIZE}\) on startup is less than desired GPU memory utilization "
        rf"\(([\d.]+), {SIZE}\)",
        "engine",
        "vLLM wants {4}, {3} of the card, and {1} of {2} are free: another process, or the trainer, has the rest",
    ),
    Sign(
        r"No available memory for the cache blocks",
        "engine",
        "vLLM's share of the card is smaller than its weights and one forward need, so nothing is left for its cache. "
        "It wants a larger gpu_memory_utilization, the opposite of a trainer beside it",
    ),
    Sign(
        r"max(?:imum)? seq(?:uence)? len(?:gth)? \((\d+)\).{0,200}?larger than the (?:maximum number of tokens that "
        r"can be stored in KV cache|available KV cache memory) \(([^)]*)\)",
        "engine",
        "vLLM's cache is too small for one sequence of {1} tokens: it has room for {2}. "
        "A smaller max_model_len, or a larger share",
    ),
    Sign(
        r"RESOURCE_EXHAUSTED|[Rr]esource exhausted: Out of memory|failed to allocate \S+ \(\d+ bytes\) from device",
        None,
        "XLA, which runs under JAX and TensorFlow, found no room on the card. It has its own allocator: no number "
        "of PyTorch's is in this text",
        first="a smaller batch; nvidia-smi; beside another program XLA_PYTHON_CLIENT_MEM_FRACTION=0.5, since JAX takes "
        "three quarters of the card as it starts",
    ),
    Sign(
        r"WinError 1455|paging file is too small",
        None,
        "Windows could promise a process no more memory: RAM and paging file are given away. The card has nothing to "
        "do with it",
        first="fewer num_workers, each of which loads torch anew; a larger paging file",
    ),
    Sign(
        r"Failed to clone\(\) tensor with name",
        "saving",
        "FSDP gathers the whole state dict on one card, and there it found no room: the file that it wrote is broken",
        first="FullStateDictConfig(offload_to_cpu=True, rank0_only=True), or a sharded checkpoint",
    ),
    Sign(
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]*\) is killed by signal: Bus error|out of shared memory"
        r"|insufficient shared memory|unable to (?:open|write to|allocate) (?:shared memory )?(?:file|object) "
        r"</torch_\w+>|/dev/shm.{0,80}No space left",
        "shared memory",
        "A DataLoader's worker could not write a batch to shared memory. The card has nothing to do with it",
    ),
    Sign(
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]*\) is killed by signal: Killed",
        "host",
        "The kernel killed a DataLoader's worker: the host's memory ran out. The card has nothing to do with it",
    ),
    Sign(
        r"DefaultCPUAllocator:.{0,80}?(?:can't|not enough) (?:allocate )?memory: you tried to allocate (\d+) bytes"
        rf"|Unable to allocate {SIZE} for an array",
        "host",
        "A tensor on the host was too large for the host's memory. The card has nothing to do with it",
    ),
    Sign(
        r"NCCL.{0,400}?Cuda failure (?:\d+ )?'out of memory'|Cuda failure (?:\d+ )?'out of memory'",
        "outside",
        "NCCL asked CUDA for buffers of its own, and PyTorch's pool had left it no room",
    ),
    Sign(
        r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
        "outside",
        "cuBLAS could not make its handle or workspace. PyTorch's pool had left it no room, or an index out of range "
        "had broken the card's context before: CUDA_LAUNCH_BLOCKING=1 then names that line",
    ),
    Sign(
        r"CUDNN_STATUS_ALLOC_FAILED|Unable to find a valid cuDNN algorithm",
        "outside",
        "cuDNN found no room for a workspace. torch.backends.cudnn.benchmark = False asks for smaller ones",
    ),
    Sign(
        r"CUDA (?:driver )?[Ee]rror(?:: | 2, )out of memory|error[ =(]+2\)?,? ?:? out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|HIP error: out of memory|hipErrorOutOfMemory",
        "outside",
        "The driver itself had no memory left, for a context, a kernel's code or a library: not for a tensor of "
        "PyTorch's pool. At the start of a program another process has the card",
    ),
    Sign(
        r"out of resources?: ?(?:shared memory|triton_\w+).{0,20}?Required: (\d+).{0,5}Hardware limit: ?(\d+)",
        None,
        "No lack of memory: one kernel wants {1} bytes of shared memory on each multiprocessor, which has {2}",
        first="smaller blocks or fewer num_stages in that Triton kernel; autotuning skips such a choice by itself",
    ),
    Sign(
        r"Out of memory: Killed process|oom[-_]kill|OOMKilled|task \d+: Out Of Memory|DUE TO MEMORY|killed by the "
        r"cgroup out-of-memory handler",
        "host",
        "The kernel killed a process because the host's memory, or the job's share of it, ran out",
    ),
    Sign(
        r"(?m)^(?:.*\d )?Killed\b(?!:)|exit(?:ed with)? ?(?:code|status):? ?(?:137|-9)\b|exitcode ?: ?-9\b"
        r"|return code ?= ?-9\b|non-zero exit status -?9\b|SIGKILL|signal 9\b|error code -9\b|Signals\.SIGKILL",
        "host",
        "Somebody ended the process without asking it (signal 9). Mostly it was the kernel, because the host's memory "
        "ran out; a scheduler's time or memory limit does the same. The card has nothing to do with it",
        is_echo=True,
    ),
)


def signs_in(text: str) -> list[tuple[int, Sign, str]]:
    """Where a text has one of these, which, and in words; the earliest first.

    >>> [words] = [words for _, _, words in signs_in("RuntimeError: CUDA error: out of memory")]
    >>> words[:34]
    'The driver itself had no memory le'
    """
    found, flat = [], text.replace("\n", " ")
    for sign in SIGNS:
        if match := re.search(sign.pattern, text if sign.is_echo else flat):
            found.append((match.start(), sign, sign.says.format("", *groups_in_words(match))))
    return sorted(found, key=lambda one: one[0])


def groups_in_words(match: re.Match) -> list[str]:
    """The groups of a pattern, a number and the unit behind it as one size."""
    groups, words = [group or "" for group in match.groups()], []
    for i, group in enumerate(groups):
        following = groups[i + 1] if i + 1 < len(groups) else ""
        if re.fullmatch(r"bytes|[KMGT]i?B|B", group):
            continue
        is_size = re.fullmatch(r"bytes|[KMGT]i?B|B", following)
        words.append(format_bytes(size_in(group, following)) if is_size else group)
    return words
