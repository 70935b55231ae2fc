"""What of torch a trace touches, to compare before and after."""

import torch
from torch import nn


def state_of_torch() -> dict:
    """Everything that a trace touches."""
    modules = (
        torch,
        torch.cuda,
        torch.autograd,
        torch.nn.functional,
        torch.functional,
        torch._tensor,
        torch.random,
        torch.utils._foreach_utils,
        torch.amp.grad_scaler,
        torch.cuda.amp.common,
    )
    classes = (
        torch.enable_grad,
        nn.Module,
        torch.amp.grad_scaler.GradScaler,
        torch.autograd.graph.saved_tensors_hooks,
    )
    state = {
        (home.__name__, name): value
        for home in (*modules, *classes)
        for name, value in vars(home).items()
    }
    hooks = torch.nn.modules.module
    state["hooks"] = (
        len(hooks._global_parameter_registration_hooks),
        len(hooks._global_buffer_registration_hooks),
    )
    state["optimizer hooks"] = (
        len(torch.optim.Optimizer.step.__globals__["_global_optimizer_pre_hooks"]),
        len(torch.optim.Optimizer.step.__globals__["_global_optimizer_post_hooks"]),
    )
    state["modes"] = (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
    state["rms norm"] = torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::_fused_rms_norm", "Meta"
    )
    state["autocast"] = (
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )
    state["saved tensors hooks"] = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return state
