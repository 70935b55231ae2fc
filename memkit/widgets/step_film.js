// The step film: lines of a program on the left, every block on the right, one handle. It is given the events of a
// timeline once (see step_film.py) and needs nobody afterwards: JupyterLab, the site and a saved file run this file.

const STYLE = `
.memkit-film { container-type: inline-size; color: inherit; font: 15px/1.5 system-ui, sans-serif; max-width: 1060px;
  --soft: color-mix(in srgb, currentColor 8%, transparent); --rule: color-mix(in srgb, currentColor 28%, transparent); }
.memkit-film .sides { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 14fr); gap: 18px; }
.memkit-film .code { position: relative; max-height: 428px; overflow: auto; font: 12.5px/1.7 ui-monospace, monospace;
  border: 1px solid var(--rule); border-radius: 4px; }
.memkit-film .code p { margin: 0; padding: 5px 8px 0; font: 12px/1.5 system-ui, sans-serif; opacity: .8; }
.memkit-film .line { display: grid; grid-template-columns: 3.4em minmax(0, 1fr) 86px; min-height: 22px;
  line-height: 18px; padding: 2px 0; box-sizing: border-box; border-left: 4px solid transparent; }
.memkit-film .line > :first-child { text-align: right; padding-right: .9em; opacity: .7; }
.memkit-film .line > :nth-child(2) { white-space: pre-wrap; overflow-wrap: anywhere; }
.memkit-film .line.on { background: var(--soft); border-color: #D55E00; font-weight: 650; }
.memkit-film .line.on.gives { border-color: #0072B2; }
.memkit-film .line.dies > :nth-child(2)::after { content: "  ← out of memory"; white-space: pre-wrap; }
.memkit-film .line.dies { outline: 2px solid #D55E00; outline-offset: -2px; }
.memkit-film .bar { position: relative; margin: 2px 4px 2px 8px; font-size: 11px; line-height: 18px;
  text-align: right; }
.memkit-film .bar i { position: absolute; top: 0; bottom: 0; opacity: .5; }
.memkit-film .bar span { position: relative; }
.memkit-film .total { font-size: 26px; font-weight: 650; font-variant-numeric: tabular-nums; }
.memkit-film .when { font-variant-numeric: tabular-nums; }
.memkit-film .parts { display: grid; grid-template-columns: repeat(auto-fill, minmax(174px, 1fr)); gap: 2px 14px;
  font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }  /* no number's width moves the handle */
.memkit-film .parts b { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.memkit-film .parts .is-zero { opacity: .8; }
.memkit-film canvas { display: block; width: 100%; touch-action: pan-y; }
.memkit-film canvas.areas { cursor: ew-resize; height: 222px; }
.memkit-film canvas.blocks { height: 125px; margin-top: 8px; }
.memkit-film .say { min-height: 3em; margin: 6px 0; }
.memkit-film .hand { display: block; width: 100%; margin: 8px 0; }
.memkit-film .buttons { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; }
.memkit-film button { font: inherit; color: inherit; background: var(--soft); border: 1px solid var(--rule);
  border-radius: 99px; padding: 4px 14px; cursor: pointer; }
.memkit-film :is(button, input, .code):focus-visible { outline: 3px solid #0072B2; outline-offset: 2px; }
.memkit-film small { font-size: 12.5px; opacity: .8; }
@container (max-width: 720px) {
  .memkit-film .sides { grid-template-columns: minmax(0, 1fr); }
  .memkit-film .code { max-height: 190px; }
}
@container (max-width: 480px) {  /* a line for each part, and room: no number's width moves what is below */
  .memkit-film .when { display: block; min-height: 3em; }
  .memkit-film .sides > :last-child { display: flex; flex-direction: column; }
  .memkit-film .parts { grid-template-columns: none; order: 1; margin-top: 8px; }
  .memkit-film .say { min-height: 6em; }
}`;

const SECONDS = 25, SHORT_SECONDS = 7, REST_MS = 1200, ROWS = 5;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const AXIS = 58, TOP = 28, FOOT = 48, PEAK = 8;  // pixels: of the axis, above and below the areas, of a step's peak
const SAID = {  // what an operation makes, in words
  empty: "a new tensor", zeros: "zeros", "zeros like": "zeros", "ones like": "the gradient of the loss itself",
  randint: "random token ids", arange: "the positions", embedding: "the tokens' vectors", cat: "parts, joined",
  "copy out": "a copy of what the ranks sent", add: "a sum", mul: "a product, value by value", div: "a quotient",
  addmm: "a matrix product", mm: "a matrix product", bmm: "matrix products", gelu: "GELU's output", silu: "SiLU's output",
  "native layer norm": "a norm's output", "rms norm": "a norm's output", attention: "attention's output",
  "log softmax": "the log-softmax of the logits", "nll loss forward": "the loss", "nll loss": "the loss",
  "nll loss backward": "the gradient of the log-softmax", "log softmax backward data": "the gradient of the logits",
  "log softmax backward": "the gradient of the logits", "embedding dense backward": "the gradient of a table",
  "embedding backward": "the gradient of a table", sum: "a sum over the tokens",
  "to copy": "a copy in another dtype", "to copy backward": "a gradient in another dtype", neg: "values, negated",
  "layer norm": "a norm's output", "grouped mm": "products of the experts", "gemm 4bit": "a product with 4-bit weights",
  "grouped mm backward": "gradients of the experts' products", "create dynamic map": "the table of the 8-bit codes",
  "foreach sqrt": "the square roots of all second moments",
  "all gather": "weights, gathered from all ranks", "reduce scatter": "gradients, summed over the ranks",
};

export function bytes(size) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(2) : Math.round(size).toLocaleString("en")} ${UNITS[unit]}`;
}

// Everything that a moment is, from the events alone: bytes by part, by line, and which blocks are alive.
export class Story {
  constructor(data) {
    Object.assign(this, data);
    const count = this.changes.length, numParts = this.parts.length;
    this.size = [];  // of each block
    this.bornAt = [];
    this.diesAt = [];
    this.blockAt = new Int32Array(count);
    this.totals = new Float64Array(count);
    this.heights = this.parts.map(() => new Float64Array(count));
    const now = new Float64Array(numParts);
    for (let at = 0; at < count; at += 1) {
      const change = this.changes[at], isBirth = change > 0, block = isBirth ? this.size.length : -change - 1;
      if (isBirth) {
        this.size.push(change);
        this.bornAt.push(at);
        this.diesAt.push(count);
      } else {
        this.diesAt[block] = at;
      }
      this.blockAt[at] = block;
      now[this.part[block]] += isBirth ? change : -this.size[block];
      for (let part = 0; part < numParts; part += 1) this.heights[part][at] = now[part];
      this.totals[at] = now.reduce((sum, size) => sum + size);
    }
    this.count = count;
    this.peak = this.totals.indexOf(Math.max(...this.totals));
    this.most = this.totals[this.peak];
    this.inOrder = [...this.size.keys()].sort((a, b) => this.part[a] - this.part[b] || a - b);
  }

  live(at) {
    return this.inOrder.filter((block) => this.bornAt[block] <= at && this.diesAt[block] > at);
  }

  byLine(at) {
    const held = this.lines.map(() => new Float64Array(this.parts.length));
    for (const block of this.live(at)) held[this.line[block]][this.part[block]] += this.size[block];
    return held;
  }

  span(at) {
    return this.spans.findLast(([first]) => first <= at);
  }

  when(at) {
    const [, phase, step, micro] = this.span(at);
    const microBatches = /ward/.test(phase) && this.spans.some(([, name, , number]) => name === "backward" && number > 1);
    if (!phase || phase === "init") return "making the model";
    return `step ${step}, ${phase}${microBatches ? `, micro-batch ${micro}` : ""}`;
  }

  // What a block is, in words: by its part where that says it, by the name that its line gives it, by its operation.
  said(block) {
    const part = this.parts[this.part[block]][0], op = this.ops[this.op[block]] || "the program";
    const [, number, text] = this.lines[this.line[block]], [, phase] = this.span(this.bornAt[block]);
    const inside = number || !text ? "" : `, in ${text}`;
    if (part === "weights") return `weights${inside}`;
    if (part === "optimizer states") return `a state of the optimizer${inside}`;
    if (part === "gradients") return `the gradient of a parameter${inside}`;
    const given = text.match(/^\s*([a-z]\w{2,}?)(_[A-Z]+)?\s*=[^=]/);  // logits_BSV = self.head(...)
    if (number && given && phase === "forward" && /mm$|linear|conv/.test(op)) return `the ${given[1]}`;
    if (/backward/.test(phase) && /mm$/.test(op) && part === "temporary") return `a matrix product of the backward${inside}`;
    if (/attention.*backward/.test(op)) return `gradients of query, key and value${inside}`;
    if (/attention/.test(op)) return `attention's output${inside}`;
    const own = op.replace(/^native /, "").replace(/ backward.*/, "");
    const other = / backward/.test(op) ? `a gradient, by the backward of ${own}` : `the output of ${own}`;
    return `${SAID[op] ?? other}${inside}`;
  }

  // One sentence for a moment: what is taken or given back, and for what.
  sentence(at) {
    const block = this.blockAt[at], size = bytes(this.size[block]), [part] = this.parts[this.part[block]];
    const ends = part === "temporary" ? " (temporary)" : "";
    if (this.changes[at] > 0) return `${size} are taken for ${this.said(block)}${ends}.`;
    return `${size} are given back: ${this.said(block)}, made in ${this.when(this.bornAt[block])}.`;
  }

  // The sentence for the moment at which a card is full.
  death(at, card) {
    const block = this.blockAt[at], size = bytes(this.size[block]), left = bytes(card.high - this.totals[at] + this.size[block]);
    return `Out of memory: ${size} are asked for ${this.said(block)}, and the ${card.name} has ${left} left.`;
  }

  // The sentence for the end of a film that no card's line has stopped.
  ending(card) {
    const below = `The peak, ${bytes(this.most)}, is below the ${card.name}'s ${bytes(card.high)}`;
    return this.most > card.low ? `${below}, but what fragments beside it may be more than is left.` : `${below}: it fits.`;
  }

  // Each step's highest event, and the events beside it that are as high, to a fiftieth.
  peaks() {
    const highest = new Map();
    for (let at = 0; at < this.count; at += 1) {
      const [, , step] = this.span(at);
      if (!(this.totals[at] <= this.totals[highest.get(step)])) highest.set(step, at);
    }
    return [...highest.values()].map((at) => {
      let from = at, to = at;
      while (this.totals[from - 1] >= .98 * this.totals[at]) from -= 1;
      while (this.totals[to + 1] >= .98 * this.totals[at]) to += 1;
      return [from, to];
    });
  }

  // Sizes for the axis, a round number of GiB or MiB apart, with their words.
  ticks(highest = this.most) {
    const unit = highest >= 2 ** 30 ? 3 : 2, most = highest / 1024 ** unit;
    const power = 10 ** Math.floor(Math.log10(most / 2));
    const gap = power * [5, 2, 1].find((round) => 2 * round * power <= most);
    const numbers = Array.from({ length: Math.floor(most / gap) + 1 }, (_, number) => gap * number);
    return numbers.map((size) => [size * 1024 ** unit, `${+size.toPrecision(3)} ${UNITS[unit]}`]);
  }

  // The first event that takes more than a card has for tensors even at best; -1 where none does.
  dies(card) {
    return card ? this.totals.findIndex((total) => total > card.high) : -1;
  }

  // Where each event ends across a width: all alike, but that a step's peak is wide enough to be seen, and that what
  // comes after a card is full has two fifths at most.
  ends(width, full = this.count - 1) {
    const wide = new Float64Array(this.count).fill(width / this.count), before = full + 1, after = this.count - before;
    if (before / this.count < .6) wide.fill(.6 * width / before, 0, before).fill(.4 * width / after, before);
    for (const [from, to] of this.peaks()) {
      for (let at = from; at <= to; at += 1) wide[at] = Math.max(wide[at], PEAK / (to - from + 1));
    }
    const scale = width / wide.reduce((sum, each) => sum + each);
    let end = 0;
    return wide.map((each) => end += each * scale);
  }
}

function make(name, className, parent, words = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = words;
  parent.append(element);
  return element;
}

// A canvas as sharp as the screen; returns what draws on it, its width and its height in CSS pixels.
function fitted(canvas) {
  const ratio = globalThis.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

// `card` has a name and two sizes: tensors of `low` bytes fit even at worst, of more than `high` not even at best. Its
// film stops where it is full. `plays` is whether it begins by itself.
export function film(place, data, { hasLink = false, card = null, plays = false } = {}) {
  const story = new Story(data), last = story.count - 1, full = story.dies(card), stop = full < 0 ? last : full;
  const most = card ? Math.max(Math.min(story.most, 1.4 * card.high), Math.min(1.2 * card.high, 4 * story.most)) : story.most;
  const linked = hasLink && location.hash.match(/^#event=(\d+)$/);
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let at = linked ? Math.min(+linked[1], last) : story.asks || plays && !isStill ? 0 : Math.min(story.peak, stop);
  let playing = 0, areas = null, shown = -1, guess = null;

  place.classList.add("memkit-film");
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", `${story.title}: a film of its memory`);
  make("style", "", place, STYLE);
  const sides = make("div", "sides", place), code = make("div", "code", sides), right = make("div", "", sides);
  code.tabIndex = 0;
  code.setAttribute("role", "group");
  code.setAttribute("aria-label", "the program's lines, and the bytes that each has in memory");
  const indents = new Map();  // the least indentation of each function goes
  for (const [name, , text] of story.lines) {
    indents.set(name, Math.min(indents.get(name) ?? Infinity, text.length - text.trimStart().length));
  }
  let heading = "";
  const rows = story.lines.map(([name, number, text]) => {
    if (name && name !== heading) make("p", "", code, name);
    heading = name;
    const row = make("div", "line", code);
    make("span", "", row, number || "");
    const shown = make("span", "", row);
    shown.title = text.trim();
    for (const piece of text.slice(indents.get(name)).split(/(?<=[.,(=_])/)) {  // where a long line may break
      shown.append(piece, document.createElement("wbr"));
    }
    const bar = make("div", "bar", row);
    const segments = story.parts.map(([, colour]) => {
      const segment = make("i", "", bar);
      segment.style.background = colour;
      return segment;
    });
    return { row, bar, segments, size: make("span", "", bar) };
  });

  const total = make("span", "total", right), when = make("span", "when", right);
  const parts = make("div", "parts", right);
  const legend = story.parts.map(([name, colour], part) => {
    const entry = make("span", "", parts), tile = make("b", "", entry);
    tile.style.background = colour;
    entry.hidden = !story.heights[part].some((size) => size > 0);
    entry.append(`${name} `);
    return [entry, make("span", "", entry)];
  });
  const chart = make("canvas", "areas", right), shelf = make("canvas", "blocks", right);
  chart.setAttribute("role", "img");
  shelf.setAttribute("role", "img");
  shelf.setAttribute("aria-label", "the blocks in memory at this moment, one rectangle each");
  const hand = make("input", "hand", place);
  Object.assign(hand, { type: "range", min: 0, max: last, step: 1, value: at });
  hand.setAttribute("aria-label", "Moment");
  const say = make("p", "say", place), buttons = make("div", "buttons", place);
  say.setAttribute("role", "status");
  const play = make("button", "", buttons, "▶ Play"), mark = make("button", "", buttons, "My guess: the peak is here");
  const toPeak = make("button", "", buttons, "Go to the peak");
  const about = make("small", "", buttons, [`${story.source}.`, story.leftOut].filter(Boolean).join(" "));
  about.setAttribute("role", "note");
  for (const control of [hand, play, mark, toPeak, code]) control.setAttribute("data-lm-suppress-shortcuts", "true");

  const isRevealed = () => !story.asks || guess !== null;
  let ends = null, across = 0;
  const x = (event, width) => {
    if (across !== width) [ends, across] = [story.ends(width - AXIS, stop), width];
    return AXIS + (event < 0 ? 0 : ends[event]);
  };
  const y = (size, height) => height - FOOT - Math.min(size / most, 1) * (height - FOOT - TOP);

  function drawAreas(width, height, ratio) {
    const key = `${width} ${height} ${ratio}`;
    if (areas?.key === key) return areas;
    areas = Object.assign(new OffscreenCanvas(Math.round(width * ratio), Math.round(height * ratio)), { key });
    const pen = areas.getContext("2d"), floor = new Float64Array(story.count);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    story.parts.forEach(([, colour], part) => {
      if (legend[part][0].hidden) return;
      const level = (i, size) => [x(i - 1, width), x(i, width)].map((end) => [end, y(size, height)]);  // until the next
      const steps = [...story.totals.keys()];
      const roof = steps.flatMap((i) => level(i, floor[i] + story.heights[part][i]));
      const ground = steps.reverse().flatMap((i) => level(i, floor[i]).reverse());
      pen.beginPath();
      for (const point of [...roof, ...ground]) pen.lineTo(...point);
      pen.fillStyle = colour;
      pen.fill();
      for (let i = 0; i < story.count; i += 1) floor[i] += story.heights[part][i];
    });
    return areas;
  }

  // The moment's chart by any pen whose unit is a pixel of CSS, `ratio` of which are drawn.
  function drawChart(pen, width, height, ratio, ink) {
    const all = drawAreas(width, height, ratio), handle = x(at, width);
    pen.globalAlpha = isRevealed() ? .22 : 0;  // what comes is shown once the guess is made
    pen.drawImage(all, 0, 0, width, height);
    pen.globalAlpha = 1;
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, handle, height);
    pen.clip();
    pen.drawImage(all, 0, 0, width, height);
    pen.restore();
    pen.fillStyle = pen.strokeStyle = ink;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    const seen = isRevealed() ? most : Math.max(...story.totals.slice(0, at + 1));
    for (const [size, words] of story.ticks(most)) {
      if (size > seen) break;  // the scale tells no more than the areas do
      pen.fillText(words, AXIS - 8, y(size, height) + 4);
      pen.fillRect(AXIS - 5, y(size, height), 5, 1);
    }
    pen.textAlign = "left";
    const rowEnds = [0, 0, 0];  // a name stands in the first of three rows that has room for it
    const names = story.spans.flatMap(([first, phase], index) => {
      const next = story.spans[index + 1]?.[0] ?? story.count, from = x(first - 1, width);
      if (phase === "forward" && next - first < 2) return [];  // the last micro-batch's end, freed by what comes next
      const words = phase || "before", wide = pen.measureText(words).width;
      const left = Math.min(from + 3, width - wide), row = rowEnds.findIndex((end) => end <= left);
      if (row >= 0) rowEnds[row] = left + wide + 8;
      return [{ from, words, left, row, end: left + wide }];
    });
    for (const { from, words, left, row } of names) {
      pen.globalAlpha = .3;
      pen.fillRect(from, TOP, 1, height - FOOT - TOP);
      for (let each = 0; each <= row; each += 1) {  // down to its name, and through no other
        const isCrossed = names.some((other) => other.row === each && from >= other.left - 1 && from <= other.end + 1);
        if (!isCrossed) pen.fillRect(from, height - FOOT + 15 * each, 1, each < row ? 15 : 14);
      }
      pen.globalAlpha = 1;
      if (row >= 0) pen.fillText(words, left, height - FOOT + 13 + 15 * row);
    }
    const flags = [  // in two rows above the areas; no line goes through the words of another
      [guess ?? -1, "your guess", 2], [full, "out of memory", 2],
      [isRevealed() ? story.peak : -1, `${full < 0 ? "" : "would "}peak ${story.most > most ? "↑ " : ""}${bytes(story.most)}`, 15],
    ].filter(([event]) => event >= 0).map(([event, words, top]) => {
      const left = x(event, width), wide = pen.measureText(words).width;
      return { left, words, top, from: left > width / 2 ? left - 4 - wide : left + 4, wide };
    });
    for (const { left, words, top, from } of flags) {
      const isCrossed = flags.some((other) => other.top > top && left > other.from - 4 && left < other.from + other.wide + 4);
      pen.setLineDash([4, 3]);
      pen.beginPath();
      for (const [start, end] of isCrossed ? [[top, 13], [TOP, height - FOOT]] : [[top, height - FOOT]]) {
        pen.moveTo(left, start);
        pen.lineTo(left, end);
      }
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText(words, from, top + 10);
    }
    if (card) drawCard(pen, width, height, ink);
    pen.beginPath();
    pen.moveTo(handle, TOP);
    pen.lineTo(handle, height - FOOT + 2);
    pen.lineWidth = 2;
    pen.stroke();
    pen.lineWidth = 1;
  }

  // The card's line, and below it where a step may fit or not; a line far above the areas is at their upper edge.
  function drawCard(pen, width, height, ink) {
    const line = y(card.high, height), name = `${card.high > most ? "↑ " : ""}${card.name}`, size = bytes(card.high);
    pen.fillStyle = "#D55E00";
    pen.fillRect(AXIS, line - 1, width - AXIS, 2);
    pen.globalAlpha = .13;
    pen.fillRect(AXIS, line, width - AXIS, y(card.low, height) - line);
    pen.globalAlpha = 1;
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillStyle = ink;
    const ways = [`${name}: ${size} for tensors`, `${name}: ${size}`, name];  // before it is full
    const words = ways.find((way) => pen.measureText(way).width < x(stop, width) - AXIS - 12) ?? name;
    pen.fillText(words, AXIS + 6, card.high > most ? line + 15 : line - 6);
  }

  // Every block a rectangle as wide as its bytes, in rows as on a shelf; a long one goes on in the next row.
  function drawBlocks() {
    const [pen, width, height] = fitted(shelf), tall = height / ROWS, scale = width * ROWS / most;
    const fresh = story.blockAt[at];
    pen.strokeStyle = getComputedStyle(place).color;
    pen.lineWidth = 2;
    let left = 0, row = 0;
    for (const block of story.live(at)) {
      pen.fillStyle = story.parts[story.part[block]][1];
      for (let rest = story.size[block] * scale; rest > .01;) {
        const wide = Math.min(rest, width - left), gap = wide > 2 ? 1 : 0;
        pen.fillRect(left, row * tall, Math.max(wide - gap, .3), tall - 3);
        if (block === fresh && wide > 3) pen.strokeRect(left + 1, row * tall + 1, wide - 3, tall - 5);
        rest -= wide;
        left += wide;
        if (left >= width - .5) [left, row] = [0, row + 1];
      }
    }
  }

  function drawLines() {
    const held = story.byLine(at), lit = story.line[story.blockAt[at]], gives = story.changes[at] < 0;
    const most = Math.max(...held.flatMap((sizes) => sizes.reduce((sum, size) => sum + size)), 1);
    rows.forEach(({ row, bar, segments, size }, index) => {
      const sum = held[index].reduce((all, part) => all + part), whole = Math.sqrt(sum / most) * 100;
      let left = 0;
      row.classList.toggle("on", index === lit);
      row.classList.toggle("gives", index === lit && gives);
      row.classList.toggle("dies", at === full && index === lit);
      segments.forEach((segment, part) => {
        const wide = sum ? held[index][part] / sum * whole : 0;
        segment.style.left = `${left}%`;
        segment.style.width = `${wide}%`;
        left += wide;
      });
      size.textContent = sum >= story.most / 1e4 ? bytes(sum) : "";
      bar.title = sum ? `${bytes(sum)} that this line made are in memory` : "";
    });
    const { row } = rows[lit], top = row.offsetTop, bottom = top + row.offsetHeight;
    if (top < code.scrollTop || bottom > code.scrollTop + code.clientHeight) {
      code.scrollTop = top - code.clientHeight / 2;
    }
  }

  function draw() {
    shown = at;
    if (chart.clientWidth && chart.clientHeight) {  // not on paper, nor in a folded cell
      const [pen, width, height] = fitted(chart);
      drawChart(pen, width, height, chart.width / width, getComputedStyle(place).color);
    }
    drawBlocks();
    drawLines();
    total.textContent = bytes(story.totals[at]);
    const isPeak = at === story.peak && isRevealed();
    when.textContent = ` ${story.when(at)} · event ${(at + 1).toLocaleString("en")}`
      + (isPeak ? ", the peak" : ` of ${story.count.toLocaleString("en")}`) + (full >= 0 && at > full ? ` · the ${card.name} was full before` : "");
    legend.forEach(([entry, size], part) => {
      size.textContent = bytes(story.heights[part][at]);
      entry.classList.toggle("is-zero", !story.heights[part][at]);
    });
    hand.value = at;
    hand.setAttribute("aria-valuetext", `${story.when(at)}: ${bytes(story.totals[at])}`);
    chart.setAttribute("aria-label", `Memory over ${story.count} events; now ${bytes(story.totals[at])}`
      + (isRevealed() ? `, at the peak ${bytes(story.most)}` : ""));
    const sentence = at === full ? story.death(at, card) : card && full < 0 && at === last ? story.ending(card) : story.sentence(at);
    say.textContent = `${sentence} ${answer()}`;
    mark.hidden = !story.asks || guess !== null;
    toPeak.hidden = !isRevealed();
    if (hasLink && !playing) history.replaceState(null, "", `#event=${at}`);
  }

  function answer() {
    if (guess === null || !story.asks) return "";
    const difference = story.most - story.totals[guess];
    return difference
      ? `You guessed a moment with ${bytes(story.totals[guess])}; the peak, ${bytes(story.most)}, is in ${story.when(story.peak)}.`
      : "You guessed the peak.";
  }

  const go = (event) => {
    at = Math.max(0, Math.min(last, Math.round(event)));
    if (at !== shown) draw();
  };
  const pause = () => {
    cancelAnimationFrame(playing);
    clearTimeout(playing);
    playing = 0;
    play.textContent = "▶ Play";
    say.setAttribute("aria-live", "polite");
    draw();
  };
  // Where motion is not wanted the film goes from the end of a phase to the next; else evenly over the events.
  const roll = () => {
    if (at >= stop) go(0);
    const seconds = card ? SHORT_SECONDS : SECONDS, began = performance.now() - at / stop * seconds * 1000;
    const jump = () => {
      const next = story.spans.find(([first]) => first - 1 > at);
      go(Math.min(stop, next ? next[0] - 1 : last));
      if (at < stop) playing = setTimeout(jump, REST_MS);
      else pause();
    };
    const frame = (time) => {
      go(Math.min(stop, (time - began) / 1000 / seconds * stop));
      if (at < stop) playing = requestAnimationFrame(frame);
      else pause();
    };
    say.setAttribute("aria-live", "off");
    play.textContent = "❚❚ Pause";
    playing = isStill ? setTimeout(jump, 0) : requestAnimationFrame(frame);
  };
  play.onclick = () => (playing ? pause() : roll());
  const halt = () => playing && pause();
  mark.onclick = () => {
    halt();
    guess = at;
    draw();
  };
  toPeak.onclick = () => {
    halt();
    go(story.peak);
  };
  hand.oninput = () => {
    halt();
    go(+hand.value);
  };
  const pulled = (event) => {
    halt();
    const box = chart.getBoundingClientRect();
    const left = event.clientX - box.left, next = story.totals.findIndex((_, event) => x(event, box.width) >= left);
    go(next < 0 ? last : next);
  };
  chart.onpointerdown = (event) => {
    chart.setPointerCapture(event.pointerId);
    pulled(event);
  };
  chart.onpointermove = (event) => event.buttons && pulled(event);
  const observer = new ResizeObserver(draw);
  observer.observe(place);
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", draw);
  const inJupyter = new MutationObserver(draw);  // JupyterLab's theme is an attribute of its page
  inJupyter.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  if (plays && !isStill) roll();
  return { go, story, drawChart, said: () => say.textContent.trim(), stop: () => {
    pause();
    observer.disconnect();
    theme.removeEventListener("change", draw);
    inJupyter.disconnect();
  } };
}

function render({ model, el }) {
  return film(el, model.get("film")).stop;
}
export default { render };
