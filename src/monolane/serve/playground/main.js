// The page: puts the parts together, and waits for the server.
import { health, machine, models } from "./api.js";
import { Composer } from "./composer.js";
import { byId, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { bytes, count } from "./format.js";
import { Instruments } from "./instruments.js";
import { showLoading } from "./loading.js";
import { askForKey } from "./key.js";
import { Picker } from "./picker.js";
import { Preview } from "./preview.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { Speeds } from "./speeds.js";
import { invite } from "./suggestions.js";
import { Talk } from "./talk.js";
import { isNarrow, watchTabs } from "./views.js";

const LOADING_POLL_MS = 400;
const TROUBLE_POLL_MS = 2000;

const instruments = new Instruments();
const speeds = new Speeds();
const race = new Race();
const preview = new Preview();
const picker = new Picker(start);
const settings = new Settings((text) => (talk.system = text));
const composer = new Composer(send, () => talk.stop(), () => settings.check());
const talk = new Talk({ composer, settings, picker, instruments, speeds, race, preview }, unlock);
new Drawer({ open: (one) => talk.open(one), changed: (one) => talk.renamed(one), gone: (id) => talk.gone(id) });

function send(prompt) {
  return talk.send(prompt);
}

/** Wait until the model is there, then learn what it is and where it runs. */
async function start() {
  talk.machine = null;
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
    const found = await loaded(picker.model);
    picker.offer(await models(), found.model);
    showMachine(found);
  } catch (error) {
    if (error.status !== 401) {
      showLoading({ status: "unreachable", problem: error.message });
      setTimeout(start, TROUBLE_POLL_MS);
    } else if (!(await unlock())) {
      showLoading({ status: "locked", problem: "Reload the page to give one." });
    }
    return;
  }
  composer.block(false);
  byId("empty").hidden = talk.conversation.turns.length > 0;
  await talk.resume();
}

/** What the server says of a model, which it loads first where it must; meanwhile its progress is shown. */
async function loaded(model) {
  const asked = machine(model);
  const looking = setInterval(async () => {
    const state = (await health().catch(() => ({}))).models?.[model];
    if (state?.status === "loading") showLoading(state);
  }, LOADING_POLL_MS);
  try {
    return await asked;
  } finally {
    clearInterval(looking);
    byId("loading").hidden = true;
  }
}

/** Ask for a key, and begin again with it. */
async function unlock() {
  const given = await askForKey();
  if (given) await start();
  return given;
}

function showMachine(found) {
  instruments.machine = talk.machine = found;
  speeds.begin(found.model);
  settings.begin(found.model, found.sampling);
  invite(found, send);
  setText(byId("model"), found.model);
  setText(byId("device"), found.device);
  document.title = `${found.model} on Monolane`;
  setText(byId("machine"), `${bytes(found.bytes_per_token)} read per token · context of ${count(found.context)}`);
  talk.showNumbers();
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) preview.shrink() || talk.stop();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    composer.focus();
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    talk.startOver();
  }
});
byId("new").addEventListener("click", () => talk.startOver());

watchTabs();
race.clear();
talk.show();
if (!isNarrow()) composer.focus();
start();
