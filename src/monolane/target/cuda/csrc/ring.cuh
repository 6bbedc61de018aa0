// The ring: one warp streams the tape into it and never waits for activations; the others empty it, chunk by chunk, each
// chunk taken by a group of four warps. Narrow and wide passes have barriers of their own, because a wide pass has fewer
// slots; between them the ring is empty. A matrix is cut along k (Cut, generated) into chunks of at most a slot, a tile's
// chunks as equal as whole units allow.
#pragma once
#include "launch.cuh"

namespace monolane {

template <bool kWide>
constexpr int kSlotCount = kWide ? kWideSlots : kSlots;

template <bool kWide>
class Producer {
 public:
  // The tape of one pass. False when the request has ended meanwhile.
  MONOLANE_DEVICE bool pass(bool with_head) {
    for (int s = 0; s < kStageCount; s++) {
      const Stage& stage = kStages[s];
      if (stage.kind != Kind::kProject || (stage.output == Output::kLogits && !with_head)) continue;
      const Segment& share = segment(stage.projection);
      const uint8_t* from = monolane_launch.tapes[worker_index()] + share.offset;
      const Cut cut = kCuts[s];
      int chunk_of_stage = 0;
      for (int64_t tile = 0; tile < share.tiles; tile++)
        for (int unit = 0; unit < cut.units; unit += cut.chunk_units) {
          const int units = min(cut.chunk_units, cut.units - unit);
          // Few copies in flight near a hand-off, or its small loads queue behind them; more inside a long stage.
          const uint32_t in_flight = min(kSlotCount<kWide>, chunk_of_stage++ < kSlots ? kInFlightNear : kInFlightFar);
          if (!put(from, units * kUnitBytes, in_flight, s)) return false;
          from += units * kUnitBytes;
        }
    }
    return true;
  }

  // Shared memory must not be left while copies are on their way to it.
  MONOLANE_DEVICE void drain() {
    const uint32_t first = issued_ > kSlotCount<kWide> ? issued_ - kSlotCount<kWide> : 0;
    for (uint32_t k = first; k < issued_; k++) wait(&shared::full(kWide)[k % kSlotCount<kWide>], (k / kSlotCount<kWide>) & 1, kNone, false);
  }

 private:
  MONOLANE_DEVICE bool put(const uint8_t* from, uint32_t bytes, uint32_t in_flight, int stage) {
    const uint32_t slot = issued_ % kSlotCount<kWide>, round = issued_ / kSlotCount<kWide>;
    if (round && !wait(&shared::empty(kWide)[slot], (round - 1) & 1, stage, true)) return false;
    if (issued_ >= in_flight) {
      const uint32_t earlier = issued_ - in_flight;
      if (!wait(&shared::full(kWide)[earlier % kSlotCount<kWide>], (earlier / kSlotCount<kWide>) & 1, stage, true)) return false;
    }
    uint64_t* full = &shared::full(kWide)[slot];
    ptx::barrier_expect(full, bytes);
    ptx::bulk_copy(shared::ring() + slot * kSlotBytes, from, bytes, full);
    issued_++;
    return true;
  }

  MONOLANE_DEVICE bool wait(uint64_t* barrier, uint32_t parity, int stage, bool until_stop) {
    Wait waiting(stage, kForSlot);
    while (!ptx::barrier_passed(barrier, parity))
      if ((until_stop && *shared::stop()) || waiting.over()) return false;
    return true;
  }

  uint32_t issued_ = 0;
};

// Where the consumers are: all of them count the chunks of all groups.
template <bool kWide>
struct Cursor {
  uint32_t taken = 0;

  // A group's chunk: wait for it, take a warp's share of its units into registers, free the slot.
  template <int kMost>
  MONOLANE_DEVICE void take(int stage, uint32_t chunk, Word4 (&weights)[kMost]) const {
    const uint32_t k = taken + chunk, slot = k % kSlotCount<kWide>, round = k / kSlotCount<kWide>;
    // A barrier tells apart only two rounds. Where a slot goes from group to group, one group may come to it while the
    // other's chunk, of the round before, is still on its way: it waits until that chunk has been taken.
    if (kSlotCount<kWide> % kGroups && round) wait(stage, &shared::empty(kWide)[slot], (round - 1) & 1);
    wait(stage, &shared::full(kWide)[slot], round & 1);
    const Word4* from = reinterpret_cast<const Word4*>(shared::ring() + slot * kSlotBytes) + lane_index();
    const int warp = warp_index() % kGroupWarps;
    // All places of the slot, also those behind a short chunk: a load is cheaper than a condition, and they are not used.
#pragma unroll
    for (int j = 0; j < kMost; j++) weights[j] = from[(j * kGroupWarps + warp) * 32];
    ptx::sync_warp();
    if (lane_index() == 0) ptx::barrier_arrive(&shared::empty(kWide)[slot]);
  }

 private:
  MONOLANE_DEVICE static void wait(int stage, uint64_t* barrier, uint32_t parity) {
    Wait waiting(stage, kForCopy);
    while (!ptx::barrier_passed(barrier, parity))
      if (waiting.over()) break;
  }
};

}  // namespace monolane
