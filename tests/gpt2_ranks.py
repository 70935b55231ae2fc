"""A program for ``run_on_ranks``: ZeRO-2 on a GPT-2 of one block, which is highest while the block is reduced."""

from dataclasses import replace

import torch.distributed as dist

from book.ranks import join_group, report
from book.training_ranks import Way, row_of
from memkit.models import TINY_GPT2
from memkit.setup import TrainingSetup
from stepscope.setup import Layout

SETUP = TrainingSetup(
    model=replace(TINY_GPT2, num_layers=1, vocab_size=256), seq_len=64, device="cpu"
)
LAYOUT = Layout(stage=2, dp_size=2, param_dtype="bfloat16")

if __name__ == "__main__":
    setup = replace(SETUP, device=join_group())
    layout = replace(LAYOUT, dp_size=dist.get_world_size())
    told = row_of(Way(setup=setup, layout=layout))
    if dist.get_rank() == 0:
        report(told)
    dist.destroy_process_group()
