// Panels that move and exercises that answer. There is no formula here: the first control that is touched is answered
// from what the book's Python drew when the site was built; after a click that says its size, that Python runs in a worker.
import helper from "./live/in_page.mjs";

const { liveMb, liveBytes } = document.body.dataset;
const waiting = new Map(), listeners = new Set();
let worker, hasAnswered, count = 0;

export function ask(call, ...given) {
  worker ??= startWorker();
  return new Promise((resolve, reject) => {
    waiting.set(++count, { resolve, reject });
    worker.postMessage({ number: count, call, given });
  });
}

function startWorker() {
  const started = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
  started.onmessage = ({ data: { number, fetched, answer, error } }) => {
    if (fetched) return listeners.forEach((listener) => listener(fetched / liveBytes));
    if (error && !hasAnswered) return dropWorker(error);
    hasAnswered = true;
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(answer);
  };
  started.onerror = () => dropWorker("the worker does not run");
  return started;
}

// A worker that could not fetch its Python, or has died, answers nobody again: the next who asks starts another.
function dropWorker(words) {
  worker.terminate();
  worker = hasAnswered = undefined;
  for (const { reject } of waiting.values()) reject(new Error(words));
  waiting.clear();
}

// A line that offers to start Python, shows how far it is, and says what went wrong; then it can be pressed again. Who
// does not see the line, below a panel's picture, is told by `tell`.
function starter(place, words, begin, tell = () => {}) {
  const button = document.createElement("button"), bar = document.createElement("progress");
  const said = document.createElement("span");
  button.type = "button";
  button.textContent = worker ? words : `${words} (${liveMb} MB, once)`;
  said.setAttribute("role", "status");
  bar.setAttribute("aria-label", "Python is being fetched");
  bar.hidden = true;
  place.append(button, bar, said);
  let share = 0;
  const follow = (now = share) => {
    bar.value = share = Math.min(now, 1);
    tell(share < 1 ? `Not yet: Python is being fetched, ${Math.round(100 * share)} % of ${liveMb} MB` : "Not yet: Python is starting");
  };
  const press = async () => {
    if (button.hidden) return follow();  // it starts already
    button.hidden = true;
    bar.hidden = false;
    said.textContent = "Python is starting …";
    follow();
    listeners.add(follow);
    try {
      await begin();
      said.textContent = "";
    } catch (error) {
      said.textContent = `Python could not be started: ${error.message}`;
      button.textContent = "Try again";
      button.hidden = false;
    }
    bar.hidden = true;
    listeners.delete(follow);
  };
  button.onclick = press;
  return { said, button, press };
}

// A file that was made when the site was built: a panel's opening and what each move changes, or a film.
export async function fetchPacked(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(answer.statusText);
  return new Response(answer.body.pipeThrough(new DecompressionStream("gzip"))).json();
}

// A browser keeps what was chosen over *Back* and reload; the picture is the opening's.
function asWritten(element) {
  if (element.matches("select")) element.selectedIndex = [...element.options].findIndex((option) => option.defaultSelected);
  else if (element.matches("[type=checkbox]")) element.checked = element.defaultChecked;
  else if (element.matches("input")) element.value = element.defaultValue;
}

function show(element, facts) {
  if (facts.options) element.replaceChildren(...facts.options.map((text) => new Option(text)));
  if ("max" in facts && element.matches("[type=range]")) element.max = facts.max;
  if (!("value" in facts)) return;
  if (element.matches("select")) element.selectedIndex = facts.value;
  else if (element.matches("[type=checkbox]")) element.checked = facts.value;
  else if (element.matches("input")) element.value = element.dataset.kept = facts.value;
  else element.innerHTML = facts.value;
}

class Panel {
  constructor(place) {
    Object.assign(this, { place, key: `panel-${++count}`, shown: {}, moves: new Map(), made: new Map() });
    for (const element of place.querySelectorAll(".controls :is(select, input, button)")) {
      element.disabled = false;
      asWritten(element);
      if (element.dataset.play) element.onclick = () => this.play(element);
      else element.addEventListener(element.matches("[type=range]") ? "input" : "change", () => this.moved(element));
    }
    helper.render({ model: { send: ({ pick }) => this.ask("picked", pick) }, el: place.querySelector(".memkit-panel > *") });
    this.python = starter(place.querySelector(".live"), "Move all controls together", () => this.start(), (words) => {
      place.querySelector(".memkit-view").dataset.stale = words;
    });
    this.said = this.python.said;
    this.again = document.createElement("button");
    Object.assign(this.again, { type: "button", textContent: "Try again", hidden: true, onclick: () => this.drawnAhead() });
    this.said.after(this.again);
    this.offerLink();
    this.openLinked();
  }

  // Each control has one element that a link names: a number's box, not its slider.
  get named() {
    return [...this.place.querySelectorAll(".controls :is(select, input):not([type=range])")];
  }

  // The panel's name in a link; a second of its kind on a page has a number behind it.
  get name() {
    const { panel } = this.place.dataset, alike = [...document.querySelectorAll(`[data-panel="${panel}"]`)];
    return alike.length > 1 ? `${panel}-${alike.indexOf(this.place) + 1}` : panel;
  }

  text(element) {
    if (element.matches("select")) return element.options[element.selectedIndex].text;
    return element.matches("[type=checkbox]") ? String(element.checked) : element.value;
  }

  offerLink() {
    const line = document.createElement("p"), button = document.createElement("button"), said = document.createElement("span");
    const opening = new Map(this.named.map((element) => [element, this.text(element)]));
    line.className = "share";
    button.type = "button";
    button.textContent = "Copy a link to these settings";
    said.setAttribute("role", "status");
    button.onclick = async () => {
      const link = new URL(location.href.split(/[?#]/)[0]);
      const moved = [...this.made.keys()], place = ({ dataset }) => (moved.indexOf(dataset.id) + 1 || moved.length + 1);
      for (const element of this.named.sort((one, other) => place(one) - place(other))) {
        if (this.text(element) !== opening.get(element)) link.searchParams.set(`${this.name}.${element.dataset.id}`, this.text(element));
      }
      link.hash = this.place.closest("[id]").id;
      history.replaceState(null, "", link);
      said.textContent = await navigator.clipboard?.writeText(link.href).then(() => "Copied.", () => "") || "The address bar has it now.";
    };
    line.append(button, said);
    this.place.append(line);
  }

  // Settings that a link carries; what the panel does not offer is passed over.
  openLinked() {
    const given = new URLSearchParams(location.search), moved = [];
    for (const [key, wanted] of given) {  // in the order in which the reader moved them: one may limit another
      const element = this.named.find((each) => key === `${this.name}.${each.dataset.id}`);
      if (!element) continue;
      if (element.matches("select")) {
        const place = [...element.options].findIndex((option) => option.text === wanted);
        if (place < 0) continue;
        element.selectedIndex = place;
      } else if (element.matches("[type=checkbox]")) element.checked = wanted === "true";
      else element.value = wanted;
      moved.push(element);
    }
    for (const element of moved) this.made.set(element.dataset.id, this.value(element));
    if (moved.length) this.drawnAhead();
  }

  value(element) {
    if (element.matches("select")) return element.selectedIndex;
    if (element.matches("[type=checkbox]")) return element.checked;
    return element.matches("[type=text]") ? element.value : Number(element.value);
  }

  // A number's box and its slider are one control; a box that is left without a number has the one before again.
  moved(element) {
    const box = element.closest(".number")?.querySelector("[type=number]");
    if (element === box && !Number.isFinite(Number(box.value || "x"))) {
      box.value = box.dataset.kept ?? box.defaultValue;
      return undefined;
    }
    if (box) box.value = box.dataset.kept = element.value;
    const { id } = element.dataset;
    this.made.delete(id);  // the last to move stands last
    this.made.set(id, this.value(element));
    if (!this.live) return this.drawnAhead();
    this.moves.set(id, this.made.get(id));
    return this.answer();
  }

  async drawnAhead() {
    this.stale(true);
    let opening, moves;
    try {
      [opening, moves] = await (this.ahead ??= fetchPacked(this.place.dataset.moves));
    } catch {
      this.ahead = undefined;
      this.failed("The answers could not be fetched.");
      this.again.hidden = false;
      return;
    }
    if (this.live) return;
    const made = [...this.made].filter(([id, value]) => value !== opening[id].value);
    const changes = made.length ? moves[made.map(([id, value]) => `${id} ${JSON.stringify(value)}`).join()] : {};
    if (!changes) return this.python.press();  // two controls at once, or a number that is typed: only Python knows
    this.stale(false);
    this.said.textContent = "";
    const back = Object.keys(this.shown ?? opening).filter((id) => !(id in changes)).map((id) => [id, opening[id]]);
    this.apply(Object.fromEntries([...back, ...Object.entries(changes)]));
    this.shown = changes;
  }

  // A picture of the settings before says so on itself until it is answered.
  stale(isStale) {
    this.place.classList.toggle("is-stale", isStale);
    this.place.classList.remove("is-failed");
    this.again.hidden = true;
    this.place.querySelector(".memkit-view").dataset.stale = "Not yet: still the settings before";
  }

  // Where no answer comes the one before is not shown: the menus do not name it.
  failed(words) {
    this.said.textContent = words;
    this.place.classList.add("is-stale", "is-failed");
    this.place.querySelector(".memkit-view").dataset.stale = "No answer for these settings";
  }

  apply(changes) {
    for (const [id, facts] of Object.entries(changes)) {
      for (const element of this.place.querySelectorAll(`[data-id="${id}"]`)) show(element, facts);
    }
    this.place.dispatchEvent(new Event("changed", { bubbles: true }));
  }

  async start() {
    const { panel, arguments: given } = this.place.dataset;
    this.again.hidden = true;
    try {
      this.apply(await ask("opened", this.key, panel, given));
    } catch (error) {
      if (this.place.matches(".is-stale")) this.failed("");
      throw error;
    }
    this.live = true;
    this.moves = new Map(this.made);
    await this.answer();
    this.place.dataset.ready = "yes";
  }

  async ask(call, ...given) {
    if (!this.live) {
      this.said.textContent = "Press the button first: a choice in the picture needs Python in this page.";
      return;
    }
    try {
      this.apply(await ask(call, this.key, ...given));
    } catch (error) {  // the button starts it again, with all that the reader has moved
      this.live = false;
      this.moves.clear();
      this.shown = null;  // it has changed more than was drawn ahead
      this.failed(`Python has stopped: ${error.message}`);
      Object.assign(this.python.button, { textContent: "Try again", hidden: false });
    }
  }

  // Moves that are made while Python works are answered once, each control with its last value.
  async answer() {
    clearTimeout(this.pause);
    if (this.works) return;
    this.works = true;
    this.stale(true);
    while (this.moves.size) {
      const moves = [...this.moves];
      this.moves.clear();
      for (const [name, value] of moves) if (this.live) await this.ask("moved", name, JSON.stringify(value));
    }
    this.works = false;
    if (!this.live) return;
    this.stale(false);
    this.pause = setTimeout(() => this.ask("rested"), 500);
  }

  play(button) {
    const slider = this.place.querySelector(`[type=range][data-id="${button.dataset.for}"]`);
    clearInterval(this.playing);
    if (button.textContent === "Stop") {
      button.textContent = "Play";
      return;
    }
    if (slider.value === slider.max) slider.value = slider.min;
    button.textContent = "Stop";
    this.playing = setInterval(() => {
      slider.stepUp();
      this.moved(slider);
      if (slider.value === slider.max) this.play(button);
    }, Number(button.dataset.play));
  }
}

// Room for the longest reply, so that nothing below moves when one is read; measured where no screen reader listens.
function reserve(reply, texts) {
  const twin = reply.cloneNode();
  twin.removeAttribute("role");
  reply.after(twin);
  const heights = texts.map((text) => { twin.textContent = text; return twin.getBoundingClientRect().height; });
  twin.remove();
  Object.assign(reply.style, { display: "block", minHeight: `${Math.max(...heights)}px` });
}

function exercise(form) {
  const reply = form.querySelector(".reply"), replies = form.dataset.replies && JSON.parse(form.dataset.replies);
  const told = ({ status, text }) => `${status[0].toUpperCase()}${status.slice(1)}. ${text}`;
  let python;
  const say = (answer) => { reply.textContent = told(answer); };
  const check = async () => {
    const answer = new FormData(form).get("answer")?.trim();
    if (!answer) say({ status: "not attempted yet", text: "Give an answer first." });
    else if (replies) say(replies[answer]);
    else say(await ask("checked", form.dataset.record, answer));
  };
  form.querySelector("fieldset").disabled = false;
  form.addEventListener("input", () => { reply.textContent = ""; });  // it was another answer's
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (replies || form.dataset.ready) check().catch((error) => say({ status: "not checked", text: `${error.message}. Check again.` }));
    else python.press();
  });
  if (replies) {
    const room = () => reserve(reply, Object.values(replies).map(told));
    room();
    addEventListener("resize", room);
  } else python = starter(form.querySelector(".live"), "Check with Python", async () => {
    await check();
    form.dataset.ready = "yes";
    form.querySelector(".again").hidden = false;
  });
}

document.querySelectorAll("[data-panel]").forEach((place) => { place.live = new Panel(place); });
document.querySelectorAll("form.exercise").forEach(exercise);
