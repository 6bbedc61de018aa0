// Thousands of tokens a second, sixty pictures a second: what arrives in between is drawn together.

/** A function that asks for `paint` to run with the next picture, once, however often it is called. */
export function perFrame(paint) {
  let asked = 0;
  const ask = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      paint();
    });
  };
  /** Paint now, and not again for what was asked before. */
  ask.now = () => {
    cancelAnimationFrame(asked);
    asked = 0;
    paint();
  };
  return ask;
}
