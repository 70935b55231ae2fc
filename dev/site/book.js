// What a page does by itself: search, scroll areas that keys reach, contents folded on a phone, the filter of claims.
const [box, list, said] = [".search input", ".search ul", ".search p"].map((name) => document.querySelector(name));
let index;
if (matchMedia("(hover: none)").matches) box.placeholder = "Search";  // there is no key to press

async function search() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !index) {
    said.textContent = "Searching …";  // the index is fetched once
    index = fetch("search.json").then((answer) => answer.json());
  }
  let titles, entries = [];
  try {
    if (words.length) ({ titles, entries } = await index);
  } catch {
    index = undefined;  // the next letter asks again
    list.hidden = true;
    said.textContent = "The search could not be fetched. Type on to try again.";
    return;
  }
  const best = new Map();  // one place for each heading
  for (const [page, anchor, heading, text] of entries) {
    const [stem, title] = titles[page], name = `${title}: ${heading}`;
    const all = `${title} ${heading} ${text}`.toLowerCase();
    if (!words.every((word) => all.includes(word))) continue;
    const score = words.filter((word) => heading.toLowerCase().includes(word)).length * 2
      + words.filter((word) => title.toLowerCase().includes(word)).length;
    if (score > (best.get(name)?.[0] ?? -1)) best.set(name, [score, `${stem}.html#${anchor}`, name]);
  }
  const found = [...best.values()];
  found.sort((a, b) => b[0] - a[0]);
  list.replaceChildren(...found.slice(0, 12).map(([, address, words]) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = address;
    link.textContent = words;
    item.append(link);
    return item;
  }));
  list.hidden = !found.length;
  said.textContent = words.length ? (found.length ? `${found.length} place${found.length > 1 ? "s" : ""}` : "Nothing found. Try fewer or other words.") : "";
}
box.addEventListener("input", search);

document.addEventListener("keydown", (event) => {
  const links = [...list.querySelectorAll("a")], here = links.indexOf(document.activeElement);
  if (event.key === "/" && !event.target.closest("input, select, textarea")) {
    box.focus();
    event.preventDefault();
  } else if (event.key === "Escape" && event.target.closest(".search")) {
    box.value = "";
    search();
    box.focus();
  } else if (event.target.closest(".search") && ["ArrowDown", "ArrowUp"].includes(event.key) && links.length) {
    const next = here + (event.key === "ArrowDown" ? 1 : -1);
    (links[next] ?? box).focus();
    event.preventDefault();
  }
});

// What is wider than its place scrolls; then a key must reach it too.
function reachable() {
  for (const area of document.querySelectorAll("pre, .scroll, .picture, .memkit-table, .side, .toc")) {
    const scrolls = area.scrollWidth > area.clientWidth + 1 || (area.matches(".side, .toc") && area.scrollHeight > area.clientHeight + 1);
    if (scrolls) area.tabIndex = 0;
    else area.removeAttribute("tabindex");
    if (area.matches("pre, .scroll, .picture, .memkit-table")) {
      if (scrolls) { area.setAttribute("role", "group"); area.ariaLabel = "scrolls sideways"; }
      else { area.removeAttribute("role"); area.ariaLabel = null; }
    }
  }
}
addEventListener("resize", reachable);
addEventListener("load", reachable);
document.addEventListener("toggle", reachable, true);
document.addEventListener("changed", reachable);
reachable();

const contents = document.querySelector(".contents");
const phone = matchMedia("(max-width: 50rem)");
const fold = () => { contents.open = !phone.matches; };
phone.addEventListener("change", fold);
fold();

// The address of something inside a fold opens the fold.
function unfold() {
  let place = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.parentElement;
  for (; place; place = place.parentElement) if (place.matches("details")) place.open = true;
}
addEventListener("hashchange", unfold);
unfold();

for (const form of document.querySelectorAll("form.filter")) {
  const places = [...document.querySelectorAll(form.dataset.of)], count = form.querySelector("output");
  form.addEventListener("submit", (event) => event.preventDefault());
  const filter = () => {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean), verdict = form.verdict?.value;
    let left = 0;
    for (const place of places) {
      const fits = words.every((word) => place.textContent.toLowerCase().includes(word));
      place.hidden = !(fits && (!verdict || place.dataset.verdict === verdict));
      left += !place.hidden;
    }
    count.textContent = `${left} of ${places.length} shown`;
  };
  form.addEventListener("input", filter);
  addEventListener("pageshow", () => (form.words.value || form.verdict?.value) && filter());  // kept over *Back*
}
if (document.querySelector("[data-panel], .exercise")) import("./live.mjs");
const films = document.querySelectorAll("[data-film]");
if (films.length) {
  import("./film.mjs").then(({ film }) => films.forEach(async (place) => {
    const data = await (await fetch(place.dataset.film)).json(), stage = document.createElement("div");
    place.firstElementChild.classList.add("still");  // what a printer gets
    place.append(stage);
    film(stage, data);
  }));
}

// The first page's answer: looked up, never computed here. What the menus do not name is not shown.
const asking = document.querySelector("form.answer");
if (asking) {
  let answers, prices;
  const menus = [asking.model, asking.card], place = asking.querySelector(".asked");
  const wait = document.createElement("p"), again = document.createElement("button");
  const chosen = () => menus.map((menu) => menu.value).join("/");
  let shown = menus.map((menu) => [...menu.options].find((option) => option.defaultSelected).value).join("/");
  const lines = [...asking.querySelectorAll("tbody tr")], addressOf = (model, card) => `fit/${model}-on-${card}.html`.replaceAll(" ", "-");
  const press = (way) => {
    lines.forEach((line, number) => line.querySelector("button").setAttribute("aria-pressed", number === way));
    asking.querySelector(".price").innerHTML = prices[way];
  };
  const load = async () => {
    answers ??= fetch(asking.dataset.answers).then((file) => file.json());
    try {
      prices = (await answers).prices;
    } catch (error) {
      answers = undefined;  // the next one who asks fetches again
      throw error;
    }
    return (await answers).of;
  };
  const stale = (isStale) => {
    asking.classList.toggle("is-stale", isStale);
    wait.hidden = !isStale;
    place.hidden = isStale;
  };
  const answer = async () => {
    const wanted = chosen(), [model, card] = menus.map((menu) => menu.value);
    stale(wanted !== shown);
    if (wanted === shown) return;
    wait.textContent = "Looking it up …";
    let found;
    try {
      found = (await load())[model][card];
    } catch {
      wait.replaceChildren("The answers could not be fetched. ", again);
      return;
    }
    if (chosen() !== wanted) return;  // who chose again is answered then
    const { asked, said, rows, bars, first } = found;
    place.textContent = asked;
    asking.querySelector(".said strong").textContent = said;
    lines.forEach((line, way) => {
      const [bar, ...cells] = line.querySelectorAll("td");
      bar.firstElementChild.style.width = `${bars[way]}%`;
      cells.forEach((cell, place) => { cell.textContent = rows[way][place]; });
    });
    press(first);
    asking.querySelector(".link").href = addressOf(model, card);
    shown = wanted;
    stale(false);
  };
  wait.className = "quiet asked";
  wait.setAttribute("role", "status");
  wait.hidden = true;
  place.before(wait);
  again.type = "button";
  again.textContent = "Try again";
  again.addEventListener("click", answer);
  lines.forEach((line, way) => line.querySelector("button").addEventListener("click", () => load().then(() => press(way), () => {
    asking.querySelector(".price").textContent = "What it costs could not be fetched. Press again.";
  })));
  const linked = new URLSearchParams(location.search).get("fit")?.match(/^([^/]+)\/(.+)$/);
  if (linked) {
    for (const [menu, wanted] of [[asking.model, linked[1]], [asking.card, linked[2]]]) {
      if ([...menu.options].some((option) => option.value === wanted)) menu.value = wanted;
    }
  }
  answer();
  for (const event of ["pageshow", "online"]) addEventListener(event, answer);  // menus kept over *Back*; a network again
  asking.addEventListener("submit", (event) => event.preventDefault());
  asking.addEventListener("input", answer);
}
