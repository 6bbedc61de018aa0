// Dot products of FP8 tiles (E4M3 with an fp32 scale for each 128 columns) with rows of the pass in fp32. The bytes of a tile are those of 8-bit codes
// (program/tiles.py), so a unit of 4 groups is what has a scale. The products of a unit are added in 16 fp32 sums, which are multiplied with the scale
// and added to 16 sums of the row. Weights are exact, and all instructions with FMA give the same result.
#pragma once
#include "lowbit.hpp"

namespace monolane {

// The input of a unit in the order in which a tile has its codes: [half of a group][c][group][4 columns].
struct alignas(64) FloatUnit {
  float values[2][4][kVectorFloats];
};
static_assert(sizeof(FloatUnit) <= kUnitBytes, "Worker::units has room for them");

// `in` has `cols` numbers, and zeros behind them up to a whole group.
inline void to_units(const float* in, int cols, FloatUnit* out) {
  const int groups = divide_up(cols, kGroup);
  for (int first = 0; first < groups; first += kUnitGroups, out++) {
    *out = {};
    for (int g = 0; g < lesser(kUnitGroups, groups - first); g++)
      for (int i = 0; i < kGroup; i += 4) std::memcpy(&out->values[i / 16][i % 16 / 4][4 * g], in + (first + g) * kGroup + i, 4 * sizeof(float));
  }
}

// The values of 32 codes, divided by kWidenedScale: as fp16, whose exponent has one bit more and a bias of 15 instead of 7. With the sign extended to 16
// bits, a shift puts all bits in place, and one that is not wanted.
constexpr float kWidenedScale = 0x1p8f;
inline void widen(const uint8_t* codes, F16 (&out)[2]) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
  out[0] = reinterpret_cast<F16>(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
  out[1] = reinterpret_cast<F16>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
#elif defined(__F16C__)
  auto* part = reinterpret_cast<__m256*>(out);
  for (int i = 0; i < 4; i++) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i)));
    part[i] = _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
#elif defined(__aarch64__)
  float* p = reinterpret_cast<float*>(out);
  for (int i = 0; i < 4; i++) {
    const int16x8_t halves = vandq_s16(vshll_n_s8(vreinterpret_s8_u8(vld1_u8(codes + 8 * i)), 7), vdupq_n_s16(static_cast<int16_t>(0xbf80)));
    vst1q_f32(p + 8 * i, vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(halves))));
    vst1q_f32(p + 8 * i + 4, vcvt_high_f32_f16(vreinterpretq_f16_s16(halves)));
  }
#else
  for (int i = 0; i < 2; i++) {
    float values[kVectorFloats];
    for (int j = 0; j < kVectorFloats; j++) {
      const uint32_t bits = static_cast<uint32_t>(static_cast<int8_t>(codes[16 * i + j])) << 20 & 0x87f00000u;  // fp32 with a bias of 127
      std::memcpy(&values[j], &bits, sizeof bits);
    }
    out[i] = load(values) * splat(0x1p112f);
  }
#endif
}

// Adds the products of a row and unit to the sums of kCount rows of the pass.
template <int kCount>
__attribute__((always_inline)) inline void dot_fp8_row(const Codes& codes, float scale, const FloatUnit* x, int stride, F16 (*sums)[kTileRows]) {
  F16 products[kCount][2];  // of the first and of the last 16 columns of groups
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    F16 weights[2];
    widen(reinterpret_cast<const uint8_t*>(&codes.half[i / 2]) + i % 2 * 32, weights);
#pragma GCC unroll 4
    for (int p = 0; p < kCount; p++)
#pragma GCC unroll 2
      for (int j = 0; j < 2; j++) {
        const F16 product = weights[j] * load(x[p * stride].values[i / 2][i % 2 * 2 + j]);
        products[p][i / 2] = i % 2 || j ? products[p][i / 2] + product : product;
      }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kCount; p++) sums[p][0] += (products[p][0] + products[p][1]) * splat(scale * kWidenedScale);
}

// Adds the products of a super-block with `groups` groups.
template <class F, int kCount>
__attribute__((always_inline)) inline void dot_fp8_block(const uint8_t* block, const FloatUnit* x, int stride, int groups, F16 (*sums)[kTileRows]) {
  using Place = BlockPlace<F, kTileRows>;
  __builtin_prefetch(block + Place::blocks(groups) + kAhead);
  for (int unit = 0; unit < divide_up(groups, kUnitGroups); unit++)
    for (int row = 0; row < kTileRows; row++) {
      const uint8_t* ahead = block + Place::codes(unit) + row * kUnitGroups * Place::kCodeBytes + kAhead;
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      const float scale = float_at(block + Place::blocks(groups) + row * F::kBlockBytes, unit);
      dot_fp8_row<kCount>(unpack<F>(block, row, unit, groups), scale, x + unit, stride, reinterpret_cast<F16(*)[kTileRows]>(&sums[0][row]));
    }
}

template <class F, int kCount>
__attribute__((noinline)) void dot_last_fp8_block(const uint8_t* block, const FloatUnit* x, int stride, int groups, F16 (*sums)[kTileRows]) {
  dot_fp8_block<F, kCount>(block, x, stride, groups, sums);
}

// Dot products of all rows of a tile with kCount rows of the pass.
template <class F, int kCount>
inline void dot_fp8(const uint8_t* tile, const FloatUnit* x, int stride, int cols, float (*out)[kTileRows]) {
  F16 sums[kCount][kTileRows];
  for (int p = 0; p < kCount; p++)
    for (int r = 0; r < kTileRows; r++) sums[p][r] = splat(0.0f);
  int left = divide_up(cols, kGroup);
  for (; left >= kBlockGroups; left -= kBlockGroups, x += kBlockGroups / kUnitGroups) {
    dot_fp8_block<F, kCount>(tile, x, stride, kBlockGroups, sums);
    tile += BlockPlace<F, kTileRows>::end(kBlockGroups);
  }
  if constexpr (F::kHasShortBlocks)
    if (left) dot_last_fp8_block<F, kCount>(tile, x, stride, left, sums);
  for (int p = 0; p < kCount; p++)
    for (int r = 0; r < kTileRows; r++) out[p][r] = sum(sums[p][r]);
}

}  // namespace monolane
