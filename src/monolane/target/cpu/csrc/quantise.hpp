// The input of a matrix of integers as integers: 15 bits with a scale per group of 32 columns (program/activations.py defines them). A unit has 4 groups,
// in the order in which a tile has the codes of the weights (program/tiles.py): words of 4 columns, [half of a group][c][group].
//
// Where the processor multiplies bytes, an integer is two of them. Elsewhere it multiplies pairs of 16-bit numbers: the even bytes of a register with
// codes are 16-bit numbers after a mask, and the odd ones after a shift, so even and odd columns lie apart.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "state.hpp"

namespace monolane {

constexpr float kLargest = 127 * 128, kSmallest = 1e-30f;

struct alignas(64) InputUnit {
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
  int8_t high[2][64], low[2][64];  // value = high * 128 + low
#else
  int16_t values[2][2][32];  // [half of a group][even or odd columns]
#endif
  float scale[kUnitGroups];
  float total[kUnitGroups];      // the sum of a group, of its integers times their scale
  int32_t sums[2][kUnitGroups];  // of the integers of half a group
};
static_assert(sizeof(InputUnit) <= kUnitBytes, "Worker::units has room for them");

#if defined(__AVX512F__)
inline uint32_t largest(U16 v) { return _mm512_reduce_max_epu32(reinterpret_cast<__m512i>(v)); }
inline int32_t sum(I16 v) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(v)); }
#elif defined(__AVX2__)
inline __m128i folded(const __m256i& v, __m128i (*join)(__m128i, __m128i)) {
  const __m128i four = join(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)), two = join(four, _mm_shuffle_epi32(four, 0x4e));
  return join(two, _mm_shuffle_epi32(two, 0xb1));
}
inline uint32_t largest(U16 v) {
  const auto* part = reinterpret_cast<const __m256i*>(&v);
  return static_cast<uint32_t>(_mm_cvtsi128_si32(folded(_mm256_max_epu32(part[0], part[1]), [](__m128i a, __m128i b) { return _mm_max_epu32(a, b); })));
}
inline int32_t sum(I16 v) {
  const auto* part = reinterpret_cast<const __m256i*>(&v);
  return _mm_cvtsi128_si32(folded(_mm256_add_epi32(part[0], part[1]), [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); }));
}
#elif defined(__ARM_FEATURE_DOTPROD)
inline int32x4_t part_of(const I16& v, int i) { return vld1q_s32(reinterpret_cast<const int32_t*>(&v) + 4 * i); }
inline uint32_t largest(U16 v) {
  const uint32_t* p = reinterpret_cast<const uint32_t*>(&v);
  return vmaxvq_u32(vmaxq_u32(vmaxq_u32(vld1q_u32(p), vld1q_u32(p + 4)), vmaxq_u32(vld1q_u32(p + 8), vld1q_u32(p + 12))));
}
inline int32_t sum(I16 v) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(part_of(v, 0), part_of(v, 1)), vaddq_s32(part_of(v, 2), part_of(v, 3))));
}
inline int8x16_t narrow(const I16& v) {
  const int16x8_t first = vcombine_s16(vmovn_s32(part_of(v, 0)), vmovn_s32(part_of(v, 1)));
  const int16x8_t last = vcombine_s16(vmovn_s32(part_of(v, 2)), vmovn_s32(part_of(v, 3)));
  return vcombine_s8(vmovn_s16(first), vmovn_s16(last));
}
#else
inline uint32_t largest(U16 v) {
  uint32_t found = 0;
  for (int i = 0; i < kVectorFloats; i++) found = std::max<uint32_t>(found, v[i]);
  return found;
}
inline int32_t sum(I16 v) {
  int32_t total = 0;
  for (int i = 0; i < kVectorFloats; i++) total += v[i];
  return total;
}
#endif

// From [half][group][16 columns] to the order of a unit.
inline void store_words(InputUnit& unit, const I16 (*v)[kUnitGroups]) {
#if defined(__AVX512VNNI__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int half = 0; half < 2; half++) {
    alignas(64) int8_t high[kUnitGroups][16], low[kUnitGroups][16];
    for (int g = 0; g < kUnitGroups; g++) {
      const I16 upper = (v[half][g] + 64) >> 7;
      _mm_store_si128(reinterpret_cast<__m128i*>(high[g]), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(upper)));
      _mm_store_si128(reinterpret_cast<__m128i*>(low[g]), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v[half][g] - (upper << 7))));
    }
    _mm512_store_si512(unit.high[half], _mm512_permutexvar_epi32(order, _mm512_load_si512(high)));
    _mm512_store_si512(unit.low[half], _mm512_permutexvar_epi32(order, _mm512_load_si512(low)));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  for (int half = 0; half < 2; half++) {
    alignas(16) int8_t high[kUnitGroups][16], low[kUnitGroups][16];
    for (int g = 0; g < kUnitGroups; g++) {
      const I16 upper = (v[half][g] + 64) >> 7;
      vst1q_s8(high[g], narrow(upper));
      vst1q_s8(low[g], narrow(v[half][g] - (upper << 7)));
    }
    const int32x4x4_t high_words = vld4q_s32(reinterpret_cast<const int32_t*>(high)), low_words = vld4q_s32(reinterpret_cast<const int32_t*>(low));
    for (int c = 0; c < 4; c++) {
      vst1q_s8(unit.high[half] + 16 * c, vreinterpretq_s8_s32(high_words.val[c]));
      vst1q_s8(unit.low[half] + 16 * c, vreinterpretq_s8_s32(low_words.val[c]));
    }
  }
#else
  for (int half = 0; half < 2; half++)
    for (int g = 0; g < kUnitGroups; g++)
      for (int i = 0; i < 16; i++) unit.values[half][i % 2][8 * (i / 4) + 2 * g + i % 4 / 2] = static_cast<int16_t>(v[half][g][i]);
#endif
}

// `in` has `cols` numbers, and zeros behind them up to a whole group.
inline void to_units(const float* in, int cols, InputUnit* out) {
  const int groups = divide_up(cols, kGroup);
  for (int first = 0; first < groups; first += kUnitGroups, out++) {
    I16 v[2][kUnitGroups];
    for (int g = 0; g < kUnitGroups; g++) {
      const bool there = first + g < groups;
      const float* group = in + (first + g) * kGroup;
      const F16 x[2] = {there ? load(group) : splat(0.0f), there ? load(group + kVectorFloats) : splat(0.0f)};
      // Magnitudes are compared as integers, of which that of NaN is the highest.
      const U16 a = reinterpret_cast<U16>(x[0]) & 0x7fffffffu, b = reinterpret_cast<U16>(x[1]) & 0x7fffffffu;
      const uint32_t bits = largest(a > b ? a : b);
      float most;
      std::memcpy(&most, &bits, sizeof most);
      const bool finite = bits < 0x7f800000u, counts = finite && most >= kSmallest;
      const float factor = counts ? kLargest / most : 0.0f;
      const F16 shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
      for (int half = 0; half < 2; half++) {
        const F16 shifted = (counts ? x[half] : splat(0.0f)) * splat(factor) + shift;
        v[half][g] = reinterpret_cast<I16>(shifted) - reinterpret_cast<I16>(shift);
        out->sums[half][g] = sum(v[half][g]);
      }
      out->scale[g] = counts ? most * (1.0f / kLargest) : finite ? 0.0f : __builtin_nanf("");
      out->total[g] = static_cast<float>(out->sums[0][g] + out->sums[1][g]) * out->scale[g];
    }
    store_words(*out, v);
  }
}

}  // namespace monolane
