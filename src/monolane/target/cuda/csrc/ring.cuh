// The ring: one warp streams the tape into it and never waits for activations; the others empty it, chunk by chunk, each
// chunk taken by a group of four warps. Narrow and wide passes have barriers of their own, because a wide pass has fewer
// slots; between them the ring is empty. A tile is cut along k into chunks of at most a slot, as
// equal as whole units of all four warps allow.
#pragma once
#include "cache.cuh"

namespace monolane {

template <bool kPrefill>
constexpr int kSlotCount = kPrefill ? kPrefillSlots : kSlots;

// A place in the ring, and how often the ring has been gone round.
template <bool kPrefill>
struct RingPosition {
  uint32_t slot = 0, round = 0;

  MONOLANE_DEVICE void advance(uint32_t chunks) {
    slot += chunks;
    if (slot >= kSlotCount<kPrefill>) slot -= kSlotCount<kPrefill>, round++;
  }
  MONOLANE_DEVICE void rewind(uint32_t chunks) {
    if (slot < chunks) slot += kSlotCount<kPrefill>, round--;
    slot -= chunks;
  }
  MONOLANE_DEVICE uint64_t* full() const { return &shared::full(kPrefill)[slot]; }
  MONOLANE_DEVICE uint64_t* empty() const { return &shared::empty(kPrefill)[slot]; }
  MONOLANE_DEVICE char* memory() const { return shared::ring() + slot * kSlotBytes; }
};

// A number that nobody knows before all loads have been performed.
template <int kCount>
MONOLANE_DEVICE uint32_t load_dependency(const Word4* loaded) {
  uint32_t all = 0;
#pragma unroll
  for (int j = 0; j < kCount; j++) all ^= loaded[j].x;
  return all;
}

template <bool kPrefill>
class Producer {
 public:
  // The tape of one pass, from its beginning: it has the matrices in the order of the stages. False when the request has
  // ended meanwhile.
  MONOLANE_DEVICE bool pass(const uint8_t* tape, int position, bool with_head) {
    for (int layer = 0; layer < kLayers; layer++)
      if (!copy_layer<0>(tape, layer, position)) return false;
    if (!with_head) return true;
    const int tiles = shared::own()[kProjections - 1].tiles;
    const bool all_rows = kPrefill && monolane_launch.request.all_logits;  // a wide pass has logits of one position, but for these
    return all_rows ? copy_batches<Head>(tape, tiles) : copy_tiles<Head>(tape, tiles);
  }

  // Shared memory must not be left while copies are on their way to it.
  MONOLANE_DEVICE void drain() {
    for (; in_flight_ > 0; in_flight_--)
      while (!oldest_landed()) {
      }
  }

 private:
  // Matrices from this form on, by templates: what a copy needs to know of its form are constants, not loads that copies wait for.
  template <int kIndex>
  MONOLANE_DEVICE bool copy_layer(const uint8_t*& tape, int layer, int position) {
    const int tiles = shared::own()[layer * kProjectionsPerLayer + kIndex].tiles;
    if (!(kPrefill ? copy_batches<Projection<kIndex>>(tape, tiles) : copy_tiles<Projection<kIndex>>(tape, tiles))) return false;
    if (kIndex == 0 && !kPrefill && kStreamsCache && !copy_cache(layer, position)) return false;
    if constexpr (kIndex + 1 < kProjectionsPerLayer)
      return copy_layer<kIndex + 1>(tape, layer, position);
    else
      return true;
  }

  // For one position: tile by tile.
  template <class P>
  MONOLANE_DEVICE bool copy_tiles(const uint8_t*& tape, int tiles) {
    constexpr int kFragments = P::kFragments, kChunkFragments = P::kChunkFragments;
    int chunk = 0;
    for (int tile = 0; tile < tiles; tile++)
      for (int left = kFragments; left > 0; left -= kChunkFragments) {
        const uint32_t bytes = min(kChunkFragments, left) * kFragmentBytes;
        if (!copy_chunk(tape, bytes, in_flight_limit<P>(chunk++))) return false;
        tape += bytes;
      }
    return true;
  }

  // For sixteen: of a batch of tiles a chunk for every group of each, then the next (see project).
  template <class P>
  MONOLANE_DEVICE bool copy_batches(const uint8_t*& tape, int tiles) {
    constexpr int kTileBytes = P::kFragments * kFragmentBytes, kChunkBytes = P::kChunkFragments * kFragmentBytes;
    constexpr int kTogether = lesser(P::kChunks, kWarpgroups) * kChunkBytes;
    for (int left = tiles; left > 0; left -= kPrefillBatch) {
      const int count = min(kPrefillBatch, left);
      for (int begin = 0; begin < kTileBytes; begin += kTogether)
        for (int tile = 0; tile < count; tile++)
          for (int at = begin; at < min(begin + kTogether, kTileBytes); at += kChunkBytes)
            if (!copy_chunk(tape + tile * kTileBytes + at, min(kChunkBytes, kTileBytes - at), P::kInFlight.prefill)) return false;
      tape += count * kTileBytes;
    }
    return true;
  }

  // Copies that may be on their way at once, at this chunk of a stage. Of members of a form the compiler would make loads from a table.
  template <class P>
  MONOLANE_DEVICE static int in_flight_limit(int chunk) {
    constexpr InFlightLimits kLimits = P::kInFlight;
    constexpr int kFirst = kLimits.first, kSecond = kLimits.second, kRest = kLimits.rest;
    if (kPrefill) return kLimits.prefill;
    return chunk < kLimits.first_chunks ? kFirst : chunk < kLimits.second_chunks ? kSecond : kRest;
  }

  // This block's split of the cache: many splits are never more than there are blocks.
  MONOLANE_DEVICE bool copy_cache(int layer, int position) {
    constexpr int kKeyBytes = kKeyFragments * kFragmentBytes, kValueBytes = kValueFragments * kFragmentBytes;
    constexpr int kInFlight = divide_up(kCacheBytesInFlight, kChunkPages * kPageBytes);
    if (position < kFusedTokens) return true;  // at once: every layer comes here, and copies wait
    const Span span = span_of<false>(position, window_of(layer));
    const int head = worker_id() % kKvHeads, split = worker_id() / kKvHeads;
    if (split >= span.splits) return true;
    const int end = min(streamed_end(position, span), split_end(span, split));
    int page = split_start(span, split);
    if (page < end && !wait_for_pass(position - 1)) return false;
    for (; page < end; page += kChunkPages) {
      if (!acquire_slot(kInFlight)) return false;
      const int count = min(kChunkPages, end - page);
      ptx::mbarrier_arrive_expect(next_.full(), count * kPageBytes);
      ptx::bulk_copy(next_.memory(), key_page(layer, head, page), count * kKeyBytes, next_.full());
      ptx::bulk_copy(next_.memory() + kChunkPages * kKeyBytes, value_page(layer, head, page), count * kValueBytes, next_.full());
      advance();
    }
    return true;
  }

  // The pass of a position has begun here, and what was written before the one before it may be copied.
  MONOLANE_DEVICE bool wait_for_pass(int position) {
    while (static_cast<int>(ptx::load_shared_acquire(&shared::flags()->pass_position)) < position)
      if (shared::consumers_done() || shared::failed()) return false;
    ptx::fence_proxy_async_global();
    return true;
  }

  MONOLANE_DEVICE bool copy_chunk(const uint8_t* from, uint32_t bytes, int most) {
    if (!acquire_slot(most)) return false;
    ptx::mbarrier_arrive_expect(next_.full(), bytes);
    ptx::bulk_copy_evict_first(next_.memory(), from, bytes, next_.full());
    advance();
    return true;
  }

  // The next slot is free, and fewer than `most` copies are on their way.
  MONOLANE_DEVICE bool acquire_slot(int most) {
    while (next_.round && !ptx::mbarrier_try_wait(next_.empty(), (next_.round - 1) & 1))
      if (shared::consumers_done() || shared::failed()) return false;
    for (; in_flight_ >= min(most, kSlotCount<kPrefill>); in_flight_--)
      while (!oldest_landed())
        if (shared::consumers_done() || shared::failed()) return false;
    return true;
  }

  MONOLANE_DEVICE void advance() {
    next_.advance(1);
    in_flight_++;
  }

  // The oldest copy that is on its way has come.
  MONOLANE_DEVICE bool oldest_landed() const {
    RingPosition<kPrefill> oldest = next_;
    oldest.rewind(in_flight_);
    return ptx::mbarrier_try_wait(oldest.full(), oldest.round & 1);
  }

  RingPosition<kPrefill> next_;  // of the next copy
  int in_flight_ = 0;  // copies before it that were not seen to land
};

// Where a group of consumers is: its next chunk's place, and whose turn it is: chunks go to the groups one by one, the first
// of a stage to the group whose turn is 0.
template <bool kPrefill>
struct Cursor {
  RingPosition<kPrefill> place;
  int order;

  MONOLANE_DEVICE Cursor() : order(warp_id() / kWarpgroupWarps) { place.advance(order); }

  // The group's chunk: wait for it, take a warp's share of its units into registers, free the slot.
  template <int kMost>
  MONOLANE_DEVICE void load_chunk(Word4 (&weights)[kMost], int warp, int lane) {
    const Word4* from = reinterpret_cast<const Word4*>(await()) + warp * 32 + lane;
    // Also those behind a short chunk: a load is cheaper than a condition, and they are not used.
#pragma unroll
    for (int j = 0; j < kMost; j++) weights[j] = from[j * kWarpgroupWarps * 32];
    release(load_dependency<kMost>(weights));
  }

  // The group's next chunk is there.
  MONOLANE_DEVICE const char* await() const {
    // A barrier tells apart only two rounds. Where a slot goes from group to group, one group may come to it while the
    // other's chunk, of the round before, is still on its way: it waits until that chunk has been taken.
    if (kSlotCount<kPrefill> % kWarpgroups && place.round) wait(place.empty(), (place.round - 1) & 1);
    wait(place.full(), place.round & 1);
    return place.memory();
  }

  // This warp has taken what it wants of it. Loads that were issued need not have been performed: they may be stuck behind others, while an arrival is
  // not, and then the slot would be overwritten under them. So the arrival depends on what they have brought: `loaded` is made of all of it.
  MONOLANE_DEVICE void release(uint32_t loaded) {
    ptx::sync_warp();
    if (lane_id() == 0) ptx::mbarrier_arrive(place.empty() + (loaded & monolane_launch.zero));
    place.advance(kWarpgroups);
  }

  // Chunks of `count` that come next, one by one to all groups, that are this group's.
  MONOLANE_DEVICE int own_chunks(int count) const { return divide_up(count - order, kWarpgroups); }
  // They have been taken.
  MONOLANE_DEVICE void skip(int count) { order += own_chunks(count) * kWarpgroups - count; }

 private:
  MONOLANE_DEVICE static void wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::mbarrier_try_wait(barrier, parity))
      if (shared::failed()) break;
  }
};

}  // namespace monolane
