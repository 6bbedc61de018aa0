// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (n) => whole.format(Math.round(n));

/** Three significant digits: 4,812 stays whole, 70.9 and 7.25 keep theirs. */
export function figure(n) {
  if (n >= 100) return count(n);
  return n.toFixed(n >= 10 ? 1 : 2);
}

/** A speed in bytes per second, or an amount in bytes: "4.60 TB", "269 MB". */
export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) [n, unit] = [n / 1000, unit + 1];
  return `${n >= 99.95 ? Math.round(n) : figure(n)} ${units[unit]}`;
}

/** A time given in milliseconds: "208 µs", "12.4 ms", "3.20 s", "8 min 20 s", "2 h 5 min". */
export function duration(ms) {
  if (ms < 0.9995) return `${count(ms * 1000)} µs`;
  if (ms < 999.5) return `${figure(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds >= 9.995 ? seconds.toFixed(1) : seconds.toFixed(2)} s`;
  const minutes = Math.round(seconds) / 60;
  if (minutes < 60) return `${Math.floor(minutes)} min ${Math.round(seconds) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${Math.floor(minutes % 60)} min`;
}
