"""Keyboard, names and focus for the controls of a panel: what core ipywidgets lacks, in a few lines of the page.

Four facts make it necessary (JupyterLab 4, Notebook 7, ipywidgets 8.1). A notebook in command mode takes the
arrow keys away from sliders and menus, unless the focused element itself carries
``data-lm-suppress-shortcuts``. From there no key leads back to the cells: Escape does. A slider has no accessible
name (its description is not linked to it), nor has a button that shows an icon only. And what has the focus is told
by the colour of a border of one pixel. Without ``anywidget`` a panel works all the same; then a number is typed into
the box beside its slider, which has a name and keeps its keys.
"""

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


def key_helper():
    """The helper, a widget without a face, for a panel; ``None`` where ``anywidget`` is missing."""
    try:
        from anywidget import AnyWidget
    except ImportError:
        return None
    return type("KeyHelper", (AnyWidget,), {"_esm": MEND_JS, "_css": FOCUS_CSS})()
