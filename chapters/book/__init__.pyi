"""The public names of this folder, imported when they are used; an editor reads this list too."""

from . import korthikanti as korthikanti
from .card_formats import (
    cast_overflows as cast_overflows,
    product_errors as product_errors,
    time_products as time_products,
)
from .cheat_sheet import (
    apply_techniques as apply_techniques,
    sheet_figure as sheet_figure,
)
from .checkup import (
    doctor as doctor,
    quietly as quietly,
)
from .claims import (
    count_verdicts as count_verdicts,
    load_claims as load_claims,
    verdicts_by_subject as verdicts_by_subject,
)
from .exercises import (
    built as built,
    check as check,
)
from .gpu_cap import give_back as give_back
from .ledger_search import LedgerSearch as LedgerSearch
from .many_cards import cards_words as cards_words
from .patience import progress as progress
from .predictions import (
    compare_guesses as compare_guesses,
    predict as predict,
)
from .question_cards import QuestionCards as QuestionCards
from .questions import load_questions as load_questions
from .ranks import run_on_ranks as run_on_ranks
from .recordings import (
    load_runs as load_runs,
    recorded as recorded,
    recorded_output as recorded_output,
)
from .small_gpt import (
    SMALL_GPT as SMALL_GPT,
    make_small_gpt as make_small_gpt,
    text_batches as text_batches,
)
