"""A slider's move draws no axis again, and what moves lies on it as in a picture that is drawn from nothing."""

import io

import numpy as np
import pytest
from PIL import Image

from memkit import widgets
from memkit.pictures.picture import Picture
from memkit.widgets.panel import Number

GRADIENTS = {"drawn": np.exp(np.random.default_rng(0).normal(-14, 3, 500))}
MOVES = {
    "memory explorer": (widgets.MemoryExplorer, {"micro_batch_size": 32, "model": "GPT-2 small", "card": "RTX 4090"}),
    "step timeline": (widgets.StepTimeline, {"instant": 9}),
    "frontier": (widgets.FrontierExplorer, {"seq_len": 2048, "strategy": "full", "card": "H200"}),
    "planner": (widgets.BatchPlanner, {"micro_batch_size": 4, "dp_size": 16}),
    "bits": (widgets.BitExplorer, {"format": "bfloat16", "code": 0x1234}),
    "line": (widgets.NumberLine, {"format": "float16", "zoom": 3}),
    "linear": (widgets.NumberLine, {"is_log": False, "zoom": 5}),
    "rounding": (widgets.RoundingLab, {"num_terms": 1000, "format": "float16"}),
    "allocator": (widgets.AllocatorLab, {"step": 3}),
    "loss scaling": (lambda **values: widgets.LossScalingLab(GRADIENTS, **values), {"power": 20}),
    "scaling": (widgets.ScalingLab, {"kind": "heavy tail", "scaling": "tensor"}),
    "outliers": (widgets.OutlierLab, {"half_decades": 7, "num_outliers": 1}),
    "spike": (widgets.SpikeFilm, {"step": 3, "margin": 2}),
}


def pixels(panel) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(panel.shown.png)).convert("RGB"))


def pictures(panel) -> list[Picture]:
    films = [picture for _, picture, _ in getattr(panel, "films", {}).values()]
    return [*films, *(each for each in vars(panel).values() if isinstance(each, Picture))]


@pytest.mark.parametrize("make, state", MOVES.values(), ids=MOVES)
def test_a_move_keeps_the_background_and_leaves_nothing_behind(make, state):
    panel = make()
    panel.set(**state)
    assert panel.error == ""
    if make is not widgets.MemoryExplorer:  # the outline of the setting before is meant to be left
        np.testing.assert_array_equal(pixels(panel), pixels(make(**state)))
    backgrounds = [picture.background for picture in pictures(panel)]
    for name, control in panel.controls.items():
        if isinstance(control, Number) and name != "grad_accum_steps":  # which has other bars
            control.slider.value = (control.slider.min + control.slider.max) // 2
            assert panel.error == ""
    assert backgrounds and all(
        picture.background is before for picture, before in zip(pictures(panel), backgrounds, strict=False)
    )
