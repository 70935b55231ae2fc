"""The instrument's trace: what the kit's tests hold of the kit's trace, and programs that nobody here wrote."""

import contextlib
import functools
import importlib
import itertools
import re
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests_of_the_kit import kit_tests
from torch import nn
from tqdm import tqdm

from book import progress
from memkit.measure import measure_memory
from stepscope.program.threads import watching_threads
from stepscope.tracing.refusals import NeedsValues
from stepscope.tracing.trace import trace_script

KIT = kit_tests("tracing/test_trace.py", trace_memory=trace_script, NeedsValues=NeedsValues)
both, boundaries = KIT.both, KIT.boundaries
globals().update(KIT.tests)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_copies_on_many_cards_are_one_on_one(device):
    plain, wrapped = (
        trace_script(lambda wrap=wrap: KIT.convolutions(device, wrap), device=device)
        for wrap in (nn.Sequential, nn.DataParallel)
    )
    assert wrapped.instants == plain.instants


# ---- what a program may ask, and what is left behind ------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_value_is_finite_with_one_warning(device):
    seen = []

    def build():
        model = nn.Linear(4, 4, device=device)

        def step():
            loss = model(torch.ones(2, 4, device=device)).sum()
            seen.extend(
                (loss.item(), float(loss), loss.tolist(), loss.detach().cpu().numpy().item())
            )
            seen.append(float(f"{loss:.3f}"))
            loss.backward()

        return step

    with pytest.warns(UserWarning, match="no values") as caught:
        trace_script(build, device=device)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(seen) == 10 and all(value in (1.0, [1.0]) for value in seen)


def masks(device):
    """Answers that follow from a program's own text, each through another road of torch."""
    mask = torch.ones(4, 6, device=device)
    yield bool(mask.all())
    mask[:, 4:] = 0  # through a view
    yield bool(mask.all()), mask.sum().item(), f"{mask.mean():.3f}"
    yield mask.nonzero().shape, mask[mask > 0].shape, torch.masked_select(mask, mask > 0).shape
    # nobody knows the values of this one, but the mask's are known
    wide = torch.rand(2, 4, 6, device=device)
    yield (
        wide[:, mask > 0].shape,
        wide[0][mask.bool()].shape,
        torch.masked_select(wide, mask > 0).shape,
    )
    ends = torch.full((4,), 6, device=device)
    ends[mask[:, 0] == 0] = mask.argmax(1)[mask[:, 0] == 0]  # of no row
    yield ends.tolist()
    yield [rate.item() for rate in torch.linspace(0, 0.1, 3, device=device)]
    yield (
        torch.tensor([3, 1, 2], device=device).sort()[0].tolist(),
        int(torch.arange(5, device=device)[3]),
    )
    count = torch.zeros((), device=device)
    count += 1
    yield (
        float(count),
        torch.full_like(mask, 7)[0, 0].item(),
        (mask.cumsum(-1)[:, -1] == 4).all().item(),
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_follows_from_the_programs_text_is_known(device):
    seen, real = [], list(masks("cpu"))
    trace_script(lambda: lambda: seen.extend(masks(device)), device=device, steps=1)
    assert seen == real


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_constant_that_chance_was_written_into_is_known_no_longer(device):
    def step():
        mask = torch.ones(4, 6, device=device)
        part = nn.Parameter(mask)[:, 1]
        part.data.uniform_()
        return bool(mask.all())

    with pytest.raises(NeedsValues, match="__bool__"):
        trace_script(lambda: step, device=device)


def test_initialisers_that_draw_again_hold_what_they_hold():
    def build(device="cpu"):
        layer = nn.Linear(256, 1024, device=device)
        nn.init.trunc_normal_(layer.weight, std=0.5, a=-0.1, b=0.1)  # one of its two ways
        nn.init.trunc_normal_(layer.weight, std=0.02)
        return lambda: None

    traced, measured = both(build)
    assert traced.peak_bytes == measured.peak_bytes > 4 * traced.at("init").weights
    assert trace_script(lambda: build("cuda")).at("init").weights == traced.at("init").weights


def test_a_whole_number_is_zero_and_the_warning_names_an_early_return():
    seen = []

    def build():
        model = nn.Linear(4, 4)

        def step():
            seen.append(torch.randint_like(torch.ones(3), 9).long().sum().item())
            loss = model(torch.ones(2, 4)).sum()
            if loss.item() < 2:
                return
            loss.backward()

        return step

    with pytest.warns(UserWarning, match="returns early"):
        assert trace_script(build, device="cpu").at("zero_grad").gradients == 0
    assert seen == [0, 0] and all(isinstance(value, int) for value in seen)


def test_what_is_drawn_into_a_tensor_is_not_known():
    seen = []

    def build():
        known = torch.arange(8)

        def step():
            seen.append(known.sum().item())
            torch.randperm(8, out=known)
            seen.append(known.sum().item())

        return step

    trace_script(build, steps=1, device="cpu")
    assert seen == [28, 0]


def in_a_thread(device, work=None):
    layer = nn.Linear(64, 64, device=device)

    def step():
        thread = threading.Thread(target=work or (lambda: torch.ones(64, 64, device=device) * 2))
        thread.start()
        thread.join()
        layer(torch.ones(2, 64, device=device)).sum().backward()

    return step


@pytest.mark.parametrize("way", ["cuda", "cpu", "measured"])
def test_a_thread_that_makes_something_is_refused(way):
    with pytest.raises(ValueError, match=r"in_a_thread.*in a thread of its own"):
        if way == "measured":
            with watching_threads(lambda tensor: True):
                measure_memory(lambda: in_a_thread("cpu"), device="cpu")
        else:
            trace_script(lambda: in_a_thread(way), device=way)


def test_a_thread_that_makes_nothing_on_the_card_goes_on():
    works = lambda: None, lambda: torch.ones(64, 64, device="cpu") * 2
    nothing, in_host = (trace_script(lambda work=work: in_a_thread("cuda", work)) for work in works)
    assert nothing.instants == in_host.instants


def test_workers_of_a_loader_fill_a_card_as_one_process_does():
    """What workers make is the host's; the card gets the same batches."""

    def trace(workers: int):
        def build():
            data = torch.utils.data.TensorDataset(torch.randn(64, 8, device="cpu"))
            loader = torch.utils.data.DataLoader(
                data,
                batch_size=8,
                num_workers=workers,
                persistent_workers=workers > 0,
                timeout=300
                if workers
                else 0,  # a loader that has one waits for its workers otherwise
            )
            model = torch.nn.Linear(8, 1024, device="cuda")

            def step():
                for (batch,) in loader:
                    model(batch.to("cuda")).sum().backward()

            return step

        return trace_script(build)

    assert trace(2).instants == trace(0).instants


def test_a_storage_that_is_emptied_and_filled_again_is_followed():
    def build():
        weight = torch.ones(1000)

        def step():
            storage = weight.untyped_storage()
            storage.resize_(0)
            torch.ones(10)
            storage.resize_(8000)

        return step

    traced, measured = both(build)
    sizes = [[e.num_bytes for e in t.events if abs(e.num_bytes) > 1000] for t in (traced, measured)]
    assert sizes[0] == sizes[1] == [4000, -4000, 8000, -8000, 8000]


@pytest.mark.parametrize(
    "run, said",
    [
        (lambda x: nn.LSTM(8, 8, device="cuda")(x), "lstm"),
        (lambda x: nn.Conv1d(5, 8, 3, device="cuda")(x), "convolution"),
        (lambda x: x.cumprod(0), "cumprod"),
        (lambda x: torch.linalg.eigh(x[:, :, :5]), "linalg_eigh"),
        (lambda x: torch.cdist(x, x), "cdist"),
        (lambda x: F.unfold(x[:, None], 2), "im2col"),
        (torch.fft.fft2, "cuFFT"),
    ],
)
def test_what_a_real_kernel_takes_besides_is_said_once(run, said):
    with pytest.warns(UserWarning, match=said) as caught:
        trace_script(lambda: lambda: run(torch.ones(4, 5, 8, device="cuda")))
    assert sum(said in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_long_trace_says_how_far_it_has_come(monkeypatch, device, capsys):
    """Ten additions are ten operations: the number said last goes up by ten a step, and nothing is said in between
    where less than the pause has passed."""
    module = importlib.import_module("stepscope.tracing.log")
    monkeypatch.setattr(module, "OPERATIONS_BETWEEN_LOOKS", 1)
    said = []

    def build():
        x = torch.ones(8, device=device)
        return lambda: [x + 1 for _ in range(10)]

    monkeypatch.setattr(module, "SECONDS_BETWEEN_WORDS", 3600.0)
    trace_script(build, device=device, say=said.append)
    assert said == []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_WORDS", 0.0)
    trace_script(build, device=device, steps=3, say=said.append)
    last = [
        [words for words in said if words.startswith(f"step {step} of 3, ")][-1]
        for step in (1, 2, 3)
    ]
    numbers = [
        int(re.search(r"([\d,]+) operations so far", words)[1].replace(",", "")) for words in last
    ]
    assert [b - a for a, b in itertools.pairwise(numbers)] == [10, 10]
    assert any(words.startswith("build: ") for words in said)
    monkeypatch.setattr("book.patience.tqdm", functools.partial(tqdm, disable=False))
    with progress():
        trace_script(build, device=device)
    assert "step 2 of 2, " in capsys.readouterr().err


def test_an_evaluation_whose_calls_differ_says_why_it_takes_long(monkeypatch):
    """A loop that makes words one by one calls its model with another length each time; one of equal calls is short."""
    module = importlib.import_module("stepscope.tracing.log")
    monkeypatch.setattr(module, "OPERATIONS_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(module, "LONG_EVALUATION", 100)

    def why(lengths) -> list[str]:
        said = []

        def build():
            model = nn.Sequential(*[nn.Linear(8, 8, device="cuda") for _ in range(9)])
            optimizer = torch.optim.SGD(model.parameters())

            def step():
                model(torch.ones(4, 8, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for length in lengths:
                        model(torch.ones(length, 8, device="cuda"))

            return step

        trace_script(build, say=said.append)
        return [words for words in said if "followed once" in words]

    assert why([4] * 6) == []
    [words] = why(range(1, 9))
    assert "test_trace.py:" in words


def test_host_data_made_without_device_is_counted_and_told_and_with_cpu_is_not():
    def build(**to):
        data = torch.ones(1000, 100, **to)
        model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)).to("cuda")
        return lambda: model(data[:8].to("cuda")).sum().backward()

    with pytest.warns(UserWarning, match='say device="cpu"') as caught:
        counted = trace_script(build)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = trace_script(lambda: build(device="cpu"))
    weights = 2 * (40_448 + 512)  # 4 × 100 × 100 and 4 × 100 in blocks of 512
    assert told.at("init").weights == counted.at("init").weights == weights
    assert told.at("init").total_bytes == weights
    assert counted.at("init").total_bytes >= weights + 4 * 1000 * 100


def test_a_missing_kernel_is_not_taken_for_missing_values():
    with torch.library._scoped_library("memkit_test", "DEF") as library:
        library.define("nothing(Tensor x) -> Tensor")
        words = r"test_trace.py:\d+ .*memkit_test.nothing.default.*register_fake"
        with pytest.raises(NotImplementedError, match=words) as caught:
            trace_script(lambda: lambda: torch.ops.memkit_test.nothing(torch.ones(4)))
    assert not isinstance(caught.value, NeedsValues)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_initialiser_under_a_default_device_draws_as_without_it(device):
    """``with torch.device`` is a mode of torch's own: its frame stands between the initialiser and the trace."""

    def build(around):
        def built():
            with around:
                weight = torch.nn.init.trunc_normal_(torch.empty(64, 64, device=device), std=0.02)
            return lambda: weight * 2

        return built

    modes = contextlib.nullcontext(), torch.device(device)
    plain, under = (trace_script(build(mode), device=device) for mode in modes)
    assert [e.num_bytes for e in plain.events] == [e.num_bytes for e in under.events]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_checkpoint_is_not_written_over_one_that_is_there(device, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"weights of a week")

    def build():
        net = nn.Linear(256, 256).to(device)
        optimizer = torch.optim.AdamW(net.parameters())

        def step():
            net(torch.randn(4, 256, device=device)).sum().backward()
            optimizer.step()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
            optimizer.zero_grad()

        return step

    traced = trace_script(build, device=device)
    assert path.read_bytes() == b"weights of a week"
    if device == "cpu":
        assert abs(traced.peak_bytes - measure_memory(build, device="cpu").peak_bytes) <= 64
