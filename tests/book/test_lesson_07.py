"""The first screen of lesson 07 is the emergency table that ``stepscope why`` answers from."""

from cells import CHAPTERS, cells_of

from stepscope.why import EMERGENCY


def test_the_first_screen_has_the_rows_of_the_command():
    [lesson] = CHAPTERS.glob("07_*.ipynb")
    text = "".join(cells_of(lesson)[0]["source"]).replace("`", "").replace("\\|", "¦")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = [[words.replace("¦", "|") for words in row[:3]] for row in rows[1:]]
    assert shown == [[row.dies, row.cause, row.first] for row in EMERGENCY.values()]
