// FP8 weights: E4M3 codes with an fp32 scale for each 128 columns of a row, which is half a super-block. Their bytes lie like those of other 8-bit codes
// (lowbit.cuh), and the scales of a row behind them: thread 4g + t has those of rows 2t and 2t + 1, of which its MMAs return the sums.
//
// An E4M3 number is a bf16 number exactly, so a warp widens its codes in registers and multiplies in bf16 with 1 row as with 16. The sum of 128 columns
// is multiplied with the scale in fp32: a scale rounds no weight.
#pragma once
#include "lowbit.cuh"

namespace monolane {

// Two of the four codes in a word, bytes `first` and `first` + 1, as a pair of bf16. A code's bits s eeee mmm become s 0000 eeee mmm 0000, which in bf16
// is the number times 2^-120, also where it is subnormal: its sign is extended to 16 bits, a shift by 4 puts all bits in place, and the mask clears the
// other copies of the sign. The product with 2^120 is exact.
MONOLANE_DEVICE uint32_t bf16_of_codes(uint32_t codes, int first) {
  const uint32_t extended = ptx::byte_perm_signed(codes, 0, first ? 0xb3a2u : 0x9180u);
  return ptx::multiply_bf16_pairs(extended << 4 & 0x87f087f0u, 0x7b807b80u);
}

// Calls `multiply(j, p, b0, b1)` for group `first` + j of a fragment, j = 0 to 3, and for p = 0 and 1, with the B operand of columns 16p + 4t to
// 16p + 4t + 3 of the group.
template <class F, class Multiply>
MONOLANE_DEVICE void widen_half(const LowBitFragment<F, 1>& from, int first, Multiply multiply) {
#pragma unroll
  for (int j = 0; j < kHalfGroups; j++) {
    uint32_t codes[2];
    from.codes_of(first + j, codes);
#pragma unroll
    for (int p = 0; p < 2; p++) multiply(j, p, bf16_of_codes(codes[p], 0), bf16_of_codes(codes[p], 2));
  }
}

// The scale of row 2t + `which` for half a super-block.
template <class F>
MONOLANE_DEVICE float scale_of(const LowBitFragment<F, 1>& weights, int which, int half) {
  return ptx::float_of(half ? weights.blocks[2 * which + 1] : weights.blocks[2 * which]);
}

// 1 row: adds the products of a fragment to `sums`, of rows 2t and 2t + 1. `x`: the A operand of each group, which has the input of its first 16 columns
// in rows 0-7 and that of its last 16 columns in rows 8-15 (input_index in prepare.cuh).
template <class F>
MONOLANE_DEVICE void multiply_fp8(const LowBitFragment<F, 1>& weights, const Word4 (&x)[kBlockGroups], float (&sums)[4]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float c[2][4] = {};  // of the first 16 columns of groups, valid in rows 0-7, and of the last 16, valid in rows 8-15
    widen_half(weights, half * kHalfGroups, [&](int j, int p, uint32_t b0, uint32_t b1) {
      const Word4& a = x[half * kHalfGroups + j];
      ptx::mma(c[p], a.x, a.y, a.z, a.w, b0, b1);
    });
#pragma unroll
    for (int i = 0; i < 2; i++) sums[i] += (c[0][i] + c[1][i + 2]) * scale_of(weights, i, half);
  }
}

// 16 rows: adds the products of a fragment to `sums`. `inputs`: as in multiply_widened().
template <class F, class Inputs>
MONOLANE_DEVICE void multiply_fp8_rows(const LowBitFragment<F, 1>& weights, float (&sums)[4], Inputs inputs) {
  LowBitFragment<F, 1> left = weights;
#pragma unroll 1
  for (int half = 0; half < 2; half++) {  // not unrolled, as in multiply_widened()
    float c[2][4] = {};
    Word4 upper, lower;
    widen_half(left, 0, [&](int j, int p, uint32_t b0, uint32_t b1) {
      if (p == 0) inputs(half * kHalfGroups + j, upper, lower);
      ptx::mma(c[p], p ? upper.z : upper.x, p ? lower.z : lower.x, p ? upper.w : upper.y, p ? lower.w : lower.y, b0, b1);
    });
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += (c[0][i] + c[1][i]) * scale_of(weights, i % 2, half);
    left.skip_half();
  }
}

}  // namespace monolane
