"""Nothing is fetched, and no process group is left."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def no_group_left():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


collect_ignore_glob = ["[!t]*.py"]
"""The programs are imported by test_zoo.py, where their packages are installed."""
