// QK norm, where the model has one, and RoPE, for queries and keys on their way to attention. The consumer warps run it, one warp per
// vector of head_dim elements. RoPE rotates dimensions i and i + kHalf together. Thread `lane_id` of the warp holds the pairs
// i = lane_id, lane_id + 32, … in registers, as two arrays: `low` has dimensions i, `high` has dimensions i + kHalf.
#pragma once
#include "prepare.cuh"

namespace monolane {

constexpr int kHalf = kHeadDim / 2;
constexpr int kPairs = divide_up(kHalf, 32);  // of one thread

// What one thread needs for its pairs of a vector: RoPE coefficients and the weights of the QK norm. They are loaded before the vector has
// arrived.
struct RopeCoefficients {
  float cosine[kPairs], sine[kPairs], norm_low[kPairs], norm_high[kPairs];
};

// `norm`: offset of the norm weights among the constants. Threads beyond the last pair load that pair again and do not use it.
MONOLANE_DEVICE RopeCoefficients rope_coefficients(int position, int norm) {
  RopeCoefficients rope;
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    const int i = min(lane_id() + 32 * j, kHalf - 1);
    const float* angle = monolane_launch.rope_table + static_cast<int64_t>(position) * kHeadDim + 2 * i;
    rope.cosine[j] = angle[0], rope.sine[j] = angle[1];
    rope.norm_low[j] = kQkNorm ? buffers().constants[norm + i] : 1.0f;
    rope.norm_high[j] = kQkNorm ? buffers().constants[norm + kHalf + i] : 1.0f;
  }
  return rope;
}

// Applies QK norm and RoPE to this thread's pairs, in place. All threads of the warp call it.
MONOLANE_DEVICE void apply_rope(const RopeCoefficients& rope, float (&low)[kPairs], float (&high)[kPairs]) {
  float scale = 1.0f;
  if (kQkNorm) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; j++) squares += low[j] * low[j] + high[j] * high[j];
    scale = ptx::rsqrt(warp_sum(squares) * (1.0f / kHeadDim) + kAttendEps);
  }
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    const float l = kQkNorm ? low[j] * (scale * rope.norm_low[j]) : low[j], h = kQkNorm ? high[j] * (scale * rope.norm_high[j]) : high[j];
    low[j] = l * rope.cosine[j] - h * rope.sine[j];
    high[j] = h * rope.cosine[j] + l * rope.sine[j];
  }
}

// Calls `store(d, bf16)` for this thread's dimensions, and with zeros for the padding from kHeadDim up to kPadded.
template <int kPadded, class Store>
MONOLANE_DEVICE void store_pairs(const float (&low)[kPairs], const float (&high)[kPairs], Store store) {
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    const int i = lane_id() + 32 * j;
    if (i >= kHalf) continue;
    store(i, static_cast<uint16_t>(bf16_bits(low[j])));
    store(i + kHalf, static_cast<uint16_t>(bf16_bits(high[j])));
  }
  if (kPadded > kHeadDim)
    for (int d = kHeadDim + lane_id(); d < kPadded; d += 32) store(d, uint16_t(0));
}

// Loads this thread's pairs of a vector in global memory, which the qkv stage of a prefill pass wrote.
MONOLANE_DEVICE void load_pairs(const float* from, float (&low)[kPairs], float (&high)[kPairs]) {
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    const int i = lane_id() + 32 * j;
    low[j] = i < kHalf ? load_float(from + i) : 0.0f;
    high[j] = i < kHalf ? load_float(from + kHalf + i) : 0.0f;
  }
}

}  // namespace monolane
