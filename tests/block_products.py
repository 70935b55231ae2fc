"""The operations of one block that a policy can name, in the order in which they run."""

from dataclasses import replace

from memkit.formula.model import model_of
from memkit.formula.operations import Operation
from memkit.setup import TrainingSetup
from memkit.strategies import NONE, OPS, Strategy


def block_products(setup: TrainingSetup) -> list[Operation]:
    one = model_of(replace(setup, model=setup.model.one_block, recomputation=NONE))
    block = [op for op in one.graph.operations if op.unit == 1]
    return [op for op in block if op.kind in OPS and op.reads]


def saved_products(setup: TrainingSetup, strategy: Strategy) -> list[Operation]:
    """Those whose outputs the strategy's policy keeps."""
    saves = strategy.policy()
    return [op for op in block_products(setup) if saves(op.kind)]
