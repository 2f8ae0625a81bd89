// Draws a residency map (charts.residency_map): the cells as one image, axes and marks around them.
// Texts come from the server and are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 54, right: 14, top: 38, bottom: 40 };
const EMPTY = 255;
const DRAG = 4; // pixels; less is a click
const APART = 4; // pixels between two labels
const drawn = new WeakMap(); // root -> what is drawn there

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".pace-map");
  const state = drawn.get(root) ?? {};
  drawn.set(root, state);
  state.map = { ...data, cells: bytes(data.cells), counts: numbers(data.counts) };
  state.ask = (range) => setTriggerValue("range", range);
  state.observer?.disconnect();
  const observer = new ResizeObserver(() => {
    if (root.clientWidth !== state.width) draw(root, state);
  });
  state.observer = observer;
  observer.observe(root);
  draw(root, state);
  return () => observer.disconnect();
}

const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const numbers = (text) => new Uint32Array(bytes(text).buffer);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function draw(root, state) {
  if (state.dragging) return; // a rerun must not end it; drawn when it ends
  const { map } = state;
  state.width = root.clientWidth;
  if (!state.width) return;
  const plot = layout(map, state.width);
  const tip = document.createElement("div");
  tip.className = "pace-map-tip";
  tip.hidden = true;
  const frame = axes(map, plot, state.width);
  const box = document.createElement("div");
  box.className = "pace-map-plot";
  box.style.height = `${map.height}px`;
  box.append(image(map, plot), frame, tip);
  root.replaceChildren(box, legend(map));
  listen(root, frame, tip, plot, state);
}

// Where positions lie, and which bin a column of the image shows.
function layout(map, width) {
  const ratio = window.devicePixelRatio || 1;
  const { edges } = map;
  const bins = edges.length - 1;
  const plot = {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(20, width - MARGIN.left - MARGIN.right),
    height: map.height - MARGIN.top - MARGIN.bottom,
    first: edges[0],
    last: edges[bins],
    ratio,
  };
  plot.tokens = plot.last - plot.first || 1;
  plot.columns = Math.round(plot.width * ratio);
  plot.x = (at) => plot.left + (plot.width * (at - plot.first)) / plot.tokens;
  plot.position = (x) => plot.first + (clamp(x - plot.left, 0, plot.width) / plot.width) * plot.tokens;
  plot.column = (x) => clamp(Math.floor((x - plot.left) * ratio), 0, plot.columns - 1);
  const each = plot.tokens / plot.columns;
  // the bins each column shows, the fullest of them: that at its middle, and those before it that
  // are at no column's middle
  plot.shows = [];
  for (let column = 0, bin = 0; column < plot.columns; column++) {
    const middle = plot.first + (column + 0.5) * each;
    while (bin + 1 < bins && edges[bin + 1] <= middle) bin++;
    plot.shows.push([bin, bin + 1]);
  }
  plot.shows[0][0] = 0;
  plot.shows[plot.columns - 1][1] = bins;
  for (let column = 1; column < plot.columns; column++)
    plot.shows[column][0] = Math.min(plot.shows[column - 1][1], plot.shows[column][0]);
  plot.bin = (column, layer) => {
    const [from, to] = plot.shows[column];
    let best = to - 1;
    for (let bin = from; bin < to; bin++)
      if (map.counts[layer * bins + bin] > map.counts[layer * bins + best]) best = bin;
    return best;
  };
  return plot;
}

function image(map, plot) {
  const { layers, cells } = map;
  const bins = map.edges.length - 1;
  const colours = map.colours.map((hex) => parseInt(hex.slice(1), 16));
  const rows = new OffscreenCanvas(plot.columns, layers);
  const context = rows.getContext("2d");
  const pixels = context.createImageData(plot.columns, layers);
  for (let layer = 0, at = 0; layer < layers; layer++) {
    for (let column = 0; column < plot.columns; column++, at += 4) {
      const cell = cells[layer * bins + plot.bin(column, layer)];
      if (cell === EMPTY) continue;
      const colour = colours[cell];
      pixels.data[at] = colour >> 16;
      pixels.data[at + 1] = (colour >> 8) & 255;
      pixels.data[at + 2] = colour & 255;
      pixels.data[at + 3] = 255;
    }
  }
  context.putImageData(pixels, 0, 0);
  const canvas = document.createElement("canvas");
  canvas.width = plot.columns;
  canvas.height = Math.round(plot.height * plot.ratio);
  canvas.style.cssText =
    `left:${plot.left}px;top:${plot.top}px;width:${plot.width}px;height:${plot.height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", map.label);
  const shown = canvas.getContext("2d");
  shown.imageSmoothingEnabled = false;
  shown.drawImage(rows, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function axes(map, plot, width) {
  const { look } = map;
  const svg = element("svg", { width, height: map.height });
  const bottom = plot.top + plot.height;
  const middle = plot.left + plot.width / 2;
  const line = (x1, y1, x2, y2, stroke) => svg.append(element("line", { x1, y1, x2, y2, stroke }));
  const text = (x, y, content, more = {}) => {
    const made = element("text", { x, y, fill: look.text, "text-anchor": "middle", ...more });
    made.textContent = content;
    svg.append(made);
  };
  // labels of an axis, without those that would touch the one before
  const labels = (ticks, size, y, more) => {
    let end = -Infinity;
    for (const [at, name] of ticks) {
      const half = measured(name, size) / 2;
      const x = clamp(plot.x(at), half, width - half);
      if (x - half < end + APART) continue;
      end = x + half;
      text(x, y, name, more);
    }
  };
  for (const [at] of map.steps.ticks) {
    line(plot.x(at), plot.top - 4, plot.x(at), plot.top, look.faint);
    line(plot.x(at), plot.top, plot.x(at), bottom, look.grid);
  }
  labels(map.steps.ticks, 11, plot.top - 8, { fill: look.faint, "font-size": 11 });
  if (map.steps.ticks.length) text(middle, 11, map.steps.title);
  line(plot.left, bottom, plot.left + plot.width, bottom, look.grid);
  for (const [at] of map.x.ticks) line(plot.x(at), bottom, plot.x(at), bottom + 4, look.faint);
  labels(map.x.ticks, 12, bottom + 16, {});
  text(middle, bottom + 34, map.x.title, { class: "pace-map-title" });
  for (const [at, name] of map.y.ticks) {
    const y = plot.top + ((at + 0.5) * plot.height) / map.layers;
    text(plot.left - 7, y + 4, name, { "text-anchor": "end" });
  }
  const centre = plot.top + plot.height / 2;
  text(14, centre, map.y.title, { transform: `rotate(-90 14 ${centre})` });
  if (map.selected) {
    const [start, end] = map.selected.map((at) => clamp(at, plot.first, plot.last));
    const wide = Math.max(1, plot.x(end) - plot.x(start));
    const frame = { x: plot.x(start), y: plot.top, width: wide, height: plot.height };
    if (end > start) svg.append(element("rect", { ...frame, fill: "none", stroke: look.text }));
  }
  for (const mark of map.marks) svg.append(sign(mark, plot, look));
  return svg;
}

function sign(mark, plot, look) {
  const x = plot.x(mark.at);
  const y = plot.top;
  const made = mark.whole
    ? element("path", { d: `M${x - 6} ${y - 8}h12l-6 9z`, fill: look.good, stroke: look.background })
    : element("path", {
        d: `M${x - 5} ${y - 9}l10 10m0 -10l-10 10`,
        fill: "none",
        stroke: look.bad,
        "stroke-width": 3,
      });
  made.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: mark.text }));
  return made;
}

function measured(text, size) {
  const pen = (measured.pen ??= new OffscreenCanvas(1, 1).getContext("2d"));
  pen.font = `${size}px "Source Sans", sans-serif`;
  return pen.measureText(text).width;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function legend(map) {
  const box = document.createElement("div");
  box.className = "pace-map-legend";
  box.style.color = map.look.faint;
  const say = (content) => {
    const made = document.createElement("span");
    made.textContent = content;
    box.append(made);
    return made;
  };
  for (const [colour, name] of map.legend) {
    const square = document.createElement("i");
    square.style.background = colour;
    say(name).prepend(square);
  }
  if (map.scale) {
    const { title, ends } = map.scale;
    const bar = document.createElement("i");
    bar.className = "bar";
    const [low, high] = [map.colours[0], map.colours[map.colours.length - 1]];
    bar.style.background =
      ends[0] === ends[1] ? low : `linear-gradient(90deg,${low},${map.colours.join(",")},${high})`;
    say(`${title}: ${ends[0]}`);
    box.append(bar);
    if (ends[0] !== ends[1]) say(ends[1]);
  }
  if (map.note) say(map.note);
  return box;
}

function listen(root, frame, tip, plot, state) {
  const { map } = state;
  const inside = (event) => {
    const box = frame.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const within = ({ x, y }) =>
    x >= plot.left && x <= plot.left + plot.width && y >= plot.top && y < plot.top + plot.height;
  const bounded = (x) => clamp(x, plot.left, plot.left + plot.width);
  let drag = null; // {pointer, from, band}
  const stop = () => {
    drag?.band?.remove();
    drag = null;
    state.dragging = false;
    if (state.map !== map || root.clientWidth !== state.width) draw(root, state);
  };
  frame.style.cursor = map.zoomable ? "crosshair" : "default";
  frame.onpointerdown = (event) => {
    if (drag || !map.zoomable || event.button !== 0 || !within(inside(event))) return;
    drag = { pointer: event.pointerId, from: inside(event).x };
    state.dragging = true;
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  frame.onpointermove = (event) => {
    const at = inside(event);
    if (!drag) {
      tell(tip, within(at) ? cell(map, plot, at) : "", at, state.width, map.look);
      return;
    }
    if (event.pointerId !== drag.pointer) return;
    tip.hidden = true;
    drag.band ??= frame.appendChild(
      element("rect", { y: plot.top, height: plot.height, fill: map.look.text, opacity: 0.2 }),
    );
    drag.band.setAttribute("x", Math.min(drag.from, bounded(at.x)));
    drag.band.setAttribute("width", Math.abs(bounded(at.x) - drag.from));
  };
  frame.onpointerup = (event) => {
    if (event.pointerId !== drag?.pointer) return;
    const ends = [drag.from, bounded(inside(event).x)].sort((a, b) => a - b);
    stop();
    if (ends[1] - ends[0] < DRAG) return;
    const start = Math.min(Math.floor(plot.position(ends[0])), plot.last - 1);
    state.ask([start, Math.max(Math.ceil(plot.position(ends[1])), start + 1)]);
  };
  frame.onpointercancel = (event) => {
    if (event.pointerId === drag?.pointer) stop();
  };
  frame.onpointerleave = () => {
    tip.hidden = true;
  };
}

// What the pointer is at: the cell that is painted there.
function cell(map, plot, { x, y }) {
  const bins = map.edges.length - 1;
  const layer = clamp(Math.floor((map.layers * (y - plot.top)) / plot.height), 0, map.layers - 1);
  const bin = plot.bin(plot.column(x), layer);
  const [start, end] = [map.edges[bin], map.edges[bin + 1]];
  const places = [...new Set([start, end - 1])].map((place) => place.toLocaleString("en"));
  const found = map.counts[layer * bins + bin];
  const kind = map.kinds[Math.floor(map.cells[layer * bins + bin] / map.shades)];
  const more = found && kind ? `, mostly ${kind}` : "";
  return `layer ${layer}, ${places.join("–")}: ${found} of ${end - start} tokens resident${more}`;
}

function tell(tip, text, at, width, look) {
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.cssText = `background:${look.background};color:${look.text};border-color:${look.faint}`;
  tip.style.top = `${at.y + 14}px`;
  tip.style.left = `${clamp(at.x + 14, 0, Math.max(0, width - tip.offsetWidth))}px`;
}
