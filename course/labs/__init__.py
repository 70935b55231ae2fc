"""Seven graded labs for nbgrader, made from the same records and judges as the book's exercises.

A lab is a list of tasks. A task has a chapter's exercise behind it, with numbers drawn from the name under which a
student hands in. ``python -m course.labs FOLDER`` writes nbgrader's sources and makes the release.

What a student's kernel says about itself is never read when marks are made: the student's cells run a second time
in a process of their own, and only answers leave it, as plain values. The judge stays outside.

Reading order:

- ``draws``: the student's numbers; this file goes into every lab's folder
- ``tasks``: a task, a lab, and what an answer is worth
- ``lab_1``: memory breakdown
- ``lab_2``: number formats
- ``lab_3``: mixed precision
- ``lab_4``: recomputation
- ``lab_5``: accumulation
- ``lab_6``: FP8
- ``lab_7``: an error message, adapters, ranks, a plan
- ``sources``: nbgrader's notebooks, written from the tasks
- ``passing``: values as text, from one process into the other
- ``child``: the process in which a student's cells run
- ``answers``: what the outside sees of it
- ``autograding``: the two steps that nbgrader runs, see ``course/nbgrader_config.py``
"""

from importlib import import_module

NAMES = ("lab1", "lab2", "lab3", "lab4", "lab5", "lab6", "lab7")


def load_lab(name: str):
    """The ``Lab`` of an assignment's name."""
    return import_module(f"course.labs.lab_{name.removeprefix('lab')}").LAB
