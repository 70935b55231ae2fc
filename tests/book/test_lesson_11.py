"""Numbers of lesson 11's prose that its cells print, or that follow from them; what it says of installed libraries."""

import inspect
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import transformers
from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
from cells import CHAPTERS, cells_of, texts_of
from transformers.distributed import DistributedConfig

from memkit.cards import CARDS
from memkit.fit import fit_on
from memkit.formula.activations import activation_bytes
from memkit.formula.estimate import estimate_memory
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B
from memkit.recipes import AUTOCAST_BF16, FUSED_ADAMW, PURE_BF16
from memkit.setup import TrainingSetup
from memkit.units import GIB
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded, zero_saving

TEXTS = texts_of("11")
RUN = TrainingSetup(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4, optimizer=FUSED_ADAMW)
ZERO_3 = Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="float32")


def printed(cell_id: str) -> str:
    """What a cell of the lesson has printed."""
    [cell] = [cell for cell in cells_of(CHAPTERS / "11_many_cards.ipynb") if cell["id"] == cell_id]
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def gib(setup: TrainingSetup = RUN, **layout: object) -> float:
    """The peak of a rank in the second step, in GiB."""
    return estimate_sharded(setup, replace(ZERO_3, **layout)).for_step(2).peak_bytes / GIB


def test_the_trainer_takes_data_parallel_where_it_sees_several_cards():
    """transformers' own source: as many cards as torch counts, where nothing has started several processes."""
    wraps = inspect.getsource(transformers.Trainer._wrap_model)
    asks = inspect.getsource(transformers.TrainingArguments)
    assert "nn.DataParallel(model)" in wraps and "self._n_gpu = torch.cuda.device_count()" in asks
    assert "model = nn.DataParallel(model)" in printed("dp-source")


def test_accelerate_makes_trained_shards_float32_and_wraps_nothing_unasked(tmp_path):
    source = inspect.getsource(fsdp_utils)
    assert "if accelerator.mixed_precision != " in source and "to(torch.float32)" in source
    assert "turns every trained shard into float32" in TEXTS["keys-accelerate-read"]
    with patch.dict(os.environ, clear=True):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.auto_wrap_policy is None and "`NO_WRAP`" in TEXTS["lines-read"]
    with patch.dict(os.environ, clear=True):
        arguments = transformers.TrainingArguments(str(tmp_path), fsdp=True, use_cpu=True)
    asked = arguments.fsdp_plugin_args
    assert asked["auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP" and asked["fsdp_version"] == 2
    assert "the Trainer's `fsdp=True` takes the loop" in TEXTS["lines-read"]


def test_one_group_fills_eight_cards_and_float32_shards_do_not():
    """Traced in the lesson; here by hand, in bfloat16: all weights twice, an eighth of 12 bytes, the kept activations.

    The moment is the forward's end, where the last activations are not all there yet.
    """
    [unwrapped] = re.findall(r"NO_WRAP: ([\d.]+) GiB", printed("keys-one-group"))
    [alone] = re.findall(r"in bf16: ([\d.]+) GiB", printed("keys-one-group"))
    parameters = count_parameters(LLAMA_2_7B)
    kept = activation_bytes(replace(RUN, precision=PURE_BF16))
    by_hand = (2 * 2 * parameters + 12 * parameters / 8 + kept) / GIB
    assert float(unwrapped) == pytest.approx(by_hand, rel=0.02)
    told = TEXTS["one-group-read"]
    upcast = gib(reduce_dtype="bfloat16")
    assert f"One card alone needs {float(alone):.0f} GiB" in told
    assert f"float32 shards each of eight needs {upcast:.0f}," in told
    assert f"with one group for all blocks {float(unwrapped):.0f}:" in told


def test_a_bfloat16_sum_loses_small_addends_in_the_order_told():
    total = torch.tensor(256, dtype=torch.bfloat16)
    for _ in range(7):
        total = total + torch.tensor(1, dtype=torch.bfloat16)
    assert total == 256 and "256 and then seven ones make 256" in TEXTS["keys-accelerate-read"]
    for weight, parts in ((1.0, 256), (255 / 128, 511)):  # the weights that lose most and least
        kept = torch.tensor([weight * (1 + 1 / (parts - 1)), weight * (1 + 1 / parts)])
        assert (kept.bfloat16() != weight).tolist() == [True, False]
    assert "a 512th to a 256th" in TEXTS["card-ranks-read"]


def test_transformers_takes_the_ways_as_one_argument():
    told, known = TEXTS["tensor-read"], inspect.signature(DistributedConfig).parameters
    for name in ("fsdp_size", "tp_size", "ep_size", "dp_replicate_size"):
        assert name in known and name in told
    assert DistributedConfig(fsdp_size=8).fsdp_size == 8
    loads = inspect.getsource(transformers.PreTrainedModel.from_pretrained)
    assert 'kwargs.pop("distributed_config", None)' in loads


def test_without_the_loop_the_peak_is_three_times_as_high():
    mib, whole_gib = re.findall(r"peak ([\d.]+) [MG]iB", printed("loop-traced"))
    assert "Three times as much" in TEXTS["lines-read"]
    assert round(float(whole_gib) * 1024 / float(mib)) == 3
    [by_hand] = re.findall(r"inputs ([\d.]+) GiB", printed("loop-traced"))
    assert by_hand == whole_gib


def test_what_the_stages_save_on_eight_ranks():
    words = f"it is {zero_saving(1, 8):.1f}× and {zero_saving(2, 8):.1f}×"
    assert words in TEXTS["zero-idea"]


def test_what_more_ranks_do():
    told, alone = TEXTS["curve-explain"], gib(dp_size=1)
    assert f"{alone:.2f} GiB" in told
    assert "leave two thirds" in told and gib(dp_size=2) / alone == pytest.approx(2 / 3, abs=0.02)
    assert f"eight leave {gib() / alone:.0%}".replace("%", " %") in told
    again = gib(replace(RUN, recomputation="full"), dp_size=512)
    assert f"{gib(dp_size=512):.1f} → {again:.1f} GiB" in told
    autocast = replace(RUN, precision=AUTOCAST_BF16)
    one_card = estimate_memory(autocast).for_step(2).peak_bytes / GIB
    views = Layout(stage=0, dp_size=8, gradient_as_bucket_view=True)
    ddp = estimate_sharded(autocast, views).for_step(2).peak_bytes / GIB
    assert f"{one_card:.0f} GiB" in TEXTS["lines-idea"]
    assert f"lies {ddp - one_card:.0f} GiB *above*" in told
    small = replace(autocast, micro_batch_size=1, recomputation="full")
    one, without = (
        estimate_sharded(small, replace(views, gradient_as_bucket_view=is_view))
        .for_step(2)
        .peak_bytes
        / GIB
        for is_view in (True, False)
    )
    assert f"{without:.0f} and not {one:.0f} GiB" in told
    copies = estimate_sharded(autocast, replace(views, gradient_as_bucket_view=False))
    assert copies.for_step(2).peak_bytes / GIB == ddp


def test_the_share_of_the_card_s_rate_is_what_torchtitan_tells():
    """Its footnote: "33% to 39% MFU", without and with torch.compile; tokens of its table 1."""
    model = LLAMA_3_8B
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (32, 4096, 128_256)
    shown = re.findall(r"MFU ([\d.]+)%", printed("mfu"))
    assert [int(float(share)) for share in shown] == [33, 39]
    assert '"33 % to 39 %"' in TEXTS["links-idea"]


def test_the_question_s_tokens_hide_all_but_the_last_link():
    table = printed("hide").splitlines()[1:]
    least = [int(line.split()[-2].replace(",", "")) for line in table]  # of the backward
    assert all(tokens < 4 * 2048 for tokens in least[:-1]) and least[-1] > 4 * 2048
    assert "hide everything but the last line" in TEXTS["hide-read"]


def test_a_block_s_sums_against_its_computing():
    (on_card, by_nvlink), (slow, by_pcie) = re.findall(
        r"computes ([\d.]+) ms, sends ([\d.]+) ms", printed("tensor-cut")
    )
    assert "less than half as long" in TEXTS["tensor-read"]
    assert float(by_nvlink) < float(on_card) / 2 and float(by_pcie) > float(slow)


def test_how_many_cards_for_seventy_billion():
    step = TrainingSetup(
        model=LLAMA_3_70B, seq_len=8192, recomputation="full", optimizer=FUSED_ADAMW
    )
    verdicts = {
        cards: fit_on(CARDS["H100 SXM"], round(gib(step, dp_size=cards) * GIB)).verdict
        for cards in (16, 17, 19, 20)
    }
    assert list(verdicts.values()) == ["does not fit", "tight", "tight", "fits"]
    told = TEXTS["seventy-read"]
    assert "Seventeen are *tight*" in told and "Twenty fit" in told
    in_bf16 = replace(step, precision=PURE_BF16, recomputation="none")
    whole = activation_bytes(in_bf16) / GIB
    assert f"({whole:.0f} GiB)" in told


def test_the_recorded_rows_are_those_of_the_table():
    """fms-acceleration at 876e2ed, a100_80gb.csv rows 10 and 11, a100_80gb_liger.csv rows 130, 164 and 166."""
    measured = re.findall(r"([\d.]+) GB", printed("card-ranks"))
    assert sorted(measured) == ["36.23", "36.23", "57.30", "72.43", "72.43"]


def test_the_flow_chart_s_words_are_those_of_its_alternative():
    drawn = (Path(CHAPTERS).parent / "figures" / "11_which_way.svg").read_text(encoding="utf-8")
    told = TEXTS["decide-idea"]
    for question in ("Does DDP fit?", "weights kept gathered?", "to hide the sending?"):
        assert question.split()[-1] in drawn and question in told
