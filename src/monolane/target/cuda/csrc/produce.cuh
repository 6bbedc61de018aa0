// Passes, and the producer warp, which streams the tape for them.
#pragma once
#include "ring.cuh"

namespace monolane {

struct Pass {
  int start, rows;      // position of the first row; number of rows
  bool last_of_prompt;  // the last row is the last known token of the prompt or of the answer: its logits are needed
};

// The prefill pass that begins at `position` of a prompt of `count` tokens. A prefill pass stays within one cache page.
MONOLANE_DEVICE Pass prefill_pass(int position, int count) {
  const int rows = min(kPageTokens - position % kPageTokens, count - position);
  return {position, rows, position + rows == count};
}

// The producer warp: streams the tape for the same passes in the same order as Consumer::run(). Its first thread issues all copies.
MONOLANE_DEVICE void produce() {
  const Request& request = monolane_launch.request;
  const uint8_t* tape = monolane_launch.tapes[worker_here()];
  const int count = static_cast<int>(request.token_count);
  int position = static_cast<int>(request.cached);
  bool going = true;
  uint32_t choices;  // of experts
  {
    Producer<true> prefill(0);
    while (count - position > 1 && going) {
      const Pass now = prefill_pass(position, count);
      position += now.rows;
      if (lane_id() == 0) going = prefill.pass(tape, now.start, now.last_of_prompt || request.all_logits);
      going = !ptx::any(!going);
    }
    if (lane_id() == 0) prefill.drain();
    choices = prefill.choices();
  }
  sync_consumers_and_producer();
  if (lane_id() != 0) return;
  Producer<false> decode(choices);
  // Decode passes follow up to this position at most; it fits the context. The consumers may end the request earlier.
  const int end = count + (request.all_logits ? 0 : static_cast<int>(request.max_tokens) - 1);
  for (; position < end && going && !shared::consumers_done(); position++) going = decode.pass(tape, position, true);
  decode.drain();
}

}  // namespace monolane
