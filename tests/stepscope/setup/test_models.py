"""A published model with experts has its published number of parameters, to the last one."""

from memkit.formula.parameters import count_parameters
from stepscope.experts import QWEN_3_30B_A3B


def test_the_count_and_the_longest_sequence_are_the_published_ones():
    """huggingface.co/Qwen/Qwen3-30B-A3B, its checkpoints' headers and config.json."""
    assert count_parameters(QWEN_3_30B_A3B) == 30_532_122_624
    assert QWEN_3_30B_A3B.max_seq_len == 40960
