"""Making it fit: what filled the memory, what would help, and the plans that fit a card.

Chapters 04, 05, 07 and 10.

Reading order:

- ``edits``: what a change does to recorded events
- ``room``: the one rule for "fits on a card", and what is on it beside the tensors
- ``step``: the second step of a setup: how high it is and how long it takes
- ``advice``: the one adviser: changes, what each does, and what it saves
- ``recorded_parts``: weights, gradients, states and activations of a recording that names none
- ``growth``: two runs on one axis: what grew, by line and part
- ``diagnosis``: from a recording or a trace: peak, parts, lines, and the changes that help most
- ``batch_plan``: from a global batch in tokens to micro-batches, steps and ranks
- ``plans``: every plan that fits a job, what it costs and gives up, and the one to take
- ``plan_code``: a plan in plain PyTorch, for Hugging Face's trainer and Accelerate
- ``program_report``: a program nobody has run: its peak, its lines, its cards, and changes traced a second time
- ``program_errors``: what a program raised, in one line
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, {
    "advice": "CHANGES Change Effect advice_in_words effects_on_setup verdict",
    "batch_plan": "BatchPlan cuts_of nearest_plans plan_batch",
    "diagnosis": "diagnose_memory",
    "edits": "growing_lines",
    "growth": "TwoRuns compare_runs",
    "plan_code": "accelerate_config accelerate_yaml code_of plain_code trainer_arguments trainer_code",
    "plans": "PlansFound TrainingPlan find_plans plan_of plan_recomputation",
    "program_report": "Report report_on",
    "recorded_parts": "with_inferred_parts",
    "room": "fit_on fits_of left_out_of planned_room",
})
