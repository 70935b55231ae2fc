"""Plans in a notebook: what is printed is what is shown."""

from tests_of_the_kit import kit_tests

from stepscope.planner.search import PlansFound


def test_plans_show_in_a_notebook_what_they_print():
    kit_tests("test_units.py").test_a_record_shows_in_a_notebook_what_it_prints(
        PlansFound(plans=())
    )
