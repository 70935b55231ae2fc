"""LoRA on the book's transformer, and QLoRA: the same beside weights that bitsandbytes keeps in 4 bits.

``LoRALinear`` does what ``lora.Linear`` of peft does, in the same order, so that both keep the same tensors.
"""

import math
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memkit.program.hooks import tensors_in
from stepscope.setup.adapters import AdapterConfig


class LoRALinear(nn.Module):
    """y = W x + (α / r) B A x with W frozen; B starts at zero, so that training starts at W. α is 2r."""

    def __init__(self, base: nn.Module, adapter: AdapterConfig):
        super().__init__()
        where = {"device": base.weight.device, "dtype": getattr(torch, adapter.dtype)}
        self.base, self.scale, self.dropout = base, 2.0, adapter.dropout
        self.lora_a = nn.Linear(base.in_features, adapter.rank, bias=False, **where)
        self.lora_b = nn.Linear(adapter.rank, base.out_features, bias=False, **where)
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        dtype, x = y.dtype, x.to(self.lora_a.weight.dtype)
        y = y + self.lora_b(self.lora_a(F.dropout(x, self.dropout, self.training))) * self.scale
        return y.to(dtype)


def add_adapters(module: nn.Module, adapter: AdapterConfig) -> nn.Module:
    """Freeze a module and put an adapter beside each target in it; changes the module, and returns it.

    With ``base="nf4"`` every linear layer in it is quantized first.

    Raises: ImportError: 4 bits are asked for, and bitsandbytes is not there.
    """
    module.requires_grad_(False)
    places = [
        (parent, name)
        for parent in module.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear)
    ]
    for parent, name in places:  # no list of layers: each is freed once it is in 4 bits
        base = getattr(parent, name)
        base = in_4_bits(base) if adapter.base == "nf4" else base
        setattr(parent, name, LoRALinear(base, adapter) if name in adapter.targets else base)
    return module


def bitsandbytes_layers() -> ModuleType:
    """``bitsandbytes.nn``. Raises: ImportError: it is not there."""
    try:
        return import_module("bitsandbytes.nn")
    except ImportError as error:
        raise ImportError("base='nf4' needs bitsandbytes: pip install bitsandbytes") from error


def in_4_bits(layer: nn.Linear) -> nn.Module:
    """bitsandbytes' ``Linear4bit`` of the same weight in NF4, doubly quantized, which computes in the weight's dtype.

    Its scales and maps become buffers, so that a trace counts them as weights.

    Raises: ImportError: bitsandbytes is not there.
    """
    bnb = bitsandbytes_layers()
    narrow = bnb.Linear4bit(1, 1, bias=False)  # its own weight is replaced
    weight = bnb.Params4bit(layer.weight.detach(), quant_type="nf4", compress_statistics=True, module=narrow)
    narrow.weight, narrow.bias = weight._quantize(layer.weight.device), layer.bias
    narrow.in_features, narrow.out_features = layer.in_features, layer.out_features
    narrow.compute_dtype, narrow.compute_type_is_set = layer.weight.dtype, True
    state = narrow.weight.quant_state
    maps = import_module("bitsandbytes.functional").name2qmap  # one for all layers, beside each layer's own
    for number, tensor in enumerate(tensors_in([vars(state), vars(state.state2), maps])):
        narrow.register_buffer(f"quantization_{number}", tensor, persistent=False)
    return narrow
