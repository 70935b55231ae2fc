"""A card that nobody has chosen: what a program asks of it, and how a model comes to stand there."""

import pytest
import torch
from tests_of_the_kit import kit_tests
from torch import nn

from stepscope.tracing.devices import pretend_cuda_for_script
from stepscope.tracing.trace import trace_script

KIT = kit_tests(
    "tracing/test_cuda.py", trace_memory=trace_script, pretend_cuda=pretend_cuda_for_script
)
globals().update(KIT.tests)


def test_a_program_sees_a_card():
    with pretend_cuda_for_script():
        tensor = torch.zeros(2, 3)
        assert tensor.is_cuda and str(tensor.device) == "cuda:0" and tensor.get_device() == 0
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert tensor.to("cuda:0") is tensor and tensor.cuda() is tensor
        assert torch.tensor([1, 2]).is_cuda and not torch.tensor(0.5).is_cuda
        assert torch.ones(2, device=tensor.device).is_cuda and tensor.new_zeros(3).is_cuda
        assert (
            not torch.zeros(2, device="cpu").is_cuda and torch.zeros(2, device="cpu").to(0).is_cuda
        )
        assert nn.Linear(2, 2).cuda().weight.is_cuda
        assert torch.optim.AdamW([nn.Parameter(tensor)], fused=True).defaults["fused"]
    assert not torch.zeros(2).is_cuda


def test_kinds_of_the_card_make_and_name_its_tensors():
    """As programs of before 2018 write it, such as every one of eriklindernoren/PyTorch-GAN."""
    theirs = torch.cuda.LongTensor
    with pretend_cuda_for_script():
        kind = torch.cuda.LongTensor
        moved = torch.zeros(2, 3, device="cpu").type(kind)
        for tensor in (kind(2, 3), kind(torch.Size([2, 3])), kind([[1, 2, 3], [4, 5, 6]]), moved):
            assert isinstance(tensor, kind) and not isinstance(tensor, torch.cuda.FloatTensor)
            assert tensor.shape == (2, 3) and tensor.is_cuda and tensor.dtype == torch.int64
        assert kind().numel() == 0
        assert torch.zeros(2, device="cpu").type(torch.float64).dtype == torch.float64
    assert torch.cuda.LongTensor is theirs


def test_what_a_program_asks_of_the_card_is_answered():
    with pretend_cuda_for_script():
        torch.cuda.reset_peak_memory_stats()
        weight = nn.Linear(3, 2).weight
        assert (
            str(weight)
            == "Parameter containing:\ntensor(..., device='cuda:0', size=(2, 3), requires_grad=True)"
        )
    assert str(torch.zeros(2)) == "tensor([0., 0.])"


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.memory._record_memory_history(max_entries=1000),
        lambda: torch.cuda.memory._dump_snapshot("never.pickle"),
        lambda: torch.cuda.set_per_process_memory_fraction(0.5),
        lambda: torch.cuda.memory_summary(),
        lambda: torch.cuda.memory_snapshot(),
        lambda: torch.cuda.ipc_collect(),
        lambda: torch.cuda.nvtx.range_push("forward"),
        lambda: torch.cuda.nvtx.range("forward").__enter__(),
        lambda: torch.cuda.device(0).__enter__(),
        lambda: torch.cuda.get_device_properties(0).major,
        lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"],
        lambda: torch.cuda.set_sync_debug_mode("warn"),
        lambda: torch.cuda.cudart().cudaProfilerStart(),
        lambda: torch.cuda.initial_seed(),
        lambda: torch.autograd.profiler.emit_nvtx().__enter__(),
        lambda: torch.accelerator.synchronize(),
        lambda: torch.accelerator.max_memory_allocated(torch.accelerator.current_device_index()),
        lambda: torch.Generator(device="cuda").manual_seed(0),
    ],
)
def test_what_reads_or_sets_a_real_allocator_changes_no_trace(call):
    assert traced_beside(call) == traced_beside(lambda: None)


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: torch.cuda.get_device_properties(0).total_memory,
            "total_memory; write the number of the card",
        ),
        (lambda: torch.cuda.CUDAGraph(), "torch.cuda.CUDAGraph; trace the step without it"),
    ],
)
def test_what_no_card_can_answer_is_refused_with_the_line_and_what_to_write(call, words):
    with pytest.raises(NotImplementedError, match=rf"test_cuda.py:\d+ .*{words}"):
        traced_beside(call)


def traced_beside(call) -> list[int]:
    def build():
        layer = torch.nn.Linear(8, 8, device="cuda")

        def step():
            call()
            layer(torch.ones(2, 8, device="cuda")).sum().backward()

        return step

    return [event.num_bytes for event in trace_script(build).events]


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_data_made_on_the_card_are_counted_and_forgotten_with_their_bytes(make):
    """Made on ``meta`` they passed every dispatch mode: no bytes, and values that outlived them at their address."""

    def build():
        def step():
            for value in range(50):
                data = make([float(value)] * 1000, device="cuda")
                assert data[0].item() == value
                del data
            torch.relu(torch.empty(64, 256, device="cuda"))

        return step

    births = [
        event.num_bytes for event in trace_script(build, steps=1).events if event.num_bytes > 0
    ]
    assert births.count(4000) == 50


def test_a_list_of_the_cards_numbers_becomes_a_tensor_of_the_card():
    flags = [1 << 12, 1 << 13]

    def step():
        ones = torch.ones(2, 3, device="cuda")
        assert torch.as_tensor([ones[0, 0], ones[1, 2]], device="cuda").tolist() == [1.0, 1.0]
        assert torch.as_tensor(ones, dtype=torch.bool, device="cuda").device.type == "cuda"
        torch.relu(torch.empty(sum(flags), device="cuda"))

    births = [event.num_bytes for event in trace_script(lambda: step, steps=1).events]
    assert births.count(4 * sum(flags)) == 2


def test_a_library_that_build_imports_sees_the_build_of_torch_that_is_there(tmp_path, monkeypatch):
    """bitsandbytes loads CUDA's kernels as it is imported where a card is there, and a CPU build has none."""
    has_card = torch.cuda.is_available()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("stepscope.tracing.card.LIBRARY_HOME", str(tmp_path))
    (tmp_path / "of_a_library.py").write_text(
        "import torch\nat_import = torch.cuda.is_available()\ndef asked():\n    return torch.cuda.is_available()\n"
    )

    def build():
        import of_a_library

        assert of_a_library.at_import is has_card and of_a_library.asked()
        assert torch.cuda.is_available()
        return lambda: torch.ones(8, device="cuda")

    trace_script(build)


def test_a_generator_of_the_card_draws_nothing_and_says_where_it_is():
    def build(draws):
        generator = (
            torch.Generator(device=torch.device("cuda", 0)).manual_seed(3) if draws else None
        )
        assert not draws or generator.device.type == "cuda"
        # as libraries ask
        assert torch.Generator | None and isinstance(torch.default_generator, torch.Generator)
        weight = torch.empty(64, 64, device="cuda").normal_(generator=generator)
        weight.uniform_(generator=generator)
        torch.nn.init.kaiming_normal_(weight, generator=generator)
        return lambda: torch.multinomial(
            torch.rand(4, 64, device="cuda", generator=generator), 2, generator=generator
        )

    assert (
        trace_script(lambda: build(True)).peak_bytes
        == trace_script(lambda: build(False)).peak_bytes
    )
    assert torch.Generator is torch._C.Generator


WAYS_TO_A_CARD = {
    "to a name": lambda module: module.to("cuda"),
    "cuda": lambda module: module.cuda(),
    "cuda of a number": lambda module: module.cuda(0),
    "to a number": lambda module: module.to(0),
    "to a device": lambda module: module.to(device=torch.device("cuda", 0)),
    "to a tensor": lambda module: module.to(torch.ones(1, device="cuda")),
}


@pytest.mark.parametrize("way", WAYS_TO_A_CARD)
def test_a_model_moved_to_the_card_in_any_way_stands_there(way):
    def build():
        layer = WAYS_TO_A_CARD[way](nn.Linear(64, 64, device="cpu"))
        return lambda: layer(torch.ones(2, 64, device="cuda")).sum().backward()

    assert trace_script(build).at("init").weights == 64 * 64 * 4 + 512


@pytest.mark.parametrize("way", [way for way in WAYS_TO_A_CARD if way != "to a tensor"])
def test_four_bit_weights_are_made_as_they_are_moved_to_the_card(way):
    """bitsandbytes quantizes where a weight reaches a card; it asks the arguments of ``to`` whether it does."""
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def build():
        layer = bitsandbytes.nn.Linear4bit(
            256, 512, bias=False, compress_statistics=False, device="cpu"
        )
        layer = WAYS_TO_A_CARD[way](layer)
        return lambda: layer(torch.ones(2, 256, device="cuda", requires_grad=True)).sum().backward()

    timeline = trace_script(build)
    assert timeline.at("init").weights == 256 * 512 // 2
    scales = timeline.at("init").total_bytes - timeline.at("init").weights
    # one a block of 64, and the map of codes
    assert 4 * 256 * 512 // 64 <= scales < 4 * 256 * 512 // 64 + 2048
