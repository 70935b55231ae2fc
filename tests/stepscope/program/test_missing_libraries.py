"""A library that is not installed: one sentence that names it, and formulas and traces of the rest go on."""

import sys
from dataclasses import replace

import pytest

from memkit.formula.estimate import estimate_memory
from memkit.models import TINY_LLAMA
from memkit.recipes import PURE_BF16, OptimizerConfig
from stepscope.optimizers import OPTIMIZERS
from stepscope.program.job import job_build
from stepscope.setup import AdapterConfig, Job

TINY = Job(model=TINY_LLAMA, seq_len=32, precision=PURE_BF16, device="cpu")
IN_4_BITS = replace(TINY, adapter=AdapterConfig(rank=4, base="nf4"))
CASES = {
    name: (record.made_by.split(":")[0], replace(TINY, optimizer=OptimizerConfig(record=record)))
    for name, record in OPTIMIZERS.items()
    if not record.made_by.startswith(("torch.", "stepscope."))
}
CASES["4-bit weights"] = ("bitsandbytes.nn", IN_4_BITS)


@pytest.mark.parametrize("module, setup", CASES.values(), ids=CASES)
def test_a_missing_library_is_named(monkeypatch, module, setup):
    monkeypatch.setitem(sys.modules, module, None)
    assert estimate_memory(setup).for_step(2).peak_bytes
    with pytest.raises(ImportError, match=f"pip install {module.partition('.')[0]}$"):
        job_build(setup)()
