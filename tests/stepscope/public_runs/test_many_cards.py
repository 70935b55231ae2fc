"""Runs of one to eight A100s that others measured are the oracle; three cheap programs are traced anew.

The rest is ``python -m dev.bench.public_predict --rows FILE``.
"""

import csv
import gzip
import json
import statistics
from pathlib import Path

import pytest
import torch

from book import many_cards
from book.many_cards import cards_words, load_many_cards, refusals, store_many_cards
from dev.bench.many_cards import MODELS, Refusal, predict, predicted_rows, program_of, run_of
from memkit import TrainingSetup, estimate_memory, models, recipes
from memkit.fit import training_workspace_bytes

RUNS = [run for run in load_many_cards() if run.kind != "Liger's twins"]
LAYERS = [run for run in load_many_cards() if run.kind == "Liger's twins" and not run.refused]
PREDICTED = [run for run in RUNS if not run.refused]
COLUMNS = {
    "file": "refs/a100_80gb_liger.csv",
    "line": "2",
    "bf16": "True",
    "fp16": "",
    "framework_config": "foak-fast-kernels",
    "mem_peak_torch_mem_alloc_in_bytes": "80318097408.0",
    "mem_torch_mem_alloc_in_bytes": "48198051840.0",
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "num_gpus": "1",
    "peft_method": "",
    "per_device_train_batch_size": "4",
    "r": "",
    "target_modules": "",
    "torch_dtype": "bfloat16",
}
"""The columns that are read, of one published row: full fine-tuning of Llama-3-8B on one A100."""


def row(**changes) -> dict[str, str]:
    return COLUMNS | changes


@pytest.mark.parametrize(
    "changes, peak, rest",
    [
        ({}, 80_318_097_408, 48_198_051_840),
        # a100_80gb_liger.csv, line 167: FSDP1 with float32 shards, activations decide
        (
            {
                "model_name_or_path": "mistralai/Mistral-7B-v0.1",
                "num_gpus": "4",
                "per_device_train_batch_size": "8",
                "framework_config": "foak-fast-kernels-liger",
            },
            39_732_781_056,
            28_984_805_376,
        ),
        # line 74: LoRA, where FSDP1 keeps every block's input and its gradient
        (
            {
                "num_gpus": "4",
                "peft_method": "lora",
                "r": "16.0",
                "target_modules": "q_proj k_proj v_proj o_proj",
            },
            27_551_078_912,
            4_088_154_624,
        ),
    ],
)
def test_a_measured_run_is_predicted_from_its_program(changes, peak, rest):
    predicted_peak, predicted_rest = predict(program_of(row(**changes)))
    assert predicted_peak == pytest.approx(peak, rel=1e-4)
    assert predicted_rest == pytest.approx(rest, rel=3e-4)


@pytest.mark.parametrize(
    "kernel, provider, name, value, card, config, measured",
    [
        (
            "softmax",
            "torch",
            "N",
            4096,
            "NVIDIA GeForce RTX 3090",
            {"dtype": "torch.bfloat16"},
            0.046875,
        ),
        (
            "group_norm",
            "torch",
            "C",
            32,
            "NVIDIA B200",
            {"M": 128, "H": 512, "channels_per_group": 4},
            40.06640625,
        ),
        (
            "megatron_rms_norm",
            "torch",
            "H",
            16384,
            "NVIDIA H100 80GB HBM3",
            {"S": 4096, "B": 1},
            640.1103515625,
        ),
    ],
)
def test_a_plain_layer_takes_what_ligers_benchmark_measured(
    kernel, provider, name, value, card, config, measured
):
    columns = {
        "kernel_operation_mode": "full",
        "kernel_name": kernel,
        "kernel_provider": provider,
        "gpu_name": card,
    }
    columns |= {"x_name": name, "x_value": value, "extra_benchmark_config_str": json.dumps(config)}
    assert run_of(columns | {"y_value_50": measured, "line": 0}).peak == measured * 2**20


@pytest.mark.parametrize(
    "model, batch, measured",
    [(models.MISTRAL_7B, 4, 72_434_837_504), (models.LLAMA_3_8B, 4, 80_318_097_408)],
)
def test_the_formula_and_two_constants_are_the_peak_of_one_card(model, batch, measured):
    words = {"precision": recipes.PURE_BF16, "seq_len": 4096, "recomputation": "full"}
    setup = TrainingSetup(model=model, micro_batch_size=batch, **words)
    # tokens and labels are in the formula
    workspaces, mask = training_workspace_bytes((8, 0)), 8 * batch * 4096
    assert estimate_memory(setup).peak_bytes + workspaces + mask == pytest.approx(
        measured, rel=5e-5
    )


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"framework_config": "accelerated-peft-autogptq"}, "autogptq"),
        ({"model_name_or_path": "gpt2"}, "gpt2"),
        ({"framework_config": "moe-scattermoe-granite-ep1"}, "ScatterMoE"),
        ({"file": "refs_orca/a100_80gb_pf.csv"}, "lengths"),
        ({"framework_config": "new-kernels"}, "new-kernels"),
        ({"file": "refs/h100.csv"}, "versions"),
        ({"peft_method": "dora"}, "dora"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"gradient_accumulation_steps": "2"}, "accumulation"),
        ({"target_modules": "q_proj"}, "target_modules"),
        ({"mem_peak_torch_mem_alloc_in_bytes": ""}, "not recorded"),
    ],
)
def test_a_row_whose_program_is_not_rebuilt_is_refused_in_words(changes, reason):
    if "target_modules" in changes:
        changes = changes | {"peft_method": "lora"}
    with pytest.raises(Refusal, match=reason):
        program_of(row(**changes))


def test_a_file_of_rows_is_judged(tmp_path, capsys):
    file = tmp_path / "rows.csv.gz"
    with gzip.open(file, "wt", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerow(row(model_name_or_path="gpt2"))
    runs = list(predicted_rows(file))
    assert "1 rows: 0 predicted, 1 refused" in str(cards_words(runs))
    assert "refused: gpt2" in capsys.readouterr().out


def test_the_stored_predictions_are_near_what_was_measured():
    assert set(MODELS) >= {run.model for run in PREDICTED if run.measured_rest}
    for kind in ("full", "LoRA", "QLoRA", "GPTQ-LoRA"):
        alone = [run for run in PREDICTED if (run.kind, run.num_cards) == (kind, 1)]
        many = [run for run in PREDICTED if run.kind == kind and run.num_cards > 1]
        # what Mixtral's router chose is not known
        within = [0.0013 if "Mixtral" in run.model else 0.0002 for run in alone]
        assert len(alone) >= 5 and all(
            abs(run.peak_error) < most for run, most in zip(alone, within, strict=True)
        )
        assert len(many) >= 10 and statistics.median(abs(run.peak_error) for run in many) < 0.0005
    assert refusals(RUNS).total() + len(PREDICTED) == len(RUNS)


def test_the_readme_says_what_the_rows_say():
    readme = (Path(many_cards.FILE).parents[2] / "dev" / "NUMBERS.md").read_text(encoding="utf-8")
    of_cards = [run for run in PREDICTED if run.measured_rest]
    within = sum(abs(run.peak_error) <= 0.01 for run in PREDICTED)
    assert (
        f"Another {len(PREDICTED)} runs" in readme
        and f"constant, {within} of them within 1 %" in readme
    )
    assert f"{refusals(RUNS).total()} runs more are refused" in readme
    median = statistics.median(abs(run.peak_error) for run in of_cards)
    assert (
        f"| {len(of_cards)} runs on one" in readme
        and f"| {median:.3%} at".replace("%", " %") in readme
    )
    for kind, words in (("PEFT's methods", "of PEFT's"), ("PEFT on FLUX.2", "of them on FLUX.2")):
        errors = [abs(run.peak_error) for run in PREDICTED if run.kind == kind]
        assert (
            f"| {len(errors)} {words}" in readme
            and f"| {100 * statistics.median(errors):.2f} % at" in readme
        )
    near = sum(abs(run.peak - run.measured_peak) <= 1024 for run in LAYERS)
    assert (
        f"Of {len(LAYERS)} single layers" in readme and f"{near} are right to a kilobyte" in readme
    )


def test_storing_and_loading_keeps_every_run(tmp_path, monkeypatch):
    monkeypatch.setattr("book.many_cards.FILE", tmp_path / "runs.csv")
    store_many_cards(RUNS, "again")
    assert load_many_cards() == RUNS


def test_leaving_disable_adapter_makes_a_frozen_factor_trainable():
    """Why PEFT's published row of LoRA-FA is plain LoRA's (chapter 09, ``lorafa``)."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(8, 8)), peft.LoraConfig(r=2, target_modules=["0"])
    )
    factor_a = dict(model.named_parameters())["base_model.model.0.lora_A.default.weight"]
    factor_a.requires_grad_(False)  # as LoRA-FA's optimizer does
    with model.disable_adapter():
        pass
    assert factor_a.requires_grad
