// When the tokens of one answer came: what speeds are read from, and what a race replays.

const SPACING_MS = 8; // half a picture: what arrives closer together is one point
const WINDOW_MS = 100; // what a speed is measured over, at least: tokens arrive in bursts
const KEPT = 240; // points of an answer that is over

/** How fast an answer came: by the engine's own clock where it has spoken, by this page's until then. */
export function msPerToken({ timings, timeline }) {
  return timings?.decode_us_per_token ? timings.decode_us_per_token / 1000 : timeline.msPerToken;
}

export class Timeline {
  /** Points are [ms since the first, tokens, characters], each counted from the beginning of the answer. */
  constructor(points = [], firstTokenMs = null) {
    this.points = points;
    this.firstTokenMs = firstTokenMs;
    this.origin = null;
  }

  static from({ points, firstTokenMs }) {
    return new Timeline(points, firstTokenMs);
  }

  /** `sentMs` and `nowMs` are of the same clock. */
  add(sentMs, nowMs, tokens, characters) {
    this.origin ??= nowMs;
    this.firstTokenMs ??= nowMs - sentMs;
    const { points } = this;
    const ms = nowMs - this.origin;
    // The first point stays as it is: speeds leave out what came with it, as it waited for the prompt.
    const close = points.length > 2 && points.at(-1)[0] - points.at(-2)[0] < SPACING_MS;
    if (close) points.pop();
    points.push([ms, tokens, characters]);
  }

  get tokens() {
    return this.points.at(-1)?.[1] ?? 0;
  }

  get lengthMs() {
    return this.points.at(-1)?.[0] ?? 0;
  }

  /** Mean time per token after the first, in ms; null where there is nothing to measure. */
  get msPerToken() {
    const first = this.points[0];
    const tokens = first ? this.tokens - first[1] : 0;
    return tokens > 0 && this.lengthMs > 0 ? this.lengthMs / tokens : null;
  }

  /** Tokens cannot come faster than they are made; where it looks so, the first ones were late, and time is stretched. */
  noFasterThan(msPerToken) {
    const stretch = msPerToken / this.msPerToken;
    if (stretch > 1) this.points = this.points.map(([ms, ...counts]) => [ms * stretch, ...counts]);
  }

  tokensAt(ms) {
    return this.#between(0, 1, ms);
  }

  charactersAt(tokens) {
    const first = this.points[0];
    if (!first) return 0;
    return Math.round(tokens <= first[1] ? (first[2] * tokens) / first[1] : this.#between(1, 2, tokens));
  }

  /** `many` speeds along the answer, evenly in time, each over a window around its place; tokens per second */
  speeds(many) {
    const { lengthMs } = this;
    if (this.msPerToken === null) return [];
    const half = Math.min(lengthMs, Math.max(WINDOW_MS, lengthMs / 16)) / 2;
    return Array.from({ length: many }, (_, i) => {
      const middle = (lengthMs * i) / (many - 1);
      const from = Math.min(Math.max(0, middle - half), lengthMs - 2 * half);
      const to = from + 2 * half;
      return ((this.tokensAt(to) - this.tokensAt(from)) * 1000) / (to - from);
    });
  }

  /** For keeping: no more points than a picture needs. */
  toJSON() {
    const { points, firstTokenMs } = this;
    const stride = Math.ceil(points.length / KEPT);
    return { points: points.filter((_, i) => i % stride === 0 || i === points.length - 1), firstTokenMs };
  }

  #between(known, wanted, value) {
    const { points } = this;
    if (!points.length) return 0;
    let [low, high] = [0, points.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][known] < value) low = middle + 1;
      else high = middle;
    }
    const [after, before] = [points[low], points[Math.max(low - 1, 0)]];
    const span = after[known] - before[known];
    const share = span > 0 ? Math.min(1, Math.max(0, (value - before[known]) / span)) : 1;
    return before[wanted] + share * (after[wanted] - before[wanted]);
  }
}
