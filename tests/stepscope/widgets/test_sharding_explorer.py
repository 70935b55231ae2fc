"""The sharding explorer: its bars are the estimate's, every control moves it, nothing that is typed kills it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from cells import texts_of

from memkit.models import LLAMA_2_7B
from memkit.recipes import OptimizerConfig
from memkit.setup import TrainingSetup
from memkit.units import format_bytes
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded, step_traffic
from stepscope.widgets.plan_explorers import RANKS, ShardingExplorer


@pytest.fixture(scope="module")
def explorer():
    return ShardingExplorer()


def test_it_opens_on_the_chapter_s_question(explorer):
    fused = OptimizerConfig(implementation="fused")
    setup = TrainingSetup(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4, optimizer=fused)
    layout = Layout(stage=3, dp_size=8, param_dtype="bfloat16", reduce_dtype="float32")
    rows = {row[0]: row for row in explorer.shown.table[1:]}
    assert rows["8"][1] == format_bytes(estimate_sharded(setup, layout).for_step(2).peak_bytes)
    assert rows["8"][4] == format_bytes(step_traffic(setup, layout).sent_bytes)
    _, fitting, sent, *_ = explorer.shown.words
    assert "ZeRO-3 on 8" in sent and fitting.endswith("as expected: 2; 4; 8; 16; 64; 512.")
    assert rows["1"][3] == "does not fit"


def test_the_chapter_s_four_experiments_find_what_it_says(explorer):
    _, _, answers = texts_of("11")["explorer-text"].partition("Answers")

    def see(dp_size, **changes):
        fresh = ShardingExplorer(dp_size=dp_size, **changes)
        return fresh.shown, {row[0]: row for row in fresh.shown.table[1:]}

    left = [see(ranks)[0].words[-1].split(", ")[1][:3] for ranks in (2, 8, 64)]
    assert all(f"{share[:2]} % of the peak" in answers for share in left)
    peaks = [
        float(see(512, recomputes=recomputes)[1]["512"][1].split()[0])
        for recomputes in (False, True)
    ]
    assert "From {:.2f} GiB to {:.2f}".format(*peaks) in answers
    for nics in (8, 1):
        for sequences in (4, 1):
            said = see(16, nics=nics, micro_batch_size=sequences)[0].words[3]
            _, _, tokens, own = re.findall(r"[\d,]*\d", said)
            assert f"about {tokens}" in answers and own in answers
            assert ("This hides" in said) == (nics == 8)


@pytest.mark.parametrize("stage", range(4))
def test_every_stage_shrinks_with_ranks_or_stays(explorer, stage):
    explorer.set(stage=stage, offloads=False)
    assert explorer.error == ""
    peaks = [row[1] for row in explorer.shown.table[1:]]
    assert len(peaks) == len(RANKS) and (len(set(peaks[1:])) == 1) == (stage == 0)


def test_offload_needs_fsdp(explorer):
    explorer.set(stage=0, offloads=True)
    assert "needs fully_shard" in explorer.error
    explorer.set(stage=3, offloads=True)
    assert explorer.error == ""
    explorer.set(offloads=False)


def test_two_threads_draw_whole_pictures(explorer):
    """JupyterLab hands the messages of several widgets to threads of the kernel."""
    alone = {
        recomputes: explorer.view(**{**explorer.state, "recomputes": recomputes})
        for recomputes in (False, True)
    }
    with ThreadPoolExecutor(2) as threads:
        list(
            threads.map(lambda recomputes: explorer.set(recomputes=recomputes), [False, True] * 12)
        )
    assert explorer.shown.words == alone[explorer.state["recomputes"]].words
    assert explorer.panel.picture.value == alone[explorer.state["recomputes"]].chart.html()
