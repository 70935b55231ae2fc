"""Questions as an interviewer asks them, with choices that say why: the reader of ``chapters/questions.toml``.

Their numbers are figures of the ledger of claims, named in the text as ``{C028.moments_gb}``, so that a test
has proved each of them before it stands in an answer.
"""

import random
import tomllib
from dataclasses import dataclass
from types import SimpleNamespace

from book.claims import LEDGER, load_claims

QUESTIONS = LEDGER.with_name("questions.toml")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question, figures put in.

    ``answer`` is the right choice and ``because`` explains it; ``wrong`` maps each other choice to the reason
    why it is wrong; ``cell``, such as ``01_memory_breakdown.ipynb::timeline-table``, shows it, or ``about`` shows
    the same with other numbers.
    """

    id: str
    question: str
    answer: str
    because: str
    wrong: dict[str, str]
    cell: str | None = None
    about: str | None = None

    @property
    def place(self) -> str:
        """The cell that shows the answer, or shows the same with other numbers."""
        return self.cell or self.about

    @property
    def lesson(self) -> str:
        """The number of the lesson whose exercises end with the question.

        >>> load_questions()["Q04"].lesson
        '01'
        """
        return self.place.rpartition("/")[2][:2]

    @property
    def choices(self) -> list[str]:
        """The answer among the wrong choices, in an order that is the same on every machine."""
        choices = [self.answer, *self.wrong]
        random.Random(self.id).shuffle(choices)
        return choices

    def reply(self, choice: str) -> str:
        """What to say to one who picked ``choice``.

        >>> question = load_questions()["Q02"]
        >>> question.reply(question.answer)[:6]
        'Right.'
        """
        if choice == self.answer:
            return f"Right. {self.because}"
        return f"No. {self.wrong[choice]}"


def load_questions(lesson: str | None = None) -> dict[str, Question]:
    """Every question by id, in the order of the file; with ``lesson="01"`` those of that lesson.

    >>> load_questions()["Q10"].answer
    'About half a GB'
    """
    figures = {key: SimpleNamespace(**claim.figures) for key, claim in load_claims().items()}
    tables = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    questions = {key: read_question(key, table, figures) for key, table in tables.items()}
    return {key: shown for key, shown in questions.items() if lesson in (None, shown.lesson)}


def read_question(question_id: str, table: dict, figures: dict[str, SimpleNamespace]) -> Question:
    """The question that one table holds, the figures of ``figures`` put into its sentences."""
    texts = {name: table[name].format(**figures) for name in ("question", "answer", "because")}
    wrong = {choice.format(**figures): why.format(**figures) for choice, why in table["wrong"]}
    places = {name: table.get(name) for name in ("cell", "about")}
    return Question(id=question_id, wrong=wrong, **texts, **places)
