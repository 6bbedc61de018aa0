// The dial, the figures and the curve: how fast the answer comes, and how much of the machine that is.
import { byId, setText } from "./dom.js";
import { bytes, count, duration, figure } from "./format.js";
import { sampledHow } from "./speeds.js";
import { msPerToken } from "./timeline.js";

const WIDTH = 400; // of the curve's coordinates
const HEIGHT = 80;
const POINTS = 80;

export class Instruments {
  constructor() {
    this.machine = null; // what /machine said
  }

  /** Show an answer, or with null the state before the first. */
  show(answer) {
    const { timeline, timings } = answer ?? {};
    const ms = answer && msPerToken(answer);
    const first = timings?.first_token_s ? timings.first_token_s * 1000 : timeline?.firstTokenMs;
    const tokens = timings?.generated_tokens ?? timeline?.tokens;
    byId("instruments").toggleAttribute("data-idle", !ms);
    const speed = ms ? figure(1000 / ms) : "–";
    setText(byId("speed"), speed);
    byId("speed").style.setProperty("--digits", speed.length); // as large as the dial has room for them
    setText(byId("speed-how"), ms ? sampledHow(answer) : "");
    setText(byId("per-token"), ms ? duration(ms) : "–");
    setText(byId("tokens"), tokens ? count(tokens) : "–");
    setText(byId("first-token"), first ? duration(first) : "–");
    this.#dial(ms ? 1000 / ms : 0);
    this.#curve(timeline);
  }

  #dial(tokensPerSecond) {
    const { bytes_per_token: each, ceiling_bytes_per_s: ceiling } = this.machine ?? {};
    const used = each ? each * tokensPerSecond : 0;
    const percent = ceiling ? (100 * used) / ceiling : 0;
    byId("instruments").style.setProperty("--used", Math.min(percent, 100).toFixed(1));
    byId("dial").setAttribute("aria-valuenow", Math.round(percent));
    const text = describe(used, ceiling);
    setText(byId("bandwidth"), text);
    byId("dial").setAttribute("aria-valuetext", text || "nothing yet");
  }

  #curve(timeline) {
    const { bytes_per_token: each, ceiling_bytes_per_s } = this.machine ?? {};
    const ceiling = each && ceiling_bytes_per_s ? ceiling_bytes_per_s / each : 0;
    const speeds = timeline?.speeds(POINTS) ?? [];
    const top = 1.1 * Math.max(ceiling, ...speeds);
    const y = (speed) => HEIGHT - (HEIGHT * speed) / top;
    const ceilingY = ceiling ? y(ceiling) : -9;
    for (const end of ["y1", "y2"]) byId("curve-ceiling").setAttribute(end, ceilingY.toFixed(1));
    setText(byId("curve-top"), ceiling ? `ceiling ${count(ceiling)} tok/s` : "");
    const points = speeds.map((speed, i) => `${((WIDTH * i) / (POINTS - 1)).toFixed(1)} ${y(speed).toFixed(1)}`);
    const line = points.length ? `M${points.join("L")}` : "";
    byId("curve-line").setAttribute("d", line);
    byId("curve-area").setAttribute("d", line && `${line}V${HEIGHT}H0Z`);
    if (points.length) {
      const range = `between ${count(Math.min(...speeds))} and ${count(Math.max(...speeds))} tokens per second`;
      byId("curve").setAttribute("aria-label", `Speed over the answer: ${range}`);
    }
  }
}

/** Both in bytes per second; 0 or null: not known. */
function describe(used, ceiling) {
  const howToKnow = "To see how much of this machine that is, run “monolane ceiling” once.";
  if (!ceiling) return used ? `${bytes(used)}/s read. ${howToKnow}` : "";
  if (!used) return `Read ceiling ${bytes(ceiling)}/s`;
  return `${bytes(used)}/s of ${bytes(ceiling)}/s, ${Math.round((100 * used) / ceiling)}% of the read ceiling`;
}
