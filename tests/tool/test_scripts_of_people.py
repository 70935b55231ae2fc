"""Training scripts as people have them: a model is born in the host's memory and moved to the card.

The oracle is torch itself: what the same lines print where they run for real, and the bytes of ``parameters()``.
"""

import importlib.util
import io
import runpy
import textwrap
from contextlib import redirect_stdout

import pytest
import torch

from memkit.tool.script import Script
from memkit.tracing.trace import trace_memory

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
    path.write_text(path.read_text(encoding="utf-8").replace("'cpu'", "'cuda'", 1), encoding="utf-8")
    with redirect_stdout(traced):
        timeline = trace_memory(Script(str(path)))
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
    path.write_text(textwrap.dedent("""
        import torch
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
        model = torch.nn.DataParallel(torch.nn.Linear(1024, 1024)).to(device)
        def step():
            with torch.cuda.stream(stream=torch.cuda.Stream()):
                x = torch.randn(4, 1024, device=device)
            return model(x).sum()
    """) + TRAIN, encoding="utf-8")
    assert trace_memory(Script(str(path))).at("init").weights == 1024 * 1024 * 4 + 1024 * 4


def test_a_shuffled_loader_has_every_index_once(tmp_path, capsys):
    """Whole numbers of the host are real, however many: an order of a million samples is torch's own."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent("""
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
    """) + TRAIN, encoding="utf-8")
    trace_memory(Script(str(path)))
    assert capsys.readouterr().out.splitlines() == ["True"]


FAMILIES = {
    "GPT2": ({"n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 4000}, "CausalLM"),
    "Bert": ({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512,
              "vocab_size": 4000}, "MaskedLM"),
    "T5": ({"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 4000,
            "decoder_start_token_id": 0}, "Seq2SeqLM"),
    "Llama": ({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256,
               "vocab_size": 4000}, "CausalLM"),
    "Qwen3": ({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
               "head_dim": 64, "intermediate_size": 256, "vocab_size": 4000, "tie_word_embeddings": True}, "CausalLM"),
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
    auto.from_config(getattr(transformers, f"{family}Config")(**choices)).save_pretrained(tmp_path / "model")
    real = auto.from_pretrained(tmp_path / "model", dtype=getattr(torch, dtype))
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(f"""
        import torch
        from transformers import AutoModelFor{head}
        model = AutoModelFor{head}.from_pretrained({str(tmp_path / "model")!r}, dtype=torch.{dtype}).to("cuda")
        x = torch.randint(0, 4000, (2, 16), device="cuda")
        step = lambda: model(input_ids=x, labels=x).loss
    """) + TRAIN, encoding="utf-8")
    timeline = trace_memory(Script(str(path)))
    tensors = {id(t): t for t in (*real.parameters(), *real.buffers())}.values()
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
        ("None", "[p.data.sub_(0.1 * p.grad) for p in model.parameters()]"),
    ):
        path = tmp_path / "train.py"
        path.write_text(BY_HAND.replace("OPTIMIZER", optimizer).replace("UPDATE", update), encoding="utf-8")
        timeline = trace_memory(Script(str(path)))
        assert capsys.readouterr().out.split() == ["0", "1"]
        same = [i for i in timeline.instants if not i.name.startswith("optimizer")]  # by hand its end is zero_grad's
        found.append([(i.name, i.step, i.total_bytes) for i in same])
    assert found[0] == found[1] == found[2]
    scratch = [e for e in timeline.events if e.phase == "optimizer" and e.part == "temporary" and e.num_bytes > 0]
    assert len(scratch) == 2 * 3, "0.1 * p.grad of all but the first parameter, which comes before the first write"
