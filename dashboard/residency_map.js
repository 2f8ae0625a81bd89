// Draws a residency map (charts.residency_map): the cells as one image, axes and marks around them.
// Texts come from the server and are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 54, right: 14, top: 38, bottom: 46 };
const EMPTY = 255;
const DRAG = 4; // pixels; less is a click
const drawn = new WeakMap(); // root -> what is drawn there, and what watches its size

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".pace-map");
  const state = drawn.get(root) ?? {};
  drawn.set(root, state);
  state.map = { ...data, cells: bytes(data.cells), counts: numbers(data.counts) };
  state.ask = (range) => setTriggerValue("range", range);
  state.observer?.disconnect();
  state.observer = new ResizeObserver(() => {
    if (root.clientWidth !== state.width) draw(root, state);
  });
  state.observer.observe(root);
  draw(root, state);
  return () => state.observer.disconnect();
}

const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const numbers = (text) => new Uint32Array(bytes(text).buffer);

function draw(root, state) {
  if (state.dragging) return; // a rerun must not end it; drawn when it ends
  const { map } = state;
  state.width = root.clientWidth;
  if (!state.width) return;
  const plot = {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(20, state.width - MARGIN.left - MARGIN.right),
    height: map.height - MARGIN.top - MARGIN.bottom,
    first: map.edges[0],
    last: map.edges[map.edges.length - 1],
  };
  plot.x = (at) => plot.left + (plot.width * (at - plot.first)) / (plot.last - plot.first || 1);
  plot.position = (x) =>
    plot.first +
    Math.min(1, Math.max(0, (x - plot.left) / plot.width)) * (plot.last - plot.first);
  const tip = document.createElement("div");
  tip.className = "pace-map-tip";
  tip.hidden = true;
  const frame = axes(map, plot, state.width);
  root.style.height = `${map.height}px`;
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", `What each layer holds: ${map.layers} layers, ${map.x.title}`);
  root.replaceChildren(image(map, plot), frame, legend(map), tip);
  listen(root, frame, tip, plot, state);
}

function image(map, plot) {
  const { layers, cells } = map;
  const bins = map.edges.length - 1;
  const colours = map.colours.map((hex) => parseInt(hex.slice(1), 16));
  const small = new OffscreenCanvas(bins, layers);
  const context = small.getContext("2d");
  const pixels = context.createImageData(bins, layers);
  for (let at = 0; at < cells.length; at++) {
    if (cells[at] === EMPTY) continue;
    const colour = colours[cells[at]];
    pixels.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, 255], 4 * at);
  }
  context.putImageData(pixels, 0, 0);
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(plot.width * ratio);
  canvas.height = Math.round(plot.height * ratio);
  canvas.style.cssText =
    `left:${plot.left}px;top:${plot.top}px;width:${plot.width}px;height:${plot.height}px`;
  const shown = canvas.getContext("2d");
  shown.imageSmoothingEnabled = canvas.width < bins; // no bin may fall between two pixels
  shown.drawImage(small, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function axes(map, plot, width) {
  const { look } = map;
  const svg = element("svg", { width, height: map.height });
  const bottom = plot.top + plot.height;
  const right = plot.left + plot.width;
  const line = (x1, y1, x2, y2, stroke) => svg.append(element("line", { x1, y1, x2, y2, stroke }));
  const text = (x, y, content, more = {}) => {
    const made = element("text", { x, y, fill: look.text, "text-anchor": "middle", ...more });
    made.textContent = content;
    svg.append(made);
    return made;
  };
  for (const [at, name] of map.steps.ticks) {
    line(plot.x(at), plot.top, plot.x(at), bottom, look.grid);
    line(plot.x(at), plot.top - 4, plot.x(at), plot.top, look.faint);
    text(plot.x(at), plot.top - 8, name, { fill: look.faint, "font-size": 11 });
  }
  if (map.steps.ticks.length) text(plot.left + plot.width / 2, 11, map.steps.title);
  line(plot.left, bottom, right, bottom, look.grid);
  for (const [at, name] of map.x.ticks) {
    line(plot.x(at), bottom, plot.x(at), bottom + 4, look.faint);
    text(Math.min(plot.x(at), right - 6), bottom + 16, name);
  }
  text(plot.left + plot.width / 2, bottom + 35, map.x.title, { class: "xtitle" });
  for (const [at, name] of map.y.ticks) {
    const y = plot.top + ((at + 0.5) * plot.height) / map.layers;
    text(plot.left - 7, y + 4, name, { "text-anchor": "end" });
  }
  const middle = plot.top + plot.height / 2;
  text(14, middle, map.y.title, { transform: `rotate(-90 14 ${middle})` });
  if (map.selected) {
    const [start, end] = map.selected.map((at) => Math.min(Math.max(at, plot.first), plot.last));
    const wide = Math.max(1, plot.x(end) - plot.x(start));
    const frame = { x: plot.x(start), y: plot.top, width: wide, height: plot.height };
    if (end > start) svg.append(element("rect", { ...frame, fill: "none", stroke: look.text }));
  }
  for (const mark of map.marks) {
    const x = plot.x(mark.at);
    const made = element("path", {
      d: mark.whole
        ? `M${x - 6} ${plot.top - 8}h12l-6 9z`
        : `M${x - 5} ${plot.top - 9}l10 10m0 -10l-10 10`,
      class: `pace-map-mark ${mark.whole ? "whole" : "gone"}`,
      fill: mark.whole ? look.good : "none",
      stroke: mark.whole ? look.background : look.bad,
      "stroke-width": mark.whole ? 1 : 3,
    });
    made.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: mark.text }));
    svg.append(made);
  }
  return svg;
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
  if (map.legend.length && map.marks.length) say("▼ ✕ needed now, whole or not");
  if (map.scale) {
    const bar = document.createElement("i");
    bar.className = "bar";
    bar.style.background = `linear-gradient(90deg,${map.colours.join(",")})`;
    say(`${map.scale.title}: ${map.scale.ends[0]}`);
    box.append(bar);
    say(map.scale.ends[1]);
  }
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
  let from = null;
  let band = null;
  const stop = () => {
    band?.remove();
    from = band = null;
    state.dragging = false;
    if (state.map !== map) draw(root, state);
  };
  frame.style.cursor = map.zoomable ? "crosshair" : "default";
  frame.onpointerdown = (event) => {
    if (!map.zoomable || event.button !== 0 || !within(inside(event))) return;
    from = inside(event).x;
    state.dragging = true;
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  frame.onpointermove = (event) => {
    const at = inside(event);
    if (from === null) {
      tell(tip, within(at) ? cell(map, plot, at) : "", at, root.clientWidth, map.look);
      return;
    }
    tip.hidden = true;
    band ??= frame.appendChild(
      element("rect", { y: plot.top, height: plot.height, fill: map.look.text, opacity: 0.2 }),
    );
    const x = Math.min(Math.max(at.x, plot.left), plot.left + plot.width);
    band.setAttribute("x", Math.min(from, x));
    band.setAttribute("width", Math.abs(x - from));
  };
  frame.onpointerup = (event) => {
    if (from === null) return;
    const ends = [from, inside(event).x];
    stop();
    if (Math.abs(ends[1] - ends[0]) < DRAG) return;
    const [start, end] = ends.map(plot.position).sort((a, b) => a - b);
    state.ask([Math.floor(start), Math.max(Math.ceil(end), Math.floor(start) + 1)]);
  };
  frame.onpointercancel = stop;
  frame.onpointerleave = () => {
    tip.hidden = true;
  };
}

function cell(map, plot, { x, y }) {
  const bins = map.edges.length - 1;
  const at = plot.position(x);
  let bin = Math.min(bins - 1, Math.floor((bins * (x - plot.left)) / plot.width));
  while (bin > 0 && map.edges[bin] > at) bin--;
  while (bin < bins - 1 && map.edges[bin + 1] <= at) bin++;
  const layer = Math.min(map.layers - 1, Math.floor((map.layers * (y - plot.top)) / plot.height));
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
  tip.style.cssText =
    `background:${look.background};color:${look.text};border-color:${look.faint};` +
    `top:${at.y + 14}px;` +
    (at.x < width / 2 ? `left:${at.x + 14}px` : `right:${width - at.x + 8}px`);
}
