"""The next pictures, drawn while nobody waits: a script in the page shows one at the key press.

However little is drawn, a move's way to the kernel and back takes a notebook some 40 ms. A reader who moves a control
mostly moves it one step on, or back. So when a control has the focus and nothing has moved for a moment, the page asks
the kernel for what those steps will show. At the key press it shows what it has, while the kernel answers as always,
with the same. One question is open at a time, and what takes long to draw is asked for after a longer rest, so that
no queue of drawings stands before a move. A picture is used for the one move it was drawn for: from these values of
every control, and from the picture that stands there. Without ``anywidget``, or a kernel, a panel works all the same.
"""

import os

import ipywidgets as widgets
import traitlets

from memkit.widgets.in_page import faceless

SWITCH = "MEMKIT_AHEAD"
"""Where it is 0 nothing is drawn ahead: each step drawn costs a kernel as much as a move, and a hub's share cores."""


PAUSE_SECONDS, LONG_PAUSE_SECONDS = 0.06, 2.0
"""A slider that has not moved for so long rests: a page sends the next move within 20 ms of an answer. On cores that a
class shares it rests later: the advice costs a kernel more than the move before it."""


def shares_cores() -> bool:
    """Whether ``MEMKIT_AHEAD=0`` says that others wait for what this kernel computes unasked."""
    return os.environ.get(SWITCH) == "0"


def rest_seconds() -> float:
    """After how long a slider that is not moved rests."""
    return LONG_PAUSE_SECONDS if shares_cores() else PAUSE_SECONDS


MOST = 6
"""Steps that the kernel keeps, and the page."""

AHEAD_JS = """
const PAUSE_MS = 80, MOST = 6;
const kind = (part) => part.get("_model_name");
const trait = (part) => ({ DropdownModel: "index", ButtonModel: "description" })[kind(part)] || "value";

async function initialize({ model }) {
  const manager = model.widget_manager, drawn = new Map(), known = new Set(), faces = {};
  let parts = [], before = [], focus = {}, way = 1, timer, asked = 0, took = 0;
  const picture = await manager.get_model(model.get("faces")[0]);
  for (const id of model.get("faces")) faces[id] = await manager.get_model(id);

  const key = (index, next) => JSON.stringify([before, index, next]);
  const ready = (index, next) => {
    const found = drawn.get(key(index, next));
    return found && found.from === picture.get("value") ? found : null;
  };
  const show = (index, next) => {
    const found = ready(index, next);
    if (found?.shown) Object.entries(found.shown).forEach(([id, html]) => faces[id].set("value", html));
  };
  const nexts = (part) => {
    const now = part.get(trait(part)), two = (step) => [now + way * step, now - way * step];
    if (kind(part) === "IntSliderModel")
      return two(part.get("step")).filter((next) => next >= part.get("min") && next <= part.get("max"));
    if (kind(part) === "DropdownModel") return two(1).filter((next) => next in part.get("_options_labels"));
    return { CheckboxModel: [!now], ButtonModel: [now] }[kind(part)] || [];
  };
  const ask = () => {
    const part = parts[focus.index];
    if (asked || !part || !focus.place.contains(document.activeElement)) return;
    const next = nexts(part).find((next) => !ready(focus.index, next));
    if (next === undefined) return;
    asked = performance.now();
    model.send({ values: before, part: focus.index, next });
  };
  const wait = (rest) => {  // as long as the last answer took: who moves faster than that waits for no drawing
    clearTimeout(timer);
    timer = setTimeout(ask, Math.max(rest, took > PAUSE_MS ? 2 * took : 0));
  };
  const pause = () => {
    before = parts.map((part) => part.get(trait(part)));
    wait(PAUSE_MS);
  };
  const listen = async () => {
    parts = await Promise.all(model.get("parts").map((id) => manager.get_model(id)));
    before = parts.map((part) => part.get(trait(part)));
    parts.filter((part) => !known.has(part)).forEach((part) => {
      known.add(part);
      part.on(`change:${trait(part)}`, (_, next, options) => {
        const index = parts.indexOf(part);
        if (options?.updated_view) {  // the reader's move, not the kernel's
          way = next < before[index] ? -1 : 1;
          show(index, next);
        }
        pause();
      });
    });
  };
  const focused = async (event) => {
    for (const [index, part] of parts.entries())
      for (const view of Object.values(part.views || {})) {
        const place = (await view).el;
        if (place.contains(event.target)) { focus = { index, place }; pause(); }
      }
  };
  const clicked = (event) => {
    const part = parts[focus.index];
    if (part && kind(part) === "ButtonModel" && focus.place.contains(event.target)) {
      show(focus.index, part.get(trait(part)));
      pause();
    }
  };
  model.on("msg:custom", ({ values, part, next, shown }) => {
    const place = JSON.stringify([values, part, next]);
    drawn.delete(place);
    drawn.set(place, { from: picture.get("value"), shown });
    if (drawn.size > MOST) drawn.delete(drawn.keys().next().value);
    took = performance.now() - asked;
    asked = 0;
    wait(0);
  });
  model.on("change:parts", listen);
  picture.on("change:value", pause);
  await listen();
  document.addEventListener("focusin", focused);
  document.addEventListener("click", clicked, true);
  return () => {
    document.removeEventListener("focusin", focused);
    document.removeEventListener("click", clicked, true);
  };
}
export default { initialize };
"""


def parts_of(control: widgets.Widget) -> tuple[widgets.Widget, ...]:
    """The widgets of the page that make up a control: its ``parts``, or itself."""
    return getattr(control, "parts", (control,))


def shown_by(part: widgets.Widget):
    """What the page shows of a part: a menu's place in its list, a button's words, else its value."""
    name = {widgets.Dropdown: "index", widgets.Button: "description"}.get(type(part), "value")
    return getattr(part, name)


def after(control: widgets.Widget, part: widgets.Widget, new):
    """A control's value once ``part`` shows ``new``, or, a button, has been pressed."""
    if hasattr(control, "after"):
        return control.after(part, new)
    if isinstance(control, widgets.Dropdown):
        option = control.options[new]
        return option[1] if isinstance(option, tuple) else option
    return new


def ahead_helper(controls: dict[str, widgets.Widget], faces: list[widgets.Widget], draw):
    """The helper, a widget without a face; ``None`` where ``anywidget`` is missing or ``MEMKIT_AHEAD`` is 0.

    ``draw(name, value)`` gives what ``faces``, the picture first, would show after a move of a control; ``None``
    where that cannot be shown.
    """
    if shares_cores():
        return None

    def asked(_, content, __):
        parts = [(name, part) for name, control in controls.items() for part in parts_of(control)]
        name, part = parts[content["part"]]
        is_here = content["values"] == [shown_by(each) for _, each in parts]
        shown = draw(name, after(controls[name], part, content["next"])) if is_here else None
        helper.send({**content, "shown": shown and {face.model_id: html for face, html in shown.items()}})

    ids = {"faces": [face.model_id for face in faces], "parts": part_ids(controls)}
    lists = {name: traitlets.List(traitlets.Unicode(), each).tag(sync=True) for name, each in ids.items()}
    helper = faceless("AheadHelper", _esm=AHEAD_JS, **lists)
    if helper is not None:
        helper.on_msg(asked)
    return helper


def part_ids(controls: dict[str, widgets.Widget]) -> list[str]:
    """The ids of all parts of all controls, by which the page finds them."""
    return [part.model_id for control in controls.values() for part in parts_of(control)]
