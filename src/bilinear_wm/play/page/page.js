import { NAMES, canvasOf, drawLatent, drawStrip, drawTimes, drawWorld, image, makeGhost, milliseconds } from "/draw.js";

const $ = id => document.getElementById(id);
const TITLES = { tworoom: "TwoRoom", pusht: "PushT", reacher: "Reacher", cube: "Cube" };
const MODES = { ...NAMES, both: "side by side" };
const WORDS = { plan: "a new plan", "best-so-far": "the best so far", rest: "the rest of the last plan", hold: "holding" };
const STEP = 0.02, TURN = Math.PI / 24, WALKED = 240, WORLD = 560, RECENT = 20, SLOTS = 8;

// What is shown; tests look at it too.
const view = { task: null, scene: null, panes: new Map(), goal: {}, blocked: false, angle: 0, press: null, waiting: null, error: "" };
window.view = view;
const show = () => ({ ghost: $("show-ghost").checked, plan: $("show-plan").checked, points: $("show-points").checked });

const first = location.hash.slice(1);
const scheme = location.protocol === "https:" ? "wss" : "ws";
const socket = new WebSocket(`${scheme}://${location.host}/session${first ? `?task=${encodeURIComponent(first)}` : ""}`);
socket.binaryType = "arraybuffer";
const say = message => { if (socket.readyState === 1) socket.send(JSON.stringify(message)); };
socket.onclose = () => hint("The session has ended. Reload the page to begin another.");
socket.onmessage = event => {
  if (typeof event.data !== "string") return take(view.waiting, new Uint8Array(event.data));
  const message = JSON.parse(event.data);
  if (message.picture) view.waiting = message; else take(message, null);
};

const TAKE = {
  hello: begin,
  loading: message => { hint(`${TITLES[message.task] ?? message.task}: ${message.doing} …`, true); mark(message.task); $("stage").classList.add("waiting"); },
  scene: setScene,
  goal: setGoal,
  tick: setTick,
  imagined: (message, bytes) => {
    const pane = view.panes.get(message.pane);
    if (!pane) return;
    pane.slots = Math.max(pane.slots, Math.min(message.count, SLOTS));  // what is shown keeps its size as plans get shorter
    drawStrip(pane.find(".imagined"), image(bytes, message.count * message.size, message.size), message.count, message.size, pane.slots);
    pane.find(".imagined").hidden = pane.find(".imagined-hint").hidden = false;
    pane.imagined = message.count;
  },
  error: message => complain(message.error),
  failed: message => { hint(""); mark(message.task); view.panes.clear(); $("stage").replaceChildren(); complain(message.error); },
};
function take(message, bytes) { TAKE[message.kind]?.(message, bytes); }

function hint(text, busy = false) { $("hint").textContent = text; $("hint").classList.toggle("busy", busy); }
function complain(text) {
  view.error = text;
  $("error").textContent = text; $("error").hidden = !text;
}
function mark(task) {
  view.task = task;
  for (const tab of $("tabs").children) {
    tab.setAttribute("aria-selected", tab.dataset.task === task);
    tab.tabIndex = tab.dataset.task === task ? 0 : -1;
  }
}

function begin(message) {
  view.size = message.size;
  for (const task of message.tasks) {
    const tab = document.createElement("button");
    tab.textContent = TITLES[task] ?? task; tab.dataset.task = task; tab.setAttribute("role", "tab");
    tab.onclick = () => { complain(""); say({ task }); mark(task); history.replaceState(null, "", `#${task}`); };
    $("tabs").append(tab);
  }
  for (const mode of message.modes) {
    const button = document.createElement("button");
    button.textContent = MODES[mode]; button.dataset.planner = mode;
    button.onclick = () => say({ planner: mode });
    $("modes").append(button);
  }
}

function setScene(message) {
  view.scene = message; view.goal = {}; view.angle = 0;
  mark(message.task); hint(message.hint); complain(""); block(false);
  $("stage").classList.remove("waiting");
  for (const button of $("modes").children) button.setAttribute("aria-pressed", button.dataset.planner === message.planner);
  const names = message.planner === "both" ? Object.keys(NAMES) : [message.planner];
  view.panes = new Map(names.map(name => [name, makePane(name, message)]));
  $("stage").replaceChildren(...[...view.panes.values()].map(pane => pane.element));
  document.body.classList.toggle("two", names.length > 1);
  $("show-points").disabled = !message.points; $("no-points").hidden = message.points;
  $("keys").textContent = [
    message.drags ? "Arrow keys move the goal" + (message.turns ? ", [ and ] turn it." : ".") : "",
    "1 to 4 change the task, C the planner.",
  ].join(" ");
  $("measured").replaceChildren(...Object.entries(message.measured).flatMap(([name, text]) => {
    const term = document.createElement("dt"), what = document.createElement("dd");
    term.textContent = NAMES[name]; term.dataset.planner = name;
    what.textContent = text ?? "not measured on this model";
    return [term, what];
  }));
}

function makePane(name, scene) {
  const element = $("pane").content.firstElementChild.cloneNode(true);
  const pane = { name, element, last: null, times: [], walked: [], ticks: [], imagined: 0, slots: 5, find: what => element.querySelector(what) };
  element.dataset.planner = name;
  pane.find(".name").textContent = NAMES[name];
  const world = pane.find(".world");
  world.setAttribute("aria-label", `${TITLES[scene.task] ?? scene.task}, ${NAMES[name]}`);
  if (!scene.monitor) pane.find(".explained").textContent = "no monitor for this kind of model";
  if (!scene.drags) return pane;
  world.classList.add("drags");
  world.onpointerdown = event => { world.setPointerCapture(event.pointerId); world.focus(); aim(event, false); };
  world.onpointermove = event => { if (event.buttons) aim(event, true); };
  return pane;
}

function setGoal(message, bytes) {
  const data = image(bytes, view.size, view.size);
  Object.assign(view.goal, { at: message.at, latent: message.latent, ghost: makeGhost(data, WORLD) });
  const whole = new ImageData(new Uint8ClampedArray(data.data), view.size, view.size);
  for (let i = 3; i < whole.data.length; i += 4) whole.data[i] = 255;
  $("goal").getContext("2d").drawImage(canvasOf(whole), 0, 0, 224, 224);
}

function setTick(message, bytes) {
  const pane = view.panes.get(message.pane);
  if (!pane) return;
  if (pane.last?.round !== message.round) pane.walked = [];
  pane.last = message;
  drawWorld(pane.find(".world"), image(bytes, view.size, view.size), message, view.goal, show());
  if (message.plan_ms !== null) {
    pane.times.push(message.plan_ms);
    pane.find(".ms").textContent = milliseconds(median(pane.times.slice(-RECENT)));
    pane.walked.push(message.latents[0]);
    if (pane.walked.length > WALKED) pane.walked.shift();
  }
  const [reached, tried, actions] = message.score;
  pane.find(".status").textContent = message.solved ? "there" : WORDS[message.source] + (message.reason ? `: ${message.reason}` : "");
  pane.find(".score").textContent = `reached ${reached} of ${tried}` + (actions ? `, the last in ${actions} actions` : "");
  pane.find(".distance").textContent = `${message.distance.toFixed(1)} × what counts · ${rate(pane)} actions/s`;
  if (view.scene.monitor) pane.find(".explained").textContent = message.alarm ? "blocked or moved" : "as expected";
  pane.find(".light").classList.toggle("on", message.alarm);
  pane.find(".cover").hidden = !message.blocked;
  const panes = [...view.panes.values()];
  if (pane !== panes[0]) return;
  drawTimes($("times"), panes);
  drawLatent($("latent"), view.scene.cloud, panes, view.goal);
}

const median = numbers => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

function rate(pane) {
  const now = performance.now();
  pane.ticks.push(now);
  while (pane.ticks[0] < now - 2000) pane.ticks.shift();
  return (pane.ticks.length / 2).toFixed(0);
}

// Wishes.

function block(blocked) {
  view.blocked = blocked;
  document.querySelector("[data-do=block]").setAttribute("aria-pressed", blocked);
}
const DO = {
  new: () => say({ new: true }),
  reset: () => say({ reset: true }),
  push: () => say({ push: true }),
  block: () => { block(!view.blocked); say({ block: view.blocked }); },
};
for (const button of document.querySelectorAll("[data-do]")) button.onclick = DO[button.dataset.do];

function aim(event, dragging) {
  const box = event.target.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  if (!view.scene.turns) return say({ goal: [x, y, 0] });
  if (!dragging) view.press = [x, y];
  const [px, py] = view.press;
  if (Math.hypot(x - px, y - py) > 0.02) view.angle = Math.atan2(y - py, x - px) - Math.PI / 2;
  say({ goal: [px, py, view.angle] });
}

function nudge(dx, dy, turn) {
  if (!view.scene?.drags || !view.goal.at) return false;
  view.angle += turn;
  say({ goal: [view.goal.at[0] + dx, view.goal.at[1] + dy, view.angle] });
  return true;
}
const toggle = id => { if (!$(id).disabled) $(id).click(); return true; };
const next = (list, now) => list[(list.indexOf(now) + 1) % list.length];
const KEYS = {
  ArrowLeft: () => nudge(-STEP, 0, 0), ArrowRight: () => nudge(STEP, 0, 0),
  ArrowUp: () => nudge(0, -STEP, 0), ArrowDown: () => nudge(0, STEP, 0),
  "[": () => nudge(0, 0, -TURN), "]": () => nudge(0, 0, TURN),
  n: DO.new, r: DO.reset, p: DO.push, b: DO.block,
  g: () => toggle("show-ghost"), w: () => toggle("show-plan"), o: () => toggle("show-points"),
  c: () => say({ planner: next(Object.keys(MODES), view.scene?.planner) }),
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tabs = [...$("tabs").children], digit = Number(event.key);
  if (digit >= 1 && digit <= tabs.length) return tabs[digit - 1].click();
  if (event.target.getAttribute?.("role") === "tab" && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    const at = tabs.indexOf(event.target) + (event.key === "ArrowLeft" ? tabs.length - 1 : 1);
    tabs[at % tabs.length].focus();
    return tabs[at % tabs.length].click();
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (KEYS[key] && KEYS[key]() !== false) event.preventDefault();
});
