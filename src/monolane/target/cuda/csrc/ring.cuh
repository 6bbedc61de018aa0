// The ring: one warp streams the tape into it and never waits for activations; the others empty it, chunk by chunk, each
// chunk taken by a group of four warps. Narrow and wide passes have barriers of their own, because a wide pass has fewer
// slots; between them the ring is empty. A tile is cut along k into chunks of at most a slot, as
// equal as whole units of all four warps allow.
#pragma once
#include "launch.cuh"

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
  MONOLANE_DEVICE uint64_t* full() const { return &shared::full(kWide)[slot]; }
  MONOLANE_DEVICE uint64_t* empty() const { return &shared::empty(kWide)[slot]; }
  MONOLANE_DEVICE char* memory() const { return shared::ring() + slot * kSlotBytes; }
};

template <bool kWide>
class Producer {
 public:
  // The tape of one pass, from its beginning: it has the matrices in the order of the stages. False when the request has
  // ended meanwhile.
  MONOLANE_DEVICE bool pass(const uint8_t* tape, bool with_head) {
    for (int layer = 0; layer < kLayers; layer++)
#pragma unroll
      for (int form = 0; form < kHeadForm; form++)
        if (!put_matrix(tape, shared::own()[layer * kProjectionsPerLayer + form].tiles, kForms[form])) return false;
    return !with_head || put_matrix(tape, shared::own()[kProjections - 1].tiles, kForms[kHeadForm]);
  }

  // Shared memory must not be left while copies are on their way to it.
  MONOLANE_DEVICE void drain() {
    for (; landed_ < issued_; landed_++, arriving_.advance(1))
      while (!ptx::barrier_passed(arriving_.full(), arriving_.round & 1)) {
      }
  }

 private:
  MONOLANE_DEVICE bool put_matrix(const uint8_t*& tape, int tiles, const Form& form) {
    int chunk = 0;
    for (int tile = 0; tile < tiles; tile++)
      for (int left = form.units; left > 0; left -= form.chunk_units) {
        const uint32_t bytes = min(form.chunk_units, left) * kUnitBytes;
        // Few copies in flight near a hand-off, or its small loads queue behind them; more inside a long stage, and in a
        // wide pass, whose hand-offs are barriers.
        if (!put(tape, bytes, !kWide && chunk++ < kSlots ? form.near : form.far)) return false;
        tape += bytes;
      }
    return true;
  }

  MONOLANE_DEVICE bool put(const uint8_t* from, uint32_t bytes, int in_flight) {
    if (next_.round && !wait(next_.empty(), (next_.round - 1) & 1)) return false;
    for (; issued_ - landed_ >= static_cast<uint32_t>(min(in_flight, kSlotCount<kWide>)); landed_++, arriving_.advance(1))
      if (!wait(arriving_.full(), arriving_.round & 1)) return false;
    ptx::barrier_expect(next_.full(), bytes);
    ptx::bulk_copy(next_.memory(), from, bytes, next_.full());
    next_.advance(1);
    issued_++;
    return true;
  }

  MONOLANE_DEVICE static bool wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::barrier_passed(barrier, parity))
      if (shared::stopped() || shared::over()) return false;
    return true;
  }

  Place<kWide> next_, arriving_;       // of the next copy, and of the oldest that was not seen to land
  uint32_t issued_ = 0, landed_ = 0;
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
    // A barrier tells apart only two rounds. Where a slot goes from group to group, one group may come to it while the
    // other's chunk, of the round before, is still on its way: it waits until that chunk has been taken.
    if (kSlotCount<kWide> % kGroups && place.round) wait(place.empty(), (place.round - 1) & 1);
    wait(place.full(), place.round & 1);
    const Word4* from = reinterpret_cast<const Word4*>(place.memory()) + warp * 32 + lane;
    // Also those behind a short chunk: a load is cheaper than a condition, and they are not used.
#pragma unroll
    for (int j = 0; j < kMost; j++) weights[j] = from[j * kGroupWarps * 32];
    ptx::sync_warp();
    if (lane == 0) ptx::barrier_arrive(place.empty());
    place.advance(kGroups);
  }

 private:
  MONOLANE_DEVICE static void wait(uint64_t* barrier, uint32_t parity) {
    while (!ptx::barrier_passed(barrier, parity))
      if (shared::over()) break;
  }
};

}  // namespace monolane
