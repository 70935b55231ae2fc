"""What a report says beside its number: other people's faults as small programs, the numbers by hand or by torch."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from memkit import measure_memory
from stepscope.tool.cards import card_named
from stepscope.tool.command_line import main
from stepscope.tool.script import Script
from stepscope.tracing.trace import trace_script

WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""cuBLAS's ``:4096:2:16:8``, for each of the two threads of a step."""


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """Reports on a script's text; returns what stands on the page, and on stderr."""
    monkeypatch.chdir(tmp_path)

    def of(text: str, *words: str, name: str = "train.py") -> tuple[str, str]:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        code = main(["report", name, *words])
        out, err = capsys.readouterr()
        assert code == 0 or not out, err
        return out, err

    return of


LOOP = """
import torch
net = torch.nn.Linear(1024, 1024).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(6):
    net(torch.randn(8, 1024, device="cuda")).square().mean().backward(); opt.step(); opt.zero_grad()
"""


def test_the_package_beside_the_scripts_folder_sees_the_card(report, tmp_path, monkeypatch):
    """nanochat's layout: ``scripts/train.py`` and a package beside ``scripts`` that chooses a dtype by the card."""
    (tmp_path / "mylib_of_it").mkdir()
    (tmp_path / "mylib_of_it/__init__.py").write_text(
        "import torch\nDTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = LOOP.replace("1024).cuda()", "1024, dtype=mylib_of_it.DTYPE).cuda()")
    text = "import torch, mylib_of_it\n" + text.replace(
        'device="cuda")', 'device="cuda", dtype=mylib_of_it.DTYPE)'
    )
    found = json.loads(report(text, "--json", name="scripts/train.py")[0])
    assert found["peak"]["weights"] == 2 * 1024 * 1024 + 2048
    assert "mylib_of_it" not in sys.modules


def test_a_program_is_told_its_own_memory(report):
    """By hand: weights, two states of each, a scalar, and two workspaces; at the peak gradients and scratch besides."""
    text = (
        LOOP.replace("range(6):", "range(6):\n    torch.cuda.reset_peak_memory_stats()").rstrip()
        + """
    print("told", torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved() > 0)
    stats, free = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    print("told", stats["allocated_bytes.all.current"], free[1] - free[0] >= torch.cuda.memory_reserved())
    assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=True)
    """
    )
    weights = 4 * 1024 * 1024 + 4 * 1024
    told = re.findall(r"^told (.*)$", report(text)[1], re.MULTILINE)
    stands = 3 * weights + 2 * WORKSPACE
    assert told[:2] == [f"{stands} {stands + 2 * weights} True", f"{stands} True"]


def test_what_is_traced_otherwise_than_it_runs_stands_on_the_page(report):
    page, _ = report(LOOP.replace("opt =", "net.compile(); opt ="))
    assert "About this number: a compiled function is traced as the code it was made of" in page
    varied = LOOP.replace("opt =", "net.compile(); opt =").replace(
        "randn(8,", "randn(int(__import__('sys').argv[1]),"
    )
    page, _ = report(varied, "--vary", "N", "--card", "1GiB", "--", "N")
    assert "About this number: a compiled function is traced as the code it was made of" in page
    page, _ = report(LOOP.replace("net(torch", "torch.cumprod(net.weight[0], 0); net(torch"))
    assert re.search("About this number: cumprod has a backward", page)
    assert "About this number" not in report(LOOP)[0]


def test_the_advice_stands_in_the_first_ten_lines(report):
    """The first line, its table of at most three rows, and only then the step by part and the cards."""
    lines = report(LOOP.replace("1024", "4096"))[0].splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("what would help")]
    rows = [
        number for number, line in enumerate(lines) if line.endswith(("second trace", "replay"))
    ]
    assert head < rows[0] <= rows[-1] < 10 and len(rows) <= 3
    assert rows[-1] < min(n for n, line in enumerate(lines) if line.startswith("instant"))


def test_data_parallel_over_two_cards_is_refused(report):
    _, err = report(
        LOOP.replace("opt =", "net = torch.nn.DataParallel(net, device_ids=[0, 1]); opt =")
    )
    assert (
        "train.py:4" in err
        and "DataParallel on several cards; write DistributedDataParallel" in err
    )
    assert (
        "allocated at the peak"
        in report(LOOP.replace("opt =", "net = torch.nn.DataParallel(net); opt ="))[0]
    )


def attends(num_logits: int):
    """Attention of plain parameters; ``num_logits``: a larger tensor beside it has the peak."""

    def build():
        q, k, v = (torch.nn.Parameter(torch.randn(1, 8, 1024, 64)) for _ in range(3))
        optimizer = torch.optim.SGD([q, k, v], lr=0.1)

        def step():
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            (out.square().sum() + torch.ones(num_logits).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def test_attention_that_has_the_peak_of_a_step_is_to_be_measured_on_a_cpu():
    """The profiler sees 3 MiB of 19 more: a tile of scores and a copy of a gradient; behind a larger peak none."""
    with pytest.warns(
        UserWarning,
        match="measure it there: aten._scaled_dot_product_flash_attention_for_cpu_backward",
    ):
        low = trace_script(attends(1), device="cpu")
    assert low.peak_bytes < 0.95 * measure_memory(attends(1), device="cpu").peak_bytes
    hidden = trace_script(attends(2**24), device="cpu")
    assert "about the number" not in hidden.provenance
    assert hidden.peak_bytes == pytest.approx(
        measure_memory(attends(2**24), device="cpu").peak_bytes, rel=1e-4
    )


PREFETCHES = """
import torch
def prefetched():
    held = None
    for _ in range(9):
        batch = torch.zeros(64, 4096, device="cuda")
        if held is not None:
            yield held
        held = batch
net = torch.nn.Linear(4096, 16).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for batch in prefetched():
    loss = net(batch).square().mean(); loss.backward(); opt.step(); opt.zero_grad()
"""


def test_a_batch_that_is_fetched_ahead_is_no_leak(report):
    page, _ = report(PREFETCHES)
    assert "leak" not in page and "what grows" not in page and "let go of" not in page


def test_a_leak_is_one_after_four_steps(report):
    leaks = PREFETCHES.replace(
        "for batch in prefetched():", "for batch in prefetched():\n    kept.append(batch * 2)"
    )
    page, _ = report(leaks)
    assert "step 4" in page and "is a leak" in page and "train.py:14" in page
    page, _ = report(leaks.replace("range(9)", "range(3)"))  # ends after two steps
    assert "is a leak" not in page


def test_an_evaluation_has_a_row_of_its_own(report):
    text = (
        LOOP
        + """
    net.eval()
    with torch.no_grad():
        held = [net(torch.randn(4096, 1024, device="cuda")) for _ in range(2)]
    net.train()
    """
    )
    page, _ = report(text, "--until", "eval")
    assert (
        "allocated at the peak, in evaluation of step 2 of 2" in page
        and "\nevaluation peak " in page
    )
    assert "zero_grad peak" not in page


def test_buckets_of_ddp_are_gradients(report):
    """torch's own reducer makes one of all weights' bytes, and a second time in the order of the backward."""
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).cuda(), device_ids=[0])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.randn(8, 1024, device="cuda")).sum().backward(); opt.step(); opt.zero_grad()
    """
    peak = json.loads(report(text, "--ranks", "2", "--json")[0])["peak"]
    assert peak["gradients"] == 2 * 4 * 1024 * 1024 and peak["activations"] < 2**20


def test_weights_without_a_gradient_are_said(report):
    text = LOOP.replace(
        'net(torch.randn(8, 1024, device="cuda"))',
        (
            'head(torch.utils.checkpoint.checkpoint(net, torch.randn(8, 1024, device="cuda"), use_reentrant=True))'
        ),
    )
    text = text.replace(
        "opt = torch.optim.AdamW(net.parameters())",
        (
            "import torch.utils.checkpoint\nhead = torch.nn.Linear(1024, 1).cuda()\n"
            "opt = torch.optim.AdamW([*net.parameters(), *head.parameters()])"
        ),
    )
    assert "2 of the 4 tensors that AdamW trains have no gradient" in report(text)[0]


def test_only_what_was_traced_again_is_promised(report, capsys):
    """The whole forward as a line that is recomputed would save by a replay of events what no program saves."""
    text = LOOP.replace("torch.randn(8,", "torch.randn(8192,").replace(
        "torch.nn.Linear(1024, 1024)",
        (
            "torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) "
            "for _ in range(4)))"
        ),
    )
    page, _ = report(text)
    found = json.loads(report(text, "--json")[0])
    assert {change["known_by"] for change in found["changes"]} <= {"second trace", "replay"}
    assert "recompute train.py" not in page and "full recomputation" in page
    lines = [line for line in text.splitlines() if line]
    built = [lines[0], "def build():", *lines[1:3], "def step():", lines[4].strip(), "return step"]
    indents = (0, 0, 4, 4, 4, 8, 4)
    Path("built.py").write_text(
        "\n".join(" " * n + line for n, line in zip(indents, built, strict=True))
    )
    # nobody halves from outside a batch that build() makes
    assert main(["report", "built.py:build", "--json"]) == 0
    assert "half the micro-batch" not in str(json.loads(capsys.readouterr().out)["changes"])


def test_the_first_line_is_there_before_anything_else_is_traced(report, monkeypatch, capsys):
    """An engineer's question: how much, when, where in my file, does it fit; stopped after it, it stays."""
    from stepscope.tool import program_report

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program_report, "diagnose_memory", stopped)
    Path("train.py").write_text(LOOP)
    assert main(["report", "train.py", "--card", "T4"]) == 130
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(
        r"train.py: \S+ MiB allocated at the peak, in optimizer of step 1 of 2, at train.py:6; \S+ MiB "
        r"expected on the card: it fits on one T4.",
        first,
    )


def test_what_is_printed_early_is_not_printed_again(report):
    page, _ = report(LOOP)
    once = "allocated at the peak", "traced, cuda rules", "Of what was tried"
    assert [page.count(words) for words in once] == [1, 1, 1]
    assert isinstance(trace_script(Script("train.py")).peak_bytes, int)


@pytest.mark.parametrize(
    "text, name",
    [
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("l4", "L4"),
        ("A10", "A10"),
        ("A100", "A100 SXM 40 GB"),
        ("A100-80GB", "A100 PCIe 80 GB"),
        ("a100 sxm4 80g", "A100 SXM 80 GB"),
        ("h200", "H200"),
        ("Tesla V100", "V100 16 GB"),
        ("H100-SXM5", "H100 SXM"),
        ("MI300X", "MI300X"),
        ("H100 80GB", "H100 PCIe"),
        ("24GiB", "card of 24GiB"),
        ("24 gb", "card of 24 gb"),
        ("16G", "card of 16G"),
        ("a10g", "A10G (22.20 GiB, no more is known)"),
        ("RTX A6000", "RTX A6000 (47.54 GiB, no more is known)"),
        ("rtx 4090 laptop", "RTX 4090 Laptop (16 GB, no more is known)"),
        ("4060 Ti", "RTX 4060 Ti 8 GB (8 GB, no more is known)"),
        ("4060Ti 16GB", "RTX 4060 Ti 16 GB (16.00 GiB, no more is known)"),
        ("5080", "RTX 5080 (16 GB, no more is known)"),
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000 (94.97 GiB, no more is known)"),
        ("GB200", "GB200 (186 GB, no more is known)"),
        ("MI355X", "MI355X (288 GiB, no more is known)"),
    ],
)
def test_a_card_has_any_name_that_people_use(text, name):
    card = card_named(text)
    assert card.name == name
    sizes = {"24GiB": 24 * 2**30, "24 gb": 24 * 10**9, "RTX A6000": 51045686312, "5080": 16 * 10**9}
    assert card.memory_bytes == sizes.get(text, card.memory_bytes)


@pytest.mark.parametrize(
    "text", ["RTX 9", "24", "card", "", "40", "5090 laptop", "M3 Max", "TPU v4"]
)
def test_what_names_no_card_is_refused(text):
    with pytest.raises(
        ValueError, match="is not one of.*of any other say the memory, such as 24GiB"
    ):
        card_named(text)


def test_a_card_of_a_size_is_judged(report):
    page, _ = report(LOOP, "--card", "1GiB")
    assert (
        "it is tight on one card of 1GiB" in page.splitlines()[0]
        or "it fits on one card of 1GiB" in page
    )
    page, _ = report(LOOP, "--card", "MI300X")
    assert "it fits on one MI300X" in page.splitlines()[0] and page.count("MI300X") == 2
