"""The book's own: the ledger of printed claims, recorded GPU runs, exercises, and the check of a reader's machine.

``claims``, ``questions`` and ``recordings`` read files of the repository's ``chapters/`` and say where they look.

Reading order:

- ``claims``: what is commonly printed, and what is so
- ``questions``: questions as an interviewer asks them, with choices that say why
- ``cheat_sheet``: what each technique does to the peak of two jobs, and its price
- ``recordings``: a GPU run kept as a file, with its card, driver, torch and date
- ``public_runs``: GPU runs that others measured, beside what is predicted for them
- ``bandwidth``: how fast bytes move on this machine
- ``card_formats``: what a device's own casts and products do, and the seconds of a product in bf16 and FP8
- ``checkup``: ``doctor()``: is this machine ready for the book?
- ``measurements``: what is measured on a card for the chapters
- ``gpu_run``: ``make record``: run the measurements and write ``chapters/recordings``
- ``exercises``: exercises that say which mistake this is
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, {
    "bandwidth": "measure_bandwidth",
    "card_formats": "cast_overflows product_errors time_products",
    "cheat_sheet": "TECHNIQUES apply_techniques sheet_figure",
    "checkup": "doctor quietly",
    "claims": "claim count_verdicts ids_of load_claims printed_and_so verdicts_by_subject",
    "exercises": "built check",
    "measurements": "MEASUREMENTS",
    "public_runs": "load_public_runs",
    "questions": "load_questions",
    "recordings": "Recording find_recording load_recordings load_runs recorded_or_words save_recording",
})
