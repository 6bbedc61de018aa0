// What crosses lanes: partial outputs of residual projections, and the residual streams that are combined before the head. The consumer warps run it.
//
// A lane is a group of kLaneWorkers consecutive workers with weights, activations and a KV cache of its own. All lanes divide the rows of a matrix in
// the same way, so a worker needs from each other lane the rows of one worker: the one of the same rank. A thread that has finished an element
// pushes it into the mailboxes of all other lanes, as a 64-bit tagged word, and polls for the same element of all other lanes at once. Sums are in the
// order of the lanes, so an all-reduce gives the same bits on every lane.
//
//   mailbox of a lane:  [slot][sending lane][row of the pass][element]
//
// A projection of a layer has kExchangeDepth slots, which are used in turn, layer after layer: as many as lanes may be apart, see depth() of
// exchange.py.
#pragma once
#include "handoff.cuh"

namespace monolane {

MONOLANE_DEVICE uint64_t* mailbox(int to, int slot, int from, int row) {
  return monolane_launch.lanes[to].mailbox + (static_cast<int64_t>(slot * kLanes + from) * kPassRows + row) * kHidden;
}

// The slot of a projection in the layer number `round` of the launch, and the slots of combined streams, which passes use alternately.
MONOLANE_DEVICE int exchange_slot(int projection, uint32_t round) { return projection * kExchangeDepth + round % kExchangeDepth; }
MONOLANE_DEVICE int combine_slot(uint32_t pass) { return kExchangingProjections * kExchangeDepth + pass % 2; }

// Pushes an element to all other lanes. Each lane begins with its neighbour, so that they do not all write to the same lane at once.
MONOLANE_DEVICE void send(int slot, int row, int element, float v, uint32_t step) {
  const uint64_t word = tagged_float(v, step);
#pragma unroll
  for (int i = 1; i < kLanes; i++) {
    const int to = lane() + i < kLanes ? lane() + i : lane() + i - kLanes;
    ptx::store_relaxed(mailbox(to, slot, lane(), row) + element, word);
  }
}

// An element of all other lanes, in the order of the lanes.
class Arrivals {
 public:
  // Issues the loads of all words. They are waited for when they are used.
  MONOLANE_DEVICE void load(int slot, int row, int element) {
    const uint64_t* from = mailbox(lane(), slot, 0, row) + element;
#pragma unroll
    for (int i = 0; i < kOthers; i++) words_[i] = ptx::load_relaxed(from + static_cast<int64_t>(i + (i >= lane())) * kPassRows * kHidden);
  }

  // Polls until all words have the tag `step`.
  MONOLANE_DEVICE void await(int slot, int row, int element, uint32_t step) {
    while (!arrived(step) && !shared::failed()) load(slot, row, element);
  }

  // The value of lane `from`, where `own` is that of this lane. `from` is a constant, and the words of both cases are read, not one word by an index
  // that is known at run time: an array with such an index would lie in local memory.
  MONOLANE_DEVICE float value(int from, float own) const {
    const uint64_t below = words_[lesser(from, kOthers - 1)], above = words_[from ? from - 1 : 0];
    return from == lane() ? own : ptx::float_of(static_cast<uint32_t>((from < lane() ? below : above) >> 32));
  }

  // The sum over all lanes.
  MONOLANE_DEVICE float sum(float own) const {
    float total = value(0, own);
#pragma unroll
    for (int from = 1; from < kLanes; from++) total += value(from, own);
    return total;
  }

 private:
  static constexpr int kOthers = kLanes > 1 ? kLanes - 1 : 1;

  MONOLANE_DEVICE bool arrived(uint32_t step) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kOthers; i++) all &= static_cast<uint32_t>(words_[i]) == step;
    return all;
  }

  uint64_t words_[kOthers];
};

}  // namespace monolane
