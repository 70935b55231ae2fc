"""Every explorer, one table: named controls, words, a picture that tells itself, a twin; no exception at any corner."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from drawn import SVG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memkit import widgets
from memkit.allocator.stories import step_story
from memkit.timeline import Instant, MemoryTimeline
from memkit.widgets.explorer import Choice, Explorer, Number, Switch, values_of

GRADIENTS = {"drawn": np.exp(np.random.default_rng(0).normal(-14, 3, 500))}
EVENTS = MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story()))
WITH_ARGUMENTS = {
    "LossScalingLab": lambda: widgets.LossScalingLab(GRADIENTS), "SnapshotView": lambda: widgets.SnapshotView(EVENTS)
}
PANELS = {
    name: WITH_ARGUMENTS.get(name, getattr(widgets, name)) for name in widgets.__all__
    if name not in ("Explorer", "Panel", "LedgerSearch", "QuestionCards")
}
PLAIN = """
import sys
for name in ("torch", "numpy", "matplotlib", "ipywidgets", "anywidget"):
    sys.modules[name] = None  # importing it raises
from memkit import widgets
from memkit.allocator.stories import step_story
from memkit.timeline import Instant, MemoryTimeline
run = MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story()))
for name in sys.argv[1].split():
    explorer = getattr(widgets, name)(*[run] * (name == "SnapshotView"))
    first = next(iter(explorer.controls))
    explorer.set(**{first: "nonsense"})
    print(name, "nonsense" in explorer.error, explorer.shown.chart.html().startswith("<svg"), explorer.summary)
"""
NEED_NUMPY = {
    "BitExplorer", "LossScalingLab", "NumberLine", "OutlierLab", "RoundingLab", "ScalingLab", "SpikeFilm"
}
"""Their answers are about the values of formats, which are numpy arrays."""


@pytest.fixture(scope="module")
def panels() -> dict[str, Explorer]:
    return {name: make() for name, make in PANELS.items()}


def test_all_explorers_are_here():
    assert len(PANELS) >= 16 and all(issubclass(getattr(widgets, name), Explorer) for name in PANELS)


def test_they_answer_without_torch_numpy_matplotlib_ipywidgets_and_anywidget(panels):
    """As a page does that runs the same Python without a kernel."""
    names = sorted(set(PANELS) - NEED_NUMPY)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, " ".join(names)], check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert [line.split(" ", 3)[:3] for line in lines] == [[name, "True", "True"] for name in names]
    for name, line in zip(names, lines, strict=True):
        assert name == "SnapshotView" or line.endswith(PANELS[name]().summary)


@pytest.mark.parametrize("name", PANELS)
def test_it_is_named_told_and_has_a_twin(panels, name):
    explorer = panels[name]
    panel = explorer.panel
    assert explorer.error == ""
    root = ET.fromstring(panel.picture.value)
    assert root.get("role") == "img" and len(root.findtext(f"{SVG}desc").split()) >= 10 and root.findtext(f"{SVG}title")
    assert 'role="status"' in panel.status.value and 'aria-live="polite"' in panel.status.value
    assert "<details" in panel.fold.value and "<summary>" in panel.fold.value
    assert panel.table.value.count('scope="row"') == len(explorer.shown.table) - 1 >= 1
    for control in panel.controls.values():
        named = [control.box] if hasattr(control, "box") else getattr(control, "buttons", [control])
        assert all(each.description for each in named)
    bundle, metadata = explorer._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == explorer.shown.chart.alt
    assert bundle["text/plain"] == explorer.summary and "\n" not in explorer.summary
    assert "application/vnd.jupyter.widget-view+json" in bundle and len(bundle["image/png"]) < 250_000


@pytest.mark.parametrize("name", PANELS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_corner_is_shown_or_refused_in_a_sentence(panels, name, data):
    explorer = panels[name]
    panel = explorer.panel
    for key, control in explorer.controls.items():
        if isinstance(control, Number):
            value = data.draw(st.sampled_from([control.low, panel.controls[key].slider.max]), key)
        elif isinstance(control, Choice):
            value = data.draw(st.sampled_from(values_of(panel.controls[key].options)), key)
        elif isinstance(control, Switch):
            value = data.draw(st.booleans(), key)
        else:
            continue
        panel.controls[key].value = value
        assert "Error" not in explorer.error and "\n" not in explorer.error
        assert ('role="alert"' in panel.alert.value) == bool(explorer.error)
        ET.fromstring(panel.picture.value)
    assert explorer.value == {key: control.value for key, control in panel.controls.items()}
