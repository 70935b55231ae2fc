"""What lesson 08 says of a Trainer's evaluation, of the Trainer itself; and its rules, on other sizes."""

import pytest
import torch
from cells import after_setup, home_of, texts_of

from stepscope import trace_script
from stepscope.small_card import SimulatedCard

WORDS, TOKENS, ROWS = 8192, 64, 2
BATCH = 4 * WORDS * TOKENS * ROWS


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def evaluated(transformers, folder, batches: int, dtype=torch.float32, metrics=True, **options):
    """Bytes at the peak of an evaluation above its start, in batches of logits in float32; none of the model's own."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    classes = options.pop("classes", None)
    with SimulatedCard(8 * 2**30) as card:
        model = transformers.LlamaForCausalLM(config).to(dtype)
        rows = [torch.randint(WORDS, (TOKENS,)) for _ in range(batches * ROWS)]
        arguments = transformers.TrainingArguments(
            str(folder),
            per_device_eval_batch_size=ROWS,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **options,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            eval_dataset=[{"input_ids": row, "labels": row} for row in rows],
            compute_metrics=(lambda given, compute_result=True: {}) if metrics else None,
            preprocess_logits_for_metrics=classes,
        )
        card.reset_peak()
        start = card.allocated_bytes
        trainer.evaluate()
        return (card.peak_allocated_bytes - start) / BATCH


def test_the_trainer_keeps_twice_the_set(transformers, tmp_path):
    found = [evaluated(transformers, tmp_path, batches) for batches in (4, 8, 16)]
    assert found == pytest.approx([8, 16, 32], abs=0.1)
    assert evaluated(transformers, tmp_path, 8, bf16=True) == pytest.approx(16, abs=0.1)


def test_without_metrics_two_batches_are_there(transformers, tmp_path):
    """The logits of one batch and their log-softmax: ``per_device_eval_batch_size`` decides."""
    found = evaluated(transformers, tmp_path, 16, metrics=False)
    assert found == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize(
    "cure",
    [
        {"classes": lambda logits, labels: logits.argmax(-1)},
        {"batch_eval_metrics": True},
        {"eval_accumulation_steps": 1},
    ],
    ids=lambda cure: next(iter(cure)),
)
def test_what_cures_it_does_not_grow(transformers, tmp_path, cure):
    few, many = (evaluated(transformers, tmp_path, batches, **cure) for batches in (8, 16))
    assert many == pytest.approx(few, abs=0.1) and many < 4


def test_a_list_has_the_set_once(transformers, tmp_path):
    few, many = (
        evaluated(transformers, tmp_path, batches, eval_do_concat_batches=False)
        for batches in (8, 16)
    )
    assert many - few == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize("sequences", [3, 40])
@pytest.mark.parametrize("way", ["joined", "a list", "to the host", "classes"])
def test_the_rule_holds_for_other_sizes(way, sequences):
    """Twice the set where it is joined, once in a list, one batch else."""
    times = {"joined": 2 * sequences, "a list": sequences}.get(way, 1)
    names = dict(after_setup(home_of("08", "eval-ways"))) | {"tokens": 32, "words": 50_000}
    exec(texts_of("08")["eval-ways"], names)
    found = []
    trace_script(
        lambda: lambda: found.append(names["grown"](names["WAYS"][way], sequences)), steps=1
    )
    assert found == [pytest.approx(times * 32 * 50_000 * 4, rel=0.06)]
