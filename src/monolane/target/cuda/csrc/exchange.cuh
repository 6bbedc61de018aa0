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
// other lanes nor wait for them. A worker that owns no elements has none. For every such projection of a pass, in order, it
//
//   1. adds up what the other lanes have sent for the next such projection in an earlier layer, for the rows of its worker, and stores the sums in
//      shared memory;
//   2. waits for the outputs of its own worker, which the consumer warps have left in shared memory, and sends them.
//
// So the sums of a projection are usually there before its input is. The other lanes have sent the parts of a sum in step 2 of an earlier projection, so
// no lane waits in step 1 for a lane that waits for it.
//
// Sums and outputs have two places each, which are used alternately. Sums are overwritten when the outputs of the same projection have been made: then
// all consumer warps have read them. A consumer warp that sees the sums of a projection may overwrite the outputs of two projections before, which have
// been sent.
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

// The elements of the residual stream that this worker owns. All projections that exchange their outputs write the stream, so they have the same rows.
struct OwnElements {
  int first, count;
};
MONOLANE_DEVICE OwnElements own_elements() {
  constexpr int kRows = Projection<kResidualProjection>::kTileRows;
  const Own own = shared::own()[kResidualProjection];
  const int first = own.first_tile * kRows;
  return {first, min(own.tiles * kRows, kHidden - first)};
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
    for (uint32_t pass = 0; await(shared::pass_begun(), pass); pass++) {
      const shared::ExchangePass now = shared::exchange_passes()[pass % 2];
      int i = next_late(0);
      receive_sums(now, i);
      while (i < kCount) {
        const int next = next_late(i + 1);
        receive_sums(now, next);
        if (!send_outputs(now, i)) return;
        i = next;
      }
    }
  }

 private:
  static constexpr int kCount = kLayers * kExchangingProjections;  // exchanges of a pass: those of a layer after those of the one before
  static_assert(!kAnyLate || kExchangingProjections > 1, "what the next exchange adds would be sent in this one, after it");

  // The first exchange from `i` on that is late; the consumer warps do the others.
  MONOLANE_DEVICE static int next_late(int i) {
    MONOLANE_LOOP
    while (i < kCount && !exchange_at(i).late) i++;
    return i;
  }
  MONOLANE_DEVICE static Exchange exchange_at(int i) { return kExchanges[i % kExchangingProjections][i / kExchangingProjections]; }
  MONOLANE_DEVICE static uint32_t step_of(const shared::ExchangePass& pass, int i) {
    return pass.step + kExchangeStages[i % kExchangingProjections] + i / kExchangingProjections * kStagesPerLayer;
  }

  // Waits for a phase; false: the request has ended or failed meanwhile. All threads of the warp return the same.
  MONOLANE_DEVICE static bool await(uint64_t* barriers, uint32_t n) {
    bool complete;
    while (!(complete = phase_complete(barriers, n)) && !shared::consumers_done() && !shared::failed()) ptx::nanosleep(kPollNs);
    return !ptx::any(!complete);
  }

  // Adds up what has been sent for exchange number `i` of a pass; there may be no such exchange.
  MONOLANE_DEVICE void receive_sums(const shared::ExchangePass& pass, int i) {
    if (i >= kCount) return;
    const int late = exchange_at(i).late;
    if (late > 0) {
      const int slot = exchange_slot(i % kExchangingProjections, pass.layers + i / kExchangingProjections - late);
      const OwnElements own = own_elements();
      MONOLANE_LOOP
      for (int n = lane_id(); n < own.count; n += 32)
        shared::late_sums(received_)[n] = receive(slot, 0, own.first + n, step_of(pass, i) - late * kStagesPerLayer).sum(0.0f);
    }
    ptx::sync_warp();
    if (lane_id() == 0) ptx::mbarrier_arrive(shared::sums_arrived() + received_ % 2);
    received_++;
  }

  // Sends the outputs of exchange number `i` of a pass.
  MONOLANE_DEVICE bool send_outputs(const shared::ExchangePass& pass, int i) {
    if (!await(shared::outputs_made(), sent_)) return false;
    if (exchange_at(i).sends) {
      const int slot = exchange_slot(i % kExchangingProjections, pass.layers + i / kExchangingProjections);
      const OwnElements own = own_elements();
      MONOLANE_LOOP
      for (int n = lane_id(); n < own.count; n += 32) send(slot, 0, own.first + n, shared::outputs(sent_)[n], step_of(pass, i));
    }
    sent_++;
    return true;
  }

  static constexpr int kPollNs = 100;
  uint32_t received_ = 0, sent_ = 0;  // exchanges whose sums are there, and those whose outputs have been sent
};

}  // namespace monolane
