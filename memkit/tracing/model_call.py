"""A model, its inputs and an optimizer that are there already: traced without a program around them.

The shape of call that PyTorch's users asked for (pytorch/rfcs#108): ``trace_model(model, inputs, optimizer)``.
"""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from memkit.timeline import MemoryTimeline
from memkit.tracing.trace import trace_memory


def trace_model(
    model: nn.Module, inputs: object, optimizer: torch.optim.Optimizer | None = None,
    *, loss: Callable[[object], Tensor] | None = None, device: str = "cuda", steps: int = 2,
) -> MemoryTimeline:  # fmt: skip
    """The memory of training a model that exists, on the CPU or on ``meta``; nothing of it is changed or copied.

    ``inputs`` is a tensor, a tuple of arguments or a dict of arguments by name. ``optimizer`` is one that was made from
    the model's parameters; without one the step ends after the backward. ``loss`` makes one number of what the model
    returns; otherwise its ``.loss`` is taken, or the sum of the tensor that it returns.

    Raises: ValueError: as ``trace_memory``; or the model returns neither a loss nor a tensor.

    >>> layer = nn.Linear(1024, 1024)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> trace_model(layer, torch.ones(8, 1024), optimizer).at("optimizer").optimizer_states
    8396800
    """

    def build() -> Callable[[], None]:
        tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        placed = {id(tensor): on_device(tensor, device) for tensor in tensors}
        twin = copy.deepcopy(model, placed)
        for module in twin.modules():  # a copy registers nothing, and a trace knows weights by their registration
            for name, value in [*module._parameters.items(), *module._buffers.items()]:
                setattr(module, name, value)
        own_optimizer = copy.deepcopy(optimizer, placed)

        def step() -> None:
            batch = tree_map(lambda value: on_device(value, device) if isinstance(value, Tensor) else value, inputs)
            loss_of(called(twin, batch), loss).backward()
            if own_optimizer is not None:
                own_optimizer.step()
            twin.zero_grad()

        return step

    return trace_memory(build, device=device, steps=steps)


def on_device(tensor: Tensor, device: str) -> Tensor:
    """A new tensor of the same shape, dtype and kind, without the values."""
    new = torch.empty_like(tensor, device=device, requires_grad=False)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def called(model: nn.Module, inputs: object) -> object:
    """What the model returns for arguments by name, in a row, or for one."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def loss_of(output: object, loss: Callable[[object], Tensor] | None) -> Tensor:
    """One number from a model's output. Raises: ValueError: there is none in it."""
    if loss is not None:
        return loss(output)
    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, Tensor):
        return output.sum()
    raise ValueError(f"the model returns a value of type {type(output).__name__}: pass loss=, a function of it")
