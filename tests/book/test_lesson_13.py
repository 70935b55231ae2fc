"""What lesson 13 says in prose, computed; and its rules on packing and sharing, held against the libraries."""

import inspect
import os
import random
import shutil
from functools import cache

import pytest
import torch
from cells import CHAPTERS, after_setup, texts_of
from torch.nn.attention.flex_attention import create_block_mask
from torch.profiler import ProfilerActivity, profile

from book.exercises.chapter_13 import num_rows
from memkit.units import GIB, MIB

TEXTS = texts_of("13")
LESSON = CHAPTERS / "13_long_sequences.ipynb"


@cache
def after(*cells: str) -> dict:
    """The names of the lesson after its setup and these cells."""
    names = dict(after_setup(LESSON))
    for cell in cells:
        exec(TEXTS[cell], names)
    return names


def test_what_packing_saves():
    names = after("packed-by-hand", "packed-peaks")
    told, [_, (_, _, rest, padded, _), (_, _, _, packed, a_position)] = (
        TEXTS["packed-read"],
        names["rows"],
    )
    assert f"peaks at {padded}," in TEXTS["packed-text"]
    assert f"holds {rest} " in TEXTS["packed-text"]
    assert f"It is {float(packed[:-4]):.0f} GiB" in told and a_position in told
    assert f"the {1 - names['packed'] / names['padded']:.0%}".replace("%", " %") in told


def tiny(kind: str):
    """A model of four layers, and its documents alone: token ids, positions that start again, logits."""
    transformers = pytest.importorskip("transformers")
    more = {}
    if kind == "Qwen3Next":
        more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        more |= {"shared_expert_intermediate_size": 32, "linear_num_value_heads": 4}
        more |= {"linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        **more,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    documents = [torch.randint(100, (size,)) for size in (7, 5, 9)]
    positions = torch.cat([torch.arange(len(each)) for each in documents])
    return model, torch.cat(documents), positions, [model(each[None]) for each in documents]


@torch.no_grad()
def differs(kind: str, **given) -> bool:
    """Whether documents packed with restarted positions come out otherwise than alone."""
    model, ids, positions, alone = tiny(kind)
    packed = model(ids[None], position_ids=positions[None], use_cache=False, **given)
    wanted = torch.cat([each.logits[0] for each in alone])
    return not torch.allclose(packed.logits[0], wanted, atol=1e-4)


def test_positions_separate_documents_only_where_there_is_no_mask():
    assert not differs("Qwen3")
    assert differs("Qwen3", attention_mask=torch.ones(1, 21, dtype=torch.long))


def test_flash_attention_ignores_a_mask_of_ones_and_packs_one_row():
    pytest.importorskip("transformers")
    from transformers.masking_utils import flash_attention_mask
    from transformers.modeling_flash_attention_utils import _is_packed_sequence

    mask = torch.ones(1, 21, dtype=torch.bool)
    assert flash_attention_mask(1, 21, 21, attention_mask=mask) is None
    mask[0, -1] = False
    assert flash_attention_mask(1, 21, 21, attention_mask=mask) is not None
    positions = torch.cat([torch.arange(size) for size in (7, 5, 9)])[None]
    assert _is_packed_sequence(positions, 1)
    assert not _is_packed_sequence(positions.repeat(2, 1), 2)


def test_sdpa_makes_a_mask_of_the_positions(monkeypatch):
    """One byte a pair, and one mask for all layers."""
    model, ids, positions, _ = tiny("Qwen3")
    masks, attention = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **more):
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model(ids[None], position_ids=positions[None], use_cache=False)
    assert {mask.nbytes for mask in masks} == {21 * 21} and len({id(mask) for mask in masks}) == 1


def test_sdpa_makes_numbers_of_a_mask_and_each_layer_keeps_its_own():
    """A mask of bytes becomes a bias of the queries' type, which autograd keeps: two bytes a pair in bfloat16."""
    tokens, kept = 64, []
    q, k, v = torch.randn(3, 1, 2, tokens, 16, dtype=torch.bfloat16).requires_grad_()
    mask = torch.ones(tokens, tokens).tril().bool()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        for _ in range(2):
            q = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    biases = {t.data_ptr(): t.nbytes for t in kept if t.shape[-2:] == mask.shape}
    assert list(biases.values()) == 2 * [2 * mask.nbytes]
    assert f"in 16 bits {2 * 131_072**2 // GIB} GiB more" in TEXTS["packed-masks-read"]


def test_linear_attention_needs_more_than_positions():
    assert differs("Qwen3Next")
    ends = torch.tensor([0, 7, 12, 21], dtype=torch.int32)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        differs("Qwen3Next", cu_seq_lens_q=ends)


def test_what_trl_says_of_packing_and_of_the_engine():
    trl = pytest.importorskip("trl")
    from trl.generation import vllm_generation
    from trl.trainer import sft_trainer

    share = trl.GRPOConfig.__dataclass_fields__["vllm_gpu_memory_utilization"].default
    assert share == 0.3 and "0.3 unless you set it" in TEXTS["rl-training-read"]
    source = inspect.getsource(vllm_generation)
    assert "sleep(level=2)" in source and "enforce_eager" not in source
    assert "Packing is not compatible with context parallelism" in inspect.getsource(sft_trainer)
    assert trl.SFTConfig.__dataclass_fields__["packing_strategy"].default == "bfd"
    assert trl.SFTConfig.__dataclass_fields__["max_length"].default == 1024


def test_what_trl_s_grpo_has_no_switch_for():
    trl = pytest.importorskip("trl")
    from trl.trainer import grpo_config

    offload = [hasattr(kind, "activation_offloading") for kind in (trl.SFTConfig, trl.DPOConfig)]
    assert offload == [True, True] and not hasattr(trl.GRPOConfig, "activation_offloading")
    source = inspect.getsource(grpo_config)
    assert "GRPOTrainer does not support sequence-dim parallelism" in source


def test_an_engine_must_hold_one_answer_of_its_greatest_length():
    """TRL leaves that length to the model unless told otherwise, and 0.3 of an H100 has no room for it."""
    trl = pytest.importorskip("trl")
    assert trl.GRPOConfig.__dataclass_fields__["vllm_max_model_length"].default is None
    names = after("long-by-hand", "kv-table", "rl-training", "rl-by-hand")
    longest = names["cache_bytes"](names["llama"], names["llama"].max_seq_len)
    told = TEXTS["rl-by-hand-read"]
    assert f"{names['llama'].max_seq_len:,} tokens or {longest / GIB:.0f} GiB" in told
    room = 0.3 * names["card"].memory_bytes - names["weights"] - names["beside"]
    assert names["answer"] < room < longest


def test_packed_rows_are_of_one_length_only_if_padded():
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    data = datasets.Dataset.from_dict({"input_ids": [list(range(n)) for n in (9, 7, 6, 5, 3)]})
    rows = list(trl.pack_dataset(data, 10))
    widths = []
    for multiple in (None, 10):
        collate = DataCollatorForLanguageModeling(
            pad_token_id=0, padding_free=True, pad_to_multiple_of=multiple
        )
        widths.append({collate([row])["input_ids"].shape[1] for row in rows})
    assert len(widths[0]) > 1 and widths[1] == {10}


def test_rows_of_the_exercise_are_trl_s():
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    draw = random.Random(0)
    cases = [([11, 12, 21, 3, 5, 7], 30)]  # here the first row with room is not the best one
    for _ in range(20):
        room = draw.randint(5, 40)
        cases.append(([draw.randint(1, room + 5) for _ in range(draw.randint(1, 12))], room))
    for lengths, room in cases:
        data = datasets.Dataset.from_dict({"input_ids": [list(range(n)) for n in lengths]})
        assert len(trl.pack_dataset(data, room)) == num_rows(lengths, room), (lengths, room)


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="no C++ compiler")
def test_a_compiled_mask_makes_no_square():
    document = torch.arange(8192) // 1024

    def may_read(batch, head, query, key):
        return (document[query] == document[key]) & (query >= key)

    peaks, compiled = [], torch.compile(create_block_mask)
    for make in (compiled, compiled, create_block_mask):  # the first one compiles
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            make(may_read, None, None, 8192, 8192, "cpu")
        total = peak = 0
        for event in run.profiler.kineto_results.events():
            total += event.nbytes() if event.name() == "[memory]" else 0
            peak = max(peak, total)
        peaks.append(peak)
    _, small, plain = peaks
    assert f"{small / MIB:.2f} MiB" in TEXTS["packed-masks-read"]
    assert plain > 8192**2


def test_what_the_trainer_and_the_panel_say():
    names = after("long-by-hand", "kv-table", "rl-training", "rl-by-hand", "rl-phases")
    phases, trainer, told = names["phases"], names["trainer"], TEXTS["rl-panel-text"]

    def peak(share, at_once, asleep):
        held = phases(share, 8, 20_480, at_once, asleep)
        written = held["write"]["cache in use"] / names["answer"]
        return max(sum(parts.values()) for parts in held.values()) / GIB, written

    assert [peak(share, 1, False)[1] for share in (30, 45, 50)] == [2, 7, 8]
    card = names["card"].memory_bytes / GIB
    alone = trainer(8, **names["in_pieces"]).total_bytes / GIB
    for figure in (peak(50, 1, False)[0], peak(50, 4, False)[0], peak(50, 4, True)[0]):
        assert f"{figure:.1f}" in told
    assert f"{peak(50, 8, True)[0]:.1f}" in told and f"alone is {alone:.1f}" in told
    assert peak(50, 1, False)[0] < card < peak(50, 4, False)[0] and peak(50, 4, True)[0] < card
    one, whole = (trainer(1, **names[way]).total_bytes / GIB for way in ("in_pieces", "whole"))
    assert f"to {one:.1f} GiB" in TEXTS["rl-training-read"]
    assert f"{whole - one:.0f} GiB for one answer" in TEXTS["sleep-read"]
    inputs = 20_480 * names["llama"].num_layers * names["llama"].hidden_size * 2 / GIB
    assert f"{inputs:.0f} GiB for one answer | they cross" in TEXTS["sleep-read"]


def test_how_low_the_sum_of_a_long_run_is():
    names = dict(after_setup(CHAPTERS / "further" / LESSON.name))
    for cell in ("long-predicted", "long-measured"):
        exec(TEXTS[cell], names)
    runs = zip(names["left"], names["RUNS"], strict=True)
    low = sorted(round(100 * left / run[-1]) for left, run in runs)
    assert f"{low[0]} to {low[-1]} % low in each" in TEXTS["long-read"]
