"""The numbers of your lab: drawn from the name under which you hand in, so that they are yours alone."""

import getpass
import hashlib
import os
import re

TERM = "1"
"""Part of every draw. A teacher who changes it gives new numbers to everybody."""


CHOICES, QUESTIONS = {}, ()


class Numbers(dict):
    """Your numbers by name; shown as a list."""

    def __repr__(self) -> str:
        return "\n".join(f"{name:<24}{_shown(value)}" for name, value in self.items())

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(repr(self))


def my_name() -> str:
    """The name of your account; on a hub the one you logged in with, and while a lab is graded who handed it in."""
    named = os.environ.get("MEMKIT_STUDENT") or os.environ.get("JUPYTERHUB_USER")
    return named or getpass.getuser()


def draw(lab: str, student: str, choices: dict | None = None) -> Numbers:
    """One of the choices for each name. While a lab is graded, the name of who handed it in counts."""
    student = os.environ.get("MEMKIT_STUDENT") or student
    if not isinstance(student, str) or not student.strip():
        raise ValueError(
            f"STUDENT is {student!r}; write the name under which you hand in, in quotes."
        )
    return Numbers(
        (name, options[_index(f"{TERM}/{lab}/{name}/{same_name(student)}", len(options))])
        for name, options in (CHOICES if choices is None else choices).items()
    )


def in_words(mine: Numbers, questions: tuple[str, ...] | None = None) -> str:
    """The questions of the tasks with your numbers in their sentences.

    >>> in_words(Numbers(card="T4"), ("Does it fit on `mine[\"card\"]`?",))
    'Task 1. Does it fit on T4?'
    """
    numbered = enumerate(QUESTIONS if questions is None else questions, 1)
    texts = (f"Task {number}. {' '.join(question.split())}" for number, question in numbered)
    drawn = re.compile(r"`mine\[\"(\w+)\"\]`")
    return "\n\n".join(drawn.sub(lambda found: _shown(mine[found[1]]), text) for text in texts)


def same_name(student: str) -> str:
    """One spelling of a name: a login, the account that a hub makes for it, and a mail address draw alike.

    >>> same_name("jupyter-ada"), same_name("Ada@example.org")
    ('ada', 'ada')
    """
    return student.strip().lower().removeprefix("jupyter-").partition("@")[0]


def _index(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % size


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
