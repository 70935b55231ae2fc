"""Nothing is fetched; and torchvision loads on a torch without CUDA."""

import contextlib
import importlib.util
import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

if importlib.util.find_spec("torchvision"):
    # a wheel built for CUDA lacks its compiled operators here; no program of the zoo calls them
    with contextlib.suppress(RuntimeError):
        LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def no_group_left():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


collect_ignore_glob = ["[!t]*.py"]
"""The programs are imported by test_zoo.py, where their packages are installed."""
