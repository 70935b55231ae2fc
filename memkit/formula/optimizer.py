"""What an optimizer's step allocates: its states the first time, and temporaries every time.

The update of AdamW needs √v + ε for every parameter. PyTorch's implementations hold that at different widths:

- ``foreach`` works on lists: one temporary for every parameter, all at once, as large as the parameters together;
- ``for-loop`` takes one tensor at a time: √v and √v divided by a constant, while Python still holds the result of the
  tensor before;
- ``fused`` computes it in registers: nothing.

Source: ``_multi_tensor_adam`` and ``_single_tensor_adam`` of torch/optim/adam.py, and their like in sgd.py
and _adafactor.py (2.13).
"""

from collections.abc import Iterable, Iterator

from memkit.formats.dtypes import tensor_bytes
from memkit.formula.parameters import Parameter, parameter_ledger
from memkit.formula.states import optimizer_tensors, weight_tensors
from memkit.setup.training import TrainingSetup
from memkit.units import ALLOCATOR_BLOCK_BYTES, round_up

Event = tuple[str, int]
"""A part of memory and bytes: born (> 0) or freed (< 0)."""

WITHOUT_TEMPORARIES = ("SGD", "SGD momentum", "8-bit AdamW")
"""SGD updates in place; bitsandbytes' 8-bit AdamW is one kernel a tensor, whatever the implementation is called."""


def held_bytes(num_bytes: int, device: str) -> int:
    """Bytes the device's allocator takes for a tensor: on CUDA whole blocks of 512."""
    return round_up(num_bytes, ALLOCATOR_BLOCK_BYTES) if device == "cuda" else num_bytes


def initial_events(setup: TrainingSetup) -> list[Event]:
    """What exists before the first step: the weights, and the master copy of recipes that have one."""
    events = []
    for parameter in parameter_ledger(setup.model):
        for tensor in weight_tensors(parameter, setup.precision):
            events.append((tensor.part, held_bytes(tensor.num_bytes, setup.device)))
        for tensor in optimizer_tensors(parameter, setup.precision, setup.optimizer):
            if tensor.role == "master weight":
                events.append((tensor.part, held_bytes(tensor.num_bytes, setup.device)))
    return events


def state_events(setup: TrainingSetup) -> list[Event]:
    """The states that the first step makes. What torch keeps on the host counts only where the host is the device."""
    return [
        (tensor.part, held_bytes(tensor.num_bytes, setup.device))
        for parameter in parameter_ledger(setup.model)
        for tensor in optimizer_tensors(parameter, setup.precision, setup.optimizer)
        if tensor.role != "master weight" and not (tensor.is_on_host and setup.device == "cuda")
    ]


def step_events(setup: TrainingSetup) -> list[Event]:
    """The temporaries of one step, in the order in which they come and go."""
    name, implementation = setup.optimizer.name, setup.optimizer.implementation
    if implementation == "fused" or name in WITHOUT_TEMPORARIES:
        return []
    parameters = parameter_ledger(setup.model)
    if name == "Adafactor":
        make = _adafactor_lists if implementation == "foreach" else _adafactor_one_by_one
        return list(make(setup, parameters))
    sizes = [_size(setup, parameter.count) for parameter in parameters]
    if implementation == "foreach":
        return [("temporary", size) for size in (*sizes, -sum(sizes))]
    return list(_adam_one_by_one(sizes))


def _adam_one_by_one(sizes: Iterable[int]) -> Iterator[Event]:
    """√v is born, then √v / √(1 - β₂ᵗ); the first is freed; the second stays until the next one replaces it."""
    before = 0
    for size in sizes:
        for change in (size, size, -size, -before):
            yield "temporary", change
        before = size
    yield "temporary", -before


def _adafactor_lists(setup: TrainingSetup, parameters: Iterable[Parameter]) -> Iterator[Event]:
    """All matrices, then all vectors. The second moment of a matrix is multiplied out: row · column."""
    matrices = [p for p in parameters if len(p.shape) > 1]
    vectors = [_size(setup, p.count) for p in parameters if len(p.shape) == 1]
    rows, columns = ([_size(setup, p.shape[i]) for p in matrices] for i in (0, 1))
    estimates = [_size(setup, p.count) for p in matrices]
    means = [_size(setup, 1)] * len(matrices)
    for sizes in (rows, columns):
        for size in (*sizes, -sum(sizes)):
            yield "temporary", size
    for size in (*estimates, *means, -sum(means)):
        yield "temporary", size
    for size in (
        *vectors,
        -sum(vectors),
    ):  # squared gradients of the vectors; Python still holds the estimates
        yield "temporary", size
    for size in (*vectors, -sum(estimates), -sum(vectors)):
        yield "temporary", size


def _adafactor_one_by_one(setup: TrainingSetup, parameters: Iterable[Parameter]) -> Iterator[Event]:
    """One tensor at a time; what a Python name holds stays until the name holds the next."""
    held = {"row mean": 0, "column mean": 0, "squared gradient": 0, "update": 0}

    def assign(name: str, count: int) -> Iterator[Event]:
        before, held[name] = held[name], _size(setup, count)
        yield "temporary", held[name]
        yield "temporary", -before

    for parameter in parameters:
        if len(parameter.shape) > 1:
            yield from assign("row mean", parameter.shape[0])
            yield from assign("column mean", parameter.shape[1])
            estimate, mean = _size(setup, parameter.count), _size(setup, 1)
            for change in (estimate, mean, -mean, -estimate):
                yield "temporary", change
        else:
            yield from assign("squared gradient", parameter.count)
        yield from assign("update", parameter.count)
    yield "temporary", -sum(held.values())


def _size(setup: TrainingSetup, count: int) -> int:
    """Bytes of a temporary of ``count`` values: the update is computed in the dtype of the moments."""
    return held_bytes(tensor_bytes(count, setup.precision.moment_dtype), setup.device)
