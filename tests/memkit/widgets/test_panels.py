"""Every explorer, one table: named controls, words, a picture that tells itself, a twin; no exception at any corner."""

import math
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from drawn import SVG, check_narrow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memkit import widgets
from memkit.widgets.explorer import Bits, Choice, Entry, Explorer, Number, Switch, values_of

PANELS = {
    name: getattr(widgets, name)
    for name in widgets.__all__
    if name not in ("Explorer", "Panel", "StepFilm", "SavedFilm")
}
PLAIN = """
import sys
for name in ("torch", "numpy", "matplotlib", "ipywidgets", "anywidget"):
    sys.modules[name] = None  # importing it raises
from memkit import widgets
for name in sys.argv[1].split():
    explorer = getattr(widgets, name)()
    print(name, explorer.error == "", explorer.shown.chart.html().startswith("<svg"), explorer.summary)
"""
MOVABLE = {"BitExplorer": {"number": "1000"}}
"""States in which every control has something to change, where the opening is none."""
NONSENSE = (None, "nonsense", -1, 1.5, math.nan, math.inf, [], {}, b"8", object, 10**30, 1j)


@pytest.fixture(scope="module")
def panels() -> dict[str, Explorer]:
    return {name: make() for name, make in PANELS.items()}


def test_all_explorers_are_here():
    assert set(PANELS) == {"BitExplorer", "FrontierExplorer", "MemoryExplorer"}
    assert all(issubclass(getattr(widgets, name), Explorer) for name in PANELS)


def test_they_answer_without_heavy_libraries():
    """As a page does that runs the same Python without a kernel."""
    program = [sys.executable, "-c", PLAIN, " ".join(sorted(PANELS))]
    lines = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
    for name, line in zip(sorted(PANELS), lines, strict=True):
        assert line.startswith(f"{name} True True ") and line.endswith(PANELS[name]().summary)


@pytest.mark.parametrize("name", PANELS)
def test_it_is_named_told_and_has_a_twin(panels, name):
    explorer = panels[name]
    panel = explorer.panel
    assert explorer.error == ""
    root = ET.fromstring(panel.picture.value)
    assert (
        root.get("role") == "img"
        and len(root.findtext(f"{SVG}desc").split()) >= 10
        and root.findtext(f"{SVG}title")
    )
    assert 'role="status"' in panel.status.value and 'aria-live="polite"' in panel.status.value
    assert "<details" in panel.fold.value and "<summary>" in panel.fold.value
    assert panel.table.value.count('scope="row"') == len(explorer.shown.table) - 1 >= 1
    for control in panel.controls.values():
        named = [control.box] if hasattr(control, "box") else [control]
        assert all(each.description for each in named)
    bundle, metadata = explorer._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == explorer.shown.chart.alt
    assert bundle["text/plain"] == explorer.summary and "\n" not in explorer.summary
    assert (
        "application/vnd.jupyter.widget-view+json" in bundle and len(bundle["image/png"]) < 250_000
    )


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
    assert explorer.state == {
        **explorer.state,
        **{key: box.value for key, box in panel.controls.items()},
    }
    check_narrow(explorer.shown.chart)


def others(control) -> list:
    """Values of a control besides its own; of a long menu the first and last."""
    match control:
        case Number():
            return [control.value + control.step, control.high, control.low]
        case Choice():
            return [value for value in values_of(control.options) if value != control.value]
        case Switch():
            return [True, False]
        case Bits():
            return [control.value ^ 1]
    return ["0.25"]


@pytest.mark.parametrize("name", PANELS)
def test_every_control_has_something_to_change(name):
    for key in PANELS[name]().controls:
        explorer = PANELS[name]()
        explorer.set(**MOVABLE.get(name, {}))
        before = explorer.shown.words, explorer.shown.table, explorer.shown.chart.html()
        for value in others(explorer.controls[key]):
            if value != explorer.state[key]:
                explorer.set(**{key: value})
            if explorer.error == "" and before != (
                explorer.shown.words,
                explorer.shown.table,
                explorer.shown.chart.html(),
            ):
                break
        else:
            pytest.fail(f"{key} changes nothing")


@pytest.mark.parametrize("name", PANELS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nonsense_is_explained_in_a_sentence_and_changes_nothing(panels, name, data):
    explorer = panels[name]
    key = data.draw(st.sampled_from([*explorer.controls, "colour"]))
    value = data.draw(st.sampled_from(NONSENSE))
    before, picture = explorer.state, explorer.panel.picture.value
    explorer.set(**{key: value})
    if explorer.error:
        assert key in explorer.error or str(value) in explorer.error
        assert "Error" not in explorer.error and "\n" not in explorer.error
        assert explorer.panel.alert.value.count('role="alert"') == 1
        assert (explorer.state, explorer.panel.picture.value) == (before, picture)
    else:  # a large number is one, and a text is read as a number or a code
        assert isinstance(explorer.controls[key], (Number, Entry, Bits)) and value not in (
            None,
            "nonsense",
            object,
        )
    explorer.set(**before)
    assert explorer.error == explorer.panel.alert.value == ""
    assert (
        before
        == explorer.state
        == {**before, **{key: box.value for key, box in explorer.panel.controls.items()}}
    )
