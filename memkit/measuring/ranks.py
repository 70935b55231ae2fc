"""Several processes for real: start a module on a few ranks of this machine, count what they send, leave none behind.

``run_on_ranks`` does what ``torchrun --standalone`` does, and is sure of the end: whatever ends the call (a result, an
error, Ctrl-C) ends the ranks, and a rank ends when the process that started it is gone. On a cluster the same module
runs under ``torchrun`` itself.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memkit.measuring.gpu import cap_gpu
from memkit.units import as_whole_number

MARK = "result of rank 0: "
MAX_RANKS = 8


def run_on_ranks(module: str, num_ranks: int = 2, arguments: Sequence[str] = ()) -> dict:
    """What rank 0 of ``module`` tells by ``report``; the module runs as ``__main__`` in ``num_ranks`` processes.

    Raises: ValueError: a number of ranks that is not 1 to 8. RuntimeError: a rank died, by an error (its last words
    are told) or by a signal; or no rank 0 reported.
    """
    if as_whole_number("num_ranks", num_ranks, 1) > MAX_RANKS:
        raise ValueError(f"num_ranks={num_ranks} is above {MAX_RANKS}: one machine's processes, not a cluster's")
    processes: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for environment in environments(num_ranks):
                stem = Path(folder, environment["RANK"])
                with stem.with_suffix(".out").open("w") as output, stem.with_suffix(".err").open("w") as errors:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", __name__, module, *arguments], env=environment, stdout=output,
                            stderr=errors, stdin=subprocess.PIPE, process_group=processes[0].pid if processes else 0,
                        )
                    )
            codes = exit_codes_of(processes)
        finally:
            end(processes)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            rank = min(failed, key=codes.__getitem__)  # a signal's code is negative; the others' errors follow from it
            last_words = Path(folder, f"{rank}.err").read_text().strip().rpartition("\n")[2]
            cause = f"ended with code {codes[rank]}"
            if codes[rank] < 0:
                cause = f"was killed by {signal.Signals(-codes[rank]).name}"
            raise RuntimeError(f"{module}: rank {rank} of {num_ranks} {cause}: {last_words or 'no message'}")
        results = [line for line in Path(folder, "0.out").read_text().splitlines() if line.startswith(MARK)]
    if not results:
        raise RuntimeError(f"{module}: rank 0 of {num_ranks} ended without a report")
    return json.loads(results[-1].removeprefix(MARK))


def exit_codes_of(processes: Sequence[subprocess.Popen]) -> list[int | None]:
    """The ranks' exit codes when all have ended or one has failed; None for a rank that still runs then.

    Every rank is asked each time: one that has died leaves the others waiting for it.
    """
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            return codes
        time.sleep(0.05)


def environments(num_ranks: int) -> list[dict[str, str]]:
    """What ``torchrun`` would tell each rank, and where to find this process's modules; one thread each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def end(processes: Sequence[subprocess.Popen]) -> None:
    """End every process of the group that the first one leads, and wait for all."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()


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


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the process that holds the other end is gone
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the work is done; gloo's threads may abort an interpreter that takes itself apart
