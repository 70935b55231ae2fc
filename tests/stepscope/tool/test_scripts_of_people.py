"""Training scripts as people have them: a model is born in the host's memory and moved to the card.

The oracle is torch itself: what the same lines print where they run for real, and the bytes of ``parameters()``.
"""

import ast
import importlib.util
import io
import json
import re
import runpy
import textwrap
from contextlib import redirect_stdout

import pytest
import torch

from memkit.units import format_bytes
from stepscope.advice.left_out import fits_of, left_out_of
from stepscope.allocator.replay import replay_trace
from stepscope.tool.changed import Batch, changed_build, largest_of
from stepscope.tool.command_line import main
from stepscope.tool.commands import TooFewRows, largest_that_fits
from stepscope.tool.program_report import report_on
from stepscope.tool.script import Script, as_python
from stepscope.tracing.trace import trace_script

TRAIN = """
import torch
from torch import nn
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(3):
    step().backward()
    opt.step()
    opt.zero_grad()
"""

TIED = """
import sys
import numpy as np
import torch
from torch import nn

model = nn.ModuleDict({"e": nn.Embedding(SIZE, 64), "h": nn.Linear(64, SIZE, bias=False)})
model.h.weight = model.e.weight
if HOW == "assign":
    weight = torch.randn(SIZE, 64)
    model.load_state_dict({"e.weight": weight, "h.weight": weight}, assign=True)
    model.h.weight = model.e.weight
if HOW == "numpy":
    model.e.weight = model.h.weight = nn.Parameter(torch.from_numpy(np.zeros((SIZE, 64), dtype=np.float32)))
model = model.to(DEVICE)
print(model.h.weight is model.e.weight, len(list(model.parameters())))
step = lambda: model.h(model.e(torch.zeros(4, dtype=torch.long, device=DEVICE))).sum()
"""

MOVED_COPY = """
import copy
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
seen = [id(p) for p in model.parameters()]
ema = copy.deepcopy(model).to(DEVICE)
model.to(DEVICE)
print(seen == [id(p) for p in model.parameters()], {str(p.device.type) for p in ema.parameters()} == {DEVICE})
step = lambda: model(torch.randn(4, 256, device=DEVICE)).sum()
"""

DTYPES = """
import torch

model = torch.nn.Linear(8, 8).to(DEVICE)
def step():
    out = model(torch.randn(4, 8, device=DEVICE))
    y = out.detach()
    print(y.to("cpu", torch.uint8).dtype, y.to(torch.uint8).cpu().dtype, y.to(device="cpu", dtype=torch.float64).dtype)
    return out.sum()
"""

ON_META = """
import torch

with torch.device("meta"):
    model = torch.nn.Linear(1024, 512)
print(model.weight.is_meta, model.weight.device)
try:
    model.to(DEVICE)
except NotImplementedError as error:
    print(str(error)[:42])
model.to_empty(device=DEVICE)
print(model.weight.is_meta, model.weight.device.type == DEVICE)
step = lambda: model(torch.randn(4, 1024, device=DEVICE)).sum()
"""

ON_THE_HOST_FIRST = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512))
with torch.no_grad():
    print(tuple(model(torch.ones(2, 512)).shape), model[0].weight.device)
half = model.to(DEVICE, torch.bfloat16)
print(half is model, model[0].weight.dtype, model[1].bias.dtype)
step = lambda: model(torch.randn(4, 512, device=DEVICE, dtype=torch.bfloat16)).sum()
"""

IN_A_POOL = """
from concurrent.futures import ThreadPoolExecutor
import torch

model = torch.nn.Linear(512, 512)
with ThreadPoolExecutor(4) as pool:
    moved = [pool.submit(lambda p=p: p.data.to(DEVICE)) for p in model.parameters()]
for p, future in zip(model.parameters(), moved):
    p.data = future.result()
print([p.device.type == DEVICE for p in model.parameters()])
step = lambda: model(torch.randn(4, 512, device=DEVICE)).sum()
"""

SHAPES = {
    "tied, small": "SIZE, HOW = 100, 'plain'" + TIED,
    "tied, large": "SIZE, HOW = 4000, 'plain'" + TIED,
    "tied, assigned": "SIZE, HOW = 4000, 'assign'" + TIED,
    "tied, from numpy": "SIZE, HOW = 4000, 'numpy'" + TIED,
    "a deep copy": MOVED_COPY,
    "dtypes": DTYPES,
    "on meta": ON_META,
    "on the host first": ON_THE_HOST_FIRST,
    "in a pool": IN_A_POOL,
}


def run_and_trace(tmp_path, text: str) -> tuple[list[str], list[str], object, dict]:
    """What the script prints for real on the CPU and in a trace of a card, the timeline, and the real names."""
    path = tmp_path / "train.py"
    path.write_text(f"DEVICE = 'cpu'\n{textwrap.dedent(text)}\n{TRAIN}", encoding="utf-8")
    real, traced = io.StringIO(), io.StringIO()
    with redirect_stdout(real):
        names = runpy.run_path(str(path), run_name="__main__")
    path.write_text(
        path.read_text(encoding="utf-8").replace("'cpu'", "'cuda'", 1), encoding="utf-8"
    )
    with redirect_stdout(traced):
        timeline = trace_script(Script(str(path)))
    return real.getvalue().splitlines(), traced.getvalue().splitlines(), timeline, names


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_of_the_host_moves_as_in_torch(tmp_path, shape):
    real, traced, timeline, names = run_and_trace(tmp_path, SHAPES[shape])
    assert traced == real[: len(traced)] and traced
    modules = [names["model"], *([names["ema"]] if "ema" in names else [])]
    weights = sum(-(-p.nbytes // 512) * 512 for module in modules for p in module.parameters())
    assert timeline.at("init").weights == weights


def test_gradients_come_back_to_the_host(tmp_path):
    """A weight that stays on the host and is copied to the card at each use: torch adds up its gradient on the host."""
    text = """
    import torch
    weight = torch.nn.Parameter(torch.ones(600, 600))
    model = torch.nn.ParameterList([weight])
    def step():
        if weight.grad is not None:
            print(weight.grad.device, weight.grad.dtype)
        return (torch.ones(2, 600, device=DEVICE) @ weight.to(DEVICE, torch.float64).float()).sum()
    """
    text = textwrap.dedent(text).replace("opt.zero_grad()", "")
    real, traced, timeline, _ = run_and_trace(tmp_path, text)
    assert traced == real[: len(traced)]
    assert all(instant.weights == instant.gradients == 0 for instant in timeline.instants)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pytorchs_examples_ask_for_an_accelerator(tmp_path):
    """torch.accelerator and DataParallel on one card; streams by keyword, as timm's prefetcher has them."""
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
        import torch
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
        model = torch.nn.DataParallel(torch.nn.Linear(1024, 1024)).to(device)
        def step():
            with torch.cuda.stream(stream=torch.cuda.Stream()):
                x = torch.randn(4, 1024, device=device)
            return model(x).sum()
    """)
        + TRAIN,
        encoding="utf-8",
    )
    assert trace_script(Script(str(path))).at("init").weights == 1024 * 1024 * 4 + 1024 * 4


def test_a_shuffled_loader_has_every_index_once(tmp_path, capsys):
    """Whole numbers of the host are real, however many: an order of a million samples is torch's own."""
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
        import torch
        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 200_000
            def __getitem__(self, index):
                return torch.full((8,), float(index))
        loader = torch.utils.data.DataLoader(Samples(), 50_000, shuffle=True)
        print(sorted(int(x) for batch in loader for x in batch[:, 0]) == list(range(200_000)))
        model = torch.nn.Linear(8, 8).cuda()
        step = lambda: model(torch.ones(4, 8).cuda()).sum()
    """)
        + TRAIN,
        encoding="utf-8",
    )
    trace_script(Script(str(path)))
    assert capsys.readouterr().out.splitlines() == ["True"]


FAMILIES = {
    "GPT2": ({"n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 4000}, "CausalLM"),
    "Bert": (
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 512,
            "vocab_size": 4000,
        },
        "MaskedLM",
    ),
    "T5": (
        {
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 256,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 4000,
            "decoder_start_token_id": 0,
        },
        "Seq2SeqLM",
    ),
    "Llama": (
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "vocab_size": 4000,
        },
        "CausalLM",
    ),
    "Qwen3": (
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "intermediate_size": 256,
            "vocab_size": 4000,
            "tie_word_embeddings": True,
        },
        "CausalLM",
    ),
}


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_from_pretrained_is_as_large_as_torch_says(tmp_path, family, dtype):
    """Weights of a checkpoint on disk, ties and dtype included: the bytes of torch's own ``parameters()``."""
    import transformers

    choices, head = FAMILIES[family]
    auto = getattr(transformers, f"AutoModelFor{head}")
    auto.from_config(getattr(transformers, f"{family}Config")(**choices)).save_pretrained(
        tmp_path / "model"
    )
    real = auto.from_pretrained(tmp_path / "model", dtype=getattr(torch, dtype))
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import torch
        from transformers import AutoModelFor{head}
        model = AutoModelFor{head}.from_pretrained({str(tmp_path / "model")!r}, dtype=torch.{dtype}).to("cuda")
        x = torch.randint(0, 4000, (2, 16), device="cuda")
        step = lambda: model(input_ids=x, labels=x).loss
    """)
        + TRAIN,
        encoding="utf-8",
    )
    timeline = trace_script(Script(str(path)))
    tensors = {id(t): t for t in (*real.parameters(), *real.buffers())}.values()
    with pytest.raises(
        NotImplementedError, match="weights in a mapped file .*; make them by from_config"
    ):
        trace_script(Script(str(path)), device="cpu")
    rounded = sum(-(-t.nbytes // 512) * 512 for t in tensors)
    batch = 512  # x, which lives beside the weights
    assert timeline.at("init").weights + batch == pytest.approx(rounded + batch, rel=0.001)


BY_HAND = """
import math
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 600)).to("cuda")
optimizer = OPTIMIZER
for batch in range(8):
    model.zero_grad()
    loss = model(torch.randn(64, 600).cuda()).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    UPDATE
    print(batch)
    if not math.isfinite(loss.item()):
        sys.exit(1)
"""
"""The shape of pytorch/examples' word_language_model, with the check of torchvision's references."""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hand_written_update_ends_a_step_as_an_optimizers_does(tmp_path, capsys):
    """Oracle: the same loop with torch.optim.SGD, one tensor at a time, which does the same operations."""
    found = []
    for optimizer, update in (
        ("torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)", "optimizer.step()"),
        ("None", "[p.data.add_(p.grad, alpha=-0.1) for p in model.parameters()]"),
        ("None", "for p in model.parameters(): p.data = p.data - 0.1 * p.grad"),
        ("None", "[p.data.sub_(0.1 * p.grad) for p in model.parameters()]"),
    ):
        path = tmp_path / "train.py"
        path.write_text(
            BY_HAND.replace("OPTIMIZER", optimizer).replace("UPDATE", update), encoding="utf-8"
        )
        timeline = trace_script(Script(str(path)))
        assert capsys.readouterr().out.split() == ["0", "1"]
        # by hand the end of a step is zero_grad's
        same = [i for i in timeline.instants if not i.name.startswith("optimizer")]
        found.append([(i.name, i.step, i.total_bytes) for i in same])
    assert found[0] == found[1] == found[2] == found[3]
    scratch = [
        e
        for e in timeline.events
        if e.phase == "optimizer" and e.op == "aten.mul.Tensor" and e.num_bytes > 4
    ]
    assert len(scratch) == 2 * 4, "0.1 * p.grad of each parameter in each step"


AVERAGED = """
import copy
import torch
from torch import nn

model = nn.Sequential(nn.Linear(600, 900), nn.ReLU(), nn.Linear(900, 600)).to("cuda")
average = AVERAGE
optimizer = torch.optim.AdamW(model.parameters())
for batch in range(8):
    loss = model(torch.randn(64, 600).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, weight in zip(average, model.parameters()):
            mean.lerp_(weight.to(mean.dtype), 0.01)
"""
"""An average of the weights, as diffusers' EMAModel keeps it in a list, and others in a module or a dict."""


@pytest.mark.parametrize(
    ("average", "width"),
    [
        ("[]", 0),
        ("[p.detach().clone() for p in model.parameters()]", 4),
        ("list(copy.deepcopy(model).parameters())", 4),
        ("list({n: p.detach().double() for n, p in model.named_parameters()}.values())", 8),
    ],
)
def test_an_average_of_the_weights_is_a_second_set_of_weights_and_no_activation(
    tmp_path, average, width
):
    """Oracle: the sizes of the two layers, counted by hand."""
    path = tmp_path / "train.py"
    path.write_text(AVERAGED.replace("AVERAGE", average), encoding="utf-8")
    page = report_on(Script(str(path)))
    values, held = 2 * 600 * 900 + 900 + 600, page.trace.at("zero_grad").parts
    assert values * (4 + width) <= held["weights"] < values * (4 + width) + 8 * 512
    assert held["activations"] < 2 * 64 * 600 * 4
    words = f"Of the weights {format_bytes(values * width)} are a second set"
    assert (words in str(page)) == (width > 0)
    by_hand = "for p in model.parameters(): p.data = p.data - 0.1 * p.grad\n    model.zero_grad()"
    text = path.read_text(encoding="utf-8").replace("torch.optim.AdamW(model.parameters())", "None")
    path.write_text(
        text.replace("optimizer.step()\n    optimizer.zero_grad()", by_hand), encoding="utf-8"
    )
    assert trace_script(Script(str(path))).at("zero_grad").weights == held["weights"]


LONGEST = """
import sys
import torch
from torch.utils.data import DataLoader

lengths = torch.randint(20, 60, (160,), generator=torch.Generator().manual_seed(0)).tolist()
lengths[133] = 700
data = [{"ids": torch.zeros(n, dtype=torch.long), "extra": torch.zeros(3)} for n in lengths]

def pad(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
    return {"ids": ids, "extra": torch.stack([row["extra"] for row in rows])}

loader = DataLoader(data, 4, shuffle=True, collate_fn=pad, generator=torch.Generator().manual_seed(1))
if "alone" in sys.argv:
    shapes = [tuple(batch["ids"].shape) for batch in loader]
    sys.exit()
model = torch.nn.Sequential(torch.nn.Embedding(500, 64), torch.nn.Linear(64, 500)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(batch["ids"].cuda()).logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_worst_batch_of_the_readers_data_is_named_and_traced(tmp_path, capsys, monkeypatch):
    """Oracle: the loader of the same file, run for real, and a trace of a step on a batch of that shape alone."""
    path = tmp_path / "train.py"
    path.write_text(
        LONGEST.replace("sys.exit()", "raise SystemExit(repr(shapes))"), encoding="utf-8"
    )
    monkeypatch.setattr("sys.argv", ["train.py", "alone"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path))
    shapes = ast.literal_eval(str(ended.value))
    number = shapes.index((4, 700)) + 1
    assert number > 3, "the first steps do not see it"
    assert main(["report", str(path), "--batches", "500", "--card", "T4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Batch {number} of 40 (4 × 700) is the worst: ")
    assert out.splitlines()[0].endswith("; it fits on one T4.")
    halved = [line for line in out.splitlines() if line.startswith("half the micro-batch")]
    assert halved and "second trace" in halved[0], (
        "the long text is in another batch of half the size"
    )
    alone = path.read_text(encoding="utf-8").replace(
        'batch["ids"].cuda()', "torch.zeros(4, 700).long().cuda()"
    )
    path.write_text(alone, encoding="utf-8")
    told = (
        f"train.py: {format_bytes(trace_script(Script(str(path)), steps=3).peak_bytes)} allocated"
    )
    assert told in out.replace(str(tmp_path) + "/", "")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_batches_that_differ_are_told_and_a_script_without_a_loader_is_refused(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(LONGEST, encoding="utf-8")
    assert main(["report", str(path), "--card", "T4"]) == 0
    assert re.match(r"The batches differ \(4 × \d+, 4 × \d+", capsys.readouterr().out)
    path.write_text(BY_HAND.replace("OPTIMIZER", "0").replace("UPDATE", "0"), encoding="utf-8")
    for words, told in (
        (
            ["--batches", "9"],
            "--batches: no DataLoader of torch's hands out what the first step trains on",
        ),
        (["--batches", "-1"], "--batches=-1"),
        (["--vary", "N"], "--vary N needs the card that is to be filled: --card 'RTX 4090'"),
        (
            ["--vary", "N", "--card", "T4", "--fail-above", "1GiB"],
            "--vary N finds a number and no bytes",
        ),
        (
            ["--vary", "N", "--card", "T4"],
            "--vary N: no argument of the script is 'N'; write -- --batch-size N",
        ),
    ):
        assert main(["report", str(path), *words]) == 2
        assert told in capsys.readouterr().err.splitlines()[-1]


def test_batches_of_which_none_is_the_largest_in_every_direction_are_all_candidates():
    shapes = [(8, 100), (4, 250), (8, 90), (4, 250), (2, 300)]
    batches = [Batch(number, (shape, shape[:1])) for number, shape in enumerate(shapes, 1)]
    assert [batch.number for batch in largest_of(batches)] == [2, 1, 5]


FEW_ROWS = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--drops", action="store_true")
parser.add_argument("--width", type=int, default=1)
asked = parser.parse_args()
model = nn.Linear(8, asked.width).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for rows, in DataLoader(TensorDataset(torch.randn(100, 8)), asked.batch_size, drop_last=asked.drops):
        model(rows.to("cuda")).sum().backward()
        optimizer.step()
"""


VARIED = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

model = nn.Sequential(nn.Sequential(*[Block() for _ in range(6)]), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(size, 4096, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("words", [["--batch-size", "N"], ["--batch-size=N"]])
def test_the_largest_that_fits_fits_and_one_more_does_not(tmp_path, capsys, words):
    path = tmp_path / "train.py"
    path.write_text(VARIED, encoding="utf-8")
    assert main(["report", str(path), "--vary", "N", "--card", "T4", "--json", "--", *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["recomputed"] > data["largest"] > 2
    for number, fits in ((data["largest"], True), (data["largest"] + 1, False)):
        trace = trace_script(Script(str(path), ("--batch-size", str(number))))
        cards = fits_of(left_out_of(trace), replay_trace(trace).peak_allocated_bytes)
        assert next(fit for fit in cards if fit.card == "T4").is_expected == fits


@pytest.mark.parametrize("more", [(), ("--drops",)])
def test_no_batch_is_larger_than_the_data(tmp_path, capsys, more):
    """A batch of 65,536 of a loader of 100 rows has 100, and none if the loader drops what fills no batch."""
    path = tmp_path / "train.py"
    path.write_text(FEW_ROWS, encoding="utf-8")
    for batches in ((), ("--batches", "2")):
        words = [
            str(path),
            "--vary",
            "N",
            "--card",
            "T4",
            *batches,
            "--",
            "--batch-size",
            "N",
            *more,
        ]
        assert main(["report", *words]) == 0
        assert re.search(
            r"as it is +100 \(.* to spare; the data have no more rows\)", capsys.readouterr().out
        )
    words = [str(path), "--vary", "N", "--card", "T4", "--", "--batch-size", "200", "--width", "N"]
    assert main(["report", *words]) == 0  # rows that are too few whatever the number is
    assert re.search(
        r"as it is +65,536 \(.* to spare; no larger one was tried\)", capsys.readouterr().out
    )


def test_a_batch_of_two_rows_a_number_ends_at_half_the_rows():
    def spare_of(number):
        if 2 * number > 101:
            raise TooFewRows(101, 2 * number)
        return 10**6 - number

    assert (found := largest_that_fits(spare_of)).number == 50 and found.is_all_rows


@pytest.mark.parametrize(
    "needs", [lambda n: 7 * n, lambda n: n * n, lambda n: 900 + n, lambda n: 2000, lambda n: 0]
)
def test_the_largest_that_fits_whatever_grows(needs):
    found, tried = largest_that_fits(lambda number: 1000 - needs(number)), range(1, 2**16 + 1)
    assert (
        found.number == max((n for n in tried if needs(n) <= 1000), default=0)
        and len(found.spare_bytes) < 26
    )


def notebook(path, *cells: str) -> str:
    """A notebook of these cells."""
    listed = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": cell,
        }
        for cell in cells
    ]
    words = {"cell_type": "markdown", "metadata": {}, "source": ["# %run nothing"]}
    path.write_text(
        json.dumps({"cells": [words, *listed], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return str(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_notebook_runs_as_the_script_of_its_cells(tmp_path, capsys):
    update = "[p.data.sub_(p.grad) for p in model.parameters()]"
    first, _, rest = (
        BY_HAND.replace("OPTIMIZER", "0").replace("UPDATE", update).partition("model =")
    )
    (tmp_path / "train.py").write_text(f"{first}model ={rest}", encoding="utf-8")
    magics = "%matplotlib inline\n!pip install torch\n%load_ext autoreload\n" + first
    path = notebook(
        tmp_path / "train.ipynb", magics, "%%bash\nls", f"%%time\nmodel ={rest}\ndisplay(model)"
    )
    as_notebook, as_script = (trace_script(Script(str(p))) for p in (path, tmp_path / "train.py"))
    assert as_notebook.instants == as_script.instants
    assert main(["report", path, "--card", "T4"]) == 0
    assert "train.ipynb cell 3:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "%run other.py",
            "train.ipynb cell 1: %run is not followed; write it as Python or take it out",
        ),
        ("%%writefile model.py\nx = 1", "train.ipynb cell 1: %%writefile is not followed"),
        ("x = 1\nx = !ls", "train.ipynb cell 1, line 2"),
        (None, "is no notebook as Jupyter writes it"),
    ],
)
def test_what_is_no_notebook_of_python_is_refused(tmp_path, capsys, text, words):
    path = notebook(tmp_path / "train.ipynb", text or "")
    if text is None:
        (tmp_path / "train.ipynb").write_text("{}")
    assert main(["report", path]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_line_of_python_that_begins_with_a_percent_sign_is_no_magic():
    assert as_python("x = (7\n%three)", "cell 1") == "x = (7\n%three)"


ADVISED = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=256)
parser.add_argument("--eval_batch_size", type=int, default=256)
options = parser.parse_args()
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64)).cuda()
ema = [p.clone() for p in model.parameters()]
optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
number = 0
for epoch in range(9):
    for (x,) in DataLoader(TensorDataset(torch.randn(2048, 64)), options.train_batch_size):
        feature = model(x.cuda()).square()
        feature.mean().backward()
        number += 1
        if number % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "words", [(), ("--train_batch_size", "256"), ("--train_batch_size=256", "--eval_batch_size=8")]
)
def test_half_the_micro_batch_is_traced_with_the_readers_own_option(tmp_path, capsys, words):
    """Oracle: the change made in the program, half the batch and a step after two; nothing else may be promised."""
    path = tmp_path / "train.py"
    path.write_text(ADVISED.replace("ACCUMULATE", "1"), encoding="utf-8")
    assert main(["report", str(path), "--json", "--", *words]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    (half,) = [
        change
        for change in changes
        if change["name"].startswith("half the micro-batch, accumulated twice")
    ]
    told = f" ({' '.join(words).split(' --eval')[0]})".replace("256", "128") if words else ""
    assert half["name"] == f"half the micro-batch, accumulated twice{told}"
    path.write_text(ADVISED.replace("ACCUMULATE", "2"), encoding="utf-8")
    by_hand = trace_script(Script(str(path), ("--train_batch_size", "128")))
    assert (half["known_by"], half["after_bytes"]) == (
        "second trace",
        replay_trace(by_hand).peak_reserved_bytes,
    )
    rest = " ".join(change["name"] for change in changes if change is not half)
    # RMSprop, no blocks, a loop variable
    assert not re.search("8-bit AdamW|full recomputation|let go of", rest)


WIDE = """
import torch
from torch import nn
from OPTIMIZER import KIND as Chosen

model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.Linear(4096, 64)).cuda()
optimizer = Chosen(model.parameters(), lr=1e-3, weight_decay=0.1)
for _ in range(5):
    model(torch.randn(16, 64).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_8_bit_adamw_is_traced_as_bitsandbytes_steps(tmp_path, capsys, kind):
    """Oracle: the reader's own import of bitsandbytes' class, whose step has no scratch."""
    pytest.importorskip("bitsandbytes")
    path = tmp_path / "train.py"
    path.write_text(
        WIDE.replace("OPTIMIZER", "torch.optim").replace("KIND", kind), encoding="utf-8"
    )
    assert main(["report", str(path), "--json"]) == 0
    found = {change["name"]: change for change in json.loads(capsys.readouterr().out)["changes"]}[
        "8-bit AdamW"
    ]
    path.write_text(
        WIDE.replace("OPTIMIZER", "bitsandbytes.optim").replace("KIND", "AdamW8bit"),
        encoding="utf-8",
    )
    by_hand = replay_trace(trace_script(Script(str(path)))).peak_reserved_bytes
    assert (found["known_by"], found["after_bytes"]) == ("second trace", by_hand)


def test_a_change_without_anything_to_change_says_so(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BY_HAND.replace("OPTIMIZER", "0").replace("UPDATE", "0"), encoding="utf-8")
    with pytest.raises(ValueError, match="no option and no DataLoader of an even batch size"):
        trace_script(changed_build(Script(str(path)), "half_batch"))


EVALUATED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, test = (TensorDataset(torch.randn(rows, 64)) for rows in (6400, 50_000))
for epoch in range(3):
    model.train()
    for (x,) in DataLoader(train, 32, shuffle=True):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step")
    model.eval()
    with torch.no_grad():
        for (x,) in DataLoader(test, 50_000):
            model(x.cuda())
    torch.save(model.state_dict(), "model.pt")
    print("evaluated")
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_script_is_followed_through_its_first_evaluation_when_asked(tmp_path, capsys):
    """The epoch of 200 steps is cut after two; the evaluation's large batch is the peak that two steps do not see."""
    path = tmp_path / "train.py"
    path.write_text(EVALUATED, encoding="utf-8")
    plain = trace_script(Script(str(path)))
    assert capsys.readouterr().out.split() == ["step", "step"]
    whole = trace_script(Script(str(path), until="eval"))
    assert capsys.readouterr().out.split() == ["step", "step", "evaluated"]
    batch, hidden = 50_000 * 64 * 4, 50_000 * 256 * 4
    assert plain.peak_bytes < batch and whole.peak_bytes > batch + 2 * hidden
    assert [i.total_bytes for i in whole.instants[: len(plain.instants) - 2]] == [
        i.total_bytes for i in plain.instants[:-2]
    ]
    assert main(["report", str(path), "--until", "eval", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["allocated_bytes"] >= whole.peak_bytes
    assert main(["report", "train:build", "--until", "eval"]) == 2
    assert (
        "--until, --vary and --ranks run a script such as train.py, not 'train:build'"
        in capsys.readouterr().err
    )
    path.write_text(EVALUATED.replace("model.eval()", "break"), encoding="utf-8")
    assert main(["report", str(path), "--until", "eval"]) == 2
    assert "train.py ended without an evaluation" in capsys.readouterr().err.splitlines()[-1]


GENERATES = """
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     eos_token_id=2, pad_token_id=3)
model = LlamaForCausalLM(config).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prompt = torch.full((2, 5), 7).to(DEVICE)
for _ in range(3):
    with torch.no_grad():
        tokens = model.generate(prompt, max_new_tokens=6, do_sample=True, **MORE)
    answers = tokens[:, 5:]
    ended = torch.full((2,), answers.shape[1]).to(DEVICE)
    ended[(answers == 2).any(1)] = (answers == 2).int().argmax(1)[(answers == 2).any(1)]
    mask = torch.arange(6).to(DEVICE).expand(2, 6) <= ended[:, None]
    print(tuple(tokens.shape), [len(row[kept].tolist()) for row, kept in zip(answers.cpu(), mask.cpu())])
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_generate_is_followed_to_its_longest_as_where_no_sequence_may_end(tmp_path):
    """As GRPO trains: where ``min_new_tokens`` forbids the end, the real run has the same shapes and lengths."""
    told = []
    for device, more in (("cuda", "{}"), ("cpu", "{'min_new_tokens': 6}")):
        file = tmp_path / f"{device}.py"
        file.write_text(GENERATES.replace("DEVICE", repr(device)).replace("MORE", more))
        with redirect_stdout(io.StringIO()) as said:
            if device == "cuda":
                with pytest.warns(UserWarning, match="traced to its longest"):
                    trace_script(Script(str(file)))
            else:
                runpy.run_path(str(file))
        told.append(said.getvalue().splitlines())
    assert told[0][0] == told[1][0] == "(2, 11) [6, 6]"
    assert len(told[0]) == 3
