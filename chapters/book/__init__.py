"""The book's own: the ledger of printed claims, recorded GPU runs, exercises, and the check of a reader's machine.

``claims``, ``questions`` and ``recordings`` read files of the repository's ``chapters/`` and say where they look.

Reading order:

- ``claims``: what is commonly printed, and what is so
- ``questions``: questions as an interviewer asks them, with choices that say why
- ``ledger_search``: the claims that hold a word, live in appendix A
- ``question_cards``: pick a choice and read why it is right or wrong, live at the end of a lesson's exercises
- ``patience``: one line under a cell that takes long
- ``loss_scales``: torch's own GradScaler, played, and a scale that never moves, for chapter 03
- ``predictions``: a guess before the answer, and both side by side at a chapter's end
- ``linear_memory``: what a linear layer keeps under each library's recipe, for chapter 06
- ``small_gpt``: a character GPT on a poem, which chapters 03, 05, 06, 09, 10 and 11 train
- ``small_programs``: small steps for chapter 07 to measure
- ``pieces_of_logits``: torchtune's head and loss in eight pieces, for lesson 09
- ``korthikanti``: the activation formulas of Korthikanti et al. 2022, addend by addend
- ``cheat_sheet``: what each technique does to the peak of two jobs, and its price
- ``recordings``: a run on a card kept as a file, with its card, driver, torch and date
- ``public_runs``: GPU runs that others measured, beside what is predicted for them
- ``many_cards``: runs on one to eight A100s that others measured, beside what their programs take by a trace
- ``driver``: what NVIDIA's driver says about the cards of this machine, and the RAM that a new program can have
- ``gpu_cap``: a reader's cap on the card, and giving back what a chapter held
- ``card_formats``: what a device's own casts and products do, and the seconds of a product in bf16 and FP8
- ``checkup``: ``doctor()``: is this machine ready for the book?
- ``ranks``: several processes for real, and what they send
- ``accumulation_ranks``: what a window of micro-batches sends and keeps on real ranks: chapter 05
- ``training_ranks``: DDP, ZeRO's stages and FSDP2 on real ranks: lesson 11
- ``card_cells``: ``make record``: run the cells that measure on a card, and keep what they print
- ``exercises``: exercises that say which mistake this is
"""

import os

from memkit import lazy_names

# a shared card: every chapter imports this package before it uses one
if os.environ.get("MEMKIT_GPU_GIB"):
    from book.gpu_cap import cap_gpu_when_used

    cap_gpu_when_used()

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
