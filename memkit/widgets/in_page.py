"""What runs in the page beside a panel: keyboard and names for its controls, and which mark of its picture is meant.

Four facts make it necessary (JupyterLab 4, Notebook 7, ipywidgets 8.1). A notebook in command mode takes the
arrow keys away from sliders and menus, unless the focused element itself carries
``data-lm-suppress-shortcuts``. From there no key leads back to the cells: Escape does. A slider has no accessible
name (its description is not linked to it), nor has a button that shows an icon only. And what has the focus is told
by the colour of a border of one pixel.

The marks of a picture tell their bytes under the pointer without any script. With it the arrow keys go from mark to
mark of a picture that has the focus, a line below tells each, and Enter, Space or a click chooses it.

Without ``anywidget`` a panel works all the same: a number is typed into the box beside its slider, which has a name
and keeps its keys, and what a click selects, a slider selects too.
"""

from collections.abc import Callable

from memkit.pictures.svg import PAPER_OF

MEND_JS = """
function render({ model, el }) {
  const controls = "[role=slider], select, input, button, .memkit-view";
  const mend = () => panel.querySelectorAll(controls).forEach((control) => {
    control.setAttribute("data-lm-suppress-shortcuts", "true");
    const label = control.closest(".memkit-number")?.querySelector("label")?.textContent;
    const icon = control.querySelector("i")?.className.match(/fa-(\\w+)/)?.[1];
    if (label && control.getAttribute("role") === "slider") control.setAttribute("aria-label", label);
    if (icon && !control.textContent.trim()) control.setAttribute("aria-label", icon);
  });
  const leave = (event) => event.key === "Escape" && panel.closest(".jp-Cell")?.focus();
  const kept = () => picked && view.querySelector(`[data-pick="${picked}"]`);  // a new picture keeps the place
  const marks = () => [...view.querySelectorAll("[data-pick], [data-bytes]")];
  const tell = (mark) => {
    view.querySelector(".memkit-here")?.classList.remove("memkit-here");
    mark?.classList.add("memkit-here");
    picked = mark?.dataset.pick;
    tip.textContent = mark?.querySelector("title")?.textContent ?? "";
  };
  const walk = (event) => {
    const all = marks(), here = view.querySelector(".memkit-here") ?? kept();
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (way && all.length) {
      tell(all[(all.indexOf(here) + way + all.length) % all.length]);
      event.preventDefault();
    }
    if ([" ", "Enter"].includes(event.key) && here) {
      choose(here);
      event.preventDefault();
    }
  };
  const choose = (mark) => mark?.dataset.pick && model.send({ pick: mark.dataset.pick });
  const watch = () => {
    panel = el.closest(".memkit-panel");
    if (!panel) return void requestAnimationFrame(watch);
    observer.observe(panel, { childList: true, subtree: true });
    panel.addEventListener("keydown", leave, true);  // before a text box stops it
    mend();
    view = panel.querySelector(".memkit-view");
    if (!view) return;
    tip = Object.assign(document.createElement("div"), { className: "memkit-tip" });
    tip.setAttribute("aria-live", "polite");
    view.after(tip);
    Object.assign(view, { tabIndex: 0, role: "group", ariaLabel: "the picture: arrow keys go through its marks" });
    view.addEventListener("keydown", walk);
    new MutationObserver(() => view.querySelector(".memkit-here") || !kept() || tell(kept()))
      .observe(view, { childList: true, subtree: true });
    const below = (event) => document.elementsFromPoint(event.clientX, event.clientY);  // words stand on marks
    const at = (event, wanted) => below(event).find((element) => element.matches(wanted));
    view.addEventListener("mousemove", (event) => {  // a new picture under a pointer at rest is no move
      const mark = at(event, "[data-pick], [data-bytes]");
      if (mark && !mark.matches(".memkit-here")) tell(mark);
    });
    view.addEventListener("click", (event) => choose(at(event, "[data-pick]")));
  };
  const observer = new MutationObserver(mend);
  let panel, view, tip, picked;
  watch();
  return () => observer.disconnect();
}
export default { render };
"""

FOCUS_CSS = """
.memkit-panel :is(select, input, button, summary, [tabindex]):focus-visible {
  outline: 3px solid #0072B2 !important; outline-offset: -2px;
}
.memkit-panel [role=slider]:focus-visible { outline-offset: 1px; }
.memkit-tip { min-height: 1.5em; line-height: 1.5; }
"""

FOLD = """<details class="memkit-fold"><summary>The numbers as a table</summary></details>
<style>@supports selector(:has(*)) {
.memkit-table {display: none} .memkit-panel:has(details.memkit-fold[open]) .memkit-table {display: block}}
.memkit-table td, .memkit-table th {text-align: right; padding: 1px 10px}
.memkit-table td:first-child, .memkit-table th:first-child {text-align: left}
.memkit-view {overflow-x: auto; PAPER}
.memkit-verdict {min-height: 1.7em} .memkit-more {min-height: 4.6em}
.memkit-view [data-pick] {cursor: pointer}
.memkit-panel.jupyter-widgets-disconnected > * {opacity: .6}
.memkit-panel.jupyter-widgets-disconnected::after { order: -1;
  content: "The kernel has stopped, so nothing here answers. Run the cells again."; font-weight: bold}
.memkit-view .memkit-here {stroke: currentColor; stroke-width: 2.5px}</style>""".replace("PAPER", PAPER_OF)
"""The fold stays one element while the table beside it changes; else each move would close it."""


def key_helpers(pick: Callable[[str], None] = lambda mark: None) -> list:
    """Keyboard, names and focus for the panel that it stands in; nothing where ``anywidget`` is missing.

    ``pick(mark)`` is called with the ``data-pick`` of a mark that is chosen in the picture.
    """
    try:
        from anywidget import AnyWidget
    except ImportError:
        return []
    helper = type("KeyHelper", (AnyWidget,), {"_esm": MEND_JS, "_css": FOCUS_CSS})()
    helper.on_msg(lambda _, content, __: pick(content["pick"]))
    return [helper]
