// Mixtures of experts: which experts the rows of a pass use, and with which weights. program/route.py defines the choice. The router, a projection, has
// published a logit for every expert. Every worker makes the choice for itself: its consumer warps store it in shared memory, where its producer warp
// reads which experts to stream. All workers make the same choice, bit for bit.
//
// The producer runs ahead of the consumers up to the first matrix with experts of a layer. There it waits for their choice (flags()->choices counts them),
// so what it can have in flight at that time is what the ring holds of the stages before.
#pragma once
#include "handoff.cuh"

namespace monolane {

// An expert that a row of the pass has chosen.
struct Chosen {
  int expert = 0, place = 0;  // its index, and its place among the row's experts
  float weight = 1.0f;
};

// The tiles of gates that this worker multiplies in a decode pass, of those of all chosen experts, one expert after the other (dealing.py).
struct Dealt {
  int first, count;
};
template <class P>
constexpr int kTilesEach = divide_up(P::kRows, P::kTileRows);  // of one expert
MONOLANE_DEVICE Dealt dealt() { return {kDealtFirst[rank()], kDealtFirst[rank() + 1] - kDealtFirst[rank()]}; }
// Where such a tile of the first expert lies, and how far that of the next expert is behind it.
struct DealtAddress {
  const uint8_t* first;
  int64_t stride;
};

// The choice of one layer. Lists of experts are in the order of their indexes.
struct Routes {
  DealtAddress dealt[kMostDealt + 1];        // of the tiles that the producer warp streams next
  alignas(16) float logits[kRouted + 1];     // of the row whose experts are being chosen
  float weights[kPassRows][kMostChosen];     // [row of the pass]
  float always[kPassRows];                   // the weight of a shared expert
  uint32_t marks[divide_up(kRouted, 32) + 1];  // a bit for each expert
  uint32_t used_count;
  uint16_t experts[kPassRows][kMostChosen];
  uint16_t ranked[kMostChosen];  // of the row whose experts are being chosen, in the order of their logits
  uint16_t used[kRouted + 1];  // the experts that any row of a prefill pass uses
  uint16_t rows[kRouted + 1];  // [expert]: a bit for each row of the pass that uses it
};
static_assert(kRouted == 0 || sizeof(Routes) <= kReduceOffset - kRoutesOffset, "the choice of experts does not fit");

namespace shared {
MONOLANE_DEVICE Routes& routes() { return *at<Routes>(kRoutesOffset); }
}  // namespace shared

// How a row of the pass uses an expert that it has chosen.
MONOLANE_DEVICE Chosen chosen_by(int row, int expert) {
  const Routes& routes = shared::routes();
  int place = 0;
#pragma unroll 1
  while (place + 1 < kMostChosen && routes.experts[row][place] != expert) place++;
  return {expert, place, routes.weights[row][place]};
}

// Marks those of kCount experts for which `is_marked(expert)`; all consumer threads call it, and see the marks.
template <int kCount, class IsMarked>
MONOLANE_DEVICE void mark_experts(IsMarked is_marked) {
  for (int first = warp_id() * 32; first < kCount; first += kConsumers) {
    const int expert = first + lane_id();
    const uint32_t marks = ptx::ballot(expert < kCount && is_marked(expert));
    if (lane_id() == 0) shared::routes().marks[first / 32] = marks;
  }
  sync_consumers();
}
MONOLANE_DEVICE bool marked(int expert) { return shared::routes().marks[expert / 32] >> expert % 32 & 1; }
// How many experts before this one are marked.
MONOLANE_DEVICE int marked_before(int expert) {
  int before = ptx::popcount(shared::routes().marks[expert / 32] & ((1u << expert % 32) - 1));
#pragma unroll 1
  for (int i = 0; i < expert / 32; i++) before += ptx::popcount(shared::routes().marks[i]);
  return before;
}

// The largest number below x. Below minus infinity, and for what is not a number: not a number.
MONOLANE_DEVICE float next_below(float x) {
  const uint32_t bits = ptx::bits_of(x), of_negative = x == -kInfinity ? 0x7fc00000u : bits + 1;
  return ptx::float_of(x > 0.0f ? bits - 1 : x < 0.0f ? of_negative : x == 0.0f ? 0x80000001u : bits);
}

// Chooses the experts of one row. `logit(i)`: loads a logit. All consumer threads call it. `chosen()` is called by the first warp when the experts are
// known, before their weights are.
//
// The rank of an expert is the number of experts that would be chosen rather than it: those with a higher logit, and with the same one and a lower
// index. kScanners neighbouring threads count for one expert, four logits at a time. Up to its own four they count what is not below its logit, behind them what is
// above it. Then those of its own four that are equal and not before it have been counted, too, and itself: the first scanner takes them off again. An expert whose
// logit is not a number has a rank behind all others, and takes one from each.
template <class P, class Logit, class Chosen>
MONOLANE_DEVICE void choose_for_row(int row, Logit logit, Chosen chosen) {
  constexpr int kCount = P::kExperts, kChosen = P::kChosen;
  // As many as there are threads for: a power of two.
  constexpr int kScanners = lesser(32, power_of_two_from(divide_up(kConsumers + kCount, 2 * kCount))), kFour = 4;
  constexpr bool kWholeFours = kCount % kFour == 0 && P::kLogit % kFour == 0;
  Routes& routes = shared::routes();
  for (int i = thread_id(); i < kRouted; i += kConsumers) routes.logits[i] = logit(i);
  for (int i = thread_id(); i < kChosen; i += kConsumers) routes.experts[row][i] = routes.ranked[i] = 0;  // stays so where logits are not numbers
  sync_consumers();
  const float* logits = routes.logits + P::kLogit;
  const int scanner = thread_id() % kScanners;
#pragma unroll 1
  for (int first = 0; first < kCount; first += kConsumers / kScanners) {
    const int expert = first + thread_id() / kScanners;
    const float own = logits[min(expert, kCount - 1)];
    const float below = next_below(own);
    float before = 0.0f;
#pragma unroll 4
    for (int first = kFour * scanner; first < kCount; first += kFour * kScanners) {
      const float limit = first <= expert ? below : own;
      const auto above = [&](float other) { return ptx::not_at_most(other, limit); };
      if constexpr (kWholeFours) {
        const Word4 four = *reinterpret_cast<const Word4*>(logits + first);
        before += (above(ptx::float_of(four.x)) + above(ptx::float_of(four.y))) + (above(ptx::float_of(four.z)) + above(ptx::float_of(four.w)));
      } else {
#pragma unroll
        for (int i = 0; i < kFour; i++)
          if (first + i < kCount) before += above(logits[first + i]);
      }
    }
    int rank = static_cast<int>(before);
    if (scanner == 0) {
#pragma unroll
      for (int i = 0; i < kFour; i++) {
        const int other = expert / kFour * kFour + i;
        rank -= other >= expert && other < kCount && logits[other] == own;
      }
    }
#pragma unroll
    for (int mask = 1; mask < kScanners; mask *= 2) rank += static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(rank), mask));
    if (scanner == 0 && expert < kCount && rank < kChosen) routes.ranked[rank] = static_cast<uint16_t>(expert);
  }
  sync_consumers();
  if (warp_id() == 0) {
    constexpr int kEach = divide_up(kChosen, 32);
    int place[kEach] = {};
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int i = lane_id() + 32 * j;
      if (i >= kChosen) continue;
      for (int other = 0; other < kChosen; other++) place[j] += routes.ranked[other] < routes.ranked[i];
      routes.experts[row][place[j]] = routes.ranked[i];
    }
    ptx::sync_warp();
    chosen();
    const float highest = logits[routes.ranked[0]];
    float weights[kEach], total = 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int i = lane_id() + 32 * j;
      weights[j] = i < kChosen ? ptx::exp(logits[routes.ranked[i]] - highest) : 0.0f;
      if (P::kScoring == Scoring::kChosenSoftmax) total += weights[j];
    }
    if (P::kScoring == Scoring::kSoftmax)
      for (int expert = lane_id(); expert < kCount; expert += 32) total += ptx::exp(logits[expert] - highest);
    total = warp_sum(total);
#pragma unroll
    for (int j = 0; j < kEach; j++)
      if (lane_id() + 32 * j < kChosen) routes.weights[row][place[j]] = ptx::divide(weights[j], total);
    if (kRouted > kCount && lane_id() == 0) routes.always[row] = ptx::divide(1.0f, 1.0f + ptx::exp(-routes.logits[kCount]));
  }
  sync_consumers();
}

// Tells the producer warp that there is a choice, which has been stored before by this warp or before a barrier.
MONOLANE_DEVICE void publish_choice() {
  if (thread_id() == 0) ptx::store_shared_release(&shared::flags()->choices, shared::flags()->choices + 1);
}

// Chooses the experts of the row of a decode pass, whose logits have the tag `step`.
template <class P>
MONOLANE_DEVICE void choose_for_decode(uint32_t step) {
  choose_for_row<P>(0, [&](int i) { return ptx::float_of(await_word64(buffers().routed_words + i, step)); }, publish_choice);
}

// Chooses the experts of all rows of a prefill pass, and lists those that any row uses.
template <class P>
MONOLANE_DEVICE void choose_for_prefill(int rows) {
  Routes& routes = shared::routes();
#pragma unroll 1
  for (int row = 0; row < rows; row++) choose_for_row<P>(row, [&](int i) { return load_float(buffers().prefill_routed + row * kRouted + i); }, [] {});
  mark_experts<P::kExperts>([&](int expert) {
    uint32_t users = 0;
    for (int i = 0; i < rows * P::kChosen; i++) users |= static_cast<uint32_t>(routes.experts[i / P::kChosen][i % P::kChosen] == expert) << i / P::kChosen;
    routes.rows[expert] = static_cast<uint16_t>(users);
    return users != 0;
  });
  for (int expert = thread_id(); expert < P::kExperts; expert += kConsumers)
    if (marked(expert)) routes.used[marked_before(expert)] = static_cast<uint16_t>(expert);
  if (thread_id() == 0) routes.used_count = marked_before(P::kExperts - 1) + marked(P::kExperts - 1);
  sync_consumers();
  publish_choice();
}

}  // namespace monolane
