"""The tools of chapter 07: a small card that refuses, a monitor that warns, the profiler by operation."""

import gc
import weakref

import pytest
import torch

from book.small_programs import ragged_build, small_net, small_step
from memkit.allocator.caching import CachingAllocator, OutOfMemory
from memkit.allocator.heap import Driver
from memkit.measuring.measure import measure_memory
from memkit.measuring.monitor import MemoryMonitor
from memkit.measuring.profiler import own_memory_table, profiled_step
from memkit.measuring.small_card import CudaCard, SimulatedCard, capped_card
from memkit.setup.models import TINY_LLAMA
from memkit.setup.training import TrainingSetup
from memkit.tracing.trace import trace_memory
from memkit.units import KIB, MIB

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a real card answers instead of the played one")


# The played card


def test_a_played_card_counts_as_the_allocator_counts():
    oracle = CachingAllocator(driver=Driver(64 * MIB))
    sizes = (1, 1000, 300_000, 2_000_000)
    with SimulatedCard(64 * MIB) as card:
        held = [torch.empty(size) for size in sizes]
        addresses = [oracle.malloc(4 * size) for size in sizes]
        assert card.allocated_bytes == oracle.allocated_bytes
        assert card.peak_reserved_bytes == oracle.reserved_bytes
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
        assert card.allocated_bytes == before and y.untyped_storage()._cdata == x.untyped_storage()._cdata


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


# The monitor


class Counters(SimulatedCard):
    """A card whose counters the test sets."""

    capacity_bytes = 1000
    allocated_bytes = peak_allocated_bytes = peak_reserved_bytes = num_alloc_retries = 0
    num_resets = 0

    def __init__(self):
        """No allocator stands behind it."""

    def reset_peak(self):
        self.num_resets += 1


def warnings_of(floors=(), reserved=(), retries=()):
    card = Counters()
    monitor = MemoryMonitor(card)
    told = []
    for step in range(max(map(len, (floors, reserved, retries)))):
        card.allocated_bytes = floors[step] if floors else 0
        card.peak_reserved_bytes = reserved[step] if reserved else 0
        card.num_alloc_retries = retries[step] if retries else 0
        told.append(monitor.after_step())
    assert card.num_resets == len(told) + 1
    return told, monitor


@pytest.mark.parametrize(
    "seen, growth, words_by_step",
    [
        ({"floors": [300, 500, 500, 500, 500, 500], "reserved": [900] * 6}, 0, {}),
        ({"floors": [300, 500, 510, 520, 530]}, 30, {5: "the floor rises, 30 B in 3 steps"}),
        ({"floors": [300, 500, 510, 510, 520]}, 0, {}),  # it rests
        ({"floors": [1, 2, 3, 4]}, 0, {}),  # too young
        ({"floors": [500, 510, 505, 520, 530]}, 0, {}),
        ({"reserved": [899, 900, 901, 899]}, 0, {3: "step 3: 90% of the card was reserved: the next longer batch may"}),
        ({"retries": [0, 1, 1, 2]}, 0, {2: "given back", 4: "given back"}),
    ],
)
def test_what_a_monitor_warns_of_and_when(seen, growth, words_by_step):
    told, monitor = warnings_of(**seen)
    assert {step for step, said in enumerate(told, start=1) if said} == set(words_by_step)
    assert all(words in told[step - 1][0] for step, words in words_by_step.items())
    assert monitor.growth_bytes == growth and str(monitor).split()[-1] == str(seen.get("retries", [0])[-1])


@ON_CPU
def test_a_planted_leak_is_seen_by_its_bytes_and_a_mended_one_is_not():
    for leaks in (True, False):
        with capped_card(256 * MIB) as card:
            step, kept, monitor = small_step(card.device), [], MemoryMonitor(card)
            for _ in range(6):
                step(64)
                if leaks:
                    kept.append(torch.ones(MIB // 4, device=card.device))
                monitor.after_step()
        assert monitor.growth_bytes == (3 * MIB if leaks else 0)


# The profiler


def test_the_profilers_table_ranks_by_own_memory():
    x = torch.ones(1000, 1000)
    table = own_memory_table(profiled_step(lambda: x.exp()), num_rows=1)
    assert table.splitlines()[-1].startswith("aten::") and "3.81 MiB" in table
    with pytest.raises(ValueError, match="num_rows"):
        own_memory_table(profiled_step(lambda: None), num_rows=0)


# Batches of many lengths, and the small net


def test_every_step_has_its_own_length():
    setup = TrainingSetup(model=TINY_LLAMA, micro_batch_size=2, seq_len=64, attention="stored")
    lengths = (64, 32, 96)
    ragged = trace_memory(ragged_build(setup, lengths), steps=4)
    plain = {n: trace_memory(ragged_build(setup, [n]), steps=2) for n in lengths}
    for step, n in zip((2, 3, 4), (32, 96, 64), strict=True):
        want = plain[n].at("forward", 2)
        assert ragged.at("forward", step).activations == want.activations


@pytest.mark.parametrize("lengths", [(), (0,), (3, -1)])
def test_lengths_of_nonsense_are_refused(lengths):
    with pytest.raises(ValueError, match="length"):
        ragged_build(TrainingSetup(model=TINY_LLAMA), lengths)


def test_the_small_net_has_the_size_its_docstring_says():
    weights = sum(p.nbytes for p in small_net("cpu").parameters() if p.dim() == 2)
    assert weights == 8 * MIB and sum(p.nbytes for p in small_net("cpu").parameters()) - weights == 10 * KIB
