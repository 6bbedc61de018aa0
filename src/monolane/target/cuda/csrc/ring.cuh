// The ring: one warp streams the tape into it and never waits for activations; the others empty it, chunk by chunk, each
// chunk taken by a group of four warps. Narrow and wide passes have barriers of their own, because a wide pass has fewer
// slots; between them the ring is empty. A tile is cut along k into chunks of at most a slot, as
// equal as whole units of all four warps allow.
#pragma once
#include "cache.cuh"

namespace monolane {

template <bool kWide>
constexpr int kSlotCount = kWide ? kWideSlots : kSlots;

// A place in the ring, and how often the ring has been gone round.
template <bool kWide>
struct Place {
  uint32_t slot = 0, round = 0;

  MONOLANE_DEVICE void advance(uint32_t chunks) {
    slot += chunks;
    if (slot >= kSlotCount<kWide>) slot -= kSlotCount<kWide>, round++;
  }
  MONOLANE_DEVICE void go_back(uint32_t chunks) {
    if (slot < chunks) slot += kSlotCount<kWide>, round--;
    slot -= chunks;
  }
  MONOLANE_DEVICE uint64_t* full() const { return &shared::full(kWide)[slot]; }
  MONOLANE_DEVICE uint64_t* empty() const { return &shared::empty(kWide)[slot]; }
  MONOLANE_DEVICE char* memory() const { return shared::ring() + slot * kSlotBytes; }
};

// A number that nobody knows before all loads have been performed.
template <int kCount>
MONOLANE_DEVICE uint32_t mixed(const Word4* loaded) {
  uint32_t all = 0;
#pragma unroll
  for (int j = 0; j < kCount; j++) all ^= loaded[j].x;
  return all;
}

template <bool kWide>
class Producer {
 public:
  // The tape of one pass, from its beginning: it has the matrices in the order of the stages. False when the request has
  // ended meanwhile.
  MONOLANE_DEVICE bool pass(const uint8_t* tape, int position, bool with_head) {
    for (int layer = 0; layer < kLayers; layer++)
      if (!put_layer<0>(tape, layer, position)) return false;
    if (!with_head) return true;
    const int tiles = shared::own()[kProjections - 1].tiles;
    const bool of_many = kWide && monolane_launch.request.scores;  // a wide pass has logits of one position, but for these
    return of_many ? put_batches<kHeadForm>(tape, tiles) : put_tiles<kHeadForm>(tape, tiles);
  }

  // Shared memory must not be left while copies are on their way to it.
  MONOLANE_DEVICE void drain() {
    for (; in_flight_ > 0; in_flight_--)
      while (!landed()) {
      }
  }

 private:
  // Matrices from this form on, by templates: what a copy needs to know of its form are constants, not loads that copies wait for.
  template <int kForm>
  MONOLANE_DEVICE bool put_layer(const uint8_t*& tape, int layer, int position) {
    const int tiles = shared::own()[layer * kProjectionsPerLayer + kForm].tiles;
    if (!(kWide ? put_batches<kForm>(tape, tiles) : put_tiles<kForm>(tape, tiles))) return false;
    if (kForm == 0 && !kWide && kStreamsCache && !put_cache(layer, position)) return false;
    if constexpr (kForm + 1 < kHeadForm)
      return put_layer<kForm + 1>(tape, layer, position);
    else
      return true;
  }

  // For one position: tile by tile.
  template <int kForm>
  MONOLANE_DEVICE bool put_tiles(const uint8_t*& tape, int tiles) {
    constexpr int kUnits = kForms[kForm].units, kChunkUnits = kForms[kForm].chunk_units;
    int chunk = 0;
    for (int tile = 0; tile < tiles; tile++)
      for (int left = kUnits; left > 0; left -= kChunkUnits) {
        const uint32_t bytes = min(kChunkUnits, left) * kUnitBytes;
        if (!put(tape, bytes, most_in_flight<kForm>(chunk++))) return false;
        tape += bytes;
      }
    return true;
  }

  // For sixteen: of a batch of tiles a chunk for every group of each, then the next (see project).
  template <int kForm>
  MONOLANE_DEVICE bool put_batches(const uint8_t*& tape, int tiles) {
    constexpr int kTileBytes = kForms[kForm].units * kUnitBytes, kChunkBytes = kForms[kForm].chunk_units * kUnitBytes;
    constexpr int kTogether = lesser(kForms[kForm].chunks, kGroups) * kChunkBytes;
    for (int left = tiles; left > 0; left -= kBatchOfMany) {
      const int count = min(kBatchOfMany, left);
      for (int begin = 0; begin < kTileBytes; begin += kTogether)
        for (int tile = 0; tile < count; tile++)
          for (int at = begin; at < min(begin + kTogether, kTileBytes); at += kChunkBytes)
            if (!put(tape + tile * kTileBytes + at, min(kChunkBytes, kTileBytes - at), kForms[kForm].pace.wide)) return false;
      tape += count * kTileBytes;
    }
    return true;
  }

  // Copies that may be on their way at once, at this chunk of a stage. Of members of a form the compiler would make loads from a table.
  template <int kForm>
  MONOLANE_DEVICE static int most_in_flight(int chunk) {
    constexpr Pace kPace = kForms[kForm].pace;
    constexpr int kFirst = kPace.first, kThen = kPace.then, kRest = kPace.rest;
    if (kWide) return kPace.wide;
    return chunk < kPace.until ? kFirst : chunk < kPace.then_until ? kThen : kRest;
  }

  // This block's split of the cache: many splits are never more than there are blocks.
  MONOLANE_DEVICE bool put_cache(int layer, int position) {
    constexpr int kKeyBytes = kKeyUnits * kUnitBytes, kValueBytes = kValueUnits * kUnitBytes;
    constexpr int kInFlight = divide_up(kCacheBytesInFlight, kChunkBlocks * kBlockBytes);
    if (position < kFewPositions) return true;  // at once: every layer comes here, and copies wait
    const Span span = span_of<false>(position, window_of(layer));
    const int head = worker_index() % kKvHeads, split = worker_index() / kKvHeads;
    if (split >= span.splits) return true;
    const int end = min(streamed_end(position, span), split_end(span, split));
    int block = split_start(span, split);
    if (block < end && !reached(position - 1)) return false;
    for (; block < end; block += kChunkBlocks) {
      if (!next_slot(kInFlight)) return false;
      const int count = min(kChunkBlocks, end - block);
      ptx::barrier_expect(next_.full(), count * kBlockBytes);
      ptx::bulk_copy(next_.memory(), key_block(layer, head, block), count * kKeyBytes, next_.full());
      ptx::bulk_copy(next_.memory() + kChunkBlocks * kKeyBytes, value_block(layer, head, block), count * kValueBytes, next_.full());
      issued();
    }
    return true;
  }

  // The pass of a position has begun here, and what was written before the one before it may be copied.
  MONOLANE_DEVICE bool reached(int position) {
    while (static_cast<int>(ptx::load_shared_acquire(&shared::flags()->reached)) < position)
      if (shared::stopped() || shared::over()) return false;
    ptx::fence_async_global();
    return true;
  }

  MONOLANE_DEVICE bool put(const uint8_t* from, uint32_t bytes, int most) {
    if (!next_slot(most)) return false;
    ptx::barrier_expect(next_.full(), bytes);
    ptx::bulk_copy_once(next_.memory(), from, bytes, next_.full());
    issued();
    return true;
  }

  // The next slot is free, and fewer than `most` copies are on their way.
  MONOLANE_DEVICE bool next_slot(int most) {
    while (next_.round && !ptx::barrier_passed(next_.empty(), (next_.round - 1) & 1))
      if (shared::stopped() || shared::over()) return false;
    for (; in_flight_ >= min(most, kSlotCount<kWide>); in_flight_--)
      while (!landed())
        if (shared::stopped() || shared::over()) return false;
    return true;
  }

  MONOLANE_DEVICE void issued() {
    next_.advance(1);
    in_flight_++;
  }

  // The oldest copy that is on its way has come.
  MONOLANE_DEVICE bool landed() const {
    Place<kWide> oldest = next_;
    oldest.go_back(in_flight_);
    return ptx::barrier_passed(oldest.full(), oldest.round & 1);
  }

  Place<kWide> next_;  // of the next copy
  int in_flight_ = 0;  // copies before it that were not seen to land
};

// Where a group of consumers is: its next chunk's place, and whose turn it is: chunks go to the groups one by one, the first
// of a stage to the group whose turn is 0.
template <bool kWide>
struct Cursor {
  Place<kWide> place;
  int turn;

  MONOLANE_DEVICE Cursor() : turn(warp_index() / kGroupWarps) { place.advance(turn); }

  // The group's chunk: wait for it, take a warp's share of its units into registers, free the slot.
  template <int kMost>
  MONOLANE_DEVICE void take(Word4 (&weights)[kMost], int warp, int lane) {
    const Word4* from = reinterpret_cast<const Word4*>(await()) + warp * 32 + lane;
    // Also those behind a short chunk: a load is cheaper than a condition, and they are not used.
#pragma unroll
    for (int j = 0; j < kMost; j++) weights[j] = from[j * kGroupWarps * 32];
    leave(mixed<kMost>(weights));
  }

  // The group's next chunk is there.
  MONOLANE_DEVICE const char* await() const {
    // A barrier tells apart only two rounds. Where a slot goes from group to group, one group may come to it while the
    // other's chunk, of the round before, is still on its way: it waits until that chunk has been taken.
    if (kSlotCount<kWide> % kGroups && place.round) wait(place.empty(), (place.round - 1) & 1);
    wait(place.full(), place.round & 1);
    return place.memory();
  }

  // This warp has taken what it wants of it. Loads that were issued need not have been performed: they may be stuck behind others, while an arrival is
  // not, and then the slot would be overwritten under them. So the arrival depends on what they have brought: `loaded` is made of all of it.
  MONOLANE_DEVICE void leave(uint32_t loaded) {
    ptx::sync_warp();
    if (lane_index() == 0) ptx::barrier_arrive(place.empty() + (loaded & monolane_launch.zero));
    place.advance(kGroups);
  }

  // Chunks of `count` that come next, one by one to all groups, that are this group's.
  MONOLANE_DEVICE int own(int count) const { return divide_up(count - turn, kGroups); }
  // They have been taken.
  MONOLANE_DEVICE void pass(int count) { turn += own(count) * kGroups - count; }

 private:
  MONOLANE_DEVICE static void wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::barrier_passed(barrier, parity))
      if (shared::over()) break;
  }
};

}  // namespace monolane
