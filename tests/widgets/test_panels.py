"""Every panel, one table: named controls, words, a picture that tells itself, a twin; no exception at any corner."""

import xml.etree.ElementTree as ET

import ipywidgets
import numpy as np
import pytest
from drawn import SVG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memkit import widgets
from memkit.allocator.stories import step_story
from memkit.timeline import Instant, MemoryTimeline
from memkit.widgets.panel import Number, Panel

GRADIENTS = {"drawn": np.exp(np.random.default_rng(0).normal(-14, 3, 500))}
EVENTS = MemoryTimeline(instants=(Instant(name="end", total_bytes=0),), source="traced", events=tuple(step_story()))
WITH_ARGUMENTS = {
    "LossScalingLab": lambda: widgets.LossScalingLab(GRADIENTS), "SnapshotView": lambda: widgets.SnapshotView(EVENTS)
}
NO_PANELS = {"Panel", "LedgerSearch", "QuestionCards"}
PANELS = {
    name: WITH_ARGUMENTS.get(name, getattr(widgets, name)) for name in widgets.__all__
    if name not in NO_PANELS and isinstance(getattr(widgets, name), type)
}


@pytest.fixture(scope="module")
def panels() -> dict[str, Panel]:
    return {name: make() for name, make in PANELS.items()}


def test_all_explorers_are_here():
    assert len(PANELS) >= 16 and all(issubclass(getattr(widgets, name), Panel) for name in PANELS)


@pytest.mark.parametrize("name", PANELS)
def test_it_is_named_told_and_has_a_twin(panels, name):
    panel = panels[name]
    assert panel.error == ""
    root = ET.fromstring(panel.picture.value)
    assert root.get("role") == "img" and len(root.findtext(f"{SVG}desc").split()) >= 10 and root.findtext(f"{SVG}title")
    assert 'role="status"' in panel.status.value and 'aria-live="polite"' in panel.status.value
    assert "<details" in panel.fold.value and "<summary>" in panel.fold.value
    assert panel.table.value.count('scope="row"') == len(panel.shown.table) - 1 >= 1
    for control in panel.controls.values():
        named = [control.box] if isinstance(control, Number) else getattr(control, "buttons", [control])
        assert all(each.description for each in named)
    bundle, metadata = panel._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == panel.shown.chart.alt
    assert bundle["text/plain"] == panel.summary and "\n" not in panel.summary
    assert "application/vnd.jupyter.widget-view+json" in bundle and len(bundle["image/png"]) < 250_000


@pytest.mark.parametrize("name", PANELS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_corner_is_shown_or_refused_in_a_sentence(panels, name, data):
    panel = panels[name]
    for key, control in panel.controls.items():
        if isinstance(control, Number):
            value = data.draw(st.sampled_from([control.slider.min, control.slider.max]), key)
        elif isinstance(control, ipywidgets.Dropdown):
            value = data.draw(st.sampled_from([o[1] if isinstance(o, tuple) else o for o in control.options]), key)
        elif isinstance(control, ipywidgets.Checkbox):
            value = data.draw(st.booleans(), key)
        else:
            continue
        panel.set(**{key: value})
        assert "Error" not in panel.error and "\n" not in panel.error
        ET.fromstring(panel.picture.value)
    assert panel.value == {key: control.value for key, control in panel.controls.items()}
