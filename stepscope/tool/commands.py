"""What each command of ``stepscope`` finds, for whoever calls it: bytes for --fail-above, a text, and JSON."""

import argparse
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from memkit.cards import CARDS, MEMORY_ONLY, Card
from memkit.formula.parameters import count_parameters
from memkit.units import aligned_table, as_one_of, as_whole_number, format_bytes, format_count
from stepscope.advice.diagnosis import diagnose_memory
from stepscope.advice.left_out import fits_of, left_out_of
from stepscope.allocator.replay import replay_trace
from stepscope.experts import PUBLISHED_MODELS
from stepscope.hugging_face import model_of_config, read_config
from stepscope.planner.code import code_of
from stepscope.planner.search import find_plans
from stepscope.setup import AdapterConfig, linear_layers
from stepscope.tracing.scratch_disk import on_scratch_disk, unsealed
from stepscope.why.answer import why_it_died

MOST = 2**16
"""No larger number is tried."""

FOLLOWS_A_LINE = 8
"""After so many tries halves are taken: what is needed grows by no line."""


class TooFewRows(Exception):
    """Of a batch that was to have ``args[1]`` rows the data have ``args[0]`` in all."""


@dataclass(frozen=True)
class Largest:
    """The largest number that was traced and fits, 0 if 1 does not, and what is left or lacking at it and one above."""

    number: int
    spare_bytes: dict[int, int]
    is_all_rows: bool = False

    def __str__(self) -> str:
        if not self.number:
            return f"1 does not fit ({format_bytes(-self.spare_bytes[1])} too much)"
        words = f"{self.number:,} ({format_bytes(self.spare_bytes[self.number])} to spare"
        above = self.spare_bytes.get(self.number + 1)
        if above is not None:
            return f"{words}; {self.number + 1:,}: {format_bytes(-above)} too much)"
        return f"{words}; {'the data have no more rows' if self.is_all_rows else 'no larger one was tried'})"


def largest_that_fits(spare_of: Callable[[int], int]) -> Largest:
    """The largest number for which ``spare_of``, bytes that are left, is not negative; it and the next one are tried.

    What a step needs grows with a batch nearly in a line, so a line through the last two numbers says the next one.
    Where ``spare_of`` raises ``TooFewRows``, a batch is taken to grow as the number does.

    >>> largest_that_fits(lambda number: 1000 - 7 * number).number
    142
    """
    spare = {1: spare_of(1)}
    fits, too_large, before = (1, MOST + 1, 0) if spare[1] >= 0 else (0, 1, 0)
    is_all_rows = False
    while too_large - fits > 1:
        other = too_large if too_large in spare else before
        guess = 2 * fits
        if other and spare[other] != spare[fits]:
            guess = fits + spare[fits] * (fits - other) // (spare[other] - spare[fits])
        if len(spare) > FOLLOWS_A_LINE:
            guess = (fits + too_large) // 2
        guess = min(max(guess, fits + 1), too_large - 1)
        try:
            spare[guess] = spare_of(guess)
        except TooFewRows as few:
            num_rows, batch_size = few.args
            too_large = max(fits + 1, min(guess, guess * num_rows // batch_size + 1))
            is_all_rows = True
            continue
        if spare[guess] >= 0:
            before, fits = fits, guess
        else:
            too_large = guess
    return Largest(fits, spare, is_all_rows)


Found = tuple[int, str, dict]
SCRIPTS = (".py", ".ipynb")


def named(kind: str, name: str, known: Mapping) -> object:
    """What is called ``name``, in capitals or not. Raises: ValueError: nothing is."""
    by_lower_case = {key.casefold(): key for key in known}
    return known[as_one_of(kind, by_lower_case.get(name.casefold(), name), known)]


def is_config(text: str) -> bool:
    """Whether this names a config.json or the folder of one."""
    return text.endswith(".json") or Path(text).is_dir()


def loaded_build(target: str, arguments: Sequence[str] = ()) -> Callable:
    """The function ``file.py:name`` or ``package.module:name``, the step of a config.json's model, or a script."""
    if is_config(target):
        from stepscope.program.hugging_face import hugging_face_build

        return hugging_face_build(target)
    if target.endswith(SCRIPTS):
        from stepscope.tool.script import Script

        return Script(target, tuple(arguments))
    if arguments:
        raise ValueError(
            f"{' '.join(arguments)!r}: only a script, such as train.py, takes arguments"
        )
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ValueError(
            f"{target!r} is not of the form my_module.py:build or package.module:build, nor a script (train.py) or a "
            "config.json"
        )
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ValueError(f"{place!r} is no file")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        module = importlib.import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        there = ", ".join(key for key, value in public.items() if callable(value))
        raise ValueError(f"{place!r} has no function {name!r}; it has {there or 'none'}")
    return found


def progress(words: str = "") -> None:
    """A line on stderr; on a terminal it replaces the one before, and without words it clears that."""
    if sys.stderr.isatty():
        print(
            f"\r\x1b[Kstepscope: {words} ..." if words else "\r\x1b[K",
            end="",
            file=sys.stderr,
            flush=True,
        )
    elif words:
        print(f"stepscope: {words} ...", file=sys.stderr, flush=True)


def report_command(options: argparse.Namespace) -> Found:
    """``stepscope report``: the bytes that --fail-above looks at, the text, and JSON."""
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            "stepscope report traces a program with PyTorch, which is not installed: pip install torch"
        )
    of_scripts = options.batches, options.vary, options.until, options.ranks
    if any(of_scripts) and not options.target.endswith(SCRIPTS):
        raise ValueError(
            f"--batches, --until, --vary and --ranks run a script such as train.py, not {options.target!r}"
        )
    from stepscope.tool.program_report import report_on
    from stepscope.tool.script import Script
    from stepscope.tracing.trace import trace_script

    # From the program's first import until its report is printed: a thread of the program's may go on.
    disk = options.until_printed.enter_context(on_scratch_disk())
    film = options.film and os.path.abspath(options.film)
    build = loaded_build(options.target, options.script_arguments)
    as_whole_number("--batches", options.batches, 0)
    if isinstance(build, Script):
        ranks = as_whole_number("--ranks", options.ranks, 0)
        until = "save" if options.until == "resume" else options.until
        build = replace(build, until=until, ranks=ranks)
    if options.vary:
        return largest_found(options, build)
    report = partial(
        report_on,
        name=options.target + f", rank 0 of {options.ranks}" * bool(options.ranks),
        steps=options.steps,
        say=progress,
        assume=dict(options.assume),
        num_batches=options.batches,
        card=options.card,
        begin=options.begin,
    )
    if options.until == "resume":
        progress("a first run until it has saved; the second finds its files")
        followed(partial(trace_script, steps=options.steps), build)
        disk.keep_written()
        build = replace(build, until="")
    result = followed(report, build)
    if film:
        from stepscope.widgets.saved_film import SavedFilm  # loads ipywidgets

        disk.given.add(os.path.realpath(film))
        unsealed(SavedFilm(result.trace, title=f"{result.name}: {options.steps} steps").save, film)
    progress("done")
    return result.expected_bytes, result.advice, report_as_data(result)


def followed(run: Callable, build: Callable) -> object:
    """What ``run`` finds of a program; once more with its whole epochs where they were cut too short for it."""
    from stepscope.tool.script import NotReached

    try:
        return run(build)
    except NotReached as error:
        if not build.cuts_epoch:
            raise
        progress(f"{error}, its epoch cut short: following all its steps")
        return run(replace(build, cuts_epoch=False))


def fields(thing: object, names: str) -> dict:
    """These fields of a thing, as plain data."""
    return {name: getattr(thing, name) for name in names.split()}


def report_as_data(result) -> dict:
    """A report as plain data."""
    from stepscope.tracing.log import ABOUT_NUMBER, IS_COMPILED, OWN_LINE

    provenance = result.trace.provenance
    return fields(result, "name batches allocated_bytes expected_bytes least_bytes most_bytes") | {
        "is_compiled": IS_COMPILED in provenance,
        "reserved_bytes": result.replay.peak_reserved_bytes,
        "peak": asdict(result.trace.for_step(result.trace.peak.step).peak),
        "moment": result.page.moment,
        "lines": [asdict(line) for line in result.page.lines],
        "changes": changes_as_data(result.changes),
        "not_tried": list(result.untried),
        "growing": [asdict(line) for line in result.page.growing],
        "own_line": provenance.get(OWN_LINE, ""),
        "about_number": provenance.get(ABOUT_NUMBER, "").splitlines(),
        "left_out": [asdict(item) for item in result.left_out],
        "cards": [{**asdict(fit), "verdict": fit.verdict} for fit in result.fits],
    }


def largest_found(options: argparse.Namespace, script) -> Found:
    """``stepscope report --vary N``: the largest number in the place of N with which it probably fits the card."""
    from stepscope.tool.changed import Loaders, changed_build, on_its_worst, watched
    from stepscope.tracing.log import ABOUT_NUMBER
    from stepscope.tracing.trace import trace_script

    word, card = options.vary, options.card
    place = re.compile(rf"(?<![^=]){re.escape(word)}$")
    if card is None:
        raise ValueError(f"--vary {word} needs the card that is to be filled: --card 'RTX 4090'")
    if options.fail_above is not None:
        raise ValueError(f"--vary {word} finds a number and no bytes, so it takes no --fail-above")
    if not any(map(place.search, script.arguments)):
        raise ValueError(
            f"--vary {word}: no argument of the script is {word!r}; write -- --batch-size {word}"
        )

    batch_of_one: dict[str, int] = {}
    about: dict[str, None] = {}

    def spare_with(build: Callable, number: int) -> int:
        progress(f"tracing with {word} = {number:,}")
        arguments = tuple(place.sub(str(number), argument) for argument in script.arguments)
        varied = watched(replace(build, arguments=arguments), loaders := Loaders())
        steps = options.steps + bool(options.batches)
        traced = partial(trace_script, steps=steps, assume=dict(options.assume))
        failed = None
        try:
            if options.batches:
                varied, _ = on_its_worst(varied, options.batches, traced, progress)
            trace = traced(varied, say=progress)
        except ValueError as error:
            # such as a loader that hands out nothing, because it drops its last batch
            failed = error
        num_rows, batch_size = loaders.rows_and_batch
        grows = batch_size > batch_of_one.setdefault(word, batch_size)  # the first number is 1
        if grows and num_rows < batch_size:
            raise TooFewRows(num_rows, batch_size)
        if failed:
            raise failed
        about.update(dict.fromkeys(trace.provenance.get(ABOUT_NUMBER, "").splitlines()))
        [fit] = fits_of(left_out_of(trace), replay_trace(trace).peak_allocated_bytes, card)
        return fit.expected_bytes

    plain = largest_that_fits(partial(spare_with, script))
    try:
        recomputed = largest_that_fits(partial(spare_with, changed_build(script, "checkpointed")))
    except ValueError as error:
        recomputed = f"not traced: {error}"
    head = (
        f"{Path(options.target).name} on one {card.name}",
        f"the largest {word} that probably fits",
    )
    rows = [head, ("as it is", str(plain)), ("with full recomputation", str(recomputed))]
    more = getattr(recomputed, "number", None)
    data = {"largest": plain.number, "recomputed": more, "card": card.name}
    text = "\n".join([aligned_table(rows), *(f"About this number: {words}." for words in about)])
    return 0 if plain.number else sys.maxsize, text, data


def list_command(options: argparse.Namespace) -> Found:
    """``stepscope list``: the names that ``fit`` and ``report`` take."""
    models = {name: count_parameters(model) for name, model in PUBLISHED_MODELS.items()}
    cards = {name: card.memory_bytes for name, card in CARDS.items()}
    counts = [("model", "parameters"), *((name, format_count(n)) for name, n in models.items())]
    sizes = [("card", "memory"), *((name, format_bytes(size)) for name, size in cards.items())]
    other = "Another model: its config.json in place of a name. Another card, for report alone: its memory, such as "
    other += f"24GiB, or one of these, of which only the memory is known: {', '.join(MEMORY_ONLY)}."
    text = "\n\n".join([aligned_table(counts), aligned_table(sizes), other])
    return 0, text, {"models": models, "cards": cards}


def changes_as_data(changes: Sequence) -> list[dict]:
    """Effects as plain data."""
    return [fields(c, "name why before_bytes after_bytes") | {"known_by": c.how} for c in changes]


def fit_command(options: argparse.Namespace) -> Found:
    """``stepscope fit``: the plans that fit, and the code of the one with the least price."""
    if is_config(options.model):
        lengths = dict.fromkeys(("max_position_embeddings", "n_positions"), options.seq_len or 2048)
        model = model_of_config(lengths | read_config(options.model))
    else:
        model = named("model", options.model, PUBLISHED_MODELS)
    card, adapter = options.card, None
    if not isinstance(card, Card):
        nearest = min(CARDS.values(), key=lambda one: abs(one.memory_bytes - card.memory_bytes))
        raise ValueError(
            f"fit orders plans by their time, which nobody knows of this card ({card.name}): name one of "
            f"stepscope list, such as --card {nearest.name!r} with {format_bytes(nearest.memory_bytes)}"
        )
    if options.lora is not None or options.targets:
        targets = tuple(options.targets.split(",")) if options.targets else linear_layers(model)
        adapter = AdapterConfig(rank=16 if options.lora is None else options.lora, targets=targets)
    num_cards, most = options.cards, model.max_seq_len if model.position == "learned" else 2048
    seq_len = options.seq_len or min(2048, most, options.tokens)
    job = f"{model.name} on {num_cards} × {card.name}, {options.tokens:,} tokens a step in sequences of {seq_len:,}"
    progress(f"trying plans for {job}")
    plans = find_plans(
        model,
        card,
        tokens_per_step=options.tokens,
        seq_len=seq_len,
        num_cards=num_cards,
        adapter=adapter,
        host_room_bytes=options.host,
        code=options.code,
    )
    progress("tracing its code" if plans.first else "done")
    plan = plans.chosen
    # none is printed that was not traced
    code = code_of(plan, options.code).text if plan and plan.traced_bytes else ""
    data = {
        "model": model.name,
        "card": card.name,
        "num_cards": num_cards,
        "chosen": plan and plan_as_data(plan),
        "code": code,
        "why": plans.why(plan) if plan else "",
        "not_tried": plans.not_tried,
        "front": [plan_as_data(p) for p in plans.front],
        "missed": [plan_as_data(p) for p in plans.missed],
    }
    needed = max(plan.peak_bytes, plan.traced_bytes or 0) if plan else sys.maxsize
    return needed, f"{job}:\n\n{plans}\n\n{code}".strip(), data


def plan_as_data(plan) -> dict:
    """A plan as plain data."""
    return fields(plan, "name peak_bytes traced_bytes seconds host_bytes gives_up price") | {
        "layout": plan.layout and plan.layout.name,
        "to_spare_bytes": plan.fit.expected_bytes,
        "verdict": plan.fit.verdict,
    }


def snapshot_command(options: argparse.Namespace) -> Found:
    """``stepscope snapshot``: as ``report``, of a recording."""
    progress(f"replaying {options.file}")
    if not Path(options.file).is_file():
        raise ValueError(f"{options.file!r} is no file")
    page = diagnose_memory(Path(options.file), device=options.device)
    data = {
        "file": options.file,
        "device": page.recorded.device,
        "other_devices": page.recorded.other_devices,
        "allocated_bytes": page.result.peak_allocated_bytes,
        "reserved_bytes": page.result.peak_reserved_bytes,
        "failed": page.recorded.failed or None,
        "growing": [asdict(line) for line in page.growing],
        "lines": [asdict(line) for line in page.lines],
        "changes": changes_as_data(page.changes),
        "cures": [fields(cure, "name why") for cure in page.cures],
    }
    return page.result.peak_reserved_bytes, str(page), data


SNAPSHOTS = b"\x80", b"\x1f\x8b", b"{"
"""How a pickle, a compressed file and JSON begin, which no log does."""


def why_command(options: argparse.Namespace) -> Found:
    """``stepscope why``: a text, from a file or from what is piped or typed in; a snapshot goes on to ``snapshot``."""
    if options.file == "-":
        if sys.stdin.isatty():
            print("Paste the text, then Ctrl-D on a line of its own:", file=sys.stderr)
        content = sys.stdin.buffer.read()
    elif not Path(options.file).is_file():
        raise ValueError(f"{options.file!r} is no file")
    else:
        content = Path(options.file).read_bytes()
        if content.startswith(SNAPSHOTS):
            return snapshot_command(options)
    answer = why_it_died(content.decode("utf-8", "replace"))
    return 0, str(answer), answer.as_data()


COMMANDS = {
    "why": why_command,
    "report": report_command,
    "fit": fit_command,
    "list": list_command,
    "snapshot": snapshot_command,
}
