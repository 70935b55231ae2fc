"""What an evaluation keeps of each batch, against arithmetic on its logits; its cure, against the cured program."""

import json
from textwrap import dedent

import pytest

from memkit.units import format_bytes
from stepscope import trace_script
from stepscope.allocator.replay import replay_trace
from stepscope.tool.changed import changed_build
from stepscope.tool.command_line import main
from stepscope.tool.program_report import report_on
from stepscope.tool.script import Script
from stepscope.tracing.log import ABOUT_NUMBER, KEPT_FOR_METRICS

WORDS, BATCH, TOKENS, BATCHES = 8000, 4, 256, 12
LOGITS = 4 * BATCH * TOKENS * WORDS

LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(8000, 64), nn.Linear(64, 8000)

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    class Kept:
        def __init__(self):
            self.all = []

    def batches(count):
        return DataLoader(TensorDataset(torch.randint(8000, (4 * count, 256))), batch_size=4)

    def evaluate(model):
        model.eval()
        head, states, predictions, keeper = model.head, optimizer, [], Kept()
        with torch.no_grad():
            for (tokens,) in batches(12):
                logits = model(tokens.to("cuda"))
                KEEP

    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(2):
        model.train()
        for (tokens,) in batches(8):
            tokens = tokens.to("cuda")
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        evaluate(model)
"""

TRAINER = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    def rows(count):
        tokens = [torch.randint(8000, (256,)) for _ in range(count)]
        return [{"input_ids": row, "labels": row} for row in tokens]

    config = LlamaConfig(vocab_size=8000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4)
    options = TrainingArguments("out", per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=2,
                                eval_strategy="steps", eval_steps=2, report_to=[], save_strategy="no")
    trainer = Trainer(model=LlamaForCausalLM(config), args=options, train_dataset=rows(32), eval_dataset=rows(48),
                      MORE)
    trainer.train()
"""
METRICS = "compute_metrics=lambda given: {'rows': len(given.label_ids)}"


@pytest.fixture
def script(tmp_path):
    def write(text: str, name="train.py", **words: str) -> Script:
        for place, code in words.items():
            text = text.replace(place, code)
        (tmp_path / name).write_text(dedent(text), encoding="utf-8")
        return Script(str(tmp_path / name), until="eval")

    return write


@pytest.mark.parametrize(
    ("keep", "name", "num_bytes"),
    [
        ("predictions.append(logits)", "predictions", LOGITS),
        ("keeper.all.append(logits.half())", "keeper.all", LOGITS // 2),
        ("predictions += [logits, logits + 1]", "predictions", 2 * LOGITS),
        # less than the optimizer holds, which another name has
        ("predictions.append(logits[:, :16].clone())", "predictions", LOGITS // 16),
    ],
)
def test_bytes_a_batch_and_what_keeps_them(keep, name, num_bytes, script):
    trace = trace_script(script(LOOP, KEEP=keep))
    words = trace.provenance[ABOUT_NUMBER]
    line = next(n for n, code in enumerate(dedent(LOOP).split("\n"), 1) if "logits = model" in code)
    assert (
        f"{BATCHES} times and keeps {format_bytes(num_bytes)} of each call in {name} (train.py:{line})"
        in words
    )
    assert f"{BATCHES} calls more add {format_bytes(BATCHES * num_bytes)}" in words
    # the last batch's logits too
    kept = trace.at("evaluation peak").total_bytes - trace.at("evaluation").total_bytes
    assert BATCHES * num_bytes <= kept < BATCHES * num_bytes + 2.1 * LOGITS
    assert KEPT_FOR_METRICS not in trace.provenance


@pytest.mark.parametrize(
    "keep", ["pass", "predictions.append(logits.argmax(-1))", "predictions.append(logits.cpu())"]
)
def test_an_evaluation_that_keeps_little_is_not_spoken_of(keep, script):
    trace = trace_script(script(LOOP, KEEP=keep))
    assert "of each call" not in trace.provenance.get(ABOUT_NUMBER, "")


def test_the_cache_of_generate_is_not_taken_for_kept_logits(script):
    pytest.importorskip("transformers")
    head = TRAINER.partition("    options =")[0].replace("8000", "512")
    head = head.replace("hidden_size=64", "hidden_size=256").replace("layers=2", "layers=4")
    text = (
        head
        + """
    model = LlamaForCausalLM(config).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.stack([row["input_ids"] for row in rows(4)]).to("cuda")
    for step in range(3):
        model.train()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model.generate(tokens, max_new_tokens=32, min_new_tokens=32)
"""
    )
    trace = trace_script(script(text))
    assert trace.at("evaluation peak").total_bytes > trace.at("evaluation").total_bytes
    assert "of each call" not in trace.provenance.get(ABOUT_NUMBER, "")


def test_a_trainer_keeps_logits_for_its_metrics_and_is_told_how_not_to(script, capsys):
    pytest.importorskip("transformers")
    plain = script(TRAINER, MORE=METRICS)
    report = report_on(plain)
    words = report.trace.provenance[ABOUT_NUMBER]
    labels = 8 * BATCH * TOKENS
    assert f"keeps {format_bytes(LOGITS + labels)} of each call in all_preds.tensors" in words
    cure = "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)"
    assert cure in words
    cured = script(TRAINER, name="cured.py", MORE=f"{METRICS}, {cure}")
    changed, written = trace_script(changed_build(plain, "argmax_logits")), trace_script(cured)
    assert changed.peak_bytes == written.peak_bytes < report.trace.peak_bytes
    assert cure in report.changes[0].name and report.changes[0].saved_bytes > BATCHES * LOGITS
    assert KEPT_FOR_METRICS not in written.provenance
    # the logits are put together anew with each batch; on a card with room what they leave is kept
    cached = "are cached in whole free segments"
    half = report.replay.peak_reserved_bytes // 2
    assert replay_trace(report.trace, capacity_bytes=half).failure is None
    assert report.replay.allocator.needed_bytes < half and cached in report.about
    without = trace_script(script(TRAINER, name="without.py", MORE=""))
    assert KEPT_FOR_METRICS not in without.provenance
    capsys.readouterr()
    assert main(["report", plain.path, "--until", "eval", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert cure in data["changes"][0]["name"] and any(
        cure in words for words in data["about_number"]
    )
