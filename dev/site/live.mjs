// Panels that move and exercises that answer. There is no formula here: the first control that is touched is answered
// from what the book's Python drew when the site was built; after a click that says its size, that Python runs in a worker.
import helper from "./live/in_page.mjs";

const { liveMb, liveBytes } = document.body.dataset;
const waiting = new Map(), listeners = new Set();
let worker, count = 0;

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
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(answer);
  };
  started.onerror = () => {
    for (const { reject } of waiting.values()) reject(new Error("the worker did not start"));
    waiting.clear();
  };
  return started;
}

// A line that offers to start Python, shows how far it is, and says what went wrong.
function starter(place, words, begin) {
  const button = document.createElement("button"), bar = document.createElement("progress");
  const said = document.createElement("span");
  button.type = "button";
  button.textContent = worker ? words : `${words} (${liveMb} MB, once)`;
  said.setAttribute("role", "status");
  bar.setAttribute("aria-label", "Python is being fetched");
  bar.hidden = true;
  place.append(button, bar, said);
  button.onclick = async () => {
    const follow = (share) => { bar.value = Math.min(share, 1); };
    button.hidden = true;
    bar.hidden = false;
    said.textContent = "Python is starting …";
    listeners.add(follow);
    try {
      await begin();
      place.replaceChildren(said);
      said.textContent = "";
    } catch (error) {
      said.textContent = `Python could not be started: ${error.message}`;
      button.hidden = false;
    }
    bar.hidden = true;
    listeners.delete(follow);
  };
  return said;
}

function show(element, facts) {
  if (facts.options) element.replaceChildren(...facts.options.map((text) => new Option(text)));
  if ("max" in facts && element.matches("[type=range]")) element.max = facts.max;
  if (!("value" in facts)) return;
  if (element.matches("select")) element.selectedIndex = facts.value;
  else if (element.matches("[type=checkbox]")) element.checked = facts.value;
  else if (element.matches("input")) element.value = facts.value;
  else element.innerHTML = facts.value;
}

class Panel {
  constructor(place) {
    Object.assign(this, { place, key: `panel-${++count}`, shown: {}, moves: new Map(), order: new Set() });
    for (const element of place.querySelectorAll(".controls :is(select, input, button)")) {
      element.disabled = false;
      if (element.dataset.play) element.onclick = () => this.play(element);
      else element.addEventListener(element.matches("[type=range]") ? "input" : "change", () => this.moved(element));
    }
    helper.render({ model: { send: ({ pick }) => this.ask("picked", pick) }, el: place.querySelector(".memkit-panel > *") });
    this.said = starter(place.querySelector(".live"), "Move all controls together", () => this.start());
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
      const moved = [...this.order], place = ({ dataset }) => (moved.indexOf(dataset.id) + 1 || moved.length + 1);
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
    for (const element of moved) this.moves.set(element.dataset.id, this.value(element));
    this.order = new Set(moved.map((element) => element.dataset.id));
    if (moved.length) this.drawnAhead();
  }

  value(element) {
    if (element.matches("select")) return element.selectedIndex;
    if (element.matches("[type=checkbox]")) return element.checked;
    return element.matches("[type=text]") ? element.value : Number(element.value);
  }

  // A number's box and its slider are one control.
  moved(element) {
    if (element.matches("[type=number]") && !Number.isFinite(Number(element.value || "x"))) return;
    if (element.matches("[type=range]")) element.closest(".number").querySelector("[type=number]").value = element.value;
    this.moves.set(element.dataset.id, this.value(element));
    this.order.delete(element.dataset.id);
    this.order.add(element.dataset.id);
    return this.live ? this.answer() : this.drawnAhead();
  }

  async drawnAhead() {
    this.stale(true);
    this.ahead ??= fetch(this.place.dataset.moves)
      .then((answer) => new Response(answer.body.pipeThrough(new DecompressionStream("gzip"))).json());
    const [opening, moves] = await this.ahead, [[control, value]] = this.moves;
    const changes = this.moves.size === 1 ? moves[`${control} ${JSON.stringify(value)}`] : undefined;
    if (this.live) return;
    if (!changes) {  // two controls at once, or a number that is typed: only Python knows
      return this.place.querySelector(".live button")?.click();
    }
    this.stale(false);
    this.said.textContent = "";
    const back = Object.keys(this.shown).filter((id) => !(id in changes)).map((id) => [id, opening[id]]);
    this.apply(Object.fromEntries([...back, ...Object.entries(changes)]));
    this.shown = changes;
  }

  // A picture of the settings before says so on itself until it is answered.
  stale(isStale) {
    this.place.classList.toggle("is-stale", isStale);
    this.place.querySelector(".memkit-view").dataset.stale = "Not yet: still the settings before";
  }

  apply(changes) {
    for (const [id, facts] of Object.entries(changes)) {
      for (const element of this.place.querySelectorAll(`[data-id="${id}"]`)) show(element, facts);
    }
    this.place.dispatchEvent(new Event("changed", { bubbles: true }));
  }

  async start() {
    const { panel, arguments: given } = this.place.dataset;
    this.apply(await ask("opened", this.key, panel, given));
    this.live = true;
    await this.answer();
    this.place.dataset.ready = "yes";
  }

  async ask(call, ...given) {
    if (this.live) this.apply(await ask(call, this.key, ...given));
    else this.said.textContent = "Press the button first: a click in the picture needs Python in this page.";
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
      for (const [name, value] of moves) await this.ask("moved", name, JSON.stringify(value));
    }
    this.works = false;
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
  const say = (answer) => { reply.textContent = told(answer); };
  const check = async () => {
    const answer = new FormData(form).get("answer")?.trim();
    if (!answer) say({ status: "not attempted yet", text: "Give an answer first." });
    else if (replies) say(replies[answer]);
    else say(await ask("checked", form.dataset.record, answer));
  };
  form.querySelector("fieldset").disabled = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (replies || form.dataset.ready) check();
    else form.querySelector(".live button")?.click();
  });
  if (replies) {
    const room = () => reserve(reply, Object.values(replies).map(told));
    room();
    addEventListener("resize", room);
  } else starter(form.querySelector(".live"), "Check with Python", async () => {
    await check();
    form.dataset.ready = "yes";
    form.querySelector(".again").hidden = false;
  });
}

document.querySelectorAll(".panel").forEach((place) => { place.live = new Panel(place); });
document.querySelectorAll("form.exercise").forEach(exercise);
