"""In which ways the planner tries an optimizer, or why it does not, and what an optimizer gives up."""

from collections.abc import Mapping
from dataclasses import dataclass

from memkit.optimizers import Optimizer
from stepscope.optimizers import is_quantized
from stepscope.setup import Place

GIVEN_UP = ("second moments by row and column", "states in 8 bits", "states in 4 bits")
"""What an optimizer may give up besides time, the dearest last. The planner compares plans by it."""

TRAINS_DIFFERENTLY, AS_LARGE = "train differently", "keep states as large as torchao's 8-bit ones"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the planner knows of an optimizer.

    ``ways`` has a pair of implementation and ``Place`` for each way in which it is tried; ``why_not`` says what an
    optimizer does for which it is not. ``gives_up`` is one of ``GIVEN_UP`` or empty. ``trainer_name`` is the value of
    ``optim`` in Hugging Face's ``TrainingArguments``.

    Raises: ValueError: neither or both of ``ways`` and ``why_not``, or a word that is not in ``GIVEN_UP``.
    """

    ways: tuple[tuple[str, Place], ...] = ()
    why_not: str = ""
    gives_up: str = ""
    trainer_name: str = ""

    def __post_init__(self):
        if bool(self.ways) == bool(self.why_not):
            words = "give ways to try it, or the reason why not"
            raise ValueError(f"ways={self.ways} and why_not={self.why_not!r}: {words}")
        if self.gives_up not in ("", *GIVEN_UP):
            raise ValueError(f"gives_up={self.gives_up!r} is not one of {GIVEN_UP}")


ON_CARD = ("fused", Place.AFTER_BACKWARD), ("fused", Place.IN_BACKWARD)
ON_HOST = ("foreach", Place.ON_HOST), ("foreach", Place.ON_HOST_WITH_GRADIENTS)

PLANNED: Mapping[str, Planned] = {
    "SGD": Planned(why_not=TRAINS_DIFFERENTLY, trainer_name="sgd"),
    "SGD momentum": Planned(why_not=TRAINS_DIFFERENTLY),
    "AdamW": Planned(ways=(*ON_CARD, *ON_HOST), trainer_name="adamw_torch_fused"),
    "Adafactor": Planned(ways=tuple(("for-loop", place) for place in Place), gives_up=GIVEN_UP[0]),
    "Lion": Planned(why_not=TRAINS_DIFFERENTLY),
    "Muon": Planned(why_not=TRAINS_DIFFERENTLY),
    "8-bit AdamW": Planned(why_not=AS_LARGE, gives_up="states in 8 bits", trainer_name="adamw_bnb_8bit"),
    "torchao 8-bit AdamW": Planned(
        ways=(*ON_CARD, *ON_HOST), gives_up="states in 8 bits", trainer_name="adamw_torch_8bit"
    ),
    "torchao 4-bit AdamW": Planned(
        ways=(*ON_CARD, *ON_HOST), gives_up="states in 4 bits", trainer_name="adamw_torch_4bit"
    ),
    "torchao FP8 AdamW": Planned(why_not=AS_LARGE, gives_up="states in 8 bits"),
    "paged AdamW": Planned(ways=ON_CARD, trainer_name="paged_adamw_32bit"),
    "paged 8-bit AdamW": Planned(why_not=AS_LARGE, gives_up="states in 8 bits", trainer_name="paged_adamw_8bit"),
}
"""By an optimizer's name."""

UNKNOWN = Planned(why_not="are no optimizer of the planner's")


def planned(record: Optimizer) -> Planned:
    """What the planner knows of this record; nothing of one that somebody else made."""
    return PLANNED.get(record.name, UNKNOWN)


def is_wide_adam(record: Optimizer) -> bool:
    """Whether it keeps Adam's second moment in full, so that a quantized one would be smaller."""
    return "exp_avg_sq" in record.roles and not is_quantized(record)
