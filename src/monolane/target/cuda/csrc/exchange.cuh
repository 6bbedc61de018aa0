// What crosses lanes: partial outputs of residual projections, and the residual streams that are combined before the head. The consumer warps run it.
//
// A lane is a group of kLaneWorkers consecutive workers with weights, activations and a KV cache of its own. All lanes divide the rows of a matrix in
// the same way, so a worker needs from each other lane the rows of one worker: the one of the same rank. A thread that has finished an element
// pushes it into the mailboxes of all other lanes, as a 64-bit tagged word, and polls for the same element of all other lanes at once. Sums are in the
// order of the lanes, so an all-reduce gives the same bits on every lane.
//
//   mailbox of a lane:  [slot][sending lane][row of the pass][element]
//
// Mailboxes of lanes together lie in one launch's memory, one after the other; lanes apart have the addresses of each other's (at_lane).
//
// A projection of a layer has kExchangeDepth slots, which are used in turn, layer after layer: as many as lanes may be apart, see depth() of
// exchange.py.
//
// In a decode pass the exchange warp does this for exchanges that are not needed at once (late exchanges), so that the consumer warps neither store to
// other lanes nor wait for them. For every such projection of a pass, in order, it
//
//   1. adds up what the other lanes have sent in an earlier layer, for the rows of its worker, and stores the sums in shared memory;
//   2. waits for the outputs of its own worker, which the consumer warps have left in shared memory, and sends them.
//
// Sums and outputs have two places each, which are used alternately. A consumer warp that has seen the sums of a projection knows that the outputs of
// the one before have been sent, so it may overwrite those of two before.
#pragma once
#include "handoff.cuh"

namespace monolane {

MONOLANE_DEVICE uint64_t* mailbox(int to, int slot, int from, int row) {
  uint64_t* first = kApart ? at_lane(to, monolane_launch.mailbox) : buffers_of(monolane_launch, to).mailbox;
  return first + (static_cast<int64_t>(slot * kLanes + from) * kPassRows + row) * kHidden;
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
    store_word(mailbox(to, slot, lane(), row) + element, word);
  }
}

// An element of all other lanes, in the order of the lanes.
class Arrivals {
 public:
  // Issues the loads of all words. They are waited for when they are used.
  MONOLANE_DEVICE void load(int slot, int row, int element) {
    const uint64_t* from = mailbox(lane(), slot, 0, row) + element;
#pragma unroll
    for (int i = 0; i < kOthers; i++) words_[i] = load_word(from + static_cast<int64_t>(i + (i >= lane())) * kPassRows * kHidden);
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

// Polls for an element of all other lanes.
MONOLANE_DEVICE Arrivals receive(int slot, int row, int element, uint32_t step) {
  Arrivals others;
  others.load(slot, row, element);
  others.await(slot, row, element, step);
  return others;
}

// --- the exchange warp ---

namespace shared {

// A decode pass as the exchange warp must know it: the tag of its first stage, and the layers before it.
struct ExchangePass {
  uint32_t step, layers;
};
MONOLANE_DEVICE uint64_t* sums_arrived() { return at<uint64_t>(kExchangeOffset); }                              // [2]: mbarriers
MONOLANE_DEVICE uint64_t* outputs_made() { return at<uint64_t>(kExchangeOffset + 16); }                         // [2]
MONOLANE_DEVICE uint64_t* pass_begun() { return at<uint64_t>(kExchangeOffset + 32); }                           // [2]
MONOLANE_DEVICE ExchangePass* exchange_passes() { return at<ExchangePass>(kExchangeOffset + 48); }              // [2]
MONOLANE_DEVICE float* late_sums(uint32_t n) { return at<float>(kExchangeOffset + kExchangeBarrierBytes) + n % 2 * kMaxOwnedRows; }
MONOLANE_DEVICE float* outputs(uint32_t n) { return late_sums(0) + (2 + n % 2) * kMaxOwnedRows; }
MONOLANE_DEVICE float* partials() { return late_sums(0) + 4 * kMaxOwnedRows; }  // [row of the pass][own row]: the sum over experts

}  // namespace shared

// The n-th phase of one of two mbarriers that are used alternately.
MONOLANE_DEVICE bool phase_complete(uint64_t* barriers, uint32_t n) { return ptx::mbarrier_try_wait(barriers + n % 2, n / 2 & 1); }

class ExchangeWarp {
 public:
  MONOLANE_DEVICE static void init() {
    for (int i = 0; i < 2; i++) {
      ptx::mbarrier_init(&shared::sums_arrived()[i], 1);
      ptx::mbarrier_init(&shared::outputs_made()[i], kConsumerWarps);
      ptx::mbarrier_init(&shared::pass_begun()[i], 1);
    }
  }

  MONOLANE_DEVICE void run() {
    for (uint32_t pass = 0; await(shared::pass_begun(), pass); pass++)
      MONOLANE_LOOP
      for (int i = 0; i < kLayers * kExchangingProjections; i++)
        if (!exchange(shared::exchange_passes() + pass % 2, i / kExchangingProjections, i % kExchangingProjections)) return;
  }

 private:
  // Waits for a phase; false: the request has ended or failed meanwhile.
  MONOLANE_DEVICE static bool await(uint64_t* barriers, uint32_t n) {
    while (!phase_complete(barriers, n)) {
      if (shared::consumers_done() || shared::failed()) return false;
      ptx::nanosleep(kPollNs);
    }
    return true;
  }

  // One exchange of a decode pass: that of the exchanging projection number `projection` of a layer. All of them write the residual stream, so they
  // have the same rows.
  MONOLANE_DEVICE bool exchange(const shared::ExchangePass* pass, int layer, int projection) {
    const Exchange exchange = kExchanges[projection][layer];
    if (!exchange.late) return true;  // the consumer warps do it
    constexpr int kRows = Projection<kResidualProjection>::kTileRows;
    const Own own = shared::own()[kResidualProjection];
    const int first = own.first_tile * kRows, count = min(own.tiles * kRows, kHidden - first);
    const uint32_t step = pass->step + kExchangeStages[projection] + layer * kStagesPerLayer, round = pass->layers + layer;
    if (exchange.late > 0) {
      const int slot = exchange_slot(projection, round - exchange.late);
      MONOLANE_LOOP
      for (int i = lane_id(); i < count; i += 32)
        shared::late_sums(done_)[i] = receive(slot, 0, first + i, step - exchange.late * kStagesPerLayer).sum(0.0f);
    }
    ptx::sync_warp();
    if (lane_id() == 0) ptx::mbarrier_arrive(shared::sums_arrived() + done_ % 2);
    if (!await(shared::outputs_made(), done_)) return false;
    if (exchange.sends)
      MONOLANE_LOOP
      for (int i = lane_id(); i < count; i += 32) send(exchange_slot(projection, round), 0, first + i, shared::outputs(done_)[i], step);
    done_++;
    return true;
  }

  static constexpr int kPollNs = 100;
  uint32_t done_ = 0;  // exchanges that this warp has done
};

}  // namespace monolane
