"""The training step in PyTorch: a small transformer, the ways to recompute it, and how a run is watched.

The description that is traced and measured, written without a look at the formula. Loads torch.

Reading order:

- ``log``: from a log of allocations to the parts and instants of a step
- ``doors``: following a program from outside: its phase, its weights, its states
- ``interrupts``: torch as it was before a program, also after a Ctrl-C, which waits
- ``strategies``: blocks that run twice, by any strategy
- ``adapters``: LoRA, and weights in 4 bits under it
- ``optimizers``: the optimizer of a setup: torch's, Lion, those of libraries, and steps in the backward
- ``transformer``: GPT-2 and Llama in one small module, and their training step
- ``pieces_of_logits``: torchtune's head and loss, eight pieces one after another
- ``sharded``: the step on one rank of many: DDP, ZeRO-1, ``fully_shard``
- ``hugging_face``: a real module and its training step from a config.json alone
- ``changed``: any program with one change made to it from outside
- ``small_programs``: small steps worth measuring
- ``small_gpt``: a character GPT on a poem that ships with the book
- ``accumulation``: a loop with gradient accumulation that is right in its corners
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.program.accumulation import train_window, windows
    from memkit.program.adapters import LoRALinear, add_adapters, in_4_bits
    from memkit.program.changed import PROGRAM_CHANGES, changed_build
    from memkit.program.doors import run_steps
    from memkit.program.hugging_face import hugging_face_build, hugging_face_model
    from memkit.program.log import Log, timeline_of
    from memkit.program.optimizers import Lion, make_optimizer, make_step_optimizer, step_in_backward
    from memkit.program.pieces_of_logits import PiecesOfLogits
    from memkit.program.sharded import one_rank_of, sharded_build, wrap_model
    from memkit.program.small_gpt import (
        SMALL_GPT,
        fine_tune,
        held_out_loss,
        make_small_gpt,
        text_batches,
        train,
    )
    from memkit.program.small_programs import (
        attention_build,
        autocast_build,
        ragged_build,
        small_net,
        small_step,
    )
    from memkit.program.strategies import saving_policy
    from memkit.program.transformer import Block, Transformer, strategy_build, training_build

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
