"""The command line: ``stepscope why``, ``report``, ``fit``, ``list`` and ``snapshot``.

    stepscope why [FILE | -]                   the message, traceback or log of a run that died, or what
                                            torch.cuda.memory_summary() prints, from a file or piped in: who held
                                            the card, in which phase, by which line, what to type first; a recording
                                            goes on to snapshot
    stepscope report my_module.py:build        the step that build() returns, traced without a GPU
    stepscope report train.py -- --lr 1e-3  a training script as "python train.py --lr 1e-3" runs it, until its second
                                            step; --assume train.py:41=128: what only values could say on that line
    stepscope report train.ipynb               a notebook, all cells in order; %pip, !ls and their like are left out
    stepscope report train.py --batches 500    its DataLoader hands out 500 batches alone, and the worst is traced
    stepscope report train.py --until eval     on through its first evaluation; the epoch before it is cut short;
                                            what it keeps of each batch, and in which name; --until save: through
                                            its first save, such as a state dict gathered onto the card; --until
                                            end: to the script's end, where a Trainer loads its best model; --until
                                            resume: until it has saved, and once more, as it finds its own files
    stepscope report train.py --vary N --card CARD -- --batch-size N
                                            the largest N that fits the card, plain and recomputed;
                                            with --batches, on the worst batch of each N
    stepscope report config.json               a Hugging Face model, bf16, 1 sequence of 1,024 tokens, fused AdamW
    stepscope fit MODEL --card CARD --tokens N --seq-len N [--cards N]
                                            every plan that fits, and the code of the best one; MODEL is a name
                                            such as Llama-2-7B, or a config.json; on N equal cards by ZeRO's
                                            stages, the tokens shared out over them
                                            --lora [RANK] --targets query,value: only adapters are trained;
                                            --host 64GiB: what offloading may take of the host's memory
    stepscope list                             the models and cards that have names
    stepscope snapshot FILE [--device N]       a recording of torch.cuda.memory._dump_snapshot

A report leaves the disk as it found it: what a program writes, moves or removes is in a scratch folder alone. A
program that starts others, or writes past Python, is refused; it can leave that out where os.environ has
STEPSCOPE_REPORT.

Every command takes ``--json`` (the result as JSON), and all but why ``--fail-above 22GiB`` for a CI job. It is
compared with the bytes expected on the card (report), the plan's peak (fit), or the peak of reserved bytes (snapshot).

Exit codes: 0 done; 1 above --fail-above, or no plan fits; 2 an argument, a file or a program that cannot be used, said
in one line; 130 stopped by Ctrl-C.
"""

import argparse
import json
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import NoReturn

import memkit
from memkit.units import KIB, MIB, format_bytes
from stepscope.tool.cards import bytes_in, card_named
from stepscope.tool.commands import COMMANDS, progress
from stepscope.tracing.scratch_disk import FREE, SWITCH, sealed

OWN = str(Path(__file__).parents[1]), str(Path(memkit.__file__).parent)
ABOVE, UNUSABLE, STOPPED = 1, 2, 130


def number_in(text: str) -> int:
    """A whole number; each command knows its own limits.

    >>> number_in("32768"), number_in("16k")
    (32768, 16384)
    """
    count = re.fullmatch(r"([+-]?\d+)([kKM]?)", text.strip())
    if not count:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number such as 2, or 16k for 16,384"
        ) from None
    return int(count[1]) * {"": 1, "k": KIB, "M": MIB}[count[2].replace("K", "k")]


def assumption(text: str) -> tuple[str, float]:
    """A line and the number that is assumed there.

    >>> assumption("train.py:41=128")
    ('train.py:41', 128)
    """
    line, _, number = text.rpartition("=")
    try:
        return line, int(number) if number.isdigit() else float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form train.py:41=128") from None


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what it cannot use."""

    def error(self, message: str) -> None:
        self.exit(UNUSABLE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser(description: str) -> OneLineParser:
    """The arguments of every command; ``description`` is the text of ``--help``, exit codes at its end."""
    doc, _, codes = description.replace("``", "").partition("Exit codes:")
    codes = f"Exit codes:{codes}"
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print the result as JSON")
    shared = argparse.ArgumentParser(add_help=False, parents=[as_json])
    limit = "exit 1 above this, such as 22GiB"
    shared.add_argument("--fail-above", metavar="SIZE", type=bytes_in, help=limit)
    raw = argparse.RawDescriptionHelpFormatter
    main = OneLineParser(prog="stepscope", description=doc, epilog=codes, formatter_class=raw)
    main.add_argument("--version", action="version", version=f"stepscope {memkit.__version__}")
    commands = main.add_subparsers(dest="command", required=True)
    kind = {"parents": [shared], "epilog": codes}
    number = {"type": number_in, "metavar": "N"}

    words = "a job died: who held the card, in which phase, by which line"
    why = commands.add_parser("why", help=words, parents=[as_json], epilog=codes)
    why.set_defaults(fail_above=None, device=None)
    words = "its message, traceback or log, or a recording; what is piped or typed in, without a name or with -"
    why.add_argument("file", nargs="?", default="-", help=words)

    add = commands.add_parser("report", help="a program, traced without a GPU", **kind).add_argument
    words = "build() makes model and optimizer and returns the step; or a script, with its arguments after --; "
    words += "or a Hugging Face config.json"
    add("target", metavar="my_module.py:build", help=words)
    words = "what only values could say there: how many rows a mask keeps, or the value that is read or tested"
    line = {"metavar": "FILE:LINE=N", "type": assumption}
    add("--assume", action="append", default=[], help=words, **line)
    words = "write the steps as a film: your lines and every block"
    add("--film", metavar="FILE.html", help=words)
    add("--steps", default=2, help="training steps to trace (2)", **number)
    words = "ask a script's DataLoader for so many batches, and trace the worst of them"
    add("--batches", default=0, help=words, **number)
    words = "follow a script on through its first evaluation or save, to its end (the best model loaded), or until it "
    words += "has saved and run it again, as it resumes from its own files"
    add("--until", choices=["eval", "save", "end", "resume"], default="", help=words)
    words = "the first rank of N that torchrun --nproc-per-node N would start (DDP, FSDP)"
    add("--ranks", default=0, help=words, **number)
    words = "the largest number that fits --card in place of this word among the script's arguments, such as "
    add("--vary", metavar="N", help=words + "-- --batch-size N")
    words = "the one card to be judged, such as 4090, A100-80GB or 24GiB; all without it"
    add("--card", help=words)

    words = "every plan that fits a card, and its code"
    add = commands.add_parser("fit", help=words, **kind).add_argument
    add("model", help="a name such as Llama-2-7B, or a config.json")
    add("--card", required=True, help="a name such as 'RTX 4090'")
    words = "tokens between two optimizer steps (16,384)"
    add("--tokens", default=2**14, help=words, **number)
    words = "tokens in a sequence (2,048, or as many as the model takes)"
    add("--seq-len", help=words, **number)
    add("--cards", default=1, help="so many equal cards (1)", **number)
    words = "in PyTorch, for this book's model (plain) or one of Hugging Face's (transformers)"
    add("--code", default="plain", metavar="KIND", help=words)
    rank = number | {"metavar": "RANK"}
    add("--lora", nargs="?", const=16, help="only plans of LoRA (16)", **rank)
    words = "its layers, such as query,value; all, if none is named"
    add("--targets", metavar="NAMES", help=words)
    words = "the host's memory that offloading may take"
    add("--host", type=bytes_in, metavar="SIZE", help=words)

    commands.add_parser("list", help="the models and cards that have names", **kind)
    add = commands.add_parser("snapshot", help="a recording of a GPU's memory", **kind).add_argument
    add("file", help="what torch.cuda.memory._dump_snapshot wrote")
    add("--device", type=number_in, help="the card, where the file has several")
    return main


def root_of(error: BaseException) -> BaseException:
    """The first of the errors from which this one was raised, as a traceback would print them."""
    seen = []
    while error is not None and error not in seen:  # one may be raised from itself
        seen.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return seen[-1]


def in_words(error: BaseException) -> str:
    """What happened in one line, with the program's own line at which it did, where there is one."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
    frames = traceback.extract_tb(error.__traceback__)
    if FREE and "Permission denied" in words:
        words += f": a report leaves the disk as it found it; leave this out where os.environ has {SWITCH}"
    root = root_of(error)
    if root is not error and not frames[-1].filename.startswith(OWN):
        reason = " ".join(f"{type(root).__name__}: {root}".split())
        words += f" (from {reason.removesuffix(':')})"
    others = (*OWN, sysconfig.get_path("stdlib"), "<")
    places = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in frames
        if not frame.filename.startswith(others) and "site-packages" not in frame.filename
    ]
    return words if not places or places[-1] in words else f"{words} ({places[-1]})"


def answer(options: argparse.Namespace) -> int:
    """Run the command that was asked for, print what it found, and return the exit code."""
    stdout = sys.stdout

    def begin(words: str) -> None:
        """What is known before the command has ended, on the command's own output."""
        if not options.json:
            progress()
            with redirect_stdout(stdout):
                tell(words + "\n")

    options.begin = begin
    with ExitStack() as options.until_printed:
        with redirect_stdout(sys.stderr):  # what a program prints is none of the result
            if getattr(options, "card", None):
                options.card = card_named(options.card)
            num_bytes, text, data = COMMANDS[options.command](options)
        progress()
        tell(json.dumps(data, indent=1) if options.json else text)
    limit = options.fail_above
    if num_bytes == sys.maxsize:  # no plan fits
        return ABOVE
    if limit is not None and num_bytes > limit:
        words = f"stepscope: {format_bytes(num_bytes)} is above {format_bytes(limit)}"
        print(words, file=sys.stderr)
        return ABOVE
    return 0


def tell(text: str) -> None:
    """Print on stdout: a letter that a terminal lacks as ``?``, and to a reader such as ``head`` what it takes."""
    letters = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(letters, "replace").decode(letters), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = parser(__doc__).parse_args(words[:end])
    options.script_arguments = words[end + 1 :]
    if end < len(words) and options.command != "report":
        parser(__doc__).error(f"stepscope {options.command} takes nothing after --")
    try:
        return answer(options)
    except KeyboardInterrupt:
        progress()
        print("stepscope: stopped", file=sys.stderr)
        return STOPPED
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the program under report may raise anything
        progress()
        print(f"stepscope: {in_words(error)}", file=sys.stderr)
        return UNUSABLE


def command() -> NoReturn:
    """The command line as a process of its own.

    Before it runs somebody's program it gives up the right to change the disk, and after that it ends at once: what
    the program has left to threads and to the exit is not done.
    """
    if sys.argv[1:2] != ["report"]:
        sys.exit(main())
    with sealed():
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
