"""A program with one change made to it from outside, so that it can be traced or measured a second time.

``changed_build(build, name)`` runs the same code: an optimizer is told to step otherwise, the blocks of a module
list run in a checkpoint, gradients are off, a script's batches are half as large, a name is let go. What cannot be
done from outside (other states) has no name here.

``on_its_worst`` is for ``stepscope report train.py --batches 500``. A run is followed for two steps; what ends it may
be the one long batch of its fortieth. A step is not traced for each batch: at the first step the DataLoader that fed
it hands out the rest alone, only shapes are kept, and the script trains on the worst.
"""

import copy
import ctypes
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from types import FrameType, MethodType
from unittest.mock import patch

import torch
import torch._dynamo.eval_frame
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.weak import WeakIdKeyDictionary

from memkit.program.hooks import tensors_in
from memkit.program.transformer import class_of
from memkit.units import as_one_of
from stepscope.advice.changes import (
    ADAPTERS_AS_BASE,
    BUCKET_VIEWS,
    DEL_BEFORE_BACKWARD,
    DEL_OUTPUTS,
    NO_DROPOUT_OF_ADAPTERS,
    Change,
)
from stepscope.optimizers import OPTIMIZERS
from stepscope.tool.pieces import in_pieces
from stepscope.tool.script import Script
from stepscope.tracing.refusals import (
    KIT_HOME,
    LIBRARY_HOME,
    OWN_HOME,
    STANDARD_HOME,
    own_line,
    values_of,
)

LIBRARIES = LIBRARY_HOME, STANDARD_HOME, OWN_HOME, KIT_HOME, "<"
"""How the files of functions begin that are not the program's own."""

BATCH_OPTION = re.compile(r"-b|(?!.*(?:eval|test|val))-*[\w.-]*batch[-_]?size")
"""What scripts call the size of a training batch on their command lines."""


@contextmanager
def _in_place(home: object, name: str, value: object) -> Iterator[None]:
    """Inside, ``home`` has this value under this name; yields nothing that would be called before the first step."""
    with patch.object(home, name, value):
        yield


def changed_build(
    build: Callable[[], Callable[[], object]], name: str
) -> Callable[[], Callable[[], object]]:
    """``build`` whose model or step is changed; ``name`` is one of ``PROGRAM_CHANGES``.

    Raises: ValueError: an unknown name; from the changed build, nothing to which the change applies.
    """
    as_one_of("name", name, PROGRAM_CHANGES)
    during_build, during_step = PROGRAM_CHANGES[name]
    if isinstance(build, Script):
        if name == "half_batch":
            option, build = half_batch_option(build)
            during_build = partial(_half_batches, has_option=bool(option))
        return build.also(during_build, during_step)

    def built():
        with during_build() as made:
            step = build()
            if made:
                made()

        def changed_step():
            with during_step():
                step()

        return changed_step

    return built


def half_batch_option(script: Script) -> tuple[str, Script]:
    """The script's own option for the size of a training batch with half its number, and the script with it."""
    arguments = list(script.arguments)
    for place, word in enumerate(arguments):
        option, equals, number = word.partition("=")
        number = number if equals else "".join(arguments[place + 1 : place + 2])
        if BATCH_OPTION.fullmatch(option) and number.isdecimal() and int(number) % 2 == 0:
            half = str(int(number) // 2)
            words = [f"{option}={half}"] if equals else [option, half]
            arguments[place : place + len(words)] = words
            return " ".join(words), replace(script, arguments=tuple(arguments))
    return "", script


@contextmanager
def _half_batches(*, has_option: bool = False) -> Iterator[Callable[[], None]]:
    """Batches of half the size, and a step after two: a ``Trainer`` is told so itself; else every DataLoader makes such
    batches, where the script has no option for it, and of an optimizer each second step, with what it clears, is left
    out.
    """
    plain, halved, halfway = DataLoader.__init__, [has_option] * has_option, weakref.WeakSet()
    is_told = []

    def init(loader, dataset, batch_size=1, *args, **kwargs):
        if not (has_option or is_told) and batch_size and batch_size % 2 == 0:
            halved.append(batch_size)
            batch_size //= 2
        plain(loader, dataset, batch_size, *args, **kwargs)

    def after_init(options):
        if not has_option and options.per_device_train_batch_size % 2 == 0:
            is_told.append(options)
            options.per_device_train_batch_size //= 2
            options.gradient_accumulation_steps *= 2

    def step(optimizer, *closure, **more):
        if is_told or optimizer in halfway:
            halfway.discard(optimizer)
            return type(optimizer).step(optimizer, *closure, **more)
        halfway.add(optimizer)
        return [run() for run in (*closure, *more.values()) if callable(run)]

    def made():
        if not halved + is_told:
            raise ValueError("no option and no DataLoader of an even batch size to halve")

    def clears(plain):
        return lambda *args, **kwargs: None if halfway else plain(*args, **kwargs)

    with (
        patch.object(DataLoader, "__init__", init),
        _each_optimizer(lambda optimizer: setattr(optimizer, "step", MethodType(step, optimizer))),
        _trainer_options(after_init),
        _zero_grad_as(clears),
    ):
        yield made


@contextmanager
def _each_optimizer(change: Callable[[Optimizer], None]) -> Iterator[None]:
    """``change`` is called with each optimizer, and once more when it is given more to train."""
    plain = Optimizer.add_param_group

    def add(optimizer, group):
        plain(optimizer, group)
        change(optimizer)

    with patch.object(Optimizer, "add_param_group", add):
        yield


@contextmanager
def _trainer_options(change: Callable[[object], None]) -> Iterator[None]:
    """``change`` is called with the options of each ``Trainer`` of transformers', before a library reads them."""
    kind = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)
    if kind is None:
        yield
        return
    plain = kind.__post_init__

    def after_init(options):
        change(options)
        plain(options)

    with patch.object(kind, "__post_init__", after_init):
        yield


def _steps_in_backward() -> AbstractContextManager[None]:
    """A weight is stepped as soon as its gradient is there, which goes then; the optimizer's own step finds none."""

    def step(known, number, parameter):
        optimizer = known()
        own = type(optimizer).step
        while hasattr(
            own, "__wrapped__"
        ):  # without hooks: a script's step ends at the optimizer's own
            own = own.__wrapped__
        groups = optimizer.param_groups
        kept = [group["params"] for group in groups]
        for place, group in enumerate(groups):
            group["params"] = [parameter] * (place == number)
        with torch.no_grad():
            own(optimizer)
        for group, parameters in zip(groups, kept, strict=True):
            group["params"] = parameters
        parameter.grad = None

    def change(optimizer):
        # torch holds a hook where Python's collector does not look, so it may not know the optimizer
        known, number = weakref.ref(optimizer), len(optimizer.param_groups) - 1
        for parameter in optimizer.param_groups[-1]["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(step, known, number))

    return _each_optimizer(change)


@contextmanager
def _zero_grad_as(changed: Callable[[Callable], Callable]) -> Iterator[None]:
    """Modules and optimizers have the ``zero_grad`` that ``changed`` makes of theirs."""
    with ExitStack() as stack:
        for kind in (nn.Module, Optimizer):
            stack.enter_context(patch.object(kind, "zero_grad", changed(kind.zero_grad)))
        yield


@contextmanager
def _optimizers_step(**choices: bool) -> Iterator[None]:
    def choose(optimizer, *_):
        for group in optimizer.param_groups:
            if not choices.keys() <= group.keys():
                raise ValueError(f"{type(optimizer).__name__} has no {' or '.join(choices)}")
            group.update(choices)

    with register_optimizer_step_pre_hook(choose):
        yield


@contextmanager
def _eight_bit_adam() -> Iterator[None]:
    """Every Adam and AdamW that is made is bitsandbytes' in 8 bits; a ``Trainer``'s keeps embeddings' states in 32."""
    kind = class_of(OPTIMIZERS["8-bit AdamW"])

    def init(optimizer, params, lr=1e-3, *_, **__):
        optimizer.__class__ = kind
        kind.__init__(optimizer, params, lr=lr)

    with (
        patch.object(torch.optim.Adam, "__init__", init),  # AdamW's calls it
        _trainer_options(lambda options: setattr(options, "optim", "adamw_bnb_8bit")),
    ):
        yield


def _checkpoint(modules: list[nn.Module]) -> None:
    """The blocks that repeat run again in the backward; a Hugging Face model is asked to do so itself."""
    own = [m for m in modules if getattr(m, "supports_gradient_checkpointing", False)]
    inner = {id(part) for module in own for part in module.modules() if part is not module}
    choices = {"use_reentrant": False}
    for module in own:
        if id(module) not in inner:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=choices)
    if own:
        return
    lists = [m for m in modules if isinstance(m, (nn.ModuleList, nn.Sequential)) and _repeats(m)]
    if not lists:
        raise ValueError("no list of equal blocks to run again was found in the model")
    done: set[int] = set()
    for blocks in sorted(lists, key=lambda m: -sum(p.numel() for p in m.parameters())):
        if id(blocks) not in done:
            done |= {id(part) for block in blocks for part in block.modules()}
            for block in blocks:
                block.forward = partial(checkpoint, block.forward, **choices)


class KeptOutputs:
    """Names of the program's own functions that hold what a model returned when nothing needs it any more.

    ``outputs = model(batch)`` binds the name anew when the model has returned, so that the last outputs stand through
    the backward (``in_backward``), which keeps what it needs of them by itself, and through the whole next forward
    (``in_forward``). Both have the names that held more than one number, in their order, with the line of the call,
    and ``bytes_in_backward`` is the most that stood there. ``lets_go`` says before which of the two they are let go,
    as by ``del outputs``.
    """

    def __init__(self, lets_go: str = ""):
        self.lets_go, self.in_forward, self.in_backward = lets_go, {}, {}
        self.outermost, self.outputs, self.bytes_in_backward = None, WeakIdKeyDictionary(), 0
        self.num_backwards = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the steps run."""
        plain = Tensor.backward

        def backward(loss, *args, **kwargs):
            self.num_backwards += 1
            held = self.look_around(sys._getframe(1), "backward", self.in_backward)
            self.bytes_in_backward = max(self.bytes_in_backward, held)
            return plain(loss, *args, **kwargs)

        with (
            register_module_forward_pre_hook(self.before),
            register_module_forward_hook(self.after),
            patch.object(Tensor, "backward", backward),
        ):
            yield

    @property
    def cure_of_forward(self) -> Change:
        """What to write at the end of the step, with the names and the line of the call."""
        names, (*_, line) = ", ".join(self.in_forward), self.in_forward.values()
        return replace(DEL_OUTPUTS, name=f"del {names} at the end of the step, before {line}")

    @property
    def cure_of_backward(self) -> Change:
        """What to write before the backward, with the names and its line."""
        names, (*_, line) = ", ".join(self.in_backward), self.in_backward.values()
        return replace(DEL_BEFORE_BACKWARD, name=f"del {names} before the backward of {line}")

    def before(self, module: nn.Module, args: tuple) -> None:
        """A module is called; of the outermost one that trains, the names in its callers are looked at."""
        if self.outermost is not None:
            return
        self.outermost = module
        if torch.is_grad_enabled():
            self.look_around(sys._getframe(1), "forward", self.in_forward)

    def look_around(self, frame: FrameType | None, moment: str, names: dict[str, str]) -> int:
        """The names in the program's own functions that are under way; returns the bytes that they hold."""
        held = 0
        while frame is not None:
            if not frame.f_code.co_filename.startswith(LIBRARIES):
                held += self.look_at(frame, moment, names)
            frame = frame.f_back
        return held

    def after(self, module: nn.Module, args: tuple, out: object) -> None:
        """A module returns; the outermost one, or one that was called before this was watched."""
        if self.outermost not in (None, module):
            return
        self.outermost = None
        if torch.is_grad_enabled():
            self.outputs = WeakIdKeyDictionary(dict.fromkeys(output_tensors(out)))

    def look_at(self, frame: FrameType, moment: str, names: dict[str, str]) -> int:
        """The names of one frame, noted in ``names``, and the bytes that they hold."""
        held = {name: x for name, x in values_of(frame).items() if self.is_output(x)}
        for name in held:
            names[name] = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        num_bytes = sum(tensor.nbytes for x in held.values() for tensor in output_tensors(x))
        if held and self.lets_go == moment:
            frame.f_locals.update(dict.fromkeys(held))
            if sys.version_info < (3, 13):
                # from the copy to the function's own; what is in neither stays as it is
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
            values_of(frame)
        return num_bytes

    def is_output(self, value: object) -> bool:
        """Whether a name holds outputs of the last call, and more than one number."""
        tensors = output_tensors(value)
        is_large = any(tensor.numel() > 1 for tensor in tensors)
        return is_large and all(tensor in self.outputs for tensor in tensors)


def output_tensors(value: object) -> list[Tensor]:
    """The tensors of what a model returns: one, a tuple or a mapping of them; none of anything else."""
    if not isinstance(value, (Tensor, tuple, Mapping)):
        return []
    return list(tensors_in(dict(value) if isinstance(value, Mapping) else value))


def configs_with_cache(module: nn.Module) -> list:
    """The configuration of a Hugging Face model that returns its keys and values."""
    config = vars(module).get("config")  # what is not made yet may have no attributes
    return [config] if getattr(config, "use_cache", None) is True else []


def changes_for(parent: nn.Module, name: str, child: nn.Module | None) -> list[Change]:
    """What a program can take that gives a module this child."""
    is_dropped = isinstance(parent, nn.ModuleDict) and isinstance(child, nn.Dropout) and child.p
    return [
        *[BUCKET_VIEWS] * isinstance(parent, DistributedDataParallel),
        *[NO_DROPOUT_OF_ADAPTERS] * bool(is_dropped),
        *[ADAPTERS_AS_BASE] * (name == "lora_A"),
    ]


@contextmanager
def _modules_changed(change: Callable[[list[nn.Module]], None]) -> Iterator[Callable[[], None]]:
    """``change`` is called with all modules, when they are made."""
    seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    with register_module_module_registration_hook(
        lambda parent, name, child: seen.update(m for m in (parent, child) if m is not None)
    ):
        yield lambda: change(list(seen))


def _each_module(change: Callable[[nn.Module], bool]) -> AbstractContextManager:
    """``change`` is called with each module, and says whether it changed it."""

    def change_all(modules: list[nn.Module]) -> None:
        if not sum(map(change, modules)):
            raise ValueError("no module that can be changed so")

    return _modules_changed(change_all)


def _without_cache(module: nn.Module) -> bool:
    """A Hugging Face model returns no keys and values."""
    configs = configs_with_cache(module)
    for config in configs:
        config.use_cache = False
    return bool(configs)


def _drop_no_inputs(layer: nn.Module) -> bool:
    """An adapted layer drops none of its adapter's inputs."""
    drops = getattr(layer, "lora_dropout", {})
    dropped = [name for name, drop in drops.items() if isinstance(drop, nn.Dropout)]
    drops.update(dict.fromkeys(dropped, nn.Identity()))
    return bool(dropped)


def _adapters_as_base(layer: nn.Module) -> bool:
    """The adapters of a layer are in the dtype of its weight, where that has 16 bits."""
    base = getattr(getattr(layer, "base_layer", None), "weight", None)
    if base is None or base.dtype not in (torch.bfloat16, torch.float16):
        return False
    names = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
    adapters = [x for name in names for x in getattr(layer, name, {}).parameters()]
    for adapter in adapters:
        adapter.data = adapter.data.to(base.dtype)
    return bool(adapters)


def _bucket_views() -> AbstractContextManager:
    """DDP's gradients are views of its buckets."""
    plain = DistributedDataParallel.__init__

    def init(parallel, *args, **kwargs):
        plain(parallel, *args, **kwargs | {"gradient_as_bucket_view": True})

    return _in_place(DistributedDataParallel, "__init__", init)


def _argmax_logits() -> AbstractContextManager:
    """A ``Trainer`` keeps of its evaluation's logits the likeliest word; what is computed of logits is left out."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None:
        raise ValueError("no Trainer of transformers'")
    plain = trainer.__init__

    def likeliest(logits, labels):
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)

    def init(trainer, *args, **kwargs):
        plain(trainer, *args, **kwargs)
        trainer.preprocess_logits_for_metrics = trainer.preprocess_logits_for_metrics or likeliest
        trainer.compute_metrics = trainer.compute_metrics and (lambda _: {})

    return _in_place(trainer, "__init__", init)


@contextmanager
def loads_noted(lines: dict[str, None]) -> Iterator[None]:
    """The program's lines at which ``torch.load`` puts tensors on the card, as saved or as it is told."""
    plain = torch.load

    def load(*args, **kwargs):
        loaded = plain(*args, **kwargs)
        if any(tensor.device.type != "cpu" for tensor in tensors_in(loaded)):
            lines[own_line()] = None
        return loaded

    with patch.object(torch, "load", load):
        yield


def _loaded_to_host() -> AbstractContextManager:
    """``torch.load`` puts what it reads into the host's memory, wherever it was saved."""
    plain = torch.load

    def load(file, map_location=None, *args, **kwargs):
        return plain(file, "cpu", *args, **kwargs)

    return _in_place(torch, "load", load)


def _zero_grad_after_step() -> AbstractContextManager:
    """Gradients are let go when the optimizer has stepped."""
    return register_optimizer_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())


def frozen_in_float32(model: nn.Module) -> int:
    """Bytes of this rank's weights in float32 that a model which trains others does not train."""
    weights = list(model.parameters())
    frozen = [p for p in weights if not p.requires_grad and p.dtype is torch.float32]
    if len(frozen) == len(weights):
        return 0
    return sum(getattr(p, "_local_tensor", p).nbytes for p in frozen)


COMPILED_CALL = torch._dynamo.eval_frame.__file__, "compile_wrapper"


@contextmanager
def compiled_checkpoints(lines: dict[str, None], *, are_kept: bool) -> Iterator[None]:
    """The program's lines at which a checkpoint is inside compiled code, whose compiler may run all of them again at
    once; ``are_kept``: it keeps all that it makes, which is as much.
    """
    home = torch.utils.checkpoint
    without_reentrant = home._checkpoint_without_reentrant_generator
    reentrant = home.CheckpointFunction.apply

    def is_kept() -> bool:
        frame = sys._getframe(2)
        while frame and (frame.f_code.co_filename, frame.f_code.co_name) != COMPILED_CALL:
            frame = frame.f_back
        if frame:
            lines[own_line()] = None
        return are_kept and frame is not None

    def generator(*args, **kwargs):
        return iter((None,)) if is_kept() else without_reentrant(*args, **kwargs)

    def apply(function, preserve, *args):
        return function(*args) if is_kept() else reentrant(function, preserve, *args)

    with (
        patch.object(home, "_checkpoint_without_reentrant_generator", generator),
        patch.object(home.CheckpointFunction, "apply", apply),
    ):
        yield


def _repeats(blocks: nn.Module) -> bool:
    kinds = [type(block) for block in blocks]
    return len(kinds) > 1 and len(set(kinds)) == 1 and any(True for _ in blocks[0].parameters())


PROGRAM_CHANGES = {
    "for_loop": (nullcontext, partial(_optimizers_step, foreach=False)),
    "fused": (nullcontext, partial(_optimizers_step, foreach=False, fused=True)),
    "set_to_none": (
        nullcontext,
        partial(_zero_grad_as, lambda plain: lambda owner, *_, **__: plain(owner)),
    ),
    "zero_grad_after_step": (nullcontext, _zero_grad_after_step),
    "del_outputs": (nullcontext, lambda: KeptOutputs(lets_go="forward").watching()),
    "del_before_backward": (nullcontext, lambda: KeptOutputs(lets_go="backward").watching()),
    "without_cache": (partial(_each_module, _without_cache), nullcontext),
    "loss_in_pieces": (partial(_each_module, in_pieces), nullcontext),
    "no_dropout_of_adapters": (partial(_each_module, _drop_no_inputs), nullcontext),
    "adapters_as_base": (partial(_each_module, _adapters_as_base), nullcontext),
    "bucket_views": (_bucket_views, nullcontext),
    "argmax_logits": (_argmax_logits, nullcontext),
    "loaded_to_host": (_loaded_to_host, nullcontext),
    "no_grad": (nullcontext, torch.no_grad),
    "checkpointed": (partial(_modules_changed, _checkpoint), nullcontext),
    "eight_bit": (_eight_bit_adam, nullcontext),
    "half_batch": (_half_batches, nullcontext),
    "steps_in_backward": (_steps_in_backward, nullcontext),
}
"""By name: what is around ``build()``, and what is around each step."""


MOST_TRACED = 4
"""Of batches none of which is the largest in every direction, so many are traced."""


@dataclass(frozen=True)
class Batch:
    """A batch of a loader: its number, counted from 1, and the shapes of its tensors."""

    number: int
    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_values(self) -> int:
        """Numbers in all its tensors."""
        return sum(map(prod, self.shapes))

    def needs_no_more_than(self, other: "Batch") -> bool:
        """Whether no tensor of it is larger in any direction than the same one of the other batch."""
        if list(map(len, self.shapes)) != list(map(len, other.shapes)):
            return self.shapes == ()
        sizes = zip(chain(*self.shapes), chain(*other.shapes), strict=True)
        return all(mine <= its for mine, its in sizes)

    def __str__(self) -> str:
        return " × ".join(f"{size:,}" for size in max(self.shapes, key=prod, default=()))


class Scanned(BaseException):
    """Ends the script when its loader has been asked; passes the script's own ``except Exception``."""


class Loaders:
    """Sees what every DataLoader of a script hands out.

    ``num_batches``: so many of the loader that feeds the first step are asked for, and the script ends by ``Scanned``;
    with ``wanted``, the number of one of them, it trains on that one from then on.
    """

    def __init__(self, num_batches: int = 0, wanted: int = 0):
        self.num_batches, self.wanted = num_batches, wanted
        self.seen: list[Batch] = []

    @contextmanager
    def during_build(self) -> Iterator:
        """Around the whole script: its loaders are watched."""
        self.by_loader: dict[_BaseDataLoaderIter, list[Batch]] = {}
        self.kept: dict[_BaseDataLoaderIter, object] = {}
        self.ask, self.last, self.repeats = _BaseDataLoaderIter.__next__, None, None
        with patch.object(_BaseDataLoaderIter, "__next__", lambda loader: self.next_of(loader)):
            yield

    def next_of(self, loader: _BaseDataLoaderIter) -> object:
        """What a loader hands out, or again the batch that is wanted of it."""
        if loader is self.repeats:
            return copy.deepcopy(self.kept[loader])
        self.last = loader
        batch = self.ask(loader)
        seen = self.by_loader.setdefault(loader, [])
        tensors = tensors_in(dict(batch) if isinstance(batch, Mapping) else batch)
        seen.append(Batch(len(seen) + 1, tuple(tuple(tensor.shape) for tensor in tensors)))
        if len(seen) == self.wanted:
            self.kept[loader] = copy.deepcopy(batch)
        return batch

    @property
    def rows_and_batch(self) -> tuple[int, int]:
        """Rows that the loader asked last has in all, and those of its batch; (0, 0) where it does not know them."""
        sampler = getattr(self.last, "_index_sampler", None)
        # a loader without batches of its own, or of data without a length
        with suppress(AttributeError, TypeError):
            return len(sampler.sampler), sampler.batch_size
        return 0, 0

    @contextmanager
    def during_step(self) -> Iterator[None]:
        """From the first step on. Raises: ValueError: no loader feeds it. Scanned: its batches are known."""
        self.seen = self.by_loader.get(self.last, [])
        if self.num_batches:
            if self.last is None:
                raise ValueError(
                    "--batches: no DataLoader of torch's hands out what the first step trains on"
                )
            while len(self.seen) < (self.wanted or self.num_batches):
                try:
                    self.next_of(self.last)
                except StopIteration:
                    break
            if not self.wanted:
                raise Scanned
            self.repeats = self.last
        yield


def watched(script: Script, loaders: Loaders) -> Script:
    """The script whose loaders are seen."""
    return script.also(loaders.during_build, loaders.during_step)


def largest_of(batches: list[Batch]) -> list[Batch]:
    """Those that no other one exceeds or equals in every direction, most values first."""
    found: list[Batch] = []
    for batch in sorted(batches, key=lambda batch: (-batch.num_values, batch.number)):
        if not any(batch.needs_no_more_than(larger) for larger in found):
            found.append(batch)
    return found


def on_its_worst(
    script: Script, num_batches: int, traced: Callable, say: Callable
) -> tuple[Script, str]:
    """The script that trains on the worst of its first batches, and which one that is."""
    say(f"asking the loader for {num_batches:,} batches")
    loaders = Loaders(num_batches)
    with suppress(Scanned):
        traced(watched(script, loaders))
    largest, number = largest_of(loaders.seen), f"{len(loaders.seen):,}"
    first = largest[:MOST_TRACED]
    tried = [(batch, watched(script, Loaders(num_batches, batch.number))) for batch in first]
    if len(tried) > 1:
        say(f"tracing {len(tried)} batches, none of which is the largest in every direction")
        tried.sort(key=lambda one: traced(one[1]).peak_bytes, reverse=True)
    (worst, changed), left = tried[0], len(largest) - len(tried)
    words = f"Batch {worst.number:,} of {number} ({worst}) is the worst"
    words += f" of {len(tried)} traced; {left} smaller ones were not" if left else ""
    return changed, words


def difference(batches: list[Batch]) -> str:
    """That the first batches of a loader are not of one shape; nothing where they are."""
    shapes = list(dict.fromkeys(map(str, batches)))
    if len(shapes) < 2:
        return ""
    return f"The batches differ ({', '.join(shapes[:3])}): --batches 500 finds the worst of 500.\nWith these"
