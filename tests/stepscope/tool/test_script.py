"""A script that is followed as it stands: its twin with ``build()`` and its real run on the CPU are the oracles."""

import sys
from textwrap import dedent

import pytest
import torch

from memkit import measure_memory
from stepscope import trace_script
from stepscope.tool.changed import changed_build
from stepscope.tool.command_line import main
from stepscope.tool.script import Script

TRAIN = """
    import argparse
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    model = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
    with torch.no_grad():
        model(data.tensors[0].to(options.device))
    for epoch in range(2):
        for inputs, targets in DataLoader(data, batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(model(inputs.to(options.device)), targets.to(options.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, loss.item())
"""


def twin(width: int = 512):
    """The same program as ``build()``, with the data in the host's memory."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(64, 64, device="cpu"), torch.randint(10, (64,), device="cpu")

    def step():
        inputs, targets = data
        loss = torch.nn.functional.cross_entropy(model(inputs.to("cuda")), targets.to("cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture
def script(tmp_path):
    def write(text: str = TRAIN, name: str = "train.py") -> str:
        (tmp_path / name).write_text(dedent(text), encoding="utf-8")
        return str(tmp_path / name)

    return write


def peaks(timeline) -> dict:
    return {(i.name, i.step): i.total_bytes for i in timeline.instants if i.name != "init"}


@pytest.mark.parametrize("width", [512, 640])
def test_the_steps_of_a_script_are_those_of_its_twin_with_build(script, width):
    trace = trace_script(Script(script(), ("--width", str(width))))
    expected = trace_script(lambda: twin(width))
    for name, when in (
        ("forward", 2),
        ("backward peak", 2),
        ("optimizer peak", 1),
        ("optimizer peak", 2),
    ):
        assert peaks(trace)[name, when] == peaks(expected)[name, when]
    assert {i.step for i in trace.instants} == {1, 2}


def test_a_script_on_the_cpu_takes_what_its_real_run_takes(script):
    """AdamW's step count is a number of Python's to the trace, 4 B a parameter to the profiler."""
    run = Script(script(), ("--device", "cpu"))
    traced, measured = trace_script(run, device="cpu"), measure_memory(run, device="cpu")
    for name in ("backward peak", "optimizer peak"):
        assert peaks(traced)[name, 2] == pytest.approx(peaks(measured)[name, 2], rel=0.003)


def test_data_without_a_device_are_the_hosts_and_cost_nothing(script):
    """A model of 8 TB could not be made here; of a script it stays where torch makes it."""
    text = TRAIN.replace("for epoch", "unused = nn.Linear(2**20, 2**21)\n    for epoch")
    assert peaks(trace_script(Script(script(text)))) == peaks(trace_script(Script(script())))


def test_of_two_optimizers_each_steps_as_often_as_asked(script):
    text = """
        import torch
        first, second = (torch.nn.Linear(8, 8, device="cuda") for _ in range(2))
        steps = [torch.optim.SGD(layer.parameters()) for layer in (first, second)]
        for _ in range(9):
            for layer, optimizer in zip((first, second), steps):
                layer(torch.ones(4, 8, device="cuda")).sum().backward()
                optimizer.step()
                counts = globals().setdefault("counts", [])
                counts.append(optimizer)
                open("/dev/null") if len(counts) < 5 else exit("a third step")
    """
    trace = trace_script(Script(script(text)), steps=2)
    assert len(trace.events) > 0


def test_a_script_ends_where_it_was_followed_to_and_leaves_python_as_it_was(script):
    text = TRAIN.replace("loss.backward()", "loss.backward()\n            import beside")
    text = text.replace("for epoch in range(2):", "for epoch in range(10**9):")
    script("import torch\nmade = torch.ones(3)\n", "beside.py")
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    trace_script(Script(script(text)))
    assert (list(sys.argv), list(sys.path), sys.modules["__main__"]) == before
    assert "beside" not in sys.modules


def test_libraries_of_an_environment_in_the_scripts_folder_stay_imported(script, tmp_path):
    """A .venv often lies beside train.py; a library that is imported twice in one process may end it."""
    (tmp_path / ".venv" / "site-packages").mkdir(parents=True)
    script("made = 1", ".venv/site-packages/a_library.py")
    text = "import sys\nsys.path.append(__file__.replace('train.py', '.venv/site-packages'))\nimport a_library\n"
    try:
        trace_script(Script(script(text + dedent(TRAIN))))
        assert "a_library" in sys.modules
    finally:
        sys.modules.pop("a_library", None)


def test_a_scripts_except_does_not_keep_it_running(script):
    text = """
        import torch
        layer = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters())
        while True:
            try:
                layer(torch.ones(4, 8, device="cuda")).sum().backward()
                optimizer.step()
            except Exception:
                pass
    """
    assert trace_script(Script(script(text))).peak.total_bytes > 0


BY_HAND_ON_THE_HOST = """
    import torch
    layer = torch.nn.Linear(2, 2)
    for _ in range(3):
        torch.nn.functional.smooth_l1_loss(layer(torch.ones(1, 2)), torch.zeros(1, 2)).backward()
        for p in layer.parameters():
            p.data.add_(-0.1 * p.grad)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import sys; sys.exit(3)",
            r"train.py ended with exit code 3 before an optimizer had stepped",
        ),
        (
            "import torch\ntorch.ones(2, device='cuda')",
            r"train.py ended before an optimizer had stepped",
        ),
        ("print('nothing')", r"train.py put nothing on the card"),
        (TRAIN.replace("cuda", "cpu"), r"train.py put nothing on the card"),
        (BY_HAND_ON_THE_HOST, r"train.py put nothing on the card"),
    ],
)
def test_a_script_that_does_not_train_is_refused(script, text, words):
    with pytest.raises(ValueError, match=words):
        trace_script(Script(script(text)))


def test_no_file_is_refused():
    with pytest.raises(ValueError, match=r"'nothere.py' is no file"):
        Script("nothere.py")


def test_a_script_can_be_changed_from_outside(script):
    plain = Script(script())
    fused = trace_script(changed_build(plain, "fused"))
    assert (
        peaks(trace_script(plain))["optimizer peak", 2] - peaks(fused)["optimizer peak", 2]
        >= 4 * 64 * 512
    )


def test_the_command_hands_on_arguments_and_assumptions(script, capsys):
    """Weights of 512 KiB have no values, so that the branch needs one; smaller ones are drawn."""
    text = TRAIN.replace(
        "optimizer.step()", "if loss < 1.0: print('small')\n            optimizer.step()", 1
    )
    path = script(text)
    assert main(["report", path, "--", "--width", "2048"]) == 2
    error = capsys.readouterr().err
    assert "train.py:20" in error and "--assume train.py:20=128" in error
    assert (
        main(["report", path, "--json", "--assume", "train.py:20=1", "--", "--width", "2048"]) == 0
    )
    assert f'"name": "{path}"' in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["report", "a.py:build", "--", "x"], ["report", "a.py", "--assume", "a.py:1=x"]]
)
def test_arguments_that_nobody_takes_are_refused(words, capsys):
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
