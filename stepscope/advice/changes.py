"""What would lower the peak: a record for each change, and what each saves of a known setup.

A ``Change`` is a record: its name, why it helps, what it makes of a ``TrainingSetup``, and which bytes at a run's peak
it is about. Bytes are promised for what was computed again: a known setup by the formula (``effects_on_setup``), the
allocator's options by a replay of the same events, a program by a second trace (``stepscope report``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from memkit.formula.estimate import second_step
from memkit.recipes import PURE_BF16
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, NONE
from memkit.units import format_bytes
from stepscope.optimizers import OPTIMIZERS, is_quantized


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to change.

    ``to_setup`` gives the changed setup, the same one where nothing changes. ``touches`` names what of
    ``held_at_peak`` the change is about: bytes at a run's peak, of which only a second trace says how many it saves. Of
    changes of one ``kind`` only one can be made. ``comes_first``: it mends a fault, so it is named before what only
    saves more. ``program`` names the change of ``stepscope.tool.changed`` that does it to a running program, where
    there is one.
    """

    name: str
    why: str
    to_setup: Callable[[TrainingSetup], TrainingSetup] = lambda setup: setup
    touches: str = ""
    kind: str = ""
    comes_first: bool = False
    program: str = ""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A change that was tried: the peak before and after it, in bytes, and how that is known."""

    change: Change
    before_bytes: int
    after_bytes: int
    how: str  # "formula", "replay" (of the same events by other options of the allocator), "second trace"

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def why(self) -> str:
        return self.change.why

    @property
    def saved_bytes(self) -> int:
        return self.before_bytes - self.after_bytes


def helpful(effects: Iterable[Effect]) -> list[Effect]:
    """Those that lower the peak: what mends a fault first, then what saves most; of equals the first."""
    helps = [effect for effect in effects if effect.saved_bytes > 0]
    return sorted(helps, key=lambda effect: (not effect.change.comes_first, effect.after_bytes))


def best_of_each_kind(effects: Iterable[Effect], num_effects: int) -> list[Effect]:
    """The first ``num_effects`` that could all be made: one of each kind."""
    first: dict[object, Effect] = {}
    for number, effect in enumerate(effects):
        first.setdefault(effect.change.kind or number, effect)
    return list(first.values())[:num_effects]


def with_optimizer(setup: TrainingSetup, **fields) -> TrainingSetup:
    """The setup whose optimizer has other ``fields``."""
    return replace(setup, optimizer=replace(setup.optimizer, **fields))


def half_batch(setup: TrainingSetup) -> TrainingSetup:
    size, steps = setup.micro_batch_size, setup.grad_accum_steps
    if size % 2:
        return setup
    return replace(setup, micro_batch_size=size // 2, grad_accum_steps=2 * steps)


def in_8_bits(setup: TrainingSetup) -> TrainingSetup:
    record = setup.optimizer.record
    if "exp_avg_sq" not in {state.role for state in record.states} or is_quantized(record):
        return setup
    return with_optimizer(setup, record=OPTIMIZERS["8-bit AdamW"])


def without_scores(setup: TrainingSetup, **fields) -> TrainingSetup:
    """Other ``fields`` where the scores of attention are stored."""
    return replace(setup, **fields) if setup.attention == "stored" else setup


SET_TO_NONE = Change(
    name="zero_grad(set_to_none=True)",
    touches="kept_gradients",
    program="set_to_none",
    kind="zero_grad",
    comes_first=True,
    to_setup=lambda setup: replace(setup, sets_grads_to_none=True),
    why="gradients go after the optimizer's step instead of standing through the next forward",
)
ZERO_GRAD_AFTER_STEP = Change(
    name="optimizer.zero_grad() right after optimizer.step()",
    touches="last_gradients",
    program="zero_grad_after_step",
    kind="zero_grad",
    comes_first=True,
    why="it comes after the next forward now, so that the last step's gradients stand through that",
)
DEL_OUTPUTS = Change(
    name="del outputs",
    touches="last_outputs",
    program="del_outputs",
    comes_first=True,
    kind="outputs",
    why="a name holds what the model returned until it is bound anew, which is after the next forward",
)
DEL_BEFORE_BACKWARD = Change(
    name="del outputs before the backward",
    program="del_before_backward",
    comes_first=True,
    kind="outputs",
    why="a name holds what the model returned through the backward, which keeps what it needs of it by itself",
)
WITHOUT_CACHE = Change(
    name="model.config.use_cache = False",
    touches="last_outputs",
    program="without_cache",
    comes_first=True,
    why="training has no use for the keys and values that the model returns with its outputs",
)
LOADED_TO_HOST = Change(
    name='torch.load(..., map_location="cpu")',
    program="loaded_to_host",
    comes_first=True,
    why="a checkpoint comes back to where it was saved, beside the model that it is copied into, until no name has it",
)
ARGMAX_LOGITS = Change(
    name="Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))",
    program="argmax_logits",
    comes_first=True,
    why="an evaluation keeps all logits on the card until it ends; compute_metrics then gets words in their place",
)
PIECE = 256
"""Tokens of which the loss is computed at a time."""
LOSS_IN_PIECES = Change(
    name=f"the loss in pieces of {PIECE} tokens, each in a checkpoint",
    program="loss_in_pieces",
    why=f"for each {PIECE} tokens checkpoint(lambda h, y: F.cross_entropy(lm_head(h).float(), y, reduction='sum'), "
    "h, y): the logits of all never stand at once; the head's product runs twice. With reduction='none' these are the "
    "tokens' log-probabilities, negative, as GRPO and DPO want them (TRL's and Liger's fused losses are of this kind)",
)
NO_DROPOUT_OF_ADAPTERS = Change(
    name="LoraConfig(lora_dropout=0)",
    program="no_dropout_of_adapters",
    why="each adapted layer keeps a dropped copy of its input, and its mask; without dropout they share one input",
)
ADAPTERS_AS_BASE = Change(
    name="get_peft_model(..., autocast_adapter_dtype=False)",
    program="adapters_as_base",
    why="adapters in float32 keep a float32 copy of each input; in the base's 16 bits none, but they round updates",
)
BUCKET_VIEWS = Change(
    name="DistributedDataParallel(..., gradient_as_bucket_view=True)",
    program="bucket_views",
    comes_first=True,
    why="gradients stand in the buckets from which they are sent, and not beside them",
)
NO_GRAD = Change(
    name="torch.no_grad() around the forward",
    touches="unwanted_graph",
    program="no_grad",
    comes_first=True,
    why="no backward follows, so nothing of the forward need be kept for one",
)
HALF_BATCH = Change(
    name="half the micro-batch, accumulated twice",
    to_setup=half_batch,
    touches="activations",
    program="half_batch",
    why="every activation is half as large, and scratch is smaller by an unknown share; gradients and states stay",
)
EIGHT_BIT = Change(
    name="8-bit AdamW",
    program="eight_bit",
    touches="large_states",
    to_setup=in_8_bits,
    why="a quarter of the bytes of 32-bit states, half of those of 16-bit ones",
)
STEPS_IN_BACKWARD = Change(
    name="each weight's step in its backward: p.register_post_accumulate_grad_hook(step_and_free)",
    program="steps_in_backward",
    why="optimizers = {p: Optimizer([p], ...) for p in weights}, and step_and_free(p) is optimizers[p].step(); "
    "p.grad = None: one gradient stands at a time; none is clipped by the norm of all, none accumulated or scaled",
)
FOR_LOOP = Change(
    name="optimizer step for-loop, one tensor at a time (foreach=False)",
    program="for_loop",
    kind="optimizer step",
    to_setup=lambda setup: with_optimizer(setup, implementation="for-loop"),
    touches="step_scratch",
    why="the optimizer's scratch for one parameter at a time, not for all at once; the step is slower",
)
CHANGES = (
    SET_TO_NONE,
    ZERO_GRAD_AFTER_STEP,
    DEL_OUTPUTS,
    NO_GRAD,
    Change(
        name="flash attention",
        why="the scores of all heads are never stored",
        to_setup=lambda setup: without_scores(setup, attention="flash"),
    ),
    Change(
        name="full recomputation, which runs each forward twice",
        kind="recomputation",
        touches="activations",
        to_setup=lambda setup: replace(setup, recomputation=FULL),
        why="a block keeps only its input and is run again; it then holds all of its own, so at least this much stays",
        program="checkpointed",
    ),
    Change(
        name="selective recomputation",
        kind="recomputation",
        why="only the attention core is run again",
        to_setup=lambda setup: (
            without_scores(setup, recomputation="selective")
            if setup.recomputation == NONE
            else setup
        ),
    ),
    HALF_BATCH,
    Change(
        name="pure bf16, which rounds every update",
        why="two bytes for each number",
        to_setup=lambda setup: replace(setup, precision=PURE_BF16),
    ),
    EIGHT_BIT,
    Change(
        name="optimizer step fused, in one kernel (fused=True)",
        program="fused",
        kind="optimizer step",
        to_setup=lambda setup: with_optimizer(setup, implementation="fused"),
        touches="step_scratch",
        why="one kernel updates a parameter without any scratch",
    ),
    FOR_LOOP,
)
"""Every change the book knows that can be named without seeing a run."""

EXPANDABLE_SEGMENTS = Change(
    name="PYTORCH_ALLOC_CONF=expandable_segments:True",
    why="the same requests, but segments that grow leave no holes between them",
)


def effects_on_setup(setup: TrainingSetup) -> list[Effect]:
    """What each change does to the peak by formula, the most helpful first; those that help only."""
    before, effects = second_step(setup).peak_bytes, []
    for change in CHANGES:
        try:
            after = second_step(change.to_setup(setup)).peak_bytes
        except ValueError:  # no such implementation, gradients that are freed at once, no formula
            continue
        effects.append(Effect(change=change, before_bytes=before, after_bytes=after, how="formula"))
    return helpful(effects)


def advice_in_words(setup: TrainingSetup) -> str:
    """What would lower the peak most."""
    helps = [
        f"{effect.name} → {format_bytes(effect.after_bytes)} (−{effect.saved_bytes / effect.before_bytes:.0%})"
        for effect in best_of_each_kind(effects_on_setup(setup), 3)
    ]
    most = f"What would help most: {'; '.join(helps)}."
    return most if helps else "No change offered here lowers the peak."
