// The ring: a buffer of slots in shared memory through which a worker streams its tape and, in long contexts, its split of the KV cache.
// One thread of the producer warp issues bulk copies into the slots and never waits for activations (Producer). The consumer warps take
// chunks out, each chunk by one warpgroup of 4 warps; the warpgroups alternate (Cursor). Producer and consumers execute the same passes in
// the same order, so chunks need no description.
//
// Each slot has two mbarriers: `full` completes a phase when a chunk has landed, `empty` when the 4 warps of a warpgroup have loaded it
// into registers. Prefill and decode passes have separate mbarriers, because a prefill pass has fewer slots (its input lies in the others);
// between the two the ring is empty. A tile is cut along k into chunks that fit a slot, as equal in size as whole fragments for all 4 warps
// allow or, of low-bit weights, as whole fragments do.
#pragma once
#include "cache.cuh"
#include "lowbit.cuh"
#include "route.cuh"

namespace monolane {

template <bool kPrefill>
constexpr int kSlotCount = kPrefill ? kPrefillSlots : kSlots;

// A slot of the ring, and how many times the ring has been passed through before. The parity of `round` is the parity of the mbarriers' phases.
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

// A value that depends on all loaded words, so that it is not known before all these loads have been performed (see Cursor::release).
template <int kCount>
MONOLANE_DEVICE uint32_t load_dependency(const Word4* loaded) {
  uint32_t mixed = 0;
#pragma unroll
  for (int j = 0; j < kCount; j++) mixed ^= loaded[j].x;
  return mixed;
}

// What a thread has of a fragment: 16 bytes of bf16, or the codes and scales of a low-bit format. Thread is the thread's place in a fragment. find() returns the
// address of fragment `index` of a chunk for this thread, and load() a value that depends on everything loaded from there. Where tiles end with a short fragment (kShortGroups),
// load_last() loads what may be one: it is, if the thread has been told so.
template <class P, bool kIsShort>
struct PlaceOf : LowBitFragment<typename P::Format, P::kFragmentCols / kBlockCols>::Thread {
  using Thread = typename LowBitFragment<typename P::Format, P::kFragmentCols / kBlockCols>::Thread;

  MONOLANE_DEVICE PlaceOf(uint32_t lane, bool) : Thread(lane) {}
};
template <class P>
struct PlaceOf<P, true> : PlaceOf<P, false> {
  typename LowBitFragment<typename P::Format, P::kFragmentCols / kBlockCols>::template Last<P::kShortGroups> last;

  MONOLANE_DEVICE PlaceOf(uint32_t lane, bool is_last) : PlaceOf<P, false>(lane, is_last), last(lane, is_last, *this) {}
};
template <class P, class Format = typename P::Format>
struct FragmentOf {
  using Type = LowBitFragment<Format, P::kFragmentCols / kBlockCols>;
  using Thread = PlaceOf<P, (P::kShortGroups > 0)>;

  MONOLANE_DEVICE static const char* find(const char* chunk, int index, const Thread&) { return chunk + index * Type::Place::end(kBlockGroups); }
  MONOLANE_DEVICE static uint32_t load(Type& fragment, const char* from, const Thread& thread) { return fragment.load(from, thread); }
  MONOLANE_DEVICE static uint32_t load_last(Type& fragment, const char* from, const Thread& thread) { return fragment.load_last(from, thread.last); }
};
template <class P>
struct FragmentOf<P, Bf16> {
  using Type = Word4;
  struct Thread {
    uint32_t lane_index;

    MONOLANE_DEVICE Thread(uint32_t lane, bool) : lane_index(lane) {}
  };

  MONOLANE_DEVICE static const char* find(const char* chunk, int index, const Thread& thread) {
    return reinterpret_cast<const char*>(reinterpret_cast<const Word4*>(chunk) + index * 32 + thread.lane_index);
  }
  MONOLANE_DEVICE static uint32_t load(Type& fragment, const char* from, const Thread&) {
    fragment = *reinterpret_cast<const Word4*>(from);
    return fragment.x;
  }
};

// Whether a layer has projection kIndex: those without experts have no router.
template <int kIndex>
MONOLANE_DEVICE bool has_projection(int layer) {
  return Projection<kIndex>::kInEveryLayer || kVariantOf[kIndex][layer] != kNone;
}

// Calls `run` with the variant of projection kIndex that a layer has.
template <int kIndex, int kVariant = 0, class Run>
MONOLANE_DEVICE auto for_layer(int layer, Run run) {
  if constexpr (kVariant + 1 < Projection<kIndex>::kVariants)
    if (kVariantOf[kIndex][layer] != kVariant) return for_layer<kIndex, kVariant + 1>(layer, run);
  return run(Projection<kIndex, kVariant>());
}

// Whether the chunks of one row come in the order of 16 rows: one chunk of all tiles of a batch, then the next chunk. The operands of integers take many
// instructions, and so they are made once for all tiles, where there are enough of them.
// Where each chosen expert has an input of its own, its part of all tiles comes before that of the next expert.
template <class P>
constexpr bool kOneRowByChunks =
    P::kSegments > 1 || (P::Format::kIsInteger && P::kExperts == 1 && P::kChunks > kWarpgroups && P::kMaxTiles > 2);
// Tiles of a batch in a decode pass where a tile has several chunks: those whose sums fit shared memory (see Sums in sums.cuh).
template <class P>
constexpr int kDecodeBatchOf = P::Format::kIsInteger ? kDecodeBatch / 2 : kDecodeBatch;

// A bulk copy from where a line of L2 begins is faster: 17% in the head of gpt-oss. Tiles begin so, and of chunks that do not, the copy begins with their first line, kSkipped bytes
// before them. These are the odd ones of a tile, those of the second warpgroup.
template <class P>
constexpr int kChunkBytesOf = P::kChunkFragments * P::kFragmentBytes;
template <class P>
constexpr int kSkipped = P::kChunks > 1 && (P::kChunks == kWarpgroups || kWarpgroups * kChunkBytesOf<P> % kLineBytes == 0) ? kChunkBytesOf<P> % kLineBytes : 0;

// Streams the tape; one thread of the producer warp runs it. All functions that return bool return false when the request has ended or
// failed meanwhile.
template <bool kPrefill>
class Producer {
 public:
  // `choices`: of experts, that the consumers have made in earlier passes.
  MONOLANE_DEVICE explicit Producer(uint32_t choices) : choices_(choices) {}
  MONOLANE_DEVICE uint32_t choices() const { return choices_; }

  // Streams the tape of one pass, from its beginning. The tape has the matrices in the order of the stages. `position`: the position of a
  // decode pass, which decides what of the KV cache is streamed.
  MONOLANE_DEVICE bool pass(const uint8_t* tape, int position, bool with_head) {
    for (int layer = 0; layer < kLayers; layer++)
      if (!copy_layer<0>(tape, layer, position)) return false;
    if (!with_head) return true;
    const int tiles = shared::own()[kProjections - 1].tiles;
    // A prefill pass computes logits of its last row only, so the head is read as in a decode pass, unless all logits are requested.
    const bool all_rows = kPrefill && monolane_launch.request.all_logits;
    return all_rows ? copy_batches<Head>(tape, tiles) : copy_tiles<Head>(tape, tiles);
  }

  // Waits for all copies in flight: the thread block must not exit while copies to its shared memory are in flight.
  MONOLANE_DEVICE void drain() {
    for (; in_flight_ > 0; in_flight_--)
      while (!oldest_landed()) {
      }
  }

 private:
  // The projections of a layer from kIndex on. The recursion over templates makes everything a copy needs to know of its projection a
  // constant; with a table, each copy would wait for loads from it.
  template <int kIndex>
  MONOLANE_DEVICE bool copy_layer(const uint8_t*& tape, int layer, int position) {
    const int tiles = shared::own()[layer * kProjectionsPerLayer + kIndex].tiles;
    const bool copied = !has_projection<kIndex>(layer) || for_layer<kIndex>(layer, [&](auto projection) {
      using P = decltype(projection);
      if constexpr (P::kExperts > 1) return copy_experts<P>(tape, tiles, layer);
      return kPrefill ? copy_batches<P>(tape, tiles) : copy_tiles<P>(tape, tiles);
    });
    if (!copied) return false;
    if (kIndex + 1 == kProjectionsBeforeAttention && !kPrefill && kStreamsCache && !copy_cache(layer, position)) return false;
    if constexpr (kIndex + 1 < kProjectionsPerLayer)
      return copy_layer<kIndex + 1>(tape, layer, position);
    else
      return true;
  }

  // The order for one row: tile after tile, each with all its chunks; or several whole tiles in each chunk; or as for 16 rows.
  template <class P>
  MONOLANE_DEVICE bool copy_tiles(const uint8_t*& tape, int tiles) {
    if constexpr (kOneRowByChunks<P>) return copy_batches<P, kDecodeBatchOf<P>>(tape, tiles);
    constexpr int kTileBytes = P::kTileBytes, kTiles = kPrefill ? 1 : P::kChunkTiles;
    int chunk = 0;
    if constexpr (kTiles > 1) {
      for (; tiles > 0; tiles -= kTiles) {
        const uint32_t bytes = min(kTiles, tiles) * kTileBytes;
        if (!copy_chunk(tape, bytes, in_flight_limit<P>(chunk++))) return false;
        tape += bytes;
      }
      return true;
    }
    for (; tiles > 0; tiles--, tape += kTileBytes)
      if (!copy_tile<P>(tape, chunk)) return false;
    return true;
  }

  // The order for up to 16 rows: of every tile of a batch one chunk for each warpgroup, then of every tile the next chunks, and so on. The
  // consumers then keep the input of a chunk in registers for all tiles of the batch (see project).
  template <class P, int kBatch = kPrefillBatch>
  MONOLANE_DEVICE bool copy_batches(const uint8_t*& tape, int tiles) {
    constexpr int kTileBytes = P::kTileBytes, kChunkBytes = kChunkBytesOf<P>;
    constexpr int kTogether = lesser(P::kChunks, kWarpgroups) * kChunkBytes;  // of one tile, before the next tile follows
    constexpr int kUnrolled = P::kChunks > kWarpgroups ? 1 : kWarpgroups;  // where tiles have many chunks, more would spill a register
    int chunk = 0;
    for (; tiles > 0; tiles -= kBatch) {
      const int end = min(kBatch, tiles) * kTileBytes;
      for (int begin = 0; begin < P::kChunks * kChunkBytes; begin += kTogether)
        for (int tile = 0; tile < end; tile += kTileBytes)
#pragma unroll(kUnrolled)
          for (int at = begin; at < begin + kTogether; at += kChunkBytes)
            if (!copy_part<P>(tape + tile, at, at > begin, in_flight_limit<P>(chunk++))) return false;
      tape += end;
    }
    return true;
  }

  // The tiles of the experts that have been chosen. A worker's tiles of one expert follow those of another.
  template <class P>
  MONOLANE_DEVICE bool copy_experts(const uint8_t*& tape, int tiles, int layer) {
    choices_ += P::kChooses;
    const int64_t stride = static_cast<int64_t>(tiles) * P::kTileBytes;
    const uint8_t* first = tape;
    tape += P::kExperts * stride;
    if constexpr (!kPrefill && P::kChooses) return copy_dealt<P>(layer);
    if (!tiles) return true;
    if (!wait_for_choice()) return false;
    const Routes& routes = shared::routes();
    if constexpr (!kPrefill && P::kSegments > 1) return copy_segments<P>(first, stride, tiles);
    const int count = kPrefill ? static_cast<int>(routes.used_count) : P::kChosen;
    for (int i = 0; i < count; i++) {
      const uint8_t* from = first + (kPrefill ? routes.used[i] : routes.experts[0][i]) * stride;
      if (!(kPrefill ? copy_batches<P>(from, tiles) : copy_tiles<P>(from, tiles))) return false;
    }
    return true;
  }

  // The tiles that this worker is dealt, of all chosen experts. Where they lie is found before the choice is known, but for the expert.
  template <class P>
  MONOLANE_DEVICE bool copy_dealt(int layer) {
    constexpr int kTiles = P::kChunkTiles, kTileBytes = P::kTileBytes;
    Routes& routes = shared::routes();
    const Dealt own = dealt();
    const DealtTile* table = monolane_launch.dealt_tiles + (layer * kLaneWorkers + rank()) * kMostDealt;
#pragma unroll 4
    for (int i = 0; i < own.count; i++) {
      const DealtTile& tile = table[i];
      routes.dealt[i] = {monolane_launch.tapes[lane_here() * kLaneWorkers + tile.worker] + tile.offset, static_cast<int64_t>(tile.tiles) * kTileBytes};
    }
    if (!wait_for_choice()) return false;
    const auto address = [&](int i) { return routes.dealt[i].first + routes.experts[0][(own.first + i) / kTilesEach<P>] * routes.dealt[i].stride; };
    int chunk = 0;
    for (int i = 0; i < own.count; i += kTiles) {
      if constexpr (kTiles > 1) {
        const int count = min(kTiles, own.count - i);
        if (!acquire_slot(in_flight_limit<P>(chunk++))) return false;
        ptx::mbarrier_arrive_expect(next_.full(), count * kTileBytes);
        for (int j = 0; j < count; j++) ptx::bulk_copy_evict_first(next_.memory() + j * kTileBytes, address(i + j), kTileBytes, next_.full());
        advance();
      } else {
        if (!copy_tile<P>(address(i), chunk)) return false;
      }
    }
    return true;
  }

  // The order where a tile has an input for each chosen expert: that of copy_batches(), with the chunks of one expert behind those of the other. A chunk has
  // several tiles of one expert where they are small.
  template <class P>
  MONOLANE_DEVICE bool copy_segments(const uint8_t* first, int64_t stride, int tiles) {
    constexpr int kTiles = P::kChunkTiles;
    constexpr int kTileBytes = P::kTileBytes;
    constexpr int kChunks = P::kSegments * P::kChunks, kTogether = lesser(kChunks, kWarpgroups);
    const Routes& routes = shared::routes();
    int number = 0;
    for (int begin = 0; begin < tiles; begin += kDecodeBatchOf<P>)
      for (int chunk = 0; chunk < kChunks; chunk += kTogether)
        for (int tile = begin; tile < min(begin + kDecodeBatchOf<P>, tiles); tile += kTiles)
          for (int i = chunk; i < chunk + kTogether; i++) {
            const uint8_t* from = first + routes.experts[0][i / P::kChunks] * stride + tile * kTileBytes;
            const int limit = in_flight_limit<P>(number++);
            if (!(kTiles > 1 ? copy_chunk(from, min(kTiles, tiles - tile) * kTileBytes, limit) : copy_part<P>(from, i % P::kChunks * kChunkBytesOf<P>, i % P::kChunks % kWarpgroups, limit))) return false;
          }
    return true;
  }

  // Waits until the consumers have chosen the experts of this layer.
  MONOLANE_DEVICE bool wait_for_choice() const {
    while (static_cast<int32_t>(ptx::load_shared_acquire(&shared::flags()->choices) - choices_) < 0)
      if (shared::consumers_done() || shared::failed()) return false;
    return true;
  }

  // The in-flight limit at this chunk of a stage. The limits are copied to constexpr locals, because the compiler would turn uses of the
  // members of P::kInFlight into loads from a table.
  template <class P>
  MONOLANE_DEVICE static int in_flight_limit(int chunk) {
    constexpr InFlightLimits kLimits = P::kInFlight;
    constexpr int kFirst = kLimits.first, kSecond = kLimits.second, kRest = kLimits.rest;
    if (kPrefill) return kLimits.prefill;
    return chunk < kLimits.first_chunks ? kFirst : chunk < kLimits.second_chunks ? kSecond : kRest;
  }

  // Streams this worker's split of the KV cache of a layer, up to streamed_end. The cache is streamed only where there are many splits, and
  // then kKvHeads * splits is at most the number of workers, so a worker has at most one split.
  MONOLANE_DEVICE bool copy_cache(int layer, int position) {
    constexpr int kKeyBytes = kKeyFragments * kFragmentBytes, kValueBytes = kValueFragments * kFragmentBytes;
    constexpr int kInFlight = divide_up(kCacheBytesInFlight, kChunkPages * kPageBytes);
    if (position < kFusedTokens) return true;  // the fast exit of short contexts: every layer comes here, and copies wait meanwhile
    const Span span = span_of<false>(position, window_of(layer));
    const int head = rank() % kKvHeads, split = split_of(rank(), span);
    if (split < 0) return true;
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

  // Waits until the consumer warps have begun the pass of `position`. Then the pass of position - 1 has ended on all workers, and what it
  // wrote to the KV cache may be copied.
  MONOLANE_DEVICE bool wait_for_pass(int position) {
    while (static_cast<int>(ptx::load_shared_acquire(&shared::flags()->pass_position)) < position)
      if (shared::consumers_done() || shared::failed()) return false;
    ptx::fence_proxy_async_global();
    return true;
  }

  // All chunks of a tile. `chunk` counts those of the stage.
  template <class P>
  MONOLANE_DEVICE bool copy_tile(const uint8_t* tile, int& chunk) {
    for (int i = 0; i < P::kChunks; i++)
      if (!copy_part<P>(tile, i * kChunkBytesOf<P>, i % kWarpgroups, in_flight_limit<P>(chunk++))) return false;
    return true;
  }

  // The chunk of a tile that begins `at` bytes behind its beginning.
  template <class P>
  MONOLANE_DEVICE bool copy_part(const uint8_t* tile, int at, bool is_odd, int limit) {
    const int skipped = is_odd ? kSkipped<P> : 0;
    constexpr bool kWhole = P::kChunks * kChunkBytesOf<P> <= P::kTileBytes;  // the last chunk
    return copy_chunk(tile + at - skipped, (kWhole ? kChunkBytesOf<P> : min(kChunkBytesOf<P>, P::kTileBytes - at)) + skipped, limit);
  }

  MONOLANE_DEVICE bool copy_chunk(const uint8_t* from, uint32_t bytes, int limit) {
    if (!acquire_slot(limit)) return false;
    ptx::mbarrier_arrive_expect(next_.full(), bytes);
    ptx::bulk_copy_evict_first(next_.memory(), from, bytes, next_.full());
    advance();
    return true;
  }

  // Waits until the next slot is empty and fewer than `limit` chunks are in flight.
  MONOLANE_DEVICE bool acquire_slot(int limit) {
    while (next_.round && !ptx::mbarrier_try_wait(next_.empty(), (next_.round - 1) & 1))
      if (shared::consumers_done() || shared::failed()) return false;
    for (; in_flight_ >= min(limit, kSlotCount<kPrefill>); in_flight_--)
      while (!oldest_landed())
        if (shared::consumers_done() || shared::failed()) return false;
    return true;
  }

  MONOLANE_DEVICE void advance() {
    next_.advance(1);
    in_flight_++;
  }

  // Whether the oldest chunk in flight has landed.
  MONOLANE_DEVICE bool oldest_landed() const {
    RingPosition<kPrefill> oldest = next_;
    oldest.rewind(in_flight_);
    return ptx::mbarrier_try_wait(oldest.full(), oldest.round & 1);
  }

  RingPosition<kPrefill> next_;  // the slot of the next chunk
  int in_flight_ = 0;            // chunks before it that have not been seen to land
  uint32_t choices_;             // of experts, up to the current layer
};

// Where a warpgroup is in the ring; each consumer warp has its own copy. Chunks go to the warpgroups alternately, across the bounds of stages.
// `place` is the slot of the warpgroup's next chunk. `order` says which chunk of the stage that is: 0 for the warpgroup that takes the first
// chunk of the stage, 1 for the one that takes the second.
template <bool kPrefill>
struct Cursor {
  RingPosition<kPrefill> place;
  int order;

  MONOLANE_DEVICE Cursor() : order(warp_id() / kWarpgroupWarps) { place.advance(order); }

  // Waits for the warpgroup's next chunk and loads this warp's fragments of it into registers. `team` has the tiles `team`, `team` + S::kTeams, … of the
  // chunk, and `warp` of the team the shares `warp`, `warp` + S::kTileWarps, … of each tile (see WarpgroupShare). Returns what release() takes.
  template <class S>
  MONOLANE_DEVICE uint32_t load_chunk(typename S::Weights& weights, int team, int warp, const typename S::Fragment::Thread& thread) {
    const char* chunk = await() + team * S::kTileBytes + (S::kSkipped ? order * S::kSkipped : 0);
    const char* from = S::Fragment::find(chunk, warp, thread);
    // Fragments behind the end of a short chunk or tile are loaded, too: a load is cheaper than a condition, and they are not used.
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < S::kTeamTiles * S::kWarpShares; i++) {
      const int tile = i / S::kWarpShares * S::kTeams, share = i % S::kWarpShares * S::kTileWarps;
#pragma unroll
      for (int j = 0; j < S::kWarpFragments; j++) {
        const char* at = from + tile * S::kTileBytes + (share + j * kWarpgroupWarps) * S::kFragmentBytes;
        if constexpr (S::kIsShort) {
          if (i % S::kWarpShares == S::kLastShare / S::kTileWarps && j == S::kLast) {
            loaded ^= S::Fragment::load_last(weights[i][j], at, thread);
            continue;
          }
        }
        loaded ^= S::Fragment::load(weights[i][j], at, thread);
      }
    }
    return loaded;
  }

  // Waits for the warpgroup's next chunk and returns its address.
  MONOLANE_DEVICE const char* await() const {
    // The parity of an mbarrier distinguishes only two consecutive rounds. Where the number of slots is no multiple of the number of
    // warpgroups, a slot changes warpgroups from round to round: one warpgroup may come to it while the other's chunk of the round before is
    // still in flight. So it first waits until that chunk has been released.
    if (kSlotCount<kPrefill> % kWarpgroups && place.round) wait(place.empty(), (place.round - 1) & 1);
    wait(place.full(), place.round & 1);
    return place.memory();
  }

  // Releases the slot for this warp and moves on to the warpgroup's next chunk. `loaded` depends on everything that the warp has loaded from
  // the slot (load_dependency). Loads that have been issued need not have been performed: they can be stuck behind loads from global memory
  // while the arrival at the mbarrier is not, and then the producer would overwrite the slot before they read it. So the address of the
  // arrival depends on `loaded`: monolane_launch.zero is 0, which the compiler does not know.
  MONOLANE_DEVICE void release(uint32_t loaded) {
    ptx::sync_warp();
    if (lane_id() == 0) ptx::mbarrier_arrive(place.empty() + (loaded & monolane_launch.zero));
    place.advance(kWarpgroups);
  }

  // How many of the next `count` chunks, which go to the warpgroups alternately, are this warpgroup's.
  MONOLANE_DEVICE int own_chunks(int count) const { return divide_up(count - order, kWarpgroups); }
  // Updates `order` when the `count` chunks of a stage have been taken by the warpgroups.
  MONOLANE_DEVICE void skip(int count) { order += own_chunks(count) * kWarpgroups - count; }

 private:
  MONOLANE_DEVICE static void wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::mbarrier_try_wait(barrier, parity))
      if (shared::failed()) break;
  }
};

}  // namespace monolane
