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

// The choice of one layer. Lists of experts are in the order of their indexes.
struct Routes {
  float logits[kRouted + 1];                 // of the row whose experts are being chosen
  float weights[kPassRows][kMostChosen];     // [row of the pass]
  float always[kPassRows];                   // the weight of a shared expert
  uint32_t marks[divide_up(kRouted, 32) + 1];  // a bit for each expert
  uint32_t used_count;
  uint16_t experts[kPassRows][kMostChosen];
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

// Chooses the experts of one row. `logit(i)`: loads a logit. All consumer threads call it.
template <class P, class Logit>
MONOLANE_DEVICE void choose_for_row(int row, Logit logit) {
  constexpr int kCount = P::kExperts, kFirst = P::kLogit;
  Routes& routes = shared::routes();
  for (int i = thread_id(); i < kRouted; i += kConsumers) routes.logits[i] = logit(i);
  for (int i = thread_id(); i < P::kChosen; i += kConsumers) routes.experts[row][i] = 0;  // stays so only where logits are not numbers
  sync_consumers();
  const float* logits = routes.logits + kFirst;
  mark_experts<kCount>([&](int expert) {
    const float own = logits[expert];
    int before = 0;  // experts that are chosen rather than this one; one whose logit is not a number is never chosen
#pragma unroll 8
    for (int i = 0; i < kCount; i++) before += !(logits[i] <= own) || (logits[i] == own && i < expert);
    return before < P::kChosen;
  });
  for (int expert = thread_id(); expert < kCount; expert += kConsumers)
    if (marked(expert)) routes.experts[row][marked_before(expert)] = static_cast<uint16_t>(expert);
  sync_consumers();
  if (warp_id() == 0) {
    float highest = -kInfinity;
    for (int i = 0; i < P::kChosen; i++) highest = fmaxf(highest, logits[routes.experts[row][i]]);
    float total = 0.0f;
    for (int expert = lane_id(); expert < kCount; expert += 32)
      if (P::kScoring == Scoring::kSoftmax || marked(expert)) total += ptx::exp(logits[expert] - highest);
    total = warp_sum(total);
    for (int i = lane_id(); i < P::kChosen; i += 32)
      routes.weights[row][i] = ptx::divide(ptx::exp(logits[routes.experts[row][i]] - highest), total);
    if (kRouted > kCount && lane_id() == 0) routes.always[row] = ptx::divide(1.0f, 1.0f + ptx::exp(-routes.logits[kCount]));
  }
  sync_consumers();
}

// Tells the producer warp that there is a choice; all consumer threads have stored their part of it.
MONOLANE_DEVICE void publish_choice() {
  if (thread_id() == 0) ptx::store_shared_release(&shared::flags()->choices, shared::flags()->choices + 1);
}

// Chooses the experts of the row of a decode pass, whose logits have the tag `step`.
template <class P>
MONOLANE_DEVICE void choose_for_decode(uint32_t step) {
  choose_for_row<P>(0, [&](int i) { return ptx::float_of(await_word64(buffers().routed_words + i, step)); });
  publish_choice();
}

// Chooses the experts of all rows of a prefill pass, and lists those that any row uses.
template <class P>
MONOLANE_DEVICE void choose_for_prefill(int rows) {
  Routes& routes = shared::routes();
#pragma unroll 1
  for (int row = 0; row < rows; row++) choose_for_row<P>(row, [&](int i) { return load_float(buffers().prefill_routed + row * kRouted + i); });
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
