// The page: puts the parts together.
import { fill, freshAnswer, wordsOf } from "./answering.js";
import { health, machine, models } from "./api.js";
import { Composer } from "./composer.js";
import { showContext } from "./context.js";
import { Conversation } from "./conversation.js";
import { byId, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { bytes, count } from "./format.js";
import { perFrame } from "./frames.js";
import { Instruments } from "./instruments.js";
import { showLoading } from "./loading.js";
import { askForKey } from "./key.js";
import { pageIn } from "./page.js";
import { Picker } from "./picker.js";
import { Preview } from "./preview.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { choose, current, forget, keep } from "./shelf.js";
import { Speeds } from "./speeds.js";
import { invite } from "./suggestions.js";
import { msPerToken } from "./timeline.js";
import { TurnView } from "./turn.js";
import { hint, isNarrow, show, watchTabs } from "./views.js";

const LOADING_POLL_MS = 400;
const TROUBLE_POLL_MS = 2000;
const KEEP_MS = 1000; // between two times that an answer is kept while it comes

let conversation = current();
const views = [];
const instruments = new Instruments();
const speeds = new Speeds();
const race = new Race();
const preview = new Preview();
const settings = new Settings(changeSystem);
const composer = new Composer(send, stop, () => settings.check());
const picker = new Picker(start);
const drawer = new Drawer({ open, changed: renamed, gone });
let running = null; // the AbortController of the answer that comes
let ready = false;
let leaving = false;
let canChat = true;

// --- asking ---

async function send(prompt) {
  if (running || !ready) return;
  conversation.turns.push({ prompt, answer: nextAnswer() });
  addView(conversation.turns.at(-1));
  composer.clear();
  await answerLast();
}

async function retry() {
  if (running || !ready) return;
  await askAgain(nextAnswer());
}

/** The same question with the same seed: the answer that a reload has cut. */
async function resume() {
  const { answer } = conversation.turns.at(-1);
  await askAgain(freshAnswer(answer, wordsOf(answer)));
}

async function askAgain(answer) {
  const turn = conversation.turns.at(-1);
  turn.answer = answer;
  views.pop().node.remove();
  addView(turn);
  await answerLast();
}

const nextAnswer = () =>
  freshAnswer({ ...settings.values(), ...(picker.model && { model: picker.model }), continues: !canChat });

function stop() {
  running?.abort();
}

async function answerLast() {
  const asked = conversation;
  const { answer } = conversation.turns.at(-1);
  const view = views.at(-1);
  const changed = perFrame(() => paint(answer, view));
  running = new AbortController();
  composer.busy(true);
  preview.clear();
  race.clear();
  if (document.body.dataset.view === "preview") show(isNarrow() ? "answer" : "race");
  byId("talk").scrollTop = byId("talk").scrollHeight;
  say("Answering");
  keepIt(asked);
  const keeping = setInterval(() => keepIt(asked), KEEP_MS);
  const needsKey = await fill(answer, conversation.question(instruments.machine?.context), running.signal, changed);
  clearInterval(keeping);
  if (leaving) return; // it was kept as it was; the page asks again when it is back
  running = null;
  speeds.add(answer);
  composer.busy(false);
  if (asked.turns.at(-1)?.answer === answer) keepIt(asked);
  if (!views.includes(view)) return; // another conversation has been opened meanwhile
  changed.now();
  say(report(answer));
  if (needsKey && (await askForKey())) await start().then(retry);
}

function keepIt(one) {
  one.changed = Date.now();
  if (!keep(one)) say("This browser has no room for more conversations: delete old ones to keep this one.");
}

/** Everything that shows the answer, once per picture. */
function paint(answer, view) {
  if (!views.includes(view)) return;
  const talk = byId("talk");
  const following = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80; // pixels
  view.update();
  if (following) talk.scrollTop = talk.scrollHeight;
  showNumbers(answer);
  race.follow(answer);
  const source = pageIn(answer.text);
  if (source === null) return;
  if (preview.source === null) isNarrow() ? hint("preview") : show("preview");
  preview.show(source, answer.phase === "over");
}

function showNumbers(answer) {
  instruments.show(answer);
  showContext(answer, instruments.machine?.context);
}

function addView(turn) {
  const { answer } = turn;
  const view = new TurnView(turn, {
    retry,
    edit: (prompt) => edit(turn, prompt),
    remove: () => remove(turn, view),
    race: () => {
      instruments.show(answer);
      show("race");
      race.start(answer, true);
    },
    preview: () => {
      show("preview");
      preview.show(pageIn(answer.text), true);
    },
    startOver,
    leaveOutOldest: () => {
      if (!running && conversation.leaveOutOldest()) markLeftOut();
      return retry();
    },
  });
  views.push(view);
  byId("turns").append(view.node);
  byId("empty").hidden = true;
}

// --- the conversation ---

/** Another question in place of one: what followed is gone, as it answered the other. */
async function edit(turn, prompt) {
  if (running || !ready) return;
  const index = conversation.turns.indexOf(turn);
  conversation.turns.splice(index);
  conversation.leftOut = Math.min(conversation.leftOut, index);
  for (const view of views.splice(index)) view.node.remove();
  await send(prompt);
}

function remove(turn, view) {
  if (running) return;
  conversation.remove(turn);
  views.splice(views.indexOf(view), 1);
  view.node.remove();
  if (conversation.turns.length) keepIt(conversation);
  else forget(conversation);
  byId("empty").hidden = !ready || conversation.turns.length > 0;
  markLeftOut();
  showNumbers(conversation.turns.at(-1)?.answer);
}

function markLeftOut() {
  views.forEach(({ node }, i) => node.classList.toggle("left-out", i < conversation.leftOut));
}

function changeSystem(text) {
  conversation.system = text;
  keep(conversation);
}

function startOver() {
  open(new Conversation({ system: conversation.system }));
  composer.focus();
}

function open(one) {
  stop();
  one.turns.forEach(({ answer }) => settle(answer));
  conversation = one;
  choose(one);
  keep(one);
  for (const view of views.splice(0)) view.node.remove();
  race.clear();
  preview.clear();
  show(isNarrow() ? "answer" : "race");
  showConversation();
}

function showConversation() {
  settings.system = conversation.system;
  conversation.turns.forEach(addView);
  markLeftOut();
  const last = conversation.turns.at(-1)?.answer;
  if (last?.timeline.msPerToken) race.showEnd(last);
  byId("empty").hidden = !ready || conversation.turns.length > 0;
  byId("talk").scrollTop = byId("talk").scrollHeight;
  showNumbers(last);
}

/** An answer that was on its way when another tab was closed ends where it was. */
function settle(answer) {
  if (answer.phase === "over") return;
  Object.assign(answer, { phase: "over", reason: "stopped", text: wordsOf(answer) });
}

function renamed(one) {
  if (one.id === conversation.id) conversation.name = one.name;
}

function gone(id) {
  if (id !== conversation.id) return;
  conversation.turns = []; // so that the answer on its way does not keep it again
  startOver();
}

// --- the server ---

const say = (text) => setText(byId("announce"), text);

function report(answer) {
  const { error, reason, timeline } = answer;
  if (error) return error;
  const ms = msPerToken(answer);
  const speed = ms ? `, ${count(1000 / ms)} tokens per second` : "";
  return `${reason === "stopped" ? "Stopped" : "Answer complete"}: ${count(timeline.tokens)} tokens${speed}`;
}

/** Wait until the model is there, then learn what it is and where it runs. */
async function start() {
  ready = false;
  composer.block(true);
  for (;;) {
    const state = await health().catch(({ message }) => ({ status: "unreachable", problem: message }));
    if (state.ready) break;
    byId("empty").hidden = true;
    showLoading(state);
    await new Promise((done) => setTimeout(done, state.problem ? TROUBLE_POLL_MS : LOADING_POLL_MS));
  }
  byId("loading").hidden = true;
  try {
    const found = await machine(picker.model);
    picker.offer(await models(), found.model);
    showMachine(found);
    invite(found, send);
  } catch (error) {
    if (error.status === 401 && (await askForKey())) return start();
  }
  ready = true;
  composer.block(false);
  byId("empty").hidden = conversation.turns.length > 0;
  const cut = conversation.turns.at(-1)?.answer;
  if (cut && cut.phase !== "over" && !running) await resume(); // the page was reloaded while it came
}

function showMachine(found) {
  instruments.machine = found;
  canChat = found.can_chat;
  speeds.begin(found.model);
  settings.begin(found.model, found.sampling);
  setText(byId("model"), found.model);
  setText(byId("device"), found.device);
  document.title = `${found.model} on Monolane`;
  const facts = [
    `${bytes(found.bytes_per_token)} read per token`,
    `context of ${count(found.context)}`,
  ];
  setText(byId("machine"), facts.join(" · "));
  showNumbers(conversation.turns.at(-1)?.answer);
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) preview.shrink() || stop();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    composer.focus();
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    startOver();
  }
});
byId("new").addEventListener("click", startOver);
addEventListener("pagehide", () => {
  leaving = running !== null;
  if (leaving) keep(conversation);
});
addEventListener("pageshow", ({ persisted }) => persisted && leaving && location.reload());

watchTabs();
race.clear();
instruments.show(null);
choose(conversation);
showConversation();
if (!isNarrow()) composer.focus();
start();
