"""What people pasted, from the threads that the file names: row, phase, line and bytes against what stands there.

The file's numbers were computed by hand from the messages' own, in GiB and to two digits.
"""

import tomllib
from html import escape
from pathlib import Path

import pytest

from memkit.units import GIB, MIB
from stepscope.why import EMERGENCY, why_it_died
from stepscope.why.message import message_of, messages_in

PASTED = tomllib.loads(
    (Path(__file__).parent / "public_messages.toml").read_text(encoding="utf-8")
)["message"]
NUMBERS = ("total", "allocated", "private", "in_pieces", "outside", "beside")
TO_TWO_DIGITS = 0.011 * GIB

OLD = "CUDA out of memory. Tried to allocate {} (GPU 0; {} total capacity; {} already allocated; {} free; {} reserved "
OLD += "in total by PyTorch)"
NEW = "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of {} of which {} is free. Including "
NEW += "non-PyTorch memory, this process has {} memory in use. Of the allocated memory {} is allocated by PyTorch, and "
NEW += "{} is reserved by PyTorch but unallocated."

each = pytest.mark.parametrize("pasted", PASTED, ids=[pasted["source"] for pasted in PASTED])


@each
def test_row_phase_and_line_are_those_of_the_thread(pasted):
    answer = why_it_died(pasted["text"])
    phase = answer.death.phase and answer.death.phase.name
    assert (answer.row, phase) == (pasted.get("row"), pasted.get("phase"))
    assert answer.death.rank == pasted.get("rank", "") or "pid=" in answer.death.rank
    if "own" in pasted:
        assert str(answer.own_lines[0]).startswith(pasted["own"])


@each
def test_bytes_are_those_of_the_message_and_sum_to_the_card(pasted):
    message = why_it_died(pasted["text"]).death.message
    if "total" not in pasted:
        assert message is None or message.total is None or "allocated" not in pasted
        return
    for name in NUMBERS:
        if name in pasted:
            assert getattr(message, name) == pytest.approx(pasted[name] * GIB, abs=TO_TWO_DIGITS)
    assert message.this_process == pasted.get("this_process")
    if message.free is not None and message.rest >= 0:
        assert sum(size for _, size in message.pieces) == message.total
    assert not list(message.contradictions)


def test_the_public_ones_reach_most_rows_and_name_no_other():
    rows = {pasted.get("row") for pasted in PASTED} - {None}
    assert rows <= set(EMERGENCY) and len(rows) >= 10
    assert len({pasted["source"] for pasted in PASTED}) == len(PASTED) >= 30


@pytest.mark.parametrize(
    ("unit", "factor"), [("bytes", 1), ("KiB", 1024), ("MiB", MIB), ("GiB", GIB)]
)
def test_every_unit(unit, factor):
    message = message_of(f"CUDA out of memory. Tried to allocate 3 {unit}. GPU 2 has")
    assert (message.tried, message.gpu) == (3 * factor, 2)


def test_a_message_broken_over_lines_is_the_same():
    whole = NEW.format("1 GiB", "8 GiB", "1 MiB", "7 GiB", "6 GiB", "512.00 MiB")
    [(_, one)], [(_, broken)] = messages_in(whole), messages_in(whole.replace(" ", "\n   "))
    assert one == broken


def test_private_pools_are_part_of_what_is_allocated():
    words = "CUDA out of memory. Tried to allocate 60.00 MiB. GPU 1 has a total capacity of 79.19 GiB of which 39.06 "
    words += "MiB is free. Including non-PyTorch memory, this process has 79.14 GiB memory in use. Of the allocated "
    words += "memory 72.36 GiB is allocated by PyTorch, with 436.00 MiB allocated in private pools (e.g., CUDA Graphs),"
    words += " and 71.59 MiB is reserved by PyTorch but unallocated."
    answer = why_it_died(words)
    holders = dict(answer.death.message.pieces)
    assert holders["free, but for CUDA graphs alone"] == 436 * MIB
    assert holders["allocated to tensors"] == round(72.36 * GIB) - 436 * MIB
    assert answer.row == "compile"


def test_numbers_that_are_missing_are_said_and_not_guessed():
    answer = why_it_died("RuntimeError: CUDA out of memory.")
    assert (answer.row, answer.death.message.total, answer.death.message.outside) == (None,) * 3
    assert "what was asked for" in str(answer) and "the card's total" in str(answer)
    cut = NEW.partition("Tried")[0] + NEW.partition(". ")[2].partition(". ")[2]
    cut = why_it_died(cut.format("8 GiB", "1 MiB", "7 GiB", "6 GiB", "512.00 MiB"))
    assert (cut.row, cut.death.message.total, cut.death.message.outside) == (
        None,
        8 * GIB,
        GIB // 2,
    )
    older = why_it_died(OLD.format("1 GiB", "8 GiB", "7.5 GiB", "100 MiB", "7.6 GiB"))
    assert older.death.message.outside is None
    assert older.death.message.missing == (
        "what this process has outside PyTorch, and what other processes have",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (OLD.format("1 GiB", "8 GiB", "7 GiB", "1 GiB", "6 GiB"), "more is allocated"),
        (OLD.format("1 GiB", "8 GiB", "7 GiB", "9 GiB", "7 GiB"), "more is free"),
        (OLD.format("1 GiB", "8 GiB", "9 GiB", "0 bytes", "9 GiB"), "more is reserved"),
        (NEW.format("1 GiB", "8 GiB", "1 GiB", "6 GiB", "6 GiB", "1 GiB"), "PyTorch reserved more"),
        (NEW.format("3 GiB", "8 GiB", "2 GiB", "7 GiB", "6 GiB", "1 GiB"), "1.00 GiB more than"),
    ],
)
def test_numbers_that_contradict_each_other_are_said_to(words, said):
    answer = why_it_died(words)
    assert any(said in sentence for sentence in answer.death.message.contradictions)
    assert "contradicts itself" in str(answer)


def test_other_processes_count_only_where_the_request_would_have_fitted_without_them():
    one = NEW.replace("Including", "Process 7 has {} memory in use. Including")
    fits = one.format("1 GiB", "24 GiB", "0 bytes", "8 GiB", "16 GiB", "15 GiB", "0 bytes")
    too_large = one.format("9 GiB", "24 GiB", "0 bytes", "8 GiB", "16 GiB", "15 GiB", "0 bytes")
    a_context = one.format("1 MiB", "24 GiB", "0 bytes", "300 MiB", "23.7 GiB", "23 GiB", "0 bytes")
    rows = [why_it_died(words).row for words in (fits, too_large, a_context)]
    assert rows == ["neighbour", None, None]


def test_a_rank_that_asks_card_0():
    words = NEW.format("1 GiB", "24 GiB", "0 bytes", "24 GiB", "23 GiB", "0 bytes")
    rows = [why_it_died(f"[rank{rank}]: {words}").row for rank in (0, 3)]
    assert rows == [None, "card 0"]


def test_all_ranks_on_one_card_where_none_knows_its_own_number():
    """In a container: four processes and what is free are the card, and this one is among the four."""
    words = "CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has a total capacity of 80 GiB of which 0 bytes is "
    words += "free. Process 11 has 21 GiB memory in use. Process 12 has 20.5 GiB memory in use. Process 13 has 19.25 "
    words += "GiB memory in use. Process 14 has 19.25 GiB memory in use. Of the allocated memory 19.50 GiB is "
    words += "allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    answer = why_it_died(words)
    message = answer.death.message
    assert (message.this_process, message.outside) == (12, GIB // 2)
    assert not list(message.contradictions) and message.beside == 59.5 * GIB
    assert "started together: perhaps your own ranks" in str(answer)


def test_pieces_are_no_cure_where_enough_was_free():
    free, pieces = (
        OLD.format("1 GiB", "8 GiB", "4 GiB", size, "5 GiB") for size in ("3 GiB", "0 bytes")
    )
    said = "expandable segments may"
    assert said not in str(why_it_died(free)) and said in str(
        why_it_died(pieces.replace("5 GiB", "6 GiB"))
    )


def test_more_than_the_card_has_may_be_the_hosts():
    words = why_it_died(OLD.format("1 GiB", "8 GiB", "9 GiB", "0 bytes", "9 GiB"))
    assert "as Windows' does" in str(words) and "Outside PyTorch" not in str(words)


def test_only_what_a_text_shows_is_said_of_it():
    large = why_it_died(OLD.format("9 GiB", "8 GiB", "1 GiB", "6 GiB", "1 GiB"))
    beside = why_it_died(OLD.format("1 GiB", "24 GiB", "4 GiB", "0 bytes", "4 GiB"))
    assert (large.row, beside.row) == ("forward", "neighbour")
    assert "first step" not in str(large) and "Process N" not in str(beside)
    worker = "RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed."
    head = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    loss = model(x)\n'
    assert "train.py" not in str(why_it_died(head + worker))


@pytest.mark.parametrize(("code", "is_named"), [("loss", False), ("logits.sum()", True)])
def test_logits_are_named_where_the_frames_do(code, is_named):
    """A UNet's backward has none to speak of."""
    message = OLD.format("1 GiB", "8 GiB", "7.5 GiB", "100 MiB", "7.6 GiB")
    head = f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    ({code}).backward()\n'
    answer = why_it_died(head + message)
    assert (answer.row, "cross_entropy" in answer.first) == ("backward", is_named)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes.",
            "JAX",
        ),
        ("rocm_driver.cc:6] failed to allocate 8.00G (8589934592 bytes) from device", "TensorFlow"),
        ("OSError: [WinError 1455] The paging file is too small for this operation", "Windows"),
    ],
)
def test_other_systems_words_for_it(words, said):
    assert said in why_it_died(words).because


SUMMARY = """
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 1            |        cudaMalloc retries: 1         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |    1062 MB |    4877 MB |   89299 MB |   88237 MB |
|       from large pool |    1048 MB |    4865 MB |   89263 MB |   88215 MB |
|---------------------------------------------------------------------------|
| Active memory         |    1062 MB |    4877 MB |   89299 MB |   88237 MB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |   12420 MB |   12420 MB |   16924 MB |    4504 MB |
"""
"""The first lines of https://github.com/pytorch/pytorch/issues/35901; its MB are MiB (pytorch#91854)."""


@pytest.mark.parametrize("unit", ["MB", "MiB"])
def test_a_memory_summary(unit):
    answer = why_it_died(SUMMARY.replace("MB", unit))
    message = answer.death.message
    assert (message.allocated, message.in_pieces) == (1062 * MIB, (12420 - 1062) * MIB)
    assert answer.row == "holes" and "1 request" in answer.because and "4.76 GiB" in answer.because


@pytest.mark.parametrize(
    "text", ["", "Epoch 1: loss 2.5\n", "TypeError: 'int' object is not callable"]
)
def test_what_says_nothing_gets_one_sentence_with_what_to_paste(text):
    with pytest.raises(
        ValueError, match="nothing here says that memory ran out .*paste the last"
    ) as error:
        why_it_died(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  3%|▎         | 9/352 [40:55<25:10:16, 264.19s/it]", 9),
        ("loss: 5.0901 ||: : 8613it [27:42,  5.34it/s]", 8613),
        ("Epoch: [0]  [1330/3696]  eta: 0:31:38  loss: 5.0905 (5.4805)", 1330),
        ("Loading checkpoint shards:  89%|███▊ | 8/9 [00:46<00:05,  5.78s/it]", None),
    ],
)
def test_the_step_of_a_log_and_of_no_other_bar(line, step):
    head = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    loss.backward()\n'
    answer = why_it_died(f"{line}\n{head}CUDA out of memory. Tried to allocate 1.00 GiB")
    assert (answer.death.step, answer.row) == (step, "longest" if step else "backward")


def test_of_what_a_launcher_adds_the_first_cause_counts():
    message = NEW.format("1 GiB", "24 GiB", "0 bytes", "24 GiB", "23 GiB", "0 bytes")
    log = f"failed (exitcode: -9) local_rank: 1\n[rank0]: {message}\n"
    answer = why_it_died(log)
    assert answer.death.message and answer.alike == () and len(answer.others) == 1
    assert "signal 9" in answer.others[0]


def test_ranks_that_die_alike_are_counted_and_one_is_shown():
    message = NEW.format("1 GiB", "24 GiB", "0 bytes", "24 GiB", "23 GiB", "0 bytes")
    head = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    loss.backward()\n'
    lines = [(head + message).replace("GPU 0", f"GPU {rank}").split("\n") for rank in range(4)]
    log = "\n".join(
        f"[rank{r}]: {line}" for four in zip(*lines, strict=True) for r, line in enumerate(four)
    )
    answer = why_it_died(log)
    assert (answer.alike, answer.others) == (("rank 1", "rank 2", "rank 3"), ())
    assert str(answer.own_lines[0]) == "train.py:7 in <module>: loss.backward()"
    assert answer.row == "backward"


def test_a_notebook_shows_who_holds_the_card_as_a_table_and_breaks_no_sentence():
    """In HTML blanks are one blank, so that columns of text and their rule fall apart."""
    answer = why_it_died(PASTED[0]["text"])
    html = answer._repr_mimebundle_()["text/html"]
    assert "─" not in html and html.count("<tr>") == len(answer.table) > 2
    assert f"<p>{escape(answer.because)}</p>" in html
