function render({ model, el }) {
  const controls = "[role=slider], select, input, button, summary, .memkit-view";
  const mend = () => panel.querySelectorAll(controls).forEach((control) => {
    control.setAttribute("data-lm-suppress-shortcuts", "true");
    const label = control.closest(".memkit-number")?.querySelector("label")?.textContent;
    const icon = control.querySelector("i")?.className.match(/fa-(\w+)/)?.[1];
    if (label && control.getAttribute("role") === "slider") control.setAttribute("aria-label", label);
    if (icon && !control.textContent.trim()) control.setAttribute("aria-label", icon);
  });
  const leave = (event) => event.key === "Escape" && panel.closest(".jp-Cell")?.focus();
  const marks = () => [...view.querySelectorAll("[data-pick], [data-bytes]")].filter((mark) => mark.checkVisibility());
  const kept = () => picked && marks().find(({ dataset }) => dataset.pick === picked);  // a new picture keeps the place
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
    new MutationObserver(() => view.querySelector(".memkit-here") || tell(kept()))
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
