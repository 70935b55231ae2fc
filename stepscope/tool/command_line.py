"""The command line: ``stepscope report``, ``fit``, ``list`` and ``snapshot``.

    stepscope report my_module.py:build        the step that build() returns, traced without a GPU
    stepscope report train.py -- --lr 1e-3  a training script as "python train.py --lr 1e-3" runs it, until its second
                                            step; --assume train.py:41=128: what only values could say on that line
    stepscope report train.ipynb               a notebook, all cells in order; %pip, !ls and their like are left out
    stepscope report train.py --batches 500    its DataLoader hands out 500 batches alone, and the worst is traced
    stepscope report train.py --until eval     on through its first evaluation; the epoch before it is cut short
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

Every command takes ``--json`` (the result as JSON) and ``--fail-above 22GiB`` for a CI job. It is compared with the
bytes expected on the card (report), the plan's peak (fit), or the peak of reserved bytes (snapshot).

Exit codes: 0 done; 1 above --fail-above, or no plan fits; 2 an argument, a file or a program that cannot be used, said
in one line; 130 stopped by Ctrl-C.
"""

import argparse
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import NoReturn

import memkit
from memkit.units import format_bytes
from stepscope.tool.arguments import UNUSABLE, parser
from stepscope.tool.commands import COMMANDS, progress
from stepscope.tracing.scratch_disk import FREE, SWITCH, sealed


def root_of(error: BaseException) -> BaseException:
    """The first of the errors from which this one was raised, as a traceback would print them."""
    chain = [error]
    while cause := chain[-1].__cause__ or (
        None if chain[-1].__suppress_context__ else chain[-1].__context__
    ):
        if cause in chain:  # raised from itself
            break
        chain.append(cause)
    return chain[-1]


def in_words(error: BaseException) -> str:
    """What happened in one line, with the program's own line at which it did, where there is one."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
    own = str(Path(__file__).parents[1]), str(Path(memkit.__file__).parent)
    others = (*own, sysconfig.get_path("stdlib"), "<")
    frames = traceback.extract_tb(error.__traceback__)
    if FREE and "Permission denied" in words:
        words += f": a report leaves the disk as it found it; leave this out where os.environ has {SWITCH}"
    root = error if frames[-1].filename.startswith(own) else root_of(error)
    if root is not error:
        words = (
            f"{words} (from {' '.join(f'{type(root).__name__}: {root}'.split()).removesuffix(':')})"
        )
    frames = [f for f in frames if not f.filename.startswith(others)]
    places = [
        f"{Path(f.filename).name}:{f.lineno}" for f in frames if "site-packages" not in f.filename
    ]
    return words if not places or places[-1] in words else f"{words} ({places[-1]})"


ABOVE, STOPPED = 1, 130


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
            num_bytes, text, data = COMMANDS[options.command](options)
        progress()
        tell(json.dumps(data, indent=1) if options.json else text)
    if num_bytes == sys.maxsize:  # no plan fits
        return ABOVE
    if options.fail_above is not None and num_bytes > options.fail_above:
        print(
            f"stepscope: {format_bytes(num_bytes)} is above {format_bytes(options.fail_above)}",
            file=sys.stderr,
        )
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
