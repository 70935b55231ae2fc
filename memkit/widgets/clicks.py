"""Where a reader clicks on a panel's picture: ten lines of JavaScript that core ipywidgets lacks.

An ``HTML`` widget shows a picture and hears nothing. Without ``anywidget`` a panel works all the same: what a
click selects, a slider with a name selects by keyboard.
"""

from collections.abc import Callable

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


def click_helper(clicked: Callable[[float, float], None]):
    """The helper, a widget without a face; ``None`` where ``anywidget`` is missing.

    ``clicked(x, y)`` is called with shares of the picture's width and height, from its upper left corner.
    """
    try:
        import traitlets
        from anywidget import AnyWidget
    except ImportError:
        return None
    fields = {"_esm": CLICK_JS, "point": traitlets.List(traitlets.Float()).tag(sync=True)}
    helper = type("ClickHelper", (AnyWidget,), fields)()
    helper.observe(lambda change: clicked(*change["new"]), "point")
    return helper
