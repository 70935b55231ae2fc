"""Several processes for real: start a module on a few ranks of this machine, count what they send, leave none behind.

``run_on_ranks`` is ``torch.multiprocessing.spawn`` with the environment that ``torchrun`` makes; whatever ends the call
(a result, an error, Ctrl-C) ends the ranks. On a cluster the same module runs under ``torchrun`` itself.
"""

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, spawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from book.gpu_cap import cap_gpu
from memkit.units import as_whole_number

MARK = "result of rank 0: "
MAX_RANKS = 8


def run_on_ranks(
    module: str, num_ranks: int = 2, arguments: Sequence[str] = (), say: Callable | None = None
) -> dict:
    """What rank 0 of ``module`` tells by ``report``; the module runs as ``__main__`` in ``num_ranks`` processes.

    ``say`` is told every second the last line of rank 0, such as its progress bar.

    Raises: ValueError: a number of ranks that is not 1 to 8. RuntimeError: a rank died, by an error (its last words
    are told) or by a signal; or no rank 0 reported.
    """
    if as_whole_number("num_ranks", num_ranks, 1) > MAX_RANKS:
        raise ValueError(
            f"num_ranks={num_ranks} is above {MAX_RANKS}: one machine's processes, not a cluster's"
        )
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, OMP_NUM_THREADS="1"):
        told = (module, tuple(arguments), environments(num_ranks), folder)
        printed = Path(folder, "0")
        printed.touch()
        ranks = spawn(run_as_rank, told, nprocs=num_ranks, join=False)
        try:
            while not ranks.join(timeout=1):
                if say is not None:
                    lines = printed.read_text(errors="replace").partition(MARK)[0].splitlines()
                    say("".join(lines[-1:]))
        except (ProcessRaisedException, ProcessExitedException) as error:
            cause = str(error).strip().rpartition("\n")[2]
            raise RuntimeError(
                f"{module}: rank {error.error_index} of {num_ranks}: {cause}"
            ) from None
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
        results = [line for line in printed.read_text().splitlines() if line.startswith(MARK)]
    if not results:
        raise RuntimeError(f"{module}: rank 0 of {num_ranks} ended without a report")
    return json.loads(results[-1].removeprefix(MARK))


def environments(num_ranks: int) -> list[dict[str, str]]:
    """What ``torchrun`` would tell each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def run_as_rank(
    rank: int,
    module: str,
    arguments: tuple[str, ...],
    environments: Sequence[dict[str, str]],
    folder: str,
) -> None:
    """In a process of its own: run the module; what it prints goes to a file."""
    # torch sends a rank SIGINT when its parent is gone; Python's handler would wait for the end of a collective.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not parent_process().is_alive():  # it went while this process began
        os._exit(1)
    os.environ.update(environments[rank])
    printed = os.open(Path(folder, str(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.stdout.flush()
    os._exit(0)  # the work is done; gloo's threads may abort an interpreter that takes itself apart


def join_group() -> str:
    """Become one of the ranks that were started: by nccl with a card each where the machine has so many, else by gloo.

    The device, ``"cuda"`` or ``"cpu"``. Two ranks on one card are what nccl refuses.
    """
    has_cards = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if has_cards:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        cap_gpu()
    dist.init_process_group("nccl" if has_cards else "gloo")
    return "cuda" if has_cards else "cpu"


def report(result: dict) -> None:
    """What ``run_on_ranks`` returns; rank 0 calls it once, at its end."""
    print(MARK + json.dumps(result), flush=True)


class Collectives(TorchDispatchMode):
    """Counts the collectives that run inside: ``counts``, ``num_bytes`` and ``sizes`` by name, such as ``allreduce``.

    Bytes are those of the largest tensor that a call is given: the whole gradient of a reduce-scatter, not the shard.
    """

    def __init__(self):
        super().__init__()
        self.counts: Counter = Counter()
        self.num_bytes: Counter = Counter()
        self.sizes: dict[str, set[int]] = defaultdict(set)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.__name__.partition(".")[0].removesuffix("_base_").strip("_")
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            size = max((tensor.nbytes for tensor in tensors), default=0)
            self.counts[name] += 1
            self.num_bytes[name] += size
            self.sizes[name].add(size)
        return func(*args, **(kwargs or {}))
