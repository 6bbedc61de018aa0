// The page: puts the parts together.
import { fill, freshAnswer } from "./answering.js";
import { health, machine } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { perFrame } from "./frames.js";
import { Instruments } from "./instruments.js";
import { showLoading } from "./loading.js";
import { askForKey } from "./key.js";
import { pageIn } from "./page.js";
import { Preview } from "./preview.js";
import { Race } from "./race.js";
import { Speeds } from "./speeds.js";
import { invite } from "./suggestions.js";
import { msPerToken } from "./timeline.js";
import { TurnView } from "./turn.js";
import { hint, isNarrow, show, watchTabs } from "./views.js";

const LOADING_POLL_MS = 400;
const TROUBLE_POLL_MS = 2000;

const conversation = Conversation.restore();
const views = [];
const instruments = new Instruments();
const speeds = new Speeds();
const race = new Race();
const preview = new Preview();
const composer = new Composer(send, stop);
let running = null; // the AbortController of the answer that comes
let ready = false;
let canChat = true;

async function send(prompt) {
  if (running || !ready) return;
  conversation.turns.push({ prompt, answer: nextAnswer() });
  addView(conversation.turns.at(-1));
  composer.clear();
  await answerLast();
}

async function retry() {
  if (running || !ready) return;
  const turn = conversation.turns.at(-1);
  turn.answer = nextAnswer();
  views.pop().node.remove();
  addView(turn);
  await answerLast();
}

const nextAnswer = () => freshAnswer({ ...composer.settings(), continues: !canChat });

function stop() {
  running?.abort();
}

async function answerLast() {
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
  const needsKey = await fill(answer, conversation.question(instruments.machine?.context), running.signal, changed);
  running = null;
  speeds.add(answer);
  composer.busy(false);
  if (!views.includes(view)) return; // a new conversation has begun meanwhile
  changed.now();
  conversation.save();
  say(report(answer));
  if (needsKey && (await askForKey())) await start().then(retry);
}

/** Everything that shows the answer, once per picture. */
function paint(answer, view) {
  if (!views.includes(view)) return;
  const talk = byId("talk");
  const following = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80; // pixels
  view.update();
  if (following) talk.scrollTop = talk.scrollHeight;
  instruments.show(answer);
  if (answer.timeline.origin !== null && race.answer !== answer) race.start(answer);
  const source = pageIn(answer.text);
  if (source === null) return;
  if (preview.source === null) isNarrow() ? hint("preview") : show("preview");
  preview.show(source, answer.phase === "over");
}

function addView(turn) {
  const { answer } = turn;
  const view = new TurnView(turn, {
    retry,
    race: () => {
      instruments.show(answer);
      show("race");
      race.start(answer, true);
    },
    preview: () => {
      show("preview");
      preview.show(pageIn(answer.text), true);
    },
  });
  views.push(view);
  byId("turns").append(view.node);
  byId("empty").hidden = true;
}

function startOver() {
  stop();
  conversation.clear();
  for (const view of views.splice(0)) view.node.remove();
  byId("empty").hidden = !ready;
  instruments.show(null);
  race.clear();
  preview.clear();
  show(isNarrow() ? "answer" : "race");
  composer.focus();
}

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
    showMachine(await machine());
  } catch (error) {
    if (error.status === 401 && (await askForKey())) return start();
  }
  ready = true;
  invite(canChat, send);
  composer.block(false);
  byId("empty").hidden = conversation.turns.length > 0;
}

function showMachine(found) {
  instruments.machine = found;
  canChat = found.can_chat;
  speeds.begin(found.model);
  setText(byId("model"), found.model);
  setText(byId("device"), found.device);
  document.title = `${found.model} on Monolane`;
  const facts = [
    `${bytes(found.bytes_per_token)} read per token`,
    `context of ${count(found.context)}`,
  ];
  setText(byId("machine"), facts.join(" · "));
  instruments.show(conversation.turns.at(-1)?.answer);
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea");
  if (event.key === "Escape" && !byId("key-dialog").open) preview.shrink() || stop();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    composer.focus();
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    startOver();
  }
});
byId("new").addEventListener("click", startOver);

watchTabs();
race.clear();
instruments.show(null);
conversation.turns.forEach(addView);
const last = conversation.turns.at(-1)?.answer;
if (last?.timeline.tokens) race.showEnd(last);
byId("talk").scrollTop = byId("talk").scrollHeight;
if (!isNarrow()) composer.focus();
start();
