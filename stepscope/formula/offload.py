"""What offloading moves over the link between card and host in one step, and what stays on the host.

A step with the optimizer's states on the host sends every gradient there and every new weight back: 4 B a parameter
in bf16, whatever the batch is. (Offloaded activations, which ``blocks_ledger`` lists, go there and back in every
micro-batch.) Seconds are bytes divided by the link's rate; what of them hides behind the arithmetic is a measurement.
"""

from dataclasses import replace

from memkit.formula.parameters import Parameter
from memkit.formula.states import gradient_tensors, optimizer_tensors, weight_tensors
from stepscope.formula.adapters import trained_parameters, trained_precision
from stepscope.formula.states import is_offloaded
from stepscope.setup.job import Job


def offloaded_parameters(setup: Job) -> tuple[Parameter, ...]:
    """The trained tensors whose states are on the host."""
    trained = trained_parameters(setup.model, setup.adapter)
    return tuple(parameter for parameter in trained if is_offloaded(parameter, setup.place))


def link_bytes(setup: Job) -> dict[str, int]:
    """Bytes that cross the link in one step, by what moves and where to; gradients leave in every micro-batch.

    >>> from memkit.models import LLAMA_2_7B
    >>> from memkit.recipes import PURE_BF16
    >>> link_bytes(Job(model=LLAMA_2_7B, precision=PURE_BF16, place="on the host"))
    {'gradients to the host': 13476831232, 'weights to the card': 13476831232}
    """
    moved, precision = {}, trained_precision(setup.precision, setup.adapter)
    parameters = offloaded_parameters(setup)
    if parameters:
        gradients = (t for p in parameters for t in gradient_tensors(p, precision))
        weights = (t for p in parameters for t in weight_tensors(p, precision))
        moved["gradients to the host"] = setup.grad_accum_steps * sum(t.num_bytes for t in gradients)
        moved["weights to the card"] = sum(t.num_bytes for t in weights)
    return moved


def host_bytes(setup: Job) -> dict[str, int]:
    """Bytes that an optimizer on the host keeps there: a copy of weights and gradients, both pinned, and the states."""
    parameters, precision = offloaded_parameters(setup), trained_precision(setup.precision, setup.adapter)
    states = (t for p in parameters for t in optimizer_tensors(p, precision, setup.optimizer))
    moved = list(link_bytes(replace(setup, grad_accum_steps=1)).values()) or [0, 0]
    return {"weights": moved[1], "gradients": moved[0], "optimizer_states": sum(t.num_bytes for t in states)}
