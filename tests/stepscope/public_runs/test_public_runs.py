"""Runs that others measured on their cards are the oracle: a few cheap programs are traced anew, all figures are read.

The rest is ``python -m dev.bench.public_predict``, which traces every run.
"""

import dataclasses
import itertools
import statistics
from pathlib import Path

import pytest
import torch

from book import public_runs
from book.public_runs import ESTIMATORS, error_table, load_public_runs, store_public_runs
from dev.bench.public_predict import predict
from dev.bench.public_programs import (
    CONVOLUTIONAL,
    TRANSFORMERS,
    Classifier,
    filters,
    layer_widths,
    perceptron,
    transformer,
)
from memkit.units import MIB
from stepscope import replay_trace, trace_script

RUNS = load_public_runs()
ENDED_WELL = [run for run in RUNS if run.outcome == "ok"]


def runs_of(of_set: str, half: str = "held") -> list:
    return [run for run in ENDED_WELL if (run.set, run.half) == (of_set, half)]


@pytest.mark.parametrize(
    "config, parameters",
    [
        # the column "Total Parameters" of GPUMemNet's table
        ("2346 197 2 pyramid relu 1 1", 3_560_152),
        ("2848 372 9 bottleneck selu 1 0", 6_446_860),
        ("3567 528 9 gradual elu 0 0", 44_698_980),
        ("741 56 9 uniform leaky_relu 0 1", 5_003_288),
        # its count leaves the PReLUs' own parameters out
        ("1257 62 3 pyramid prelu 0 1", 1_048_979 + 3),
    ],
)
def test_an_mlp_has_the_parameters_that_its_authors_counted(config, parameters):
    step = perceptron(config, 64)
    assert trace_script(step, steps=1).at("init").weights >= 4 * parameters
    sizes = config.split()
    widths = layer_widths(int(sizes[0]), int(sizes[1]), int(sizes[2]), sizes[3])
    linear = sum((a + 1) * b for a, b in zip([*widths], [*widths[1:], int(sizes[1])], strict=True))
    norm = 2 * sum(widths[1:]) if sizes[6] == "1" else 0
    prelu = len(widths) - 1 if sizes[4] == "prelu" else 0
    assert linear + norm + prelu == parameters


@pytest.mark.parametrize(
    "model, parameters",
    [
        # counted in the checkpoints on their model pages
        ("distilbert/distilgpt2", 81_912_576),
        ("openai-community/gpt2", 124_439_808),
        ("EleutherAI/gpt-neo-125M", 125_198_592),
        ("facebook/opt-125m", 125_239_296),
        ("facebook/opt-350m", 331_196_416),
        ("T5-small", 60_506_624),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    ],
)
def test_a_transformer_has_the_parameters_of_its_checkpoint(model, parameters):
    import transformers

    name, options = TRANSFORMERS[model]
    with torch.device("meta"):
        config = getattr(transformers, name)(**options)
        kind = transformers.T5ForConditionalGeneration if model == "T5-small" else None
        network = kind(config) if kind else transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


@pytest.mark.parametrize(
    "place, counted",
    # the column "Total Parameters" of GPUMemNet's tables
    [
        (0, 71_621_233),
        (1, 35_133_650),
        (2, 543_883_815),
        (3, 327_971_308),
        (14, 213_618_065),
        (-1, 108_364_482),
    ],
)
def test_an_encoder_has_the_parameters_that_its_authors_counted(place, counted):
    run = [run for run in RUNS if run.set == "GPUMemNet transformers"][place]
    classes, width, layers, heads, inner, dropout, length, vocab, _ = run.config.split()
    with torch.device("meta"):
        model = Classifier(
            int(classes),
            int(width),
            int(layers),
            int(heads),
            int(inner),
            float(dropout),
            int(length),
            int(vocab),
        )
    left_out = {"places", "in_proj_weight", "in_proj_bias"}
    own = [
        (name, parameter.numel())
        for name, parameter in model.named_parameters()
        if "out_proj" not in name and name.rpartition(".")[2] not in left_out
    ]
    assert sum(size for _, size in own) == counted


@pytest.mark.parametrize(
    "place, counted",
    [
        (0, 1_864_805),
        (1, 1_730_036),
        (2, 731_920),
        (3, 2_960_902),
        (4, 128_242_341),
        (5, 148_861_286),
    ],
)
def test_a_stack_has_the_parameters_that_its_authors_counted(place, counted):
    run = [run for run in RUNS if run.set == "GPUMemNet CNNs"][place]
    channels, classes, architecture, first, depth, *_, has_norm = run.config.split()
    widths = filters(architecture, int(first), int(depth))
    convolutions = sum(9 * a * b + b for a, b in itertools.pairwise((int(channels), *widths)))
    norms = 2 * sum(widths) if has_norm == "1" else 0
    assert convolutions + norms + (widths[-1] + 1) * int(classes) == counted


def test_the_given_and_the_held_half_share_no_run():
    names = [(run.set, run.run) for run in RUNS]
    assert len(set(names)) == len(names)
    assert {run.model for run in RUNS} <= {
        *TRANSFORMERS,
        *CONVOLUTIONAL,
        "MnasNet",
        "MLP",
        "encoder",
        "stack",
    } | {"xl", "small", "medium"}


CHEAP = [
    *runs_of("GPUMemNet MLPs")[:4],
    *runs_of("GPUMemNet transformers")[1:2],
    *runs_of("GPUMemNet CNNs")[:1],
    *runs_of("xMem CNNs")[3:4],
]


@pytest.mark.parametrize("run", CHEAP, ids=lambda run: run.run)
def test_a_run_traced_anew_is_the_stored_prediction(run):
    assert predict(run) == run.prediction


def test_nvidia_smi_shows_reserved_bytes_and_one_constant():
    """On 22 rows that it was not taken from; the tool shows whole MiB, and another process may come and go."""
    beyond = [
        (run.measured_bytes - run.prediction.expected_bytes) / MIB
        for run in runs_of("GPUMemNet MLPs")
    ]
    assert statistics.median(beyond) == pytest.approx(
        runs_of("GPUMemNet MLPs")[0].context_bytes / MIB, abs=2
    )
    assert sum(abs(size - 1429) <= 2 for size in beyond) >= 0.7 * len(beyond)


def test_a_hugging_face_run_on_a_3060():
    """distilgpt2, 15 × 128 tokens, AdamW: 3,770 MiB by NVML. The installed transformers may run other operations."""
    (run,) = [run for run in RUNS if run.run == "distilbert-distilgpt2_AdamW_15_1_10-9663"]
    build = transformer(run.model, run.optimizer, run.batch)
    replay = replay_trace(
        trace_script(build, steps=4), compute_capability=(8, 6), torch_version="2.6.0"
    )
    assert (replay.peak_reserved_bytes + run.context_bytes) / run.measured_bytes == pytest.approx(
        1, abs=0.02
    )


def test_medians_on_runs_that_nothing_was_fitted_to():
    errors = {
        of_set: [abs(run.error) for run in runs_of(of_set)] for of_set in {run.set for run in RUNS}
    }
    assert statistics.median(errors["xMem transformers"]) < 0.005
    assert statistics.median(errors["GPUMemNet MLPs"]) < 0.002
    assert statistics.median(errors["xMem CNNs"]) < 0.05
    assert max(errors["CS336 on a B200"]) < 0.006
    # no constant is theirs
    encoders = [abs(run.error) for run in ENDED_WELL if run.set == "GPUMemNet transformers"]
    assert (
        statistics.median(encoders) < 0.002
        and sum(error < 0.015 for error in encoders) == len(encoders) - 2
    )


def test_no_run_is_more_than_five_per_cent_too_low_without_a_warning():
    assert not [run.run for run in ENDED_WELL if run.error < -0.05 and not run.warning]


def test_every_published_estimator_misses_by_more_on_the_same_transformers():
    held = runs_of("xMem transformers")
    for name in ESTIMATORS:
        told = [run for run in held if name in run.estimates]
        theirs = statistics.median(
            abs(run.estimates[name] / run.measured_bytes - 1) for run in told
        )
        assert theirs > 3 * statistics.median(abs(run.error) for run in told), name


def test_constants_come_from_the_given_half_alone():
    changed = [
        dataclasses.replace(run, measured_bytes=2 * run.measured_bytes)
        if run.half == "held"
        else run
        for run in RUNS
    ]
    for key in {(run.set, run.card) for run in RUNS}:
        assert public_runs._context_bytes(changed, *key) == public_runs._context_bytes(RUNS, *key)


def test_the_table_is_written_as_it_was_read(tmp_path, monkeypatch):
    monkeypatch.setattr(public_runs, "FILE", tmp_path / "runs.csv")
    store_public_runs(RUNS, "as before")
    assert load_public_runs() == RUNS and public_runs.note() == "as before"


def test_the_table_of_errors_counts_every_run():
    ours = [row for row in error_table(RUNS) if row[3] == "memkit"]
    assert sum(int(row[2]) for row in ours) == len(ENDED_WELL)


def test_readme_and_chapter_07_say_what_the_runs_say():
    root = Path(public_runs.FILE).parents[2]
    readme = (root / "dev" / "NUMBERS.md").read_text(encoding="utf-8")
    chapter = (root / "chapters" / "further" / "07_my_job_died.ipynb").read_text(encoding="utf-8")

    def median(of_set: str, half: tuple = ("given", "held"), of: str = "") -> float:
        some = [run for run in ENDED_WELL if run.set == of_set and run.half in half]
        errors = [run.estimates[of] / run.measured_bytes - 1 if of else run.error for run in some]
        return 100 * statistics.median(map(abs, errors))

    held = ("held",)
    texts, images = median("xMem transformers", held), median("xMem CNNs", held)
    encoders, stacks = median("GPUMemNet transformers"), median("GPUMemNet CNNs")
    theirs = {of_set: median(of_set, held, "xmem") for of_set in ("xMem transformers", "xMem CNNs")}
    assert (
        f"peaks of {len(ENDED_WELL)} training runs" in readme
        and f"takes {len(RUNS)} of these runs" in chapter
    )
    assert (
        f"predicts {sum(abs(run.error) <= 0.01 for run in ENDED_WELL)} of them within 1 %" in readme
    )
    for text in (readme, chapter):
        for figure in (f"{texts:.2f} %", f"{encoders:.2f} %", f"{images:.1f} %", f"{stacks:.0f} %"):
            assert f"| {figure}" in text, figure
        assert all(f"| {size:.1f} %" in text for size in theirs.values())
    worst = {
        of_set: min(run.error for run in ENDED_WELL if run.set == of_set)
        for of_set in {run.set for run in RUNS}
    }
    assert f"at worst {-100 * worst['xMem CNNs']:.0f} % too low" in readme
    assert (
        f"at worst {-100 * worst['GPUMemNet CNNs']:.0f} % too low" in readme
        and "at worst 18 % too low" in chapter
    )
    low = sorted(
        round(-100 * run.error) for run in ENDED_WELL if run.set == "GPUMemNet transformers"
    )[-2:]
    assert low == [10, 15] and "10 and 15 % too low" in readme and "10 and 15 % too low" in chapter
