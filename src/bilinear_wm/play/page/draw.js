// Everything that is drawn; knows nothing of sockets and controls.
export const COLOURS = { "gauss-newton": "#0072b2", icem: "#d55e00" };
export const NAMES = { "gauss-newton": "Gauss–Newton", icem: "iCEM" };
const GOAL = "#009e73", QUIET = "#8895a1", LINE = "#e3e8ec";

export function milliseconds(ms) {
  return ms < 100 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** Rows of RGB or RGBA bytes as an image. */
export function image(bytes, width, height) {
  const made = new ImageData(width, height), step = bytes.length / (width * height);
  for (let i = 0, j = 0; i < bytes.length; i += step, j += 4) {
    made.data[j] = bytes[i]; made.data[j + 1] = bytes[i + 1]; made.data[j + 2] = bytes[i + 2];
    made.data[j + 3] = step === 4 ? bytes[i + 3] : 255;
  }
  return made;
}

export function canvasOf(data) {
  const canvas = document.createElement("canvas");
  canvas.width = data.width; canvas.height = data.height;
  canvas.getContext("2d").putImageData(data, 0, 0);
  return canvas;
}

/** The goal as it is overlaid: half transparent, with an outline in the goal's colour. */
export function makeGhost(data, size) {
  const shape = canvasOf(data), [outline, ghost] = [0, 0].map(() => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = size;
    return canvas;
  });
  const edge = outline.getContext("2d"), over = ghost.getContext("2d"), wide = size / 160;
  for (let k = 0; k < 12; k++) {
    edge.drawImage(shape, wide * Math.cos(k * Math.PI / 6), wide * Math.sin(k * Math.PI / 6), size, size);
  }
  edge.globalCompositeOperation = "source-in";
  edge.fillStyle = GOAL;
  edge.fillRect(0, 0, size, size);
  edge.globalCompositeOperation = "destination-out";
  edge.drawImage(shape, 0, 0, size, size);
  over.globalAlpha = 0.4;
  over.drawImage(shape, 0, 0, size, size);
  over.globalAlpha = 0.9;
  over.drawImage(outline, 0, 0);
  return ghost;
}

/** One world: the picture, the goal's ghost, the planned way, the encoder's points. */
export function drawWorld(canvas, picture, message, goal, show) {
  const context = canvas.getContext("2d"), w = canvas.width;
  context.imageSmoothingEnabled = true;
  context.drawImage(canvasOf(picture), 0, 0, w, w);
  if (show.ghost && goal.ghost) context.drawImage(goal.ghost, 0, 0);
  if (show.ghost && goal.at) {
    const [x, y] = goal.at;
    context.strokeStyle = GOAL; context.lineWidth = message.solved ? 5 : 2.5;
    context.setLineDash(message.solved ? [] : [6, 5]);
    context.beginPath(); context.arc(x * w, y * w, 20, 0, 7); context.stroke();
    context.setLineDash([]);
  }
  if (show.plan) message.trails.forEach((trail, i) => drawTrail(context, trail, w, COLOURS[message.pane], i > 0));
  if (show.points) message.points.forEach(([x, y], i) => {
    context.fillStyle = `hsl(${i * 360 / message.points.length} 85% 45%)`;
    context.strokeStyle = "#fff"; context.lineWidth = 2;
    context.beginPath(); context.arc(x * w, y * w, 6, 0, 7); context.fill(); context.stroke();
  });
}

function drawTrail(context, trail, w, colour, dashed) {
  context.strokeStyle = context.fillStyle = colour; context.lineWidth = 3;
  context.setLineDash(dashed ? [3, 6] : []);
  context.beginPath();
  trail.forEach(([x, y], i) => i ? context.lineTo(x * w, y * w) : context.moveTo(x * w, y * w));
  context.stroke(); context.setLineDash([]);
  trail.slice(1).forEach(([x, y], i) => {
    context.globalAlpha = 1 - 0.6 * i / trail.length;
    context.beginPath(); context.arc(x * w, y * w, dashed ? 3.5 : 4.5, 0, 7); context.fill();
  });
  context.globalAlpha = 1;
}

/** Pictures side by side in as many slots, a gap between them; of more than fit, every so many and the last. */
export function drawStrip(canvas, picture, count, size, slots) {
  const strip = canvasOf(picture), gap = 3, shown = Math.min(count, slots);
  canvas.width = slots * (size + gap) - gap; canvas.height = size;
  const context = canvas.getContext("2d");
  for (let i = 0; i < shown; i++) {
    const from = Math.ceil((i + 1) * count / shown) - 1;
    context.drawImage(strip, from * size, 0, size, size, i * (size + gap), 0, size, size);
  }
}

export function drawTimes(canvas, panes) {
  const plot = canvas.getContext("2d"), { width, height } = canvas, most = 140;
  const place = ms => height - 14 - (height - 28) * Math.log10(Math.min(Math.max(ms, 1), 1e4)) / 4;
  plot.clearRect(0, 0, width, height);
  plot.font = "20px system-ui, sans-serif"; plot.fillStyle = QUIET; plot.strokeStyle = LINE; plot.lineWidth = 2;
  for (const [ms, label] of [[1, "1 ms"], [10, "10 ms"], [100, "0.1 s"], [1000, "1 s"], [10000, "10 s"]]) {
    plot.beginPath(); plot.moveTo(70, place(ms)); plot.lineTo(width, place(ms)); plot.stroke();
    plot.fillText(label, 0, place(ms) + 7);
  }
  for (const pane of panes) {
    plot.strokeStyle = COLOURS[pane.name]; plot.lineWidth = 3.5; plot.lineJoin = "round"; plot.beginPath();
    pane.times.forEach((ms, i) => plot[i ? "lineTo" : "moveTo"](74 + i * (width - 78) / most, place(ms)));
    plot.stroke();
    while (pane.times.length > most) pane.times.shift();
  }
}

/** Two principal components: what was recorded, the way so far, the plan, the goal. */
export function drawLatent(canvas, cloud, panes, goal) {
  const plot = canvas.getContext("2d"), { width, height } = canvas;
  plot.clearRect(0, 0, width, height);
  if (!cloud.length) return;
  const range = [0, 1].map(k => [Math.min(...cloud.map(p => p[k])), Math.max(...cloud.map(p => p[k]))]);
  const scale = Math.min(...range.map(([low, high], k) => ([width, height][k] - 48) / (high - low || 1)));
  const place = p => [0, 1].map(k => [width, height][k] / 2 + (k ? -1 : 1) * scale * (p[k] - (range[k][0] + range[k][1]) / 2));
  const dot = (p, radius) => { plot.beginPath(); plot.arc(...place(p), radius, 0, 7); };
  plot.fillStyle = "#c3cdd6";
  for (const p of cloud) { dot(p, 2.5); plot.fill(); }
  for (const pane of panes) {
    plot.strokeStyle = plot.fillStyle = COLOURS[pane.name]; plot.lineWidth = 3; plot.lineJoin = "round";
    plot.beginPath();
    pane.walked.forEach((p, i) => plot[i ? "lineTo" : "moveTo"](...place(p)));
    plot.stroke();
    for (const p of pane.last?.latents.slice(1) ?? []) { dot(p, 4); plot.fill(); }
    if (pane.walked.length) { dot(pane.walked.at(-1), 8); plot.fill(); }
  }
  if (goal.latent) { plot.strokeStyle = GOAL; plot.lineWidth = 5; dot(goal.latent, 12); plot.stroke(); }
}
