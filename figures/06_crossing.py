"""Chapter 06: what a linear layer keeps in bf16 and in FP8, over the tokens: the lines cross at twice its outputs."""

from pathlib import Path

from book.linear_memory import linear_keeps
from memkit.pictures.lines import memory_lines

TOKENS, WIDTH = (2048, 4096, 8192, 12288, 16384), 4096
kept = {
    name: [sum(linear_keeps(name, tokens, WIDTH, WIDTH).values()) for tokens in TOKENS]
    for name in ("bf16", "TE per tensor, Hopper")
}
title = "A 4096 × 4096 layer: FP8 keeps less from 2 × 4096 tokens on"
memory_lines(title, TOKENS, kept, "tokens").write_files(Path(__file__).with_suffix(""))
