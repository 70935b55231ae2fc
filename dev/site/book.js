// What a page does by itself: search, scroll areas that keys reach, contents folded on a phone, the filter of claims.
const [box, list, said] = [".search input", ".search ul", ".search p"].map((name) => document.querySelector(name));
let index;
if (matchMedia("(hover: none)").matches) box.placeholder = "Search";  // there is no key to press

const NO_WORDS = new Set("a an and are at by can do does for from get how i if in is it many much my need of on or the to vs what when which who why with you".split(" "));

// The model or the card that a query means: the name of most of whose parts it has. A model is meant by its family and
// its size, a card by its number.
const has = (query, part) => new RegExp(`(^|[^a-z0-9]|[a-z]{3})${part.replaceAll(".", "\\.")}(?![a-z0-9])`).test(query);
const isModel = (query, name) => query.includes(name.match(/^[a-z]+/)[0]) && has(query, name.match(/[\d.]+b(?=-|$)|[a-z]+$/)[0]);
const isCard = (query, name) => has(query, name.split(" ").find((word) => /\d/.test(word)));
function named(query, names, isMeant) {
  const count = (name) => name.toLowerCase().split(/[ -]/).filter((part) => has(query, part)).length;
  return names.filter((name) => isMeant(query, name.toLowerCase())).sort((a, b) => count(b) - count(a))[0];
}

// A query that names a model, and a card, is answered itself.
async function answered(query, { models, cards }) {
  const model = named(query, models, isModel), card = named(query, cards, isCard);
  const address = `index.html?fit=${encodeURIComponent(`${model}/${card ?? ""}`)}`;
  if (!model) return [];
  if (!card) return [[address, `Which card fits ${model}?`, "Choose one, and see the film of its step."]];
  const { of } = await (await fetch("answers.json")).json();
  return [[address, `${model} on one ${card}`, of[model][card].said]];
}

// Places by the words that they have, rare words and headings first; each with what stands around the first of them.
function ranked(words, { titles, entries }) {
  const texts = entries.map(([page, , heading, text]) => [titles[page][1], heading, text].map((part) => part.toLowerCase()));
  const weights = words.map((word) => Math.log(1 + entries.length / (1 + texts.filter((parts) => parts.some((part) => part.includes(word))).length)));
  const best = new Map();  // one place for each heading
  entries.forEach(([page, anchor, heading, text], at) => {
    const [stem, title] = titles[page], name = `${title}: ${heading}`, [inTitle, inHeading, inText] = texts[at];
    let score = 0, count = 0;
    words.forEach((word, number) => {
      const found = 3 * inHeading.includes(word) + 2 * inTitle.includes(word) + inText.includes(word);
      score += weights[number] * (found && 2 + found);
      count += !!found;
    });
    if (!count || score <= (best.get(name)?.score ?? 0)) return;
    const place = Math.min(...words.map((word) => inText.indexOf(word)).filter((place) => place >= 0));
    const first = place > 40 ? Math.min(text.indexOf(" ", place - 40) + 1, place) : 0;  // where a word begins
    const excerpt = Number.isFinite(place) ? `${first ? "… " : ""}${text.slice(first, first + 110)} …` : "";
    best.set(name, { score, count, found: [`${stem}.html#${anchor}`, name, excerpt] });
  });
  const found = [...best.values()].sort((a, b) => b.count - a.count || b.score - a.score);
  return { places: found.map((each) => each.found), most: found[0]?.count ?? 0, whole: found.filter(({ count }) => count === words.length).length };
}

async function search() {
  const query = box.value.toLowerCase(), all = query.split(/[\s,?!]+/).filter(Boolean);
  const words = all.filter((word) => !NO_WORDS.has(word)).map((word) => (word.length > 4 ? word.replace(/(ing|s)$/, "") : word));
  if (all.length && !index) {
    said.textContent = "Searching …";  // the index is fetched once
    index = fetch("search.json").then((answer) => answer.json());
  }
  let looked, itself = [];
  try {
    if (all.length) itself = await answered(query, looked = await index);
  } catch {
    if (!looked) index = undefined;  // the next letter asks again
    list.hidden = true;
    said.textContent = "The search could not be fetched. Type on to try again.";
    return;
  }
  if (query !== box.value.toLowerCase()) return;  // who typed on is answered then
  const { places, most, whole } = words.length ? ranked(words, looked) : { places: [], most: 0, whole: 0 };
  const shown = [...itself, ...places.slice(0, 12)];
  list.replaceChildren(...shown.map(([address, name, excerpt]) => {
    const item = document.createElement("li"), link = document.createElement("a"), small = document.createElement("small");
    link.href = address;
    small.textContent = excerpt;
    link.append(name, small);
    item.append(link);
    return item;
  }));
  list.hidden = !shown.length;
  if (!all.length) said.textContent = "";
  else if (!shown.length) said.textContent = "Nothing found. Try fewer or other words.";
  else if (whole) said.textContent = `${whole} place${whole > 1 ? "s" : ""}`;
  else said.textContent = most ? `No place has all these words; with ${most} of ${words.length}:` : "";
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
    let head;  // a subject of which nothing is left goes too
    for (const each of document.querySelectorAll(`main h2, ${form.dataset.of}`)) {
      if (each.matches("h2")) head = each;
      if (head) head.hidden = each === head || head.hidden && each.hidden;
    }
    count.textContent = `${left} of ${places.length} shown`;
  };
  form.addEventListener("input", filter);
  addEventListener("pageshow", () => (form.words.value || form.verdict?.value) && filter());  // kept over *Back*
}
// A guess stands beside its answer, where one was made; the form keeps it.
function tellGuesses() {
  for (const place of document.querySelectorAll("[data-guessed]")) {
    const form = [...document.forms].find(({ dataset }) => dataset.guess === place.dataset.guessed);
    const guess = form && new FormData(form).get("guess")?.trim();
    place.hidden = !guess;
    place.textContent = `your guess: ${guess}`;
  }
}
for (const event of ["change", "pageshow"]) addEventListener(event, tellGuesses);
addEventListener("submit", (event) => event.target.matches(".guess") && event.preventDefault());
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
if (document.querySelector("form.answer")) {
  import("./answer.mjs").catch(() => document.querySelector("form.answer").insertAdjacentHTML("afterbegin",
    '<p class="quiet wait" role="status">The films could not be fetched. Reload the page.</p>'));
}
