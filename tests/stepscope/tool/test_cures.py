"""Cures that maintainers give: each against the program in which somebody wrote it, the loss in pieces against torch's
own; and what torch.compile makes of a program against what it took when it was compiled.
"""

import copy
import gc
import shutil
import sys
from functools import partial
from itertools import chain
from textwrap import dedent

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memkit import TrainingSetup, measure_memory, models, training_build
from memkit.tracing.shapes import NeedsValues
from memkit.units import MIB
from stepscope.advice.changes import ADAPTERS_AS_BASE, NO_DROPOUT_OF_ADAPTERS
from stepscope.allocator.replay import replay_trace
from stepscope.tool import program_report
from stepscope.tool.changed import changed_build, changes_for
from stepscope.tool.pieces import in_pieces
from stepscope.tool.program_report import report_on
from stepscope.tool.script import Script
from stepscope.tracing.trace import trace_script

ADAPTERS = """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4)
    config = LlamaConfig(vocab_size=VOCAB, **sizes)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).cuda()
    lora = LoraConfig(r=4, lora_dropout=DROPOUT, target_modules=["q_proj", "k_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=CASTS).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        tokens = torch.randint(VOCAB, (2, 1024), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARALLEL = """
    import torch
    from torch import distributed, nn

    distributed.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=VIEWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
STEPPED = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
    MAKE
    for number, x in enumerate(DataLoader(torch.randn(16384, 512), BATCH), 1):
        BEFORE
        model(x.cuda()).square().mean().backward()
        AFTER
"""
TRAINER = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, vocab_size=512)
    rows = [{"input_ids": [1] * 64, "labels": [1] * 64}] * 64
    options = TrainingArguments("out", per_device_train_batch_size=SIZE, gradient_accumulation_steps=TIMES, max_steps=3,
                                report_to=[], save_strategy="no")
    Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), options, train_dataset=rows).train()
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str, ranks: int = 0, **words: object) -> Script:
        for word, value in words.items():
            text = text.replace(word, str(value))
        (tmp_path / "train.py").write_text(dedent(text), encoding="utf-8")
        return Script(str(tmp_path / "train.py"), ranks=ranks)

    return write


def peak(build) -> int:
    return trace_script(build).peak_bytes


@pytest.mark.parametrize(
    "change, cured",
    [("no_dropout_of_adapters", {"DROPOUT": 0}), ("adapters_as_base", {"CASTS": False})],
)
def test_adapters_are_changed_as_peft_makes_them(change, cured, script):
    as_it_is = {"VOCAB": 64, "DROPOUT": 0.1, "CASTS": True}
    plain = peak(script(ADAPTERS, **as_it_is))
    changed = peak(changed_build(script(ADAPTERS, **as_it_is), change))
    by_hand = peak(script(ADAPTERS, **as_it_is | cured))
    assert changed == pytest.approx(by_hand, rel=0.001) and by_hand < 0.96 * plain


def test_ddp_is_changed_as_its_own_argument_makes_it(script):
    """The gradients of four layers stand once, and not twice, but for DDP's first bucket of 1 MiB."""
    plain = peak(script(PARALLEL, ranks=2, VIEWS=False))
    changed = peak(changed_build(script(PARALLEL, ranks=2, VIEWS=False), "bucket_views"))
    gradients = 4 * 4 * (512**2 + 512)
    assert changed == peak(script(PARALLEL, ranks=2, VIEWS=True))
    assert plain - changed == pytest.approx(gradients - MIB, rel=0.05)


@pytest.fixture
def model():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=99,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def test_the_loss_in_pieces_is_the_loss(model):
    """transformers' own loss and its gradients, with a target that is left out and a last piece that is short."""
    tokens = torch.randint(99, (3, 200))
    labels = tokens.masked_fill(torch.rand(3, 200) < 0.3, -100)
    cut = copy.deepcopy(model)
    assert in_pieces(cut)
    sums = []
    for one in (model, cut):
        loss = one(input_ids=tokens, labels=labels, num_items_in_batch=3 * 199).loss
        loss.backward()
        sums.append(loss.item())
    assert sums[1] == pytest.approx(sums[0], rel=1e-5)
    for ours, theirs in zip(cut.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    with torch.no_grad():  # an evaluation keeps logits, and no hidden states in their place
        theirs, ours = (one(input_ids=tokens, labels=labels) for one in (model, cut))
    torch.testing.assert_close((ours.loss, ours.logits), (theirs.loss, theirs.logits))


def by_one_row(logits, index):
    rows = [
        x.log_softmax(-1).gather(-1, i.unsqueeze(-1)) for x, i in zip(logits, index, strict=True)
    ]
    return torch.stack(rows).squeeze(-1)


CHOSEN = {
    "in one": lambda x, y: x.float().log_softmax(-1).gather(-1, y[..., None]).squeeze(-1),
    "scaled": lambda x, y: (
        torch.gather(x / 0.7, dim=-1, index=y[..., None]).squeeze(-1)
        - torch.stack([torch.logsumexp(row, dim=-1) for row in x / 0.7])
    ),
    "row by row": by_one_row,
    "as a loss": lambda x, y: (
        -nn.functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none")
    ),
    "mean": lambda x, y: nn.CrossEntropyLoss()(x.reshape(-1, x.size(-1)), y.reshape(-1)),
    "of words": lambda x, y: x.transpose(1, 2)[:, :50].exp(),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_logits_in_pieces_are_logits(kind):
    """Oracle: the head's own logits, less the last, as programs take log-probabilities of them."""
    torch.manual_seed(0)
    model = nn.Module()
    model.lm_head = nn.Linear(16, 99)
    hidden, tokens = torch.randn(3, 201, 16, requires_grad=True), torch.randint(99, (3, 200))
    found = []
    for cuts in (False, True):
        assert not cuts or in_pieces(model)
        logits = model.lm_head(hidden)[:, :-1, :]
        assert logits.shape == (3, 200, 99) and logits.dtype is torch.float32
        out = CHOSEN[kind](logits, tokens)
        found.append((out, *torch.autograd.grad(out.square().sum(), [hidden, *model.parameters()])))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.lm_head(hidden)
        assert (logits.dtype, logits.float().dtype) == (torch.bfloat16, torch.float32)
        logits.logsumexp(-1).sum().backward()
    assert model.lm_head.weight.grad is not None


POLICY = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, vocab_size=20_000)
    policy = LlamaForCausalLM(LlamaConfig(**sizes)).cuda()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for _ in range(3):
        tokens, rewards = torch.randint(20_000, (8, 512), device="cuda"), torch.randn(8, 1, device="cuda")
        logits = policy(input_ids=tokens, logits_to_keep=257).logits[:, :-1] / 0.9
        picked = logits.gather(-1, tokens[:, -256:, None]).squeeze(-1)
        log_probs = picked - torch.stack([row.logsumexp(-1) for row in logits])
        ratio = torch.exp(log_probs - log_probs.detach())
        (-ratio * rewards).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_policy_s_log_probabilities_are_taken_in_pieces(script):
    """As GRPO takes them of all logits: in float32 once, divided once more, and the gradients of both."""
    report = report_on(script(POLICY))
    (found,) = (effect for effect in report.changes if effect.name.startswith("the loss in pieces"))
    logits = 4 * 8 * 256 * 20_000
    assert 2 * logits < found.saved_bytes < 4 * logits
    assert "as GRPO and DPO want them" in found.why


def test_the_logits_of_all_tokens_never_stand_at_once(script, monkeypatch):
    """2,048 tokens of 20,000 words in bf16, twice in float32 and their gradient; a piece has an eighth of them."""
    words = {"VOCAB": 20_000, "DROPOUT": 0, "CASTS": False}
    plain = peak(script(ADAPTERS, **words))
    changed = peak(changed_build(script(ADAPTERS, **words), "loss_in_pieces"))
    assert plain - changed > 2048 * 20_000 * (2 + 4 + 4) * 7 / 8
    monkeypatch.setattr("stepscope.tool.pieces.PIECE", 2048)
    whole = peak(changed_build(script(ADAPTERS, **words), "loss_in_pieces"))
    assert whole - changed > 2048 * 20_000 * 4 * 7 / 8


OF_ONE_FORWARD = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(20_000, 64)
            self.lm_head = nn.Linear(64, 20_000, bias=False)

        def forward(self, tokens):
            logits = self.lm_head(self.wte(tokens))
            return F.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1), ignore_index=-1)

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randint(20_000, (8, 256), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_loss_under_autocast_is_taken_in_pieces(script):
    """As nanoGPT's: of 2,048 tokens of 20,000 words the logits in bf16, in float32 and their gradient."""
    plain = peak(script(OF_ONE_FORWARD))
    changed = peak(changed_build(script(OF_ONE_FORWARD), "loss_in_pieces"))
    assert plain - changed > 2048 * 20_000 * (2 + 4 + 4) * 7 / 8


def test_a_program_is_offered_what_it_can_take():
    assert changes_for(nn.ModuleDict(), "default", nn.Dropout(0.1)) == [NO_DROPOUT_OF_ADAPTERS]
    assert changes_for(nn.ModuleDict(), "default", nn.Dropout(0)) == []
    assert changes_for(nn.Sequential(), "0", nn.Dropout(0.1)) == []
    assert changes_for(nn.Module(), "lora_A", nn.ModuleDict()) == [ADAPTERS_AS_BASE]


def test_what_was_not_tried_is_named(script, monkeypatch):
    """Recomputation helps adapters most, and what is past the last trace stands in the report."""
    adapters = {"VOCAB": 64, "DROPOUT": 0.1, "CASTS": True}
    report = report_on(script(ADAPTERS, **adapters), "train.py")
    assert report.untried == () and "Not tried" not in str(report)
    assert any("recomputation" in effect.name for effect in report.changes)
    monkeypatch.setattr(program_report, "NUM_TRIED", 1)
    report = report_on(script(ADAPTERS, **adapters), "train.py")
    assert "LoraConfig(lora_dropout=0)" in report.untried and "Not tried: " in str(report)


def test_a_cure_whose_library_is_not_installed_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    report = report_on(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    [untried] = report.untried
    assert untried.startswith("8-bit AdamW (") and untried.endswith("pip install bitsandbytes)")
    assert "Not tried: 8-bit AdamW" in str(report)


def test_a_cure_whose_trace_asks_for_a_value_is_named_with_what_to_type(monkeypatch):
    """A smaller batch evaluates sooner, as Pytorch-UNet's train.py does, and the evaluation asks."""

    def asks(build, change):
        raise NeedsValues(f"{change} asks: stepscope report --assume train.py:135=128")

    monkeypatch.setattr(program_report, "changed_build", asks)
    report = report_on(training_build(TrainingSetup(model=models.TINY_GPT2, seq_len=64)))
    assert report.changes == () and "train.py:135=128" in str(report)


def test_a_report_of_adapters_names_the_lines(script):
    told: list[str] = []
    report = report_on(script(ADAPTERS, VOCAB=20_000, DROPOUT=0.1, CASTS=True), say=told.append)
    assert report.changes[0].name.startswith("the loss in pieces")
    assert "tracing again: LoraConfig(lora_dropout=0)" in told
    assert report.frozen_bytes == 0 and "in float32 and not trained" not in report.about


def reserved(build) -> int:
    return replay_trace(trace_script(build)).peak_reserved_bytes


ADAM = "optimizer = torch.optim.Adam(model.parameters())"
STEP = "optimizer.step()"


@pytest.mark.parametrize("clears", ["BEFORE", "AFTER"])
def test_half_the_batch_reserves_what_two_micro_batches_by_hand_reserve(script, clears):
    def text(every: str) -> str:
        words = {"BEFORE": "", "AFTER": f"{every}{STEP}"}
        if clears == "BEFORE":
            words["BEFORE"] = f"{every.replace('== 0', '== 1')}optimizer.zero_grad()"
        else:
            words["AFTER"] += f"\n        {every}optimizer.zero_grad()"
        return STEPPED.replace("BEFORE", words["BEFORE"]).replace("AFTER", words["AFTER"])

    changed = reserved(changed_build(script(text(""), MAKE=ADAM, BATCH=4096), "half_batch"))
    by_hand = reserved(script(text("if number % 2 == 0: "), MAKE=ADAM, BATCH=2048))
    assert changed == by_hand < reserved(script(text(""), MAKE=ADAM, BATCH=4096))


def test_a_trainer_is_told_to_accumulate_half_its_batch(script):
    changed = reserved(changed_build(script(TRAINER, SIZE=8, TIMES=1), "half_batch"))
    assert changed == reserved(script(TRAINER, SIZE=4, TIMES=2))
    assert changed < reserved(script(TRAINER, SIZE=8, TIMES=1))


def test_a_step_in_the_backward_is_one_optimizer_a_weight(script):
    """Oracle: the lines that the report tells, written into the program."""
    plain = {"BATCH": 32, "BEFORE": "", "AFTER": f"{STEP}; optimizer.zero_grad()", "MAKE": ADAM}
    made = """
    optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}
    def step_and_free(p):
        optimizers[p].step()
        p.grad = None
    for p in optimizers:
        p.register_post_accumulate_grad_hook(step_and_free)
    """
    report = report_on(script(STEPPED, **plain))
    (found,) = (effect for effect in report.changes if "step in its backward" in effect.name)
    by_hand = trace_script(script(STEPPED, **plain | {"MAKE": made, "AFTER": "pass"}))
    assert found.after_bytes == replay_trace(by_hand).peak_reserved_bytes < found.before_bytes
    halves = {"AFTER": f"if number % 2 == 0: {STEP}; optimizer.zero_grad()"}
    other = f"{ADAM}; other = torch.optim.Adam([nn.Parameter(torch.ones(9).cuda())])"
    two = {"MAKE": other, "AFTER": f"{STEP}; other.step(); optimizer.zero_grad()"}
    for what, words in {"gradients that accumulate stand": halves, "another loss's": two}.items():
        effects = report_on(script(STEPPED, **plain | words)).changes
        told = " ".join(effect.name for effect in effects)
        assert told and "backward" not in told, what


def test_frozen_weights_in_float32_are_said(script):
    """By hand: four blocks of two norms, four squares and three products of the MLP; the last norm and two tables."""
    text = ADAPTERS.replace("dtype=torch.bfloat16", "dtype=torch.float32")
    report = report_on(script(text, VOCAB=20_000, DROPOUT=0, CASTS=True))
    block = 2 * 128 + 4 * 128**2 + 3 * 128 * 256
    assert report.frozen_bytes == 4 * (4 * block + 128 + 2 * 20_000 * 128)
    assert "are in float32 and not trained: half of that in bfloat16" in report.about
    assert str(report).index("what would help most") < str(report).index("weights  ")


class Block(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.scores(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        heads = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return x + self.mlp(heads.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, runs_again: bool):
        super().__init__()
        self.blocks, self.runs_again = nn.ModuleList(Block() for _ in range(4)), runs_again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.runs_again else block(x)
        return x


def convolutions(num_layers=4) -> nn.Module:
    layers = (
        (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(num_layers)
    )
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *chain.from_iterable(layers))


def compiled_build(runs_again: bool, compiles: str, device: str, has_images: bool = False):
    net = (convolutions() if has_images else Net(runs_again)).to(device)
    x = torch.randn(*((8, 3, 64, 64) if has_images else (4, 128, 128)), device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    if compiles == "blocks":
        for block in net.blocks:
            block.compile()
    else:
        net = torch.compile(net)

    def step():
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def bytes_of_the_compiled(build) -> int:
    """What a step takes on a CPU when Inductor has compiled it in the step before."""

    def warm():
        step = build()
        step()
        return step

    torch.compiler.reset()
    gc.collect()
    return measure_memory(warm, device="cpu", steps=1).peak_bytes


NEEDS_A_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch compiles with g++ on a CPU"
)


@NEEDS_A_COMPILER
def test_the_range_of_compiled_convolutions_is_no_proof_and_says_so():
    report = report_on(partial(compiled_build, False, "all", "cuda", has_images=True))
    ran = bytes_of_the_compiled(partial(compiled_build, False, "all", "cpu", has_images=True))
    assert report.most_bytes < ran < 1.05 * report.most_bytes
    assert "one took more, by 4%, with convolutions" in report.about


@NEEDS_A_COMPILER
@pytest.mark.parametrize("runs_again, compiles", [(False, "all"), (True, "all"), (True, "blocks")])
def test_what_compiled_code_took_lies_in_its_range(runs_again, compiles):
    """Inductor's own run on a CPU. Blocks that are compiled one by one in checkpoints run again one by one."""
    report = report_on(partial(compiled_build, runs_again, compiles, "cuda"))
    ran = bytes_of_the_compiled(partial(compiled_build, runs_again, compiles, "cpu"))
    assert report.least_bytes < ran < report.most_bytes
    widest = trace_script(partial(compiled_build, False, compiles, "cuda")).peak_bytes
    is_widest = report.most_bytes == pytest.approx(widest, rel=0.01)
    assert is_widest == (compiles == "all")
    assert "compiled: between" in report.headline and "uncompiled, in backward" in report.headline
    ways = {change.how for change in report.changes}
    assert ways <= {"replay", "second trace, uncompiled"} and (runs_again or len(ways) > 0)


def test_a_budget_is_refused_with_the_way_out():
    with torch._functorch.config.patch(activation_memory_budget=0.2):
        with pytest.raises(
            ValueError, match=r"budget=0.2: .* each block compiled .* measure_memory"
        ):
            report_on(partial(compiled_build, False, "all", "cuda"))
        assert report_on(partial(plain_build)).most_bytes > 0


def plain_build():
    net = nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        net(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


DEFAULT_DEVICE = """
    import torch
    torch.set_default_device(DEVICE)
    assert torch.device(0) == torch.device("cuda", 0)
    model = torch.nn.Linear(2048, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 2048)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("device", ["'cuda'", "0", "torch.device('cuda', 0)"])
def test_the_default_device_is_where_a_programs_tensors_are(device, script):
    """A weight and its gradient of 16 MiB each, which stood in the host's memory before."""
    replay = replay_trace(trace_script(script(DEFAULT_DEVICE, DEVICE=device)))
    assert 32 * MIB < replay.peak_allocated_bytes < 33 * MIB
