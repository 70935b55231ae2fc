"""A script followed to its save, to its end, and as it resumes from its own files; arithmetic on its weights."""

import json
import os
from textwrap import dedent

import pytest

from stepscope import trace_script
from stepscope.tool.command_line import main
from stepscope.tool.script import Script
from stepscope.tracing.scratch_disk import copy_with_holes

W = 4 * (1024 * 4096 + 4096 * 1024)
"""Bytes of the weights; AdamW's states are two such sets, and a number a tensor."""
SLACK = 2**16

LOOP = """
    import os
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if os.path.exists("run.pt"):
        checkpoint = torch.load("run.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        print("resumed")
    loader = DataLoader(TensorDataset(torch.randn(800, 1024)), batch_size=8)
    for epoch in range(3):
        for (x,) in loader:
            model(x.to("cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            print("step")
        x = None
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "run.pt")
    best = torch.load("run.pt")
    model.load_state_dict(best["model"])
    print("end")
"""

TRAINER = """
    import glob
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.randint(512, (64, 32))]
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4)
    options = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=2, eval_strategy="epoch",
                                report_to=[], save_strategy="epoch", load_best_model_at_end=True)
    trainer = Trainer(model=LlamaForCausalLM(config), args=options, train_dataset=rows, eval_dataset=rows)
    is_there = bool(glob.glob("out/checkpoint-*"))
    print("resumes" if is_there else "starts")
    trainer.train(resume_from_checkpoint=is_there or None)
    print("trained")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str = LOOP, **fields) -> Script:
        (tmp_path / "train.py").write_text(dedent(text), encoding="utf-8")
        return Script("train.py", **fields)

    return write


def names(timeline) -> list[str]:
    """The instants of the last step."""
    return [i.name for i in timeline.instants if i.step == timeline.instants[-1].step]


def test_until_save_is_on_to_the_first_save_after_the_steps(script, capsys):
    """The epoch of 100 steps is cut after two, the next one ends it; a state dict copies nothing on the card."""
    trace = trace_script(script(until="save"))
    assert capsys.readouterr().out.split() == ["step", "step"]
    assert names(trace)[-1] == "save" and os.listdir() == ["train.py"]
    assert trace.at("save").total_bytes == pytest.approx(3 * W, abs=SLACK)


def test_what_is_copied_for_a_save_is_in_it(script):
    copies = "model.load_state_dict(best"
    text = LOOP.replace(
        "torch.save(", "whole = [p.clone() for p in model.parameters()]; torch.save("
    )
    trace = trace_script(script(text.replace(copies, "pass; " + copies), until="save"))
    assert trace.at("save").total_bytes == pytest.approx(4 * W, abs=SLACK)


def test_until_end_is_on_to_the_best_model_that_is_loaded(script, capsys):
    """Each epoch is cut; what is loaded stands beside model and states: weights and states once more."""
    trace = trace_script(script(until="end"))
    assert capsys.readouterr().out.split() == ["step", "step", "end"]
    assert [name for name in names(trace) if "peak" not in name][-2:] == ["save", "load"]
    assert trace.at("load").total_bytes == pytest.approx(6 * W, abs=SLACK)


def test_until_resume_finds_what_a_first_run_has_saved(script, capsys):
    """The second run's peak is in its first backward: the file's weights stand beside the model's, and the states."""
    script()
    assert main(["report", "train.py", "--until", "resume", "--json"]) == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert said.err.count("resumed") >= 1 and os.listdir() == ["train.py"]
    assert data["allocated_bytes"] == pytest.approx(5 * W, abs=2**20)  # and the gradients
    assert 'torch.load(..., map_location="cpu") in train.py:10' in data["changes"][0]["name"]
    first = data["changes"][0]
    assert first["before_bytes"] - first["after_bytes"] == pytest.approx(W, rel=0.02)
    assert "changed.py" not in str(data["lines"]) and "train.py:10 <module>" in str(data["lines"])


def test_a_script_that_saves_nothing_says_so(script, capsys):
    text = (
        LOOP.replace("torch.save(", "dict(a=")
        .replace(', "run.pt")', ")")
        .replace('best = torch.load("run.pt")', "best = dict(model=model.state_dict())")
    )
    script(text.replace("batch_size=8", "batch_size=400"))
    assert main(["report", "train.py", "--until", "save"]) == 2
    assert "train.py ended and saved nothing after a step" in capsys.readouterr().err
    with pytest.raises(ValueError, match="until='evening' is not one of , eval, save, end"):
        script(until="evening")


def test_a_trainer_is_followed_to_its_end_and_as_it_resumes(script, capsys):
    """Its checkpoints are safetensors, which a trace writes as holes; the best one is loaded at the end."""
    pytest.importorskip("transformers")
    trace = trace_script(script(TRAINER, until="end"))
    assert capsys.readouterr().out.count("trained") == 1
    assert {"evaluation", "save", "load"} <= set(names(trace))
    assert main(["report", "train.py", "--until", "resume", "--json"]) == 0
    said = capsys.readouterr().err
    assert said.index("starts") < said.index("resumes") and os.listdir() == ["train.py"]


def test_a_hole_stays_a_hole_when_it_is_copied(tmp_path):
    """A checkpoint of 64 GiB, all of it a hole but the first and the last bytes."""
    source, target = tmp_path / "a", tmp_path / "b"
    with open(source, "wb") as file:
        file.write(b"head")
        file.truncate(2**36)
        file.seek(2**36 - 4)
        file.write(b"tail")
    copy_with_holes(str(source), str(target))
    with open(target, "rb") as file:
        assert file.read(8) == b"head" + bytes(4)
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"tail"
    assert os.stat(target).st_size == 2**36 and os.stat(target).st_blocks * 512 < 2**20
