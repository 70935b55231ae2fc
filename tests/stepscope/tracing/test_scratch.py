"""Scratch of CUDA kernels in a trace of any program, and where a program hides operations or lengths."""

import pytest
import torch
from tests_of_the_kit import kit_tests
from torch.nn.utils.rnn import pack_padded_sequence

from stepscope.tracing.trace import trace_script

KIT = kit_tests("tracing/test_scratch.py", trace_memory=trace_script)
globals().update(KIT.tests)


def test_inference_mode_hides_no_operation_and_keeps_no_cast():
    """In inference mode a composite operation reaches a dispatch mode whole; its inside counts too."""
    counts = {}
    for mode in (torch.no_grad, torch.inference_mode):

        def build(mode=mode):
            weight = torch.nn.Parameter(torch.empty(512, 512, device="cuda"))
            x = torch.empty(2, 512, 4, 128, device="cuda")

            def step():
                with mode():
                    y = torch.einsum("...i,oi->...o", x.flatten(2), weight)
                    torch.einsum("...qh,...kh->...qk", x.transpose(1, 2), x.transpose(1, 2))
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        for _ in range(2):
                            torch.einsum("...i,oi->...o", y, weight)

            return step

        events = trace_script(build, steps=1).events
        counts[mode] = [
            (event.op, event.num_bytes)
            for event in events
            if event.num_bytes > 0 and event.phase != "init"
        ]
    assert not any("einsum" in op for op, _ in counts[torch.inference_mode])
    casts = {
        m: [op for op, _ in found].count("aten._to_copy.default") for m, found in counts.items()
    }
    assert casts == {torch.no_grad: 3, torch.inference_mode: 4}


def test_lengths_that_nobody_knows_are_refused_with_the_line():
    def build():
        return lambda: pack_padded_sequence(
            torch.ones(5, 4, 8, device="cuda"), torch.randn(4).long()
        )

    with pytest.raises(
        NotImplementedError, match=r"test_scratch.py:\d+ .*pack_padded_sequence.*device=\"cpu\""
    ):
        trace_script(build)
