// The first page: which model, on which card, in which way. All is looked up and drawn, nothing is computed here; what
// the menus and the pressed button do not name is not shown.
import { film } from "./film.mjs";
import { fetchPacked } from "./live.mjs";

const form = document.querySelector("form.answer"), { model, card } = form;
const [stage, asked, said, price, link] = [".stage", ".asked", ".said strong", ".price", ".link"].map((name) => form.querySelector(name));
const buttons = [...form.querySelectorAll(".ways button")], wait = document.createElement("p");
const again = Object.assign(document.createElement("button"), { type: "button", textContent: "Try again", onclick: show });
const names = () => [model.value, card.value], wanted = () => [...names(), way].join("/");
const written = (menu) => [...menu.options].find((option) => option.defaultSelected).value;  // not what a reload has kept
const isPhone = matchMedia("(hover: none)").matches && !!navigator.share;
const opening = [written(model), written(card), 0].join("/");
let way = 0, answers, playing, shown = "";

wait.className = "quiet wait";
wait.setAttribute("role", "status");
asked.before(wait);

// The file of all answers, fetched once; after a failure the next who asks fetches again.
async function lookUp() {
  answers ??= fetch(form.dataset.answers).then((file) => file.json());
  try {
    return await answers;
  } catch (error) {
    answers = undefined;
    throw error;
  }
}

function press(number) {
  way = number;
  buttons.forEach((button, each) => button.setAttribute("aria-pressed", each === way));
}

function fill({ prices, cards, of }) {
  const found = of[model.value][card.value], [low, high] = cards[card.value];
  asked.textContent = found.asked;
  said.textContent = found.said;
  price.innerHTML = prices[way];
  buttons.forEach((button, each) => {
    const [, verdict, peak] = found.rows[each], [, size, words] = button.children;
    [size.textContent, words.textContent, button.dataset.verdict] = [peak, verdict, verdict];
  });
  Object.assign(stage.dataset, { low, high });
  link.href = `fit/${names().join("-on-")}.html`.replaceAll(" ", "-");
}

async function show() {
  const now = wanted(), isOther = shown.split("/", 2).join("/") !== names().join("/");
  form.classList.toggle("is-stale", shown !== now && isOther && now !== opening);
  form.classList.toggle("is-waiting", shown !== now);
  wait.textContent = shown === now ? "" : "The film is being fetched …";
  if (shown === now) return;
  const address = `films/${model.value}-${way}.json.gz`.replaceAll(" ", "-");
  let looked, data;
  try {
    [looked, data] = await Promise.all([now === opening && !shown ? null : lookUp(), fetchPacked(address)]);
  } catch {
    if (wanted() === now && shown !== now) wait.replaceChildren("The film could not be fetched. ", again);
    return;
  }
  // who chose again is answered then, with the words of that choice; a film that plays is not begun anew
  if (wanted() !== now || shown === now || shown && !looked) return;
  if (looked) fill(looked);
  playing?.stop();
  const place = document.createElement("div"), { low, high } = stage.dataset;
  stage.replaceChildren(place);
  playing = film(place, data, { card: { name: card.value, low: +low, high: +high }, plays: true });
  shown = now;
  show();
}

const title = () => names().join(" on one ");

function told() {
  const [name, peak] = [...buttons[way].children].map(({ textContent }) => textContent.replace("+ ", ""));
  return `${name[0].toUpperCase()}${name.slice(1)}: the peak is ${peak}.`;
}

// The frame that is shown as a picture for those whom a link does not reach: always on white, with whole sentences.
function picture() {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1200, height: 630 }), pen = canvas.getContext("2d");
  let top = 20;
  const write = (text, size, weight = "") => {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    let line = "";
    for (const word of [...text.split(" "), ""]) {
      if (word && pen.measureText(`${line} ${word}`).width < 1120) line = `${line} ${word}`.trim();
      else {
        pen.fillText(line, 40, top += 1.3 * size);
        line = word;
      }
    }
  };
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, 1200, 630);
  pen.fillStyle = "#1a1a1a";
  write(title(), 40, "600");
  write(said.textContent, 28);
  pen.save();
  pen.translate(40, top + 20);
  pen.scale(1.75, 1.75);
  playing.drawChart(pen, 640, (530 - top - 40) / 1.75, 1.75, "#1a1a1a");
  pen.restore();
  pen.fillStyle = "#1a1a1a";
  top = 515;
  write(`${told()} ${playing.said()}`, 24);
  pen.fillStyle = "#545b66";
  pen.font = "20px system-ui, sans-serif";
  pen.fillText(`${document.querySelector("h1").textContent} ${location.host}`, 40, 612);
  return new Promise((resolve) => canvas.toBlob(resolve));
}

// A phone hands a link or a picture on; true if it did, or if who closed its menu wants no more of it.
async function handOn(facts) {
  if (!isPhone || facts.files && !navigator.canShare?.(facts)) return false;
  return navigator.share({ title: title(), text: `${said.textContent} ${told()}`, ...facts }).then(() => true, ({ name }) => name === "AbortError");
}

async function save() {
  if (form.matches(".is-stale, .is-waiting")) return;  // there is no frame of what the menus name
  const name = `${names().join("-on-")}.png`.replaceAll(" ", "-"), file = new File([await picture()], name, { type: "image/png" });
  if (await handOn({ files: [file] })) return;
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
  form.querySelector(".copied").textContent = `Saved as ${name}.`;
}

function choose() {
  const address = new URL(location.href.split(/[?#]/)[0]);
  address.searchParams.set("fit", names().join("/"));
  address.searchParams.set("way", buttons[way].firstElementChild.textContent.replace("+ ", ""));
  history.replaceState(null, "", address);
  form.querySelector(".copied").textContent = "";
  show();
}

// What a link names; what is not here is said.
function openLinked() {
  const given = new URLSearchParams(location.search), [, ...pair] = given.get("fit")?.match(/^([^/]*)\/?(.*)$/) ?? [];
  const unknown = [];
  for (const [menu, name] of [[model, pair[0]], [card, pair[1]]]) {
    const option = [...menu.options].find(({ value }) => value.toLowerCase() === name?.toLowerCase());
    if (option) menu.value = option.value;
    else if (name) unknown.push(name);
  }
  const number = buttons.findIndex((button) => button.firstElementChild.textContent.replace("+ ", "") === given.get("way"));
  if (number >= 0) press(number);
  else if (given.get("way")) unknown.push(given.get("way"));
  form.querySelector(".unknown").textContent = unknown.length ? `Not here: ${unknown.join(", ")}, which the link names. Choose below.` : "";
}

openLinked();
show();
for (const event of ["pageshow", "online"]) addEventListener(event, show);  // menus kept over *Back*; a network again
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", choose);
buttons.forEach((button, number) => button.addEventListener("click", () => {
  press(number);
  choose();
}));
form.querySelector(".save").addEventListener("click", save);
if (isPhone) form.querySelector(".copy").textContent = "Share this film";
form.querySelector(".copy").addEventListener("click", async () => {
  choose();
  if (await handOn({ url: location.href })) return;
  const isCopied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  form.querySelector(".copied").textContent = isCopied ? "Copied." : "The address bar has it now.";
});
