// The input of a matrix of integers as integers: 15 bits with a scale per group of 32 columns (program/activations.py defines them). A unit has 4 groups,
// in the order in which a tile has the codes of the weights (program/tiles.py): words of 4 columns, [half of a group][c][group].
//
// Where the processor multiplies bytes, an integer is two of them. Elsewhere it multiplies pairs of 16-bit numbers: the even bytes of a register with
// codes are 16-bit numbers after a mask, and the odd ones after a shift, so even and odd columns lie apart.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
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
inline uint32_t largest(RegisterU v) { return _mm512_reduce_max_epu32(reinterpret_cast<__m512i>(v)); }
inline int32_t sum(RegisterI v) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(v)); }
#elif defined(__AVX2__)
template <class Join>
inline int32_t joined(__m256i v, const Join& join) {
  const __m128i four = join(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)), two = join(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(join(two, _mm_shuffle_epi32(two, 0xb1)));
}
inline uint32_t largest(RegisterU v) {
  return static_cast<uint32_t>(joined(reinterpret_cast<__m256i>(v), [](__m128i a, __m128i b) { return _mm_max_epu32(a, b); }));
}
inline int32_t sum(RegisterI v) {
  return joined(reinterpret_cast<__m256i>(v), [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
}
#else
inline uint32_t largest(RegisterU v) { return std::max(std::max<uint32_t>(v[0], v[1]), std::max<uint32_t>(v[2], v[3])); }
inline int32_t sum(RegisterI v) { return (v[0] + v[1]) + (v[2] + v[3]); }
#endif

#if defined(__ARM_FEATURE_DOTPROD)
inline int8x16_t narrow(const int32_t* v, bool high) {  // the high or the low part of 16 integers
  int16x4_t parts[4];
  for (int i = 0; i < 4; i++) {
    const int32x4_t all = vld1q_s32(v + 4 * i), upper = vshrq_n_s32(vaddq_s32(all, vdupq_n_s32(64)), 7);
    parts[i] = vmovn_s32(high ? upper : vsubq_s32(all, vshlq_n_s32(upper, 7)));
  }
  return vcombine_s8(vmovn_s16(vcombine_s16(parts[0], parts[1])), vmovn_s16(vcombine_s16(parts[2], parts[3])));
}
#endif

// From [half][group][16 columns] to the order of a unit.
inline void store_words(InputUnit& unit, const int32_t (*v)[kUnitGroups][16]) {
#if defined(__AVX512VNNI__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int half = 0; half < 2; half++) {
    alignas(64) int8_t high[kUnitGroups][16], low[kUnitGroups][16];
    for (int g = 0; g < kUnitGroups; g++) {
      const __m512i all = _mm512_load_si512(v[half][g]), upper = _mm512_srai_epi32(_mm512_add_epi32(all, _mm512_set1_epi32(64)), 7);
      _mm_store_si128(reinterpret_cast<__m128i*>(high[g]), _mm512_cvtepi32_epi8(upper));
      _mm_store_si128(reinterpret_cast<__m128i*>(low[g]), _mm512_cvtepi32_epi8(_mm512_sub_epi32(all, _mm512_slli_epi32(upper, 7))));
    }
    _mm512_store_si512(unit.high[half], _mm512_permutexvar_epi32(order, _mm512_load_si512(high)));
    _mm512_store_si512(unit.low[half], _mm512_permutexvar_epi32(order, _mm512_load_si512(low)));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  for (int half = 0; half < 2; half++) {
    alignas(16) int8_t high[kUnitGroups][16], low[kUnitGroups][16];
    for (int g = 0; g < kUnitGroups; g++) {
      vst1q_s8(high[g], narrow(v[half][g], true));
      vst1q_s8(low[g], narrow(v[half][g], false));
    }
    const int32x4x4_t high_words = vld4q_s32(reinterpret_cast<const int32_t*>(high)), low_words = vld4q_s32(reinterpret_cast<const int32_t*>(low));
    for (int c = 0; c < 4; c++) {
      vst1q_s8(unit.high[half] + 16 * c, vreinterpretq_s8_s32(high_words.val[c]));
      vst1q_s8(unit.low[half] + 16 * c, vreinterpretq_s8_s32(low_words.val[c]));
    }
  }
#elif defined(__AVX2__)
  // Of every word of four 16-bit numbers, the even ones come first.
  const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int half = 0; half < 2; half++) {
    __m256i words[kUnitGroups];  // [c = 0 and 2 | c = 1 and 3][even or odd]
    for (int g = 0; g < kUnitGroups; g++) {
      const auto* part = reinterpret_cast<const __m256i*>(v[half][g]);
      words[g] = _mm256_shuffle_epi8(_mm256_packs_epi32(part[0], part[1]), apart);
    }
    const __m256i first[2] = {_mm256_unpacklo_epi32(words[0], words[1]), _mm256_unpacklo_epi32(words[2], words[3])};
    const __m256i last[2] = {_mm256_unpackhi_epi32(words[0], words[1]), _mm256_unpackhi_epi32(words[2], words[3])};
    auto* even = reinterpret_cast<__m256i*>(unit.values[half][0]);
    auto* odd = reinterpret_cast<__m256i*>(unit.values[half][1]);
    even[0] = _mm256_unpacklo_epi64(first[0], first[1]), odd[0] = _mm256_unpackhi_epi64(first[0], first[1]);
    even[1] = _mm256_unpacklo_epi64(last[0], last[1]), odd[1] = _mm256_unpackhi_epi64(last[0], last[1]);
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
    alignas(64) int32_t v[2][kUnitGroups][16];
    for (int g = 0; g < kUnitGroups; g++) {
      float x[kGroup] = {};
      if (first + g < groups) std::memcpy(x, in + (first + g) * kGroup, sizeof x);
      RegisterU highest{};
      for (int i = 0; i < kGroup; i += kRegister) {  // magnitudes are compared as integers, of which that of NaN is the highest
        RegisterU bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        highest = bits > highest ? bits : highest;
      }
      const uint32_t bits = largest(highest);
      float most;
      std::memcpy(&most, &bits, sizeof most);
      const bool finite = bits < 0x7f800000u, counts = finite && most >= kSmallest;
      const float factor = counts ? kLargest / most : 0.0f;
      const RegisterF shift = splat<RegisterF>(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
      for (int half = 0; half < 2; half++) {
        RegisterI total{};
        for (int i = 0; i < 16; i += kRegister) {
          RegisterF part;
          std::memcpy(&part, x + 16 * half + i, sizeof part);
          const RegisterF shifted = part * factor + shift;
          RegisterI integers = reinterpret_cast<RegisterI>(shifted) - reinterpret_cast<RegisterI>(shift);
          if (!counts) integers = RegisterI{};  // 0 times infinity is no number
          std::memcpy(&v[half][g][i], &integers, sizeof integers);
          total += integers;
        }
        out->sums[half][g] = sum(total);
      }
      out->scale[g] = counts ? most * (1.0f / kLargest) : finite ? 0.0f : __builtin_nanf("");
      out->total[g] = static_cast<float>(out->sums[0][g] + out->sums[1][g]) * out->scale[g];
    }
    store_words(*out, v);
  }
}

}  // namespace monolane
