// Matrices drawn on a canvas, a hundred times faster than Plotly; files are saved with Plotly.

import { element, tell } from "./dom.js";

export const SIGNED = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]];
export const POSITIVE = [[0, "#fbfcff"], [0.15, "#dbe6f3"], [0.4, "#7fb0d6"], [0.7, "#2b6ca8"], [1, "#0b2545"]];
const LEFT = 78;
const RIGHT = 52;
const BELOW = 72;
const FONT = "10px system-ui, sans-serif";
const tables = new Map([SIGNED, POSITIVE].map((scale) => [scale, colors(scale)]));

// 256 colors of a scale, as numbers that a pixel takes.
function colors(scale) {
  const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const x = i / 255;
    const after = Math.max(1, scale.findIndex(([stop]) => stop >= x));
    const [[low, a], [high, b]] = [scale[after - 1], scale[after]];
    const [r, g, blue] = parts(a).map((from, c) => Math.round(from + ((x - low) / (high - low)) * (parts(b)[c] - from)));
    return (255 << 24) | (blue << 16) | (g << 8) | r;
  });
}

// The matrix as an image of one pixel a cell; blank where a number is missing.
export function image(values, n, m, low, high, scale) {
  const canvas = new OffscreenCanvas(m, n);
  const pixels = new ImageData(m, n);
  const words = new Uint32Array(pixels.data.buffer);
  const table = tables.get(scale);
  const by = 255 / (high - low || 1);
  for (let i = 0; i < words.length; i++) {
    const value = values[i];
    words[i] = value !== value ? 0xffffffff : table[Math.max(0, Math.min(255, Math.round((value - low) * by)))];
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// Draw a card's matrix; `lines(i, j)` says what a cell holds, `click(i, j)` what a click does.
export function drawHeat(card, values, n, labels, { m = n, signed = false, top = 1, lines, click, titles = ["key", "query"], square = true } = {}) {
  const scale = signed ? SIGNED : POSITIVE;
  const low = signed ? -top : 0;
  const [across, down] = [labels.x ?? labels, labels.y ?? labels];
  card.lines = lines;
  card.click = click;
  card.figure = () => plotly(values, n, m, low, top, scale, across, down, titles, square);
  const canvas = card.canvas ?? made(card);
  const width = card.plot.clientWidth || 460;
  const height = card.height;
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  card.plot.style.height = `${height}px`;
  const cell = Math.min((width - LEFT - RIGHT) / m, (height - BELOW - 6) / n);
  const [w, h] = square ? [cell * m, cell * n] : [width - LEFT - RIGHT, height - BELOW - 6];
  card.box = { x: LEFT, y: 6, w, h, n, m };
  canvas.dataset.box = JSON.stringify(card.box);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(image(values, n, m, low, top, scale), LEFT, 6, w, h);
  context.strokeStyle = "#d9dfe6";
  context.strokeRect(LEFT - 0.5, 5.5, w + 1, h + 1);
  names(context, across, down, { w, h, n, m }, titles);
  bar(context, LEFT + w + 10, Math.min(h, 300), low, top, scale, values.some((value) => Math.abs(value) > 1.001 * top));
}

function made(card) {
  const canvas = element("canvas", { class: "heat" });
  card.plot.replaceChildren(canvas);
  card.canvas = canvas;
  const cell = ({ offsetX, offsetY }) => {
    const { x, y, w, h, n, m } = card.box;
    const [i, j] = [Math.floor(((offsetY - y) / h) * n), Math.floor(((offsetX - x) / w) * m)];
    return i >= 0 && j >= 0 && i < n && j < m ? [i, j] : null;
  };
  canvas.addEventListener("mousemove", (event) => {
    const at = cell(event);
    tell(event, at && card.lines ? card.lines(...at) : null);
  });
  canvas.addEventListener("mouseleave", (event) => tell(event, null));
  canvas.addEventListener("click", (event) => {
    const at = cell(event);
    if (at) card.click?.(...at);
  });
  return canvas;
}

// As many names as there is room for.
function names(context, across, down, { w, h, n, m }, titles) {
  context.font = FONT;
  context.fillStyle = "#3a4653";
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = (count, size) => Math.max(1, Math.ceil((count * 12) / size));
  for (let i = 0; i < n; i += every(n, h)) context.fillText(plain(down[i]), LEFT - 5, 6 + ((i + 0.5) * h) / n, LEFT - 20);
  for (let j = 0; j < m; j += every(m, w)) {
    context.save();
    context.translate(LEFT + ((j + 0.5) * w) / m, h + 11);
    context.rotate(-Math.PI / 2);
    context.fillText(plain(across[j]), 0, 0, 52);
    context.restore();
  }
  context.fillStyle = "#54606d";
  context.textAlign = "center";
  context.fillText(titles[0], LEFT + w / 2, h + 6 + BELOW - 8);
  context.translate(7, 6 + h / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(titles[1], 0, 0);
  const ratio = globalThis.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
}

// Mark the end of the color scale where values lie beyond it.
function bar(context, x, height, low, high, scale, beyond) {
  const end = (share) => (beyond && share === 1 ? "≥ " : beyond && share === 0 && low < 0 ? "≤ " : "");
  const fading = context.createLinearGradient(0, 6 + height, 0, 6);
  for (const [stop, color] of scale) fading.addColorStop(stop, color);
  context.fillStyle = fading;
  context.fillRect(x, 6, 8, height);
  context.fillStyle = "#3a4653";
  context.textAlign = "left";
  for (const share of [0, 0.5, 1]) context.fillText(`${end(share)}${Number((low + share * (high - low)).toPrecision(2))}`, x + 11, Math.min(6 + height - 5, Math.max(11, 6 + height * (1 - share))));
}

// Names come escaped for Plotly, which reads some HTML; a canvas reads none.
const plain = (name) => String(name).replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&#36;", "$").replaceAll("&amp;", "&");

function plotly(values, n, m, zmin, zmax, colorscale, across, down, titles, square) {
  const axis = (all, most) => {
    const step = Math.max(1, Math.ceil(all.length / most));
    const at = all.map((_, i) => i).filter((i) => i % step === 0);
    return { tickvals: at, ticktext: at.map((i) => all[i]), tickfont: { size: 9 }, showgrid: false, zeroline: false, constrain: "domain" };
  };
  const z = Array.from({ length: n }, (_, i) => Array.from(values.subarray(i * m, (i + 1) * m)));
  const yaxis = { ...axis(down, 40), autorange: "reversed", title: { text: titles[1] }, ...(square ? { scaleanchor: "x" } : {}) };
  return {
    data: [{ type: "heatmap", z, zmin, zmax, colorscale, colorbar: { thickness: 9, outlinewidth: 0 } }],
    layout: { xaxis: { ...axis(across, 40), title: { text: titles[0] }, tickangle: -90 }, yaxis, margin: { l: 80, r: 20, t: 12, b: 80 } },
  };
}
