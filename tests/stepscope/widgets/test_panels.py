"""The instrument's explorers, held by the tests of the kit's: no exception at any corner, and the rest."""

from tests_of_the_kit import kit_tests

from memkit.widgets.explorer import Explorer
from stepscope import widgets

KIT = kit_tests(
    "widgets/test_panels.py",
    "from memkit import widgets",
    "from stepscope import widgets",
    MOVABLE={"MemoryExplorer": {"lora_rank": 16}},
)
globals().update(KIT.tests)
panels = KIT.panels


def test_all_explorers_are_here():
    assert set(KIT.PANELS) == {
        "AdapterExplorer",
        "AllocatorLab",
        "MemoryExplorer",
        "PlanExplorer",
        "ShardingExplorer",
    }
    assert all(issubclass(getattr(widgets, name), Explorer) for name in KIT.PANELS)
