"""The training step in PyTorch: a small transformer, the ways to recompute it, and how a run is watched.

The description that is traced and measured, written without a look at the formula. Loads torch.

Reading order:

- ``log``: from a log of allocations to the parts and instants of a step
- ``script``: a training script as it stands, and where its steps begin
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

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, {
    "accumulation": "train_window windows",
    "adapters": "LoRALinear add_adapters in_4_bits",
    "changed": "PROGRAM_CHANGES changed_build",
    "doors": "run_steps",
    "hugging_face": "hugging_face_build hugging_face_model",
    "log": "Log timeline_of",
    "optimizers": "Lion make_optimizer make_step_optimizer step_in_backward",
    "pieces_of_logits": "PiecesOfLogits",
    "script": "Script",
    "sharded": "one_rank_of sharded_build wrap_model",
    "small_gpt": "SMALL_GPT fine_tune held_out_loss make_small_gpt text_batches train",
    "small_programs": "ragged_build small_net small_step",
    "strategies": "saving_policy",
    "transformer": "Block Transformer strategy_build training_build",
})
