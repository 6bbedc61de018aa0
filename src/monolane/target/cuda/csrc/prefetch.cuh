// What a layer needs besides its tape and its inputs (norms, biases, rotations, the cache) comes from far away: a miss of
// L2 behind a queue of bulk copies takes 2 to 3 µs, longer than a hand-off. A warp that has nothing else to do follows the
// consumers and asks it into L2 a layer ahead, or, of the cache, a stage ahead.
#pragma once
#include "cache.cuh"

namespace monolane {

// Of one split; a longer one is asked for step by step (see Split::want). All splits together must fit L2.
constexpr int kPrefetchPages = (128 << 10) / ((kKeyFragments + kValueFragments) * kFragmentBytes);

class Prefetcher {
 public:
  MONOLANE_DEVICE void run() {
    uint32_t seen = 0;
    while (!shared::consumers_done() && !shared::failed()) {
      const uint32_t step = ptx::load_shared(&shared::flags()->step);
      if (step == seen) {
        ptx::nanosleep(kPollNs);
        continue;
      }
      seen = step;
      const int stage = static_cast<int>(ptx::load_shared(&shared::flags()->stage));
      if (stage < 1 || (stage - 1) % kStagesPerLayer || stage > kLayers * kStagesPerLayer) continue;  // layers begin with qkv
      const int layer = (stage - 1) / kStagesPerLayer;
      cache(layer, static_cast<int>(ptx::load_shared(&shared::flags()->position)));
      if (layer + 1 < kLayers) constants(layer + 1);
    }
  }

 private:
  static constexpr int kPollNs = 200;

  // All blocks read them: each asks for some lines.
  MONOLANE_DEVICE static void constants(int layer) {
    if (lane_id() == 0) prefetch_lines(monolane_launch.constants + layer * kConstantsPerLayer, kConstantsPerLayer * 4, worker_id(), kWorkers);
  }

  MONOLANE_DEVICE static void cache(int layer, int position) {
    const Span span = span_of<false>(position, window_of(layer));
    if (streamed_end(position, span)) return;
    for (int item = worker_id(); item < kKvHeads * span.splits; item += kWorkers) {
      const int head = item % kKvHeads, split = item / kKvHeads, first = split_start(span, split);
      const int pages = min(kPrefetchPages, split_end(span, split) - first);
      prefetch_lines(key_page(layer, head, first), pages * kKeyFragments * kFragmentBytes, lane_id(), 32);
      prefetch_lines(value_page(layer, head, first), pages * kValueFragments * kFragmentBytes, lane_id(), 32);
    }
  }
};

}  // namespace monolane
