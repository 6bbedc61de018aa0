// The ring: one warp streams the tape into it and never waits for activations; the others empty it, chunk by chunk, each
// chunk taken by a group of four warps. Narrow and wide passes have barriers of their own, because a wide pass has fewer
// slots; between them the ring is empty.
#pragma once
#include "launch.cuh"

namespace monolane {

// How a matrix is cut along k (Cut, generated): a chunk is at most a slot, and a tile's chunks are as equal as whole units
// allow.

template <bool kWide>
constexpr int kSlotCount = kWide ? kWideSlots : kSlots;

template <bool kWide>
class Producer {
 public:
  MONOLANE_DEVICE explicit Producer(const Block& block) : block_(block) {}

  // The tape of one pass. False when the request has ended meanwhile.
  MONOLANE_DEVICE bool pass(bool with_head) {
    for (int s = 0; s < kStageCount; s++) {
      const Stage& stage = kStages[s];
      if (stage.kind != Kind::kProject || (stage.output == Output::kLogits && !with_head)) continue;
      const Segment& segment = block_.segment(stage.projection);
      const uint8_t* from = block_.launch.tapes[block_.worker] + segment.offset;
      const Cut cut = kCuts[s];
      int chunk_of_stage = 0;
      for (int64_t tile = 0; tile < segment.tiles; tile++)
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
    for (uint32_t k = first; k < issued_; k++) wait(&block_.full(kWide)[k % kSlotCount<kWide>], (k / kSlotCount<kWide>) & 1, kNone, false);
  }

 private:
  MONOLANE_DEVICE bool put(const uint8_t* from, uint32_t bytes, uint32_t in_flight, int stage) {
    const uint32_t slot = issued_ % kSlotCount<kWide>, round = issued_ / kSlotCount<kWide>;
    if (round && !wait(&block_.empty(kWide)[slot], (round - 1) & 1, stage, true)) return false;
    if (issued_ >= in_flight) {
      const uint32_t earlier = issued_ - in_flight;
      if (!wait(&block_.full(kWide)[earlier % kSlotCount<kWide>], (earlier / kSlotCount<kWide>) & 1, stage, true)) return false;
    }
    uint64_t* full = &block_.full(kWide)[slot];
    ptx::barrier_expect(full, bytes);
    ptx::bulk_copy(block_.memory + slot * kSlotBytes, from, bytes, full);
    issued_++;
    return true;
  }

  MONOLANE_DEVICE bool wait(uint64_t* barrier, uint32_t parity, int stage, bool until_stop) {
    Wait waiting(block_.launch, block_.worker, stage, kForSlot);
    while (!ptx::barrier_passed(barrier, parity))
      if ((until_stop && *block_.stop()) || waiting.over()) return false;
    return true;
  }

  const Block& block_;
  uint32_t issued_ = 0;
};

// Where the consumers are: all of them count the chunks of all groups.
template <bool kWide>
struct Cursor {
  uint32_t taken = 0;

  // A group's chunk: wait for it, take a warp's share of its units into registers, free the slot.
  template <int kMost>
  MONOLANE_DEVICE void take(const Block& block, int stage, uint32_t chunk, int units, Word4 (&weights)[kMost]) const {
    const uint32_t k = taken + chunk, slot = k % kSlotCount<kWide>;
    Wait waiting(block.launch, block.worker, stage, kForCopy);
    while (!ptx::barrier_passed(&block.full(kWide)[slot], (k / kSlotCount<kWide>) & 1))
      if (waiting.over()) break;
    const Word4* from = reinterpret_cast<const Word4*>(block.memory + slot * kSlotBytes) + block.lane;
    const int warp = block.warp % kGroupWarps;
#pragma unroll
    for (int j = 0; j < kMost; j++)
      if (j * kGroupWarps + warp < units) weights[j] = from[(j * kGroupWarps + warp) * 32];
    ptx::sync_warp();
    if (block.lane == 0) ptx::barrier_arrive(&block.empty(kWide)[slot]);
  }
};

}  // namespace monolane
