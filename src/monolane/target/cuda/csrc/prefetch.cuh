// The prefetch warp. It follows the stages of the consumer warps through the flags in shared memory and prefetches into L2 what a layer
// reads besides its tape and its input: the constants (norm weights, biases) one layer ahead, and the KV cache one stage ahead. An L2 miss
// that queues behind bulk copies takes 2 to 3 µs, which is longer than a hand-off. The warp writes nothing.
#pragma once
#include "cache.cuh"

namespace monolane {

// Pages of one split that are prefetched: at most 128 KiB, because all splits together must fit L2. The consumer warps prefetch the rest of
// a longer split step by step (SplitAttention::prefetch).
constexpr int kPrefetchPages = (128 << 10) / ((kKeyFragments + kValueFragments) * kFragmentBytes);

class Prefetcher {
 public:
  MONOLANE_DEVICE void run() {
    uint32_t last_step = 0;
    while (!shared::consumers_done() && !shared::failed()) {
      const uint32_t step = ptx::load_shared(&shared::flags()->step);
      if (step == last_step) {
        ptx::nanosleep(kPollNs);
        continue;
      }
      last_step = step;
      const int stage = static_cast<int>(ptx::load_shared(&shared::flags()->stage));
      if (stage < 1 || (stage - 1) % kStagesPerLayer || stage > kLayers * kStagesPerLayer) continue;  // only qkv, the first of a layer
      const int layer = (stage - 1) / kStagesPerLayer;
      cache(layer, static_cast<int>(ptx::load_shared(&shared::flags()->pass_position)));
      if (layer + 1 < kLayers) constants(layer + 1);
    }
  }

 private:
  static constexpr int kPollNs = 200;

  // All workers read all constants, so each worker prefetches some of the lines.
  MONOLANE_DEVICE static void constants(int layer) {
    if (lane_id() == 0) prefetch_lines(buffers().constants + layer * kConstantsPerLayer, kConstantsPerLayer * 4, rank(), kLaneWorkers);
  }

  // The splits that this worker attends to, as a decode pass divides them; prefill passes use the same division here. Splits that come through
  // the ring need no prefetch.
  MONOLANE_DEVICE static void cache(int layer, int position) {
    const Span span = span_of<false>(position, window_of(layer));
    if (streamed_end(position, span)) return;
    for (int item = rank(); item < kKvHeads * span.splits; item += kLaneWorkers) {
      const int head = item % kKvHeads, split = split_of(item, span), first = split_start(span, split);
      const int pages = min(kPrefetchPages, split_end(span, split) - first);
      prefetch_lines(key_page(layer, head, first), pages * kKeyFragments * kFragmentBytes, lane_id(), 32);
      prefetch_lines(value_page(layer, head, first), pages * kValueFragments * kFragmentBytes, lane_id(), 32);
    }
  }
};

}  // namespace monolane
