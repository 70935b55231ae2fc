"""What stands from one step to the next, and its cures: each against the program in which somebody wrote the cure."""

from textwrap import dedent

import pytest
import torch
from torch import nn

from memkit.units import MIB
from stepscope import diagnose_memory, trace_script
from stepscope.advice.changes import DEL_OUTPUTS
from stepscope.tool.changed import changed_build
from stepscope.tool.program_report import report_on
from stepscope.tool.script import Script

TRAIN = """
    import torch
    from torch import nn

    WORDS, TOKENS = 32_000, 512

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, WORDS)

        def forward(self, tokens):
            logits = self.head(self.embed(tokens))
            with torch.no_grad():  # what is logged, and the peak
                (logits.softmax(-1) * logits.exp()).sum()
            return {"logits": logits, "loss": nn.functional.cross_entropy(logits, tokens)}

    def train(steps=4):
        model = Model().to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            tokens = torch.randint(WORDS, (TOKENS,), device="cuda")
            outputs = model(tokens)
            ZERO_EARLY
            outputs["loss"].backward()
            optimizer.step()
            ZERO_LATE
            AT_THE_END

    train()
"""
HEAD, _, BODY = dedent(TRAIN).partition("def train(steps=4):")
AT_THE_TOP = HEAD + dedent(BODY.partition("train()")[0]).replace("range(steps)", "range(4)")
"""The same without a function, whose names are the module's."""

LOGITS = 4 * 32_000 * 512


@pytest.fixture
def script(tmp_path):
    def write(early="pass", late="optimizer.zero_grad()", end="pass", text=TRAIN, name="train.py"):
        words = {"ZERO_EARLY": early, "ZERO_LATE": late, "AT_THE_END": end}
        for place, code in words.items():
            text = text.replace(place, code)
        (tmp_path / name).write_text(dedent(text), encoding="utf-8")
        return Script(str(tmp_path / name))

    return write


def same(one, other) -> bool:
    """Whether two traces have the same bytes at every instant."""
    return [i.total_bytes for i in one.instants] == [i.total_bytes for i in other.instants]


def test_outputs_that_a_name_keeps_are_let_go_as_by_del(script):
    plain = script()
    cured = trace_script(script(end="del outputs", name="cured.py"), steps=3)
    changed = trace_script(changed_build(plain, "del_outputs"), steps=3)
    before = trace_script(plain, steps=3)
    peaks = [trace.for_step(3).peak_bytes for trace in (before, changed, cured)]
    assert DEL_OUTPUTS in diagnose_memory(before).cures
    assert DEL_OUTPUTS not in diagnose_memory(cured).cures
    assert peaks[1] == peaks[2] and peaks[0] - peaks[1] == pytest.approx(LOGITS, rel=0.01)


def test_a_report_offers_it_with_the_name_and_the_line(script):
    plain = script()
    report = report_on(plain)
    [change] = [change for change in report.changes if change.name.startswith("del ")]
    line = next(n for n, code in enumerate(dedent(TRAIN).split("\n"), 1) if "model(tokens)" in code)
    assert change.name == f"del outputs at the end of the step, before train.py:{line}"
    cured = report_on(script(end="del outputs", name="cured.py"))
    assert change.after_bytes == cured.replay.peak_reserved_bytes
    assert change.saved_bytes >= LOGITS // 2
    assert not any(change.name.startswith("del ") for change in cured.changes)


def test_outputs_that_a_name_holds_through_the_backward(script):
    """A cross-entropy keeps its log-softmax; the logits stand in the backward because a name holds them."""
    text = TRAIN.replace("with torch.no_grad():  # what is logged, and the peak", "if False:")
    text = text.replace(
        'outputs["loss"].backward()',
        'loss = outputs["loss"]\n            BEFORE\n            loss.backward()',
    )
    plain = script(text=text.replace("BEFORE", "pass"))
    cured = script(text=text.replace("BEFORE", "del outputs"), name="cured.py")
    traces = [trace_script(build, steps=3) for build in (plain, cured)]
    changed = trace_script(changed_build(plain, "del_before_backward"), steps=3)
    before, after = (trace.for_step(3).peak_bytes for trace in traces)
    assert changed.for_step(3).peak_bytes == after
    assert before - after == pytest.approx(LOGITS, rel=0.01)
    report = report_on(plain)
    [change] = [change for change in report.changes if change.name.startswith("del ")]
    assert change.name.startswith("del outputs before the backward of train.py:")
    assert change.after_bytes == report_on(cured).replay.peak_reserved_bytes
    read_later = text.replace("BEFORE", "pass").replace("ZERO_LATE", 'outputs["logits"].sum()')
    names = [change.name for change in report_on(script(text=read_later)).changes]
    assert not any("before the backward" in name for name in names)


def test_names_of_a_module_and_single_numbers(script):
    """At the top of a script names are a module's; of a loss and its logits only the logits are worth a line."""
    text = AT_THE_TOP.replace("outputs = model(tokens)", "logits, loss = model(tokens).values()")
    text = text.replace('outputs["loss"]', "loss")
    report = report_on(script(text=text))
    [change] = [change for change in report.changes if change.name.startswith("del ")]
    assert change.name.startswith("del logits at the end of the step")


def test_a_name_that_the_forward_reads_is_not_offered(script):
    text = AT_THE_TOP.replace("logits = self.head", "outputs['loss']; logits = self.head")
    text = text.replace("model = Model()", "outputs = {'loss': 0}\nmodel = Model()")
    said: list[str] = []
    report = report_on(script(text=text), say=said.append)
    assert not any(change.name.startswith("del ") for change in report.changes)
    assert any(words.startswith("not traced (TypeError") for words in said)


def test_gradients_that_stand_through_the_forward_go_after_the_step(script):
    late = script(early="optimizer.zero_grad()", late="pass")
    cured = trace_script(script(name="cured.py"), steps=3)
    changed = trace_script(changed_build(late, "zero_grad_after_step"), steps=3)
    assert cured.for_step(3).peak_bytes == changed.for_step(3).peak_bytes
    report = report_on(late)
    [change] = [c for c in report.changes if c.name.startswith("optimizer.zero_grad()")]
    assert change.saved_bytes > 8 * MIB
    names = [change.name for change in report_on(script()).changes]
    assert not any("zero_grad" in name for name in names)


def test_a_cache_that_training_returns(tmp_path):
    """transformers' own model: its cache is part of its outputs, and goes with ``use_cache=False``."""
    pytest.importorskip("transformers")
    text = """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=4,
                             num_attention_heads=4, num_key_value_heads=4, use_cache=CACHE)
        model = LlamaForCausalLM(config).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(64, (4, 512), device="cuda")
        for _ in range(4):
            outputs = model(input_ids=tokens, labels=tokens)
            outputs.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    scripts = {}
    for cache in ("True", "False"):
        path = tmp_path / f"train_{cache}.py"
        path.write_text(dedent(text.replace("CACHE", cache)), encoding="utf-8")
        scripts[cache] = Script(str(path))
    before, cured = (trace_script(scripts[cache], steps=3) for cache in ("True", "False"))
    changed = trace_script(changed_build(scripts["True"], "without_cache"), steps=3)
    assert same(changed, cured) and changed.peak_bytes < before.peak_bytes
    names = {cache: [c.name for c in report_on(scripts[cache]).changes] for cache in scripts}
    assert "model.config.use_cache = False" in names["True"]
    assert "model.config.use_cache = False" not in names["False"]
    with pytest.raises(ValueError, match="no module that can be changed so"):
        trace_script(changed_build(scripts["False"], "without_cache"))


RESUME = """
    import sys
    import torch
    from torch import nn

    model = nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = torch.load(sys.argv[1], **({"map_location": sys.argv[2]} if sys.argv[2:] else {}))
    model.load_state_dict(checkpoint["model"])
    for _ in range(3):
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """One that a card wrote: its tensors' place is cuda:0."""
    path = tmp_path / "checkpoint.pt"
    with monkeypatch.context() as patches:
        patches.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"model": nn.Linear(1024, 1024).state_dict(), "other": torch.ones(2**24)}, path)
    return str(path)


@pytest.mark.parametrize("place", [(), ("cuda",)])
def test_a_checkpoint_on_the_card_is_offered_to_the_host(place, checkpoint, tmp_path):
    path = tmp_path / "resume.py"
    path.write_text(dedent(RESUME), encoding="utf-8")
    report = report_on(Script(str(path), (checkpoint, *place)))
    cured = report_on(Script(str(path), (checkpoint, "cpu")))
    [change] = [change for change in report.changes if "torch.load" in change.name]
    assert change.name == 'torch.load(..., map_location="cpu") in resume.py:8'
    assert change.after_bytes == cured.replay.peak_reserved_bytes < change.before_bytes
    assert not any("torch.load" in change.name for change in cured.changes)
