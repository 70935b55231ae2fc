"""What a chart draws, read back from its text: marks with their places, and words with theirs."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass

from memkit.pictures.svg import Chart, text_width

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Mark:
    """A mark as it stands in the text: its tag, its attributes, its ``data-`` attributes and what it tells."""

    tag: str
    attributes: dict[str, str]
    data: dict[str, str]
    tip: str

    def at(self, name: str) -> float:
        return float(self.attributes[name])


@dataclass(frozen=True)
class Label:
    """Words and the box that holds them: left, top, right, bottom."""

    text: str
    box: tuple[float, float, float, float]


def marks_of(chart: Chart, *data: str, **wanted: object) -> list[Mark]:
    """Marks that have all these ``data-`` attributes, some of them with a value."""
    found = []
    for element in ET.fromstring(chart.svg()).iter():
        tag = element.tag.removeprefix(SVG)
        told = {
            key.removeprefix("data-"): value
            for key, value in element.attrib.items()
            if key.startswith("data-")
        }
        if tag not in ("rect", "path") or not {*data, *wanted} <= set(told):
            continue
        if all(told[name] == str(value) for name, value in wanted.items()):
            found.append(Mark(tag, dict(element.attrib), told, element.findtext(f"{SVG}title", "")))
    return found


def labels_of(chart: Chart) -> list[Label]:
    """Every text with the room that it may take in the widest font."""
    labels = []
    for element in ET.fromstring(chart.svg()).iter(f"{SVG}text"):
        lines = [span.text or "" for span in element.iter(f"{SVG}tspan")] or [element.text or ""]
        x = float(element.get("x") or element.find(f"{SVG}tspan").get("x"))
        size, y = float(element.get("font-size")), float(element.get("y"))
        width = text_width("\n".join(lines), size, element.get("font-weight") == "bold")
        left = (
            x - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        )
        box = (left, y - 0.8 * size, left + width, y + size * (1.18 * (len(lines) - 1) + 0.15))
        labels.append(Label("\n".join(lines), box))
    return labels


def words_of(chart: Chart) -> str:
    """Every text of the chart."""
    return " | ".join(label.text for label in labels_of(chart))


def overlap(a: Label, b: Label) -> bool:
    """Whether two texts reach into one another."""
    return (
        a.box[0] < b.box[2] and b.box[0] < a.box[2] and a.box[1] < b.box[3] and b.box[1] < a.box[3]
    )


def check_narrow(chart) -> None:
    """A picture's twin for a phone tells the same, in letters of 11 pixels that all stand in it and touch no others."""
    narrow, told = chart.narrow(), [set(), set()]
    for each, marks in zip((chart, narrow), told, strict=True):
        marks |= {(*mark.data.items(), mark.tip) for mark in marks_of(each) if mark.data}
    assert told[0] == told[1] and narrow.alt == chart.alt and narrow.marked == chart.marked
    texts = ET.fromstring(narrow.svg()).iter(f"{SVG}text")
    assert min(float(text.get("font-size")) for text in texts) >= 11
    labels = labels_of(narrow)
    for number, label in enumerate(labels):
        left, top, right, bottom = label.box
        assert left >= 0 and top >= 0 and right <= narrow.width and bottom <= narrow.height, label
        assert not [other for other in labels[:number] if overlap(label, other)], label
