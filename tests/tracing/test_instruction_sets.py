"""oneDNN plays an older processor: what depends on its kernels is tested again under each instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DEPENDENT = (
    "tracing/test_libraries.py",
    "tracing/test_trace.py::test_live_bytes_equal_a_real_runs_at_every_operation_boundary[gpt2 bf16]",
    "measuring/test_training_ranks.py::test_a_block_that_ends_in_a_bias_is_reduced_as_on_real_ranks",
)
LARGE = "tracing/test_trace.py::test_the_peak_of_two_adamw_steps_is_within_three_per_mille[pure bf16-tiny GPT-2]"
"""Under AVX2, where torch multiplies 16 bits by itself, it takes minutes; the same calls are in ``DEPENDENT``."""


@pytest.mark.serial
@pytest.mark.parametrize(
    "instruction_set, tests",
    [("AVX2", DEPENDENT), ("AVX512_CORE_VNNI", (*DEPENDENT, LARGE)), ("AVX512_CORE_BF16", (*DEPENDENT, LARGE))],
    ids=["AVX2", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"],
)
def test_what_depends_on_onednn_holds_on_an_older_processor(instruction_set, tests):
    """oneDNN reads the variable once in a process. The processor's own set is what the suite itself runs under."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instruction_set}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *(str(TESTS / test) for test in tests)]
    run = subprocess.run(command, check=False, env=environment, cwd=TESTS.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
