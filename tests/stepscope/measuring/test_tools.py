"""The small card of chapter 07, which refuses, and the small programs of its cells."""

import gc
import weakref

import pytest
import torch

from book.small_programs import ragged_build, small_net, small_step
from memkit.measure import measure_memory
from memkit.models import TINY_LLAMA
from memkit.setup import TrainingSetup
from memkit.units import KIB, MIB
from stepscope.allocator.caching import CachingAllocator, Driver, OutOfMemory
from stepscope.small_card import CudaCard, SimulatedCard, capped_card
from stepscope.tracing.trace import trace_script

# The played card


def test_a_played_card_counts_as_the_allocator_counts():
    oracle = CachingAllocator(driver=Driver(64 * MIB))
    sizes = (1, 1000, 300_000, 2_000_000)
    with SimulatedCard(64 * MIB) as card:
        held = [torch.empty(size) for size in sizes]
        addresses = [oracle.malloc(4 * size) for size in sizes]
        assert card.allocated_bytes == oracle.allocated_bytes
        assert card.allocator.reserved_bytes == oracle.reserved_bytes
        del held[2]
        oracle.free(addresses[2])
        assert card.allocated_bytes == oracle.allocated_bytes
        card.empty_cache()
        oracle.empty_cache()
        assert card.allocator.reserved_bytes == oracle.reserved_bytes
    del held
    assert card.allocated_bytes == 0


def test_a_view_and_an_in_place_operation_cost_nothing():
    with SimulatedCard(MIB * 64) as card:
        x = torch.zeros(1000, 1000)
        before = card.allocated_bytes
        y = x.t()[10:].view(-1) if x.t()[10:].is_contiguous() else x.view(-1)[10:]
        x.add_(1)
        assert (
            card.allocated_bytes == before
            and y.untyped_storage()._cdata == x.untyped_storage()._cdata
        )


def test_a_played_step_peaks_where_the_profiler_of_the_real_step_says():
    """Oracle: torch's own profiler on the same step; the card adds rounding, the profiler scratch."""

    def build():
        step = small_step("cpu")
        return lambda: step(2048)

    measured = measure_memory(build, device="cpu", steps=2)
    with SimulatedCard(1024 * MIB) as card:
        step = build()
        step()
        step()
    assert card.peak_allocated_bytes == pytest.approx(measured.peak_bytes, rel=0.01)


def test_what_does_not_fit_raises_torchs_own_error_with_the_allocators_words():
    oracle = CachingAllocator(driver=Driver(8 * MIB))
    with pytest.raises(OutOfMemory) as expected:
        oracle.malloc(16 * MIB)
    with SimulatedCard(8 * MIB) as card, pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(4 * MIB)
    assert str(error.value) == str(expected.value)
    assert card.allocated_bytes == 0


def tensors_of_16_mib():
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))
    return [tensor for tensor in tensors if tensor.nbytes == 16 * MIB]


def test_the_refused_tensor_itself_is_gone_though_the_traceback_lives():
    before = tensors_of_16_mib()  # other tests of this process may keep some
    with SimulatedCard(8 * MIB):
        try:
            torch.empty(4 * MIB)
        except torch.OutOfMemoryError as error:
            assert error.__traceback__ is not None
            assert len(tensors_of_16_mib()) == len(before)


def test_a_failed_steps_tensors_live_inside_the_handler_and_die_after_it():
    born = []

    def step():
        activation = torch.ones(MIB)
        born.append(weakref.ref(activation))
        return activation + torch.ones(64 * MIB)

    with SimulatedCard(64 * MIB) as card:
        try:
            step()
        except torch.OutOfMemoryError:
            inside = born[0]() is not None, card.allocated_bytes
        assert inside[0] and inside[1] >= 4 * MIB
        assert born[0]() is None and card.allocated_bytes == 0


def test_a_card_of_nothing_is_refused():
    with pytest.raises(ValueError, match="num_bytes=0"):
        capped_card(0)


@pytest.mark.gpu
def test_a_real_card_is_capped_and_let_go():
    with capped_card(256 * MIB) as card:
        assert isinstance(card, CudaCard)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").numel() == 512 * MIB


# Batches of many lengths, and the small net


def test_every_step_has_its_own_length():
    setup = TrainingSetup(model=TINY_LLAMA, micro_batch_size=2, seq_len=64, attention="stored")
    lengths = (64, 32, 96)
    ragged = trace_script(ragged_build(setup, lengths), steps=4)
    plain = {n: trace_script(ragged_build(setup, [n]), steps=2) for n in lengths}
    for step, n in zip((2, 3, 4), (32, 96, 64), strict=True):
        want = plain[n].at("forward", 2)
        assert ragged.at("forward", step).activations == want.activations


@pytest.mark.parametrize("lengths", [(), (0,), (3, -1)])
def test_lengths_of_nonsense_are_refused(lengths):
    with pytest.raises(ValueError, match="length"):
        ragged_build(TrainingSetup(model=TINY_LLAMA), lengths)


def test_the_small_net_has_the_size_its_docstring_says():
    weights = sum(p.nbytes for p in small_net("cpu").parameters() if p.dim() == 2)
    assert (
        weights == 8 * MIB
        and sum(p.nbytes for p in small_net("cpu").parameters()) - weights == 10 * KIB
    )
