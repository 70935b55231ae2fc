"""The command line as a user calls it: exit codes, JSON, and its figures against the trace's own."""

import json
import os
import subprocess
import sys

import pytest
import torch

import memkit
from memkit import OptimizerConfig, TrainingSetup, models
from memkit.strategies import SAVE_PRODUCTS
from memkit.units import GIB
from stepscope.allocator.replay import replay_trace
from stepscope.allocator.snapshots import predicted_snapshot, write_snapshot
from stepscope.program.sharded import one_rank_of, sharded_build
from stepscope.setup import Layout
from stepscope.tool.changed import PROGRAM_CHANGES, changed_build
from stepscope.tool.command_line import main, number_in
from stepscope.tracing.trace import trace_script

PROGRAM = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def build(rows=4096, foreach=True, zeros=False):
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    x = torch.randn(rows, 256, device="cuda")

    def step():
        print("a step begins")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not zeros)

    return step

def broken():
    raise RuntimeError("two\\nlines")

def leaves():
    raise SystemExit(0)

def refuses():
    torch.nn.Linear("wide", 2, device="cuda")

def lacks():
    try:
        raise RuntimeError("no operator")
    except RuntimeError as error:
        raise ImportError("no such model") from error

def blames_itself():
    error = RuntimeError("no reason")
    raise error from error

number = 3
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "my_program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def namespace() -> dict:
    names: dict = {"__name__": "program"}
    exec(PROGRAM, names)
    return names


def test_a_report_agrees_with_the_trace(program, capsys):
    assert main(["report", f"{program}:build", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    trace = replay_trace(trace_script(namespace()["build"]))
    assert (data["allocated_bytes"], data["reserved_bytes"]) == (
        trace.peak_allocated_bytes,
        trace.peak_reserved_bytes,
    )
    # the program's own words are none of the result
    told = set(err.splitlines()) - {"a step begins"}
    assert (
        "tracing 2 steps" in err
        and "a step begins" in err
        and all(line.startswith("stepscope: ") for line in told)
    )
    assert all("my_program.py:" in line["where"] for line in data["lines"])
    assert {card["card"] for card in data["cards"]} >= {"T4", "H100 SXM"}
    for item in data["left_out"]:
        assert (
            0 <= item["low_bytes"] <= item["expected_bytes"] <= item["high_bytes"]
            and item["reason"]
        )


SCRATCH_OF_INIT = """
import torch

def build(side):
    weights = torch.empty(side, side, device="cuda")
    weight = torch.nn.Parameter(torch.nn.init.orthogonal_(weights) if side == 1024 else weights)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

def wide():
    return build(1024)

def plain():
    return build(512)
"""


@pytest.mark.parametrize("name", ["wide", "plain"])
def test_a_report_says_of_which_moment_its_peak_is(name, tmp_path, capsys):
    """Drawing an orthogonal matrix takes several of its size; a step takes the weight, its gradient and no more."""
    path = tmp_path / "scratch_of_init.py"
    path.write_text(SCRATCH_OF_INIT, encoding="utf-8")
    assert main(["report", f"{path}:{name}"]) == 0
    head = " ".join(" ".join(capsys.readouterr().out.split("\n\n")[:2]).split())
    names: dict = {}
    exec(SCRATCH_OF_INIT, names)
    trace = trace_script(names[name])
    steps = max(
        instant.total_bytes for instant in trace.instants if not instant.name.startswith("init")
    )
    if name == "wide":
        assert trace.peak_bytes >= 3 * 1024**2 * 4 > steps
        assert "at the peak, in init, before the first step, at scratch_of_init.py:" in head
        assert "Making the model takes more than any step: the steps reach 8.00 MiB." in head
    else:
        assert (
            trace.peak.step == 1
            and "at the peak, in backward of step 1 of 2, at scratch_of_init.py:" in head
        )
        assert "Making the model" not in head


def test_a_change_that_can_be_made_is_traced_again(program, capsys):
    main(["report", f"{program}:build", "--json"])
    changes = {
        change["name"].split(",")[0]: change
        for change in json.loads(capsys.readouterr().out)["changes"]
    }
    checkpointed = replay_trace(trace_script(changed_build(namespace()["build"], "checkpointed")))
    assert changes["full recomputation"]["known_by"] == "second trace"
    assert changes["full recomputation"]["after_bytes"] == checkpointed.peak_reserved_bytes


def test_what_a_program_prints_is_shown_of_its_first_trace_alone(program, capsys):
    """Eight cures are traced, and each ran the program's own words past its reader once more."""
    talks = PROGRAM.replace("    def step(", "    print('made')\n    def step(", 1)
    assert talks != PROGRAM
    program.write_text(talks, encoding="utf-8")
    assert main(["report", f"{program}:build"]) == 0
    err = capsys.readouterr().err
    assert err.count("tracing again") > 1 and err.count("made\n") == 1


def test_a_changed_program_is_the_program_with_the_change():
    """Each change made from outside comes to what the same change made in the program comes to."""
    names = namespace()
    plain, build = names["Model"].forward, names["build"]

    def peak(build):
        return trace_script(build, steps=3).peak_bytes

    assert peak(changed_build(build, "for_loop")) == peak(lambda: build(foreach=False))
    zeros = lambda: build(rows=16, zeros=True)
    assert peak(changed_build(zeros, "set_to_none")) == peak(lambda: build(rows=16)) <= peak(zeros)

    def in_checkpoints(self, x):
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x

    changed = peak(changed_build(build, "checkpointed"))
    names["Model"].forward = in_checkpoints
    assert changed == peak(build)
    names["Model"].forward = plain
    assert changed < peak(build)
    with pytest.raises(ValueError, match="name='faster' is not one of for_loop"):
        changed_build(build, "faster")
    told = {"for_loop", "fused", "set_to_none", "no_grad", "checkpointed"}
    # the next four: test_between_steps; the last two: test_scripts_of_people
    told |= {"zero_grad_after_step", "del_outputs", "del_before_backward", "without_cache"}
    told |= {"argmax_logits", "loaded_to_host"}  # test_kept_logits, test_between_steps
    told |= {
        "loss_in_pieces",
        "no_dropout_of_adapters",
        "adapters_as_base",
        "bucket_views",
    }  # test_cures
    assert set(PROGRAM_CHANGES) == told | {"eight_bit", "half_batch", "steps_in_backward"}


@pytest.fixture
def snapshot(tmp_path):
    replay = replay_trace(trace_script(namespace()["build"]))
    return str(write_snapshot(predicted_snapshot(replay), tmp_path / "run.pickle"))


def test_a_limit_fails_a_job(snapshot, program, capsys):
    peak = json.loads(_json_of(["snapshot", snapshot], capsys))["reserved_bytes"]
    assert main(["snapshot", snapshot, "--fail-above", f"{peak}"]) == 0
    assert "what would help most" in capsys.readouterr().out
    assert main(["snapshot", snapshot, "--fail-above", f"{peak - 1}B"]) == 1
    assert "is above" in capsys.readouterr().err
    assert main(["report", f"{program}:build", "--fail-above", "1MiB"]) == 1


def _json_of(arguments, capsys) -> str:
    assert main([*arguments, "--json"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["report", "nowhere.py:build"], "'nowhere.py' is no file"),
        (["report", "my_build"], "'my_build' is not of the form"),
        (["report", "no_such_module:build"], "no_such_module"),
        (["report", "PROGRAM:nothing"], "has no function 'nothing'"),
        (["report", "PROGRAM:number"], "has no function 'number'"),
        (["report", "PROGRAM:broken"], "RuntimeError: two lines (my_program.py:36)"),
        (["report", "PROGRAM:leaves"], "SystemExit: 0 (my_program.py:39)"),
        (["report", "PROGRAM:refuses"], "(my_program.py:42)"),
        (
            ["report", "PROGRAM:lacks"],
            "no such model (from RuntimeError: no operator) (my_program.py:48)",
        ),
        (
            ["report", "PROGRAM:blames_itself"],
            "stepscope: RuntimeError: no reason (my_program.py:52)",
        ),
        (["report", "PROGRAM:build", "--card", "RTX 9"], "card='RTX 9' is not one of"),
        (["fit", "Llama-2-7B", "--card", "A6000"], "which nobody knows of this card (RTX A6000 ("),
        (["fit", "GPT-2 medium", "--card", "16GiB"], "--card 'V100 16 GB' with 15.78 GiB"),
        (["snapshot", "nowhere.pickle"], "'nowhere.pickle' is no file"),
        (["snapshot", "PROGRAM"], "is not read as a snapshot"),
    ],
)
def test_an_error_is_one_line_that_shows_the_value(arguments, words, program, capsys):
    assert main([text.replace("PROGRAM", str(program)) for text in arguments]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("stepscope: ") and "Traceback" not in err
    assert words in last or "neither JSON nor a pickle" in last


def test_versions_and_names(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert (
        stopped.value.code == 0
        and capsys.readouterr().out.strip() == f"stepscope {memkit.__version__}"
    )
    names = json.loads(_json_of(["list"], capsys))
    assert set(names["models"]) == {*models.PUBLISHED_MODELS, "Qwen3-30B-A3B"}
    assert set(names["cards"]) == set(memkit.CARDS)
    assert number_in("16k") == 16384 and number_in("2M") == 2 * 2**20 and number_in("-1") == -1


def test_one_card_is_judged(program, capsys):
    data = json.loads(_json_of(["report", f"{program}:build", "--card", "rtx 4090"], capsys))
    assert [card["card"] for card in data["cards"]] == ["RTX 4090"]


def test_adapters_and_the_host_can_be_asked_for(capsys):
    """A name in small letters, a number with k, LoRA of a rank beside two layers, and how much of the host's memory."""
    asked = ["fit", "llama-2-7b", "--card", "rtx 4090", "--tokens", "2k", "--seq-len", "2k"]
    lora = json.loads(_json_of([*asked, "--lora", "8", "--targets", "query,value"], capsys))
    assert all("LoRA of rank 8" in plan["name"] for plan in (*lora["front"], *lora["missed"]))
    assert "only adapters are trained" in lora["chosen"]["gives_up"]
    little, much = (
        json.loads(_json_of([*asked, "--host", size], capsys)) for size in ("4GiB", "200GiB")
    )
    assert all(plan["host_bytes"] <= 4 * GIB for plan in little["front"])
    assert any(plan["host_bytes"] > 4 * GIB for plan in much["front"])


def test_a_config_without_a_length_takes_the_one_asked_for(tmp_path, capsys):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    asked = ["fit", str(path), "--card", "T4", "--tokens", "128", "--seq-len", "128"]
    path.write_text(json.dumps(config), encoding="utf-8")
    assert json.loads(_json_of(asked, capsys))["chosen"]
    for kind in ("gemma2", "gpt_oss", "phi3", "llama4"):
        path.write_text(json.dumps(config | {"model_type": kind}), encoding="utf-8")
        assert main(asked) == 2
        assert "Trace it: stepscope report config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["reports"],
        ["snapshot", "x", "--fail-above", "much"],
        ["snapshot", "x", "--device", "one"],
        ["report", "x", "--steps", "two"],
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    [line] = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and line.startswith("stepscope") and line.endswith("--help)")


def test_the_words_come_out_on_any_terminal_and_into_any_pipe():
    """A terminal without the letters of a table, and a reader that is gone before the first line."""
    command = [sys.executable, "-m", "stepscope", "fit", "GPT-2 small", "--card", "T4"]
    command += ["--tokens", "64", "--seq-len", "64"]
    reader, writer = os.pipe()
    os.close(reader)
    for stdout, encoding in ((subprocess.PIPE, "ascii"), (writer, "utf-8")):
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, env=environment, check=False
        )
        assert done.returncode == 0 and b"Error" not in done.stderr, done.stderr
    os.close(writer)


FIT = ["fit", "Llama-2-7B", "--card", "RTX 4090", "--tokens", "16384", "--seq-len", "2048"]


def test_a_fit_over_cards(capsys):
    """One card trains adapters; eight train all, at the bytes that the sharded step has on a rank."""
    one, eight = (json.loads(_json_of([*FIT, *cards], capsys)) for cards in ([], ["--cards", "8"]))
    assert one["chosen"]["gives_up"] == ["only adapters are trained"]
    # a 4090 has no NVLink: over PCIe sums of 2 B a parameter in place of 4 save time
    assert eight["chosen"]["gives_up"] == ["gradients summed in 16 bits"]
    assert (one["num_cards"], one["chosen"]["layout"]) == (1, None)
    assert (eight["num_cards"], eight["chosen"]["layout"]) == (8, "ZeRO-3 on 8")
    assert "save attention and products" in eight["chosen"]["name"]
    setup = TrainingSetup(
        model=models.LLAMA_2_7B, seq_len=2048, optimizer=OptimizerConfig(implementation="fused")
    )
    setup = setup.under(SAVE_PRODUCTS)
    layout = Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="bfloat16")
    with one_rank_of(8):
        rank = trace_script(sharded_build(setup, layout)).for_step(2).peak_bytes
    # the text draws its batches before the step, the program in it
    assert eight["chosen"]["traced_bytes"] == pytest.approx(rank, rel=1e-5)
    assert rank == pytest.approx(eight["chosen"]["peak_bytes"], rel=0.01)
    assert main([*FIT, "--cards", "8", "--code", "transformers", "--fail-above", "10GiB"]) == 1
    assert "fully_shard(model, **choices)" in capsys.readouterr().out


def test_where_nothing_fits_the_exit_code_says_so(capsys):
    assert main([*FIT[:1], "Llama-2-70B", *FIT[2:4], "--tokens", "2048", "--seq-len", "2048"]) == 1
    assert "Nothing fits." in capsys.readouterr().out
