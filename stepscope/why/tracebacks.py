"""The frames of a traceback as text, the reader's own line among them, and the phase that they name.

Python's own form is read, IPython's two, and that of ``rich``, also where a launcher put a rank or a time before each
line. A frame is the reader's own where its file is neither installed nor a known library's source.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

PREFIX = re.compile(
    r"(?:\[rank(?P<rank>\d+)\]:?|\((?P<process>[\w.]+ (?:rank=\d+ )?pid=\d+)[^)]*\)"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|(?:ERROR|INFO|WARNING) \d\d-\d\d [\d:]+ \[[\w.]+:\d+\])(?: |$)"
)
"""What launchers and loggers put before a line."""

LIBRARIES = (
    "torch torchvision torchaudio torchtune transformers accelerate peft trl deepspeed lightning pytorch_lightning "
    "diffusers vllm sglang bitsandbytes datasets unsloth unsloth_zoo triton xformers flash_attn megatron timm "
    "torchao apex fairscale sentence_transformers"
).replace(" ", "|")

INSTALLED = re.compile(
    r"site-packages|dist-packages|/lib(?:64)?/python\d|/Lib/|/torchinductor_|/stepscope/small_card|^<(?!ipython)|/bin/\w+$"
    rf"|(?:^|^\.\.\.?/|/src/|/pytorch/)(?:{LIBRARIES})/|/({LIBRARIES})/\1/"
)

FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'
    r"|^ *(?P<cell>(?:Cell )?In(?:put In)? ?\[\d+\]|Cell In\[\d+\]),? line (?P<cell_line>\d+)"
    r"|File \[?(?P<file2>(?:[A-Za-z]:)?[^\s:\]]+):(?P<line2>\d+)\]?(?:\([^)\s]*\))?, in (?P<function2>[\w.<>]+)"
    r"|^ *\[?(?P<file3>[^\s\]]+\.py|<ipython-input-[^>\n]+>)\]?(?:\([^)\s]*\))? in (?P<function3>[\w<>]+)\("
    r"|^ *(?P<file4>(?:[A-Za-z]:)?[^\s:]+\.py):(?P<line4>\d+)\s+in\s+(?P<function4>[\w<>]+)",
    re.MULTILINE,
)
"""A frame's header: Python's; IPython's of a cell, of a file, and its older one; rich's."""

ARROW = re.compile(r"^ *(?:-+>|❱) ?\[?(\d+)\]?(?:\(\S*\))? ?│? ?(.*)$", re.MULTILINE)

START = re.compile(r"Traceback \(most recent call last\)")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame, and where its header begins in the text."""

    file: str
    line: int | None
    function: str
    code: str
    start: int

    @property
    def path(self) -> str:
        """The file with slashes of one kind."""
        return self.file.replace("\\", "/")

    @property
    def is_own(self) -> bool:
        """Whether it is the reader's own."""
        return not INSTALLED.search(self.path)

    def __str__(self) -> str:
        """As a report names a line, with its code.

        >>> str(Frame(file="/home/me/train.py", line=41, function="step", code="loss.backward()", start=0))
        'train.py:41 in step: loss.backward()'
        """
        name = self.path if self.file.startswith("<") else self.path.rpartition("/")[2]
        place = f"{name}:{self.line}" if self.line else name
        where = f" in {self.function}" if self.function else ""
        return place + where + (f": {self.code}" if self.code else "")


def streams_of(text: str) -> dict[str, str]:
    """The lines of each rank or process, without what a launcher put before them; one of no name, if none did.

    >>> streams_of("[rank1]: Traceback\\n[rank0]: Traceback\\n[rank1]: OutOfMemoryError")
    {'1': 'Traceback\\nOutOfMemoryError', '0': 'Traceback'}
    """
    lines: dict[str, list[str]] = {}
    text = re.sub(r"(?<=[^\n])(?=\[rank\d+\]: )", "\n", ANSI.sub("", text).replace("\r", "\n"))
    for line in text.split("\n"):
        name, rest = "", line.lstrip()
        while prefix := PREFIX.match(rest):
            name = prefix["rank"] or prefix["process"] or name
            line, rest = rest[prefix.end() :], rest[prefix.end() :].lstrip()
        if rest.startswith("│"):  # rich's box
            line = rest.strip("│").rstrip(" │")
        lines.setdefault(name, []).append(line)
    return {name: "\n".join(own) for name, own in lines.items()}


def frames_in(text: str) -> list[Frame]:
    """Every frame of a text, in its order: the outermost call of a traceback first.

    >>> frames_in('  File "train.py", line 3, in <module>\\n    step()')
    [Frame(file='train.py', line=3, function='<module>', code='step()', start=2)]
    """
    headers = list(FRAME.finditer(text))
    frames = []
    for number, header in enumerate(headers):
        end = headers[number + 1].start() if number + 1 < len(headers) else len(text)
        body = text[header.end() : end]
        parts = {name.rstrip("234"): part for name, part in header.groupdict().items() if part}
        line, code = parts.get("line") or parts.get("cell_line"), ""
        if header["file"]:
            first = body.lstrip("\n").partition("\n")[0]
            code = first.strip() if first.startswith(" ") else ""
        elif arrow := ARROW.search(body):
            line, code = arrow[1], arrow[2].strip()
        frames.append(
            Frame(
                file=parts.get("file") or parts["cell"],
                line=int(line) if line else None,
                function=parts.get("function", ""),
                code=code,
                start=header.start(),
            )
        )
    return frames


def frames_of(text: str, frames: Sequence[Frame], message: int) -> list[Frame]:
    """The frames of the traceback that a message at this place ends; if none does, of what is quoted below it."""
    starts = [start.start() for start in START.finditer(text, 0, message)]
    above = [frame for frame in frames if (starts[-1] if starts else 0) <= frame.start < message]
    return above or [frame for frame in frames if frame.start > message]


@dataclass(frozen=True)
class Phase:
    """What a program does in some frames: its name, the row of the table, and what to type where it differs."""

    name: str
    row: str | None
    frames: str
    """A pattern of ``path function | code``."""
    first: str = ""


DECIDING = (
    Phase("the start of an inference engine", "engine", r"/vllm/|/sglang/|gpu_memory_utilization"),
    Phase(
        "prepare_model_for_kbit_training",
        "loading",
        r"prepare_model_for_kbit_training",
        "prepare_model_for_kbit_training casts all that is not in 4 bits to float32: leave it out, and call "
        "model.gradient_checkpointing_enable() and model.enable_input_require_grads() yourself",
    ),
    Phase(
        "nn.DataParallel",
        "card 0",
        r"nn/parallel/(?:replicate|scatter_gather|parallel_apply|comm|_functions)\.py"
        r"|data_parallel\.py (?:replicate|gather|scatter|parallel_apply)",
    ),
    Phase(
        "an evaluation, where its outputs are put together",
        "evaluation",
        r"nested_concat|pad_and_concatenate|EvalLoopContainer|nested_gather|preds_host",
    ),
    Phase(
        "an evaluation",
        "evaluation",
        r"evaluation_loop|prediction_loop|prediction_step|trainer\w*\.py predict|trainer\.predict\("
        r"|val_loop| _*(?:val(?:id\w*)?|eval(?:uat\w+)?|estimate_loss|test)(?:_(?:step|epoch|loop|one)\w*)? \|"
        r"| _*(?:run_)?(?:valid\w*|evaluat\w+|eval)_\w+ \||\.(?:evaluate|validate)\(",
        "with torch.no_grad(): around it; a smaller batch there; keep loss.item() and argmax, no logits",
    ),
    Phase(
        "the capture of a CUDA graph, or autotuning",
        "compile",
        r"cudagraph_trees|select_algorithm|autotune|do_bench|triton_heuristics|cuda/graphs\.py",
    ),
    Phase(
        "saving",
        "saving",
        r"_save_checkpoint|save_checkpoint|save_model|save_pretrained|serialization\.py save|torch\.save\("
        r"|get_(?:model|optimizer)_state_dict|full_state_dict|[./ ]state_dict(?: \||\()|merge_and_unload",
        "a sharded checkpoint, or StateDictOptions(full_state_dict=True, cpu_offload=True)",
    ),
    Phase(
        "loading the model",
        "loading",
        r"from_pretrained|load_checkpoint_in_model|dispatch_model|_load_(?:pretrained_model|state_dict_into)",
    ),
    Phase(
        "loading a checkpoint",
        "saving",
        r"load_state_dict|serialization\.py (?:load|_load|persistent_load|restore_location)|torch\.load\("
        r"|_load_(?:from_checkpoint|best_model|optimizer\w*)|load_checkpoint|\bre(?:sume|store)\w*(?:\(| \|)",
        'torch.load(file, map_location="cpu", mmap=True), then del; '
        "load_state_dict(..., assign=True) for a model made on meta",
    ),
    Phase(
        "generate()",
        "evaluation",
        r"generation/utils\.py|[. ]generate(?: \||\()|_generate_and_score",
        "with torch.no_grad() or inference_mode(); fewer sequences or beams at a time, a smaller max_new_tokens: its "
        "cache grows with each",
    ),
)
"""Phases that one frame anywhere decides; of several the first."""

STEP = Phase(
    "optimizer.step()",
    "step",
    r"/optim(?:izers?)?/\w+\.py (?:step|_\w+tensor_\w+|_init_group|adamw?|init_state)\b|bitsandbytes/optim"
    r"|optimizer_step|initialize_optimizer_states|optimizer\.step\(|scaler\.step\(|\.optim(?:izer)?\w*\.step\(",
)
CLIP = Phase(
    "gradient clipping",
    "step",
    r"clip_grad",
    "torch.nn.utils.clip_grad_norm_(..., foreach=False)",
)
BACKWARD = Phase(
    "the backward",
    "backward",
    r"\.backward\(|autograd/graph\.py|autograd/__init__\.py backward| backward\b",
)
LOSS = Phase(
    "the loss",
    "backward",
    r"cross_entropy|log_softmax|loss_function|ForCausalLMLoss|loss/loss_\w+\.py|lm_head|logits\.float\(|kl_div"
    r"|\blogits\b.*(?:shift|view|contiguous|softmax)",
)
MOVING = Phase(
    "moving the model to the card",
    "loading",
    r"nn/modules/module\.py (?:cuda|to|_apply|convert|<lambda>)\b",
)
FORWARD = Phase(
    "the forward", "forward", r" forward\b|_call_impl|__call__|[.\s](?:net|model|\w+_model)\("
)
CODE = Phase("a line outside backward and step", None, r".", "look at the shapes of your line")


def phase_of(frames: Sequence[Frame]) -> Phase | None:
    """What the program was doing, by the frames of one traceback; None without any.

    A backward may run a forward again (a checkpoint), and a step may run both (a closure): of step and backward the
    inner one counts, and a forward inside a step alone is a forward.
    """
    texts = [f"{frame.path} {frame.function} | {frame.code}" for frame in frames]

    def last(phase: Phase) -> int:
        return max((i for i, text in enumerate(texts) if re.search(phase.frames, text)), default=-1)

    for phase in DECIDING:
        if last(phase) >= 0:
            return phase
    step, backward, forward = last(STEP), last(BACKWARD), last(FORWARD)
    if step > backward and step >= forward:
        return STEP
    for phase in (CLIP, BACKWARD, LOSS):
        if last(phase) >= 0:
            return phase
    for phase in (FORWARD, MOVING, CODE):
        if last(phase) >= 0 and (phase is not FORWARD or forward > last(MOVING)):
            return phase
    return None


def own_lines(frames: Sequence[Frame]) -> list[Frame]:
    """The reader's own frames, the one nearest to the failure first."""
    return [frame for frame in reversed(frames) if frame.is_own]
