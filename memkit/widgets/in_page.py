"""What runs in the page beside a panel: keyboard, names and focus for its controls, and where its picture is clicked.

Four facts make it necessary (JupyterLab 4, Notebook 7, ipywidgets 8.1). A notebook in command mode takes the
arrow keys away from sliders and menus, unless the focused element itself carries
``data-lm-suppress-shortcuts``. From there no key leads back to the cells: Escape does. A slider has no accessible
name (its description is not linked to it), nor has a button that shows an icon only. And what has the focus is told
by the colour of a border of one pixel. An ``HTML`` widget shows a picture and hears nothing.

Without ``anywidget`` a panel works all the same: a number is typed into the box beside its slider, which has a name
and keeps its keys, and what a click selects, a slider selects too.
"""

from collections.abc import Callable

import traitlets

MEND_JS = """
function render({ el }) {
  const controls = "[role=slider], select, input, button";
  const mend = () => panel.querySelectorAll(controls).forEach((control) => {
    control.setAttribute("data-lm-suppress-shortcuts", "true");
    const label = control.closest(".memkit-number")?.querySelector("label")?.textContent;
    const icon = control.querySelector("i")?.className.match(/fa-(\\w+)/)?.[1];
    if (label && control.getAttribute("role") === "slider") control.setAttribute("aria-label", label);
    if (icon && !control.textContent.trim()) control.setAttribute("aria-label", icon);
  });
  const leave = (event) => event.key === "Escape" && panel.closest(".jp-Cell")?.focus();
  const watch = () => {
    panel = el.closest(".memkit-panel");
    if (!panel) return void requestAnimationFrame(watch);
    observer.observe(panel, { childList: true, subtree: true });
    panel.addEventListener("keydown", leave, true);  // before a text box stops it
    mend();
  };
  const observer = new MutationObserver(mend);
  let panel;
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
"""

CLICK_JS = """
function render({ model, el }) {
  const clicked = (event) => {
    const panel = el.closest(".memkit-panel");
    if (event.target.tagName !== "IMG" || event.target.closest(".memkit-panel") !== panel) return;
    const box = event.target.getBoundingClientRect();
    const point = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    model.set("point", point);
    model.save_changes();
  };
  document.addEventListener("click", clicked);
  return () => document.removeEventListener("click", clicked);
}
export default { render };
"""


def faceless(name: str, **fields):
    """A widget without a face, of a class with these fields; ``None`` where ``anywidget`` is missing."""
    try:
        from anywidget import AnyWidget
    except ImportError:
        return None
    return type(name, (AnyWidget,), fields)()


def key_helper():
    """Keyboard, names and focus for the panel that it stands in."""
    return faceless("KeyHelper", _esm=MEND_JS, _css=FOCUS_CSS)


def click_helper(clicked: Callable[[float, float], None]):
    """``clicked(x, y)`` is called with shares of the picture's width and height, from its upper left corner."""
    helper = faceless("ClickHelper", _esm=CLICK_JS, point=traitlets.List(traitlets.Float()).tag(sync=True))
    if helper is not None:
        helper.observe(lambda change: clicked(*change["new"]), "point")
    return helper
