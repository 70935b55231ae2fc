"""Why a job died: a pasted message, traceback or log in, and out who held the card, in which phase, by which line.

Lesson 07 and ``stepscope why``. Nothing here runs a program or needs torch: it reads text. A number that the text
does not have is said to be missing; where two of its numbers cannot both be so, that is said.

Reading order:

- ``emergency``: the emergency table: what it is when it dies so, and what to type first
- ``message``: the numbers of an allocator's message, in every wording since torch 1.0, and who held the card by them
- ``signs``: other texts that mean that memory ran out, on the card, beside PyTorch's pool, or on the host
- ``tracebacks``: the frames of a traceback, the reader's own line among them, and the phase that they name
- ``answer``: all of it about one text
"""

from .answer import Answer, why_it_died
from .emergency import EMERGENCY
