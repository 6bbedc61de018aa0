// What lowbit.hpp needs of the instructions, for AVX-512, with VNNI and without: a register has 4 groups of a row.
#pragma once
#include "block.hpp"

namespace monolane {

typedef uint8_t B64 __attribute__((vector_size(64)));

struct Codes {
  B64 half[2];  // of the first and the last 16 columns of each group: [c][group][4 columns]
};

template <class F>
constexpr int kBias = 0;  // unpack() subtracts nothing from the codes

using RowSums = I16;  // of a row, over 4 columns each: [c][group]

inline __m512i words_of(const uint8_t* p, int groups) {  // [c][group], 4 bytes each; `groups` of 4 are there
  if (groups == kUnitGroups) return _mm512_loadu_si512(p);
  return _mm512_maskz_expandloadu_epi32(static_cast<__mmask16>(0x1111 * ((1 << groups) - 1)), p);
}

// The word of high bits of each c, for all four groups: `count` words per c, of which this is number `index`.
inline __m512i high_words(const uint8_t* p, int count, int index) {
  const __m512i all = _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1 << 4 * count) - 1), p);
  const __m512i c = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i place = _mm512_mullo_epi32(c, _mm512_set1_epi32(count));
  return _mm512_permutexvar_epi32(_mm512_add_epi32(place, _mm512_set1_epi32(index)), all);
}

template <class F>
__attribute__((always_inline)) inline Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit);
  const uint8_t* codes = block + Place::codes(unit);
  __m512i half[2];
  if constexpr (F::kBits == 8) {
    for (int p = 0; p < 2; p++) half[p] = words_of(codes + (p * kTileRows + row) * 16 * here, here);
  } else {
    const __m512i both = words_of(codes + row * 16 * here, here), nibble = _mm512_set1_epi8(15);
    half[0] = _mm512_and_si512(both, nibble);
    half[1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
  }
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    const int units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
    const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
    const __m512i place = _mm512_setr_epi32(4, 2, 0, -2, 4, 2, 0, -2, 4, 2, 0, -2, 4, 2, 0, -2);
    for (int p = 0; p < 2; p++) {
      const __m512i all = high_words(high, units * words, unit * words + (words == 2 ? p : 0));
      const __m512i moved = _mm512_rolv_epi32(all, words == 2 ? place : _mm512_sub_epi32(place, _mm512_set1_epi32(p)));
      half[p] = _mm512_ternarylogic_epi32(half[p], moved, _mm512_set1_epi8(words == 2 ? 0x30 : 0x10), 0xf8);  // a | (b & c)
    }
  }
  if constexpr (F::kHasTable)
    for (int p = 0; p < 2; p++) half[p] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(F::kTable))), half[p]);
  return {reinterpret_cast<B64>(half[0]), reinterpret_cast<B64>(half[1])};
}

// Sums over 4 columns, of both halves of a group or of one.
template <int kFirst, int kLast>
inline RowSums dot(const Codes& codes, const InputUnit& x) {
#if defined(__AVX512VNNI__)
  __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
  for (int p = kFirst; p <= kLast; p++) {
    high = _mm512_dpbusd_epi32(high, reinterpret_cast<__m512i>(codes.half[p]), _mm512_load_si512(x.high[p]));
    low = _mm512_dpbusd_epi32(low, reinterpret_cast<__m512i>(codes.half[p]), _mm512_load_si512(x.low[p]));
  }
  return reinterpret_cast<I16>(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
#else
  __m512i sums = _mm512_setzero_si512();
  for (int p = kFirst; p <= kLast; p++) {
    const __m512i bytes = reinterpret_cast<__m512i>(codes.half[p]);
    const __m512i even = _mm512_and_si512(bytes, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(bytes, 8);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(even, _mm512_load_si512(x.values[p][0])));
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(odd, _mm512_load_si512(x.values[p][1])));
  }
  return reinterpret_cast<I16>(sums);
#endif
}

// The sums over c of four rows: [row][group].
inline I16 gather(const RowSums* rows) {
  const __m512i a = reinterpret_cast<__m512i>(rows[0]), b = reinterpret_cast<__m512i>(rows[1]);
  const __m512i c = reinterpret_cast<__m512i>(rows[2]), d = reinterpret_cast<__m512i>(rows[3]);
  const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
  return reinterpret_cast<I16>(_mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd)));
}

inline F16 of_groups(const float* p) { return reinterpret_cast<F16>(_mm512_broadcast_f32x4(_mm_loadu_ps(p))); }
inline I16 of_groups(const int32_t* p) { return reinterpret_cast<I16>(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))); }

// [group][row] of 16-bit numbers, or of bytes, as 16-bit numbers [row][group]; `groups` of 4 are there, and the others become 0.
template <bool kBytes>
inline void transpose(const uint8_t* p, int groups, __m256i out[2]) {
  const __m512i order = _mm512_setr_epi32(0x080000, 0x180010, 0x090001, 0x190011, 0x0a0002, 0x1a0012, 0x0b0003, 0x1b0013, 0x0c0004, 0x1c0014, 0x0d0005,
                                          0x1d0015, 0x0e0006, 0x1e0016, 0x0f0007, 0x1f0017);
  const __mmask32 there = static_cast<__mmask32>((1ull << groups * 8) - 1);
  const __m512i numbers = kBytes ? _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(there, p)) : _mm512_maskz_loadu_epi16(there, p);
  const __m512i all = _mm512_permutexvar_epi16(order, numbers);
  out[0] = _mm512_castsi512_si256(all);
  out[1] = _mm512_extracti64x4_epi64(all, 1);
}

// Two 16-bit numbers for each group and row: [row][group] of the first and of the second ones.
inline void transpose_pairs(const uint8_t* p, int groups, __m256i first[2], __m256i second[2]) {
  const __m512i order = _mm512_setr_epi32(0x100000, 0x300020, 0x120002, 0x320022, 0x140004, 0x340024, 0x160006, 0x360026, 0x180008, 0x380028, 0x1a000a,
                                          0x3a002a, 0x1c000c, 0x3c002c, 0x1e000e, 0x3e002e);
  const uint32_t mask = groups >= 2 ? ~0u : 0xffffu;
  const __m512i low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), p);
  const uint64_t rest = groups > 2 ? (1ull << (groups - 2) * 16) - 1 : 0;
  const __m512i high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(rest), p + 64);
  const __m512i one = _mm512_permutex2var_epi16(low, order, high);
  const __m512i two = _mm512_permutex2var_epi16(low, _mm512_add_epi16(order, _mm512_set1_epi16(1)), high);
  first[0] = _mm512_castsi512_si256(one), first[1] = _mm512_extracti64x4_epi64(one, 1);
  second[0] = _mm512_castsi512_si256(two), second[1] = _mm512_extracti64x4_epi64(two, 1);
}

template <class F>
struct TileScales : ScaleVectors {
  // `blocks`: the numbers of the super-block, of all rows. Those of groups that are not there become 0.
  inline void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    __m256i one[kVectors], two[kVectors];
    if constexpr (F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kScaleZero)
      transpose_pairs(p, groups, one, two);
    else
      transpose<F::kScaling == Scaling::kExponent>(p, groups, one);
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int v = 0; v < kVectors; v++) {
      if constexpr (F::kScaling == Scaling::kBlockMin) {
        const __m512 numbers = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks)));  // [row][scale, minimum]
        const __m512i pair = _mm512_cvtepu16_epi32(one[v]), at = _mm512_add_epi32(_mm512_slli_epi32(row, 1), _mm512_set1_epi32(8 * v));
        const __m512 groups_scale = _mm512_cvtepi32_ps(_mm512_and_si512(pair, _mm512_set1_epi32(255)));
        const __m512 groups_minimum = _mm512_cvtepi32_ps(_mm512_srli_epi32(pair, 8));
        scale[v] = reinterpret_cast<F16>(_mm512_mul_ps(groups_scale, _mm512_permutexvar_ps(at, numbers)));
        const __m512 minimum = _mm512_permutexvar_ps(_mm512_add_epi32(at, _mm512_set1_epi32(1)), numbers);
        second[v] = -reinterpret_cast<F16>(_mm512_mul_ps(groups_minimum, minimum));
      } else if constexpr (F::kScaling == Scaling::kBlock16) {
        const __m512 numbers = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks))));  // [row]
        const __m512i pair = _mm512_cvtepi16_epi32(one[v]);
        const __m512 block = _mm512_permutexvar_ps(_mm512_add_epi32(row, _mm512_set1_epi32(4 * v)), numbers);
        scale[v] = reinterpret_cast<F16>(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pair, 24), 24)), block));
        second[v] = reinterpret_cast<F16>(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(pair, 8)), block));
      } else if constexpr (F::kScaling == Scaling::kExponent) {
        scale[v] = reinterpret_cast<F16>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(one[v]), 23));
      } else {
        scale[v] = reinterpret_cast<F16>(_mm512_cvtph_ps(one[v]));
        if constexpr (F::kScaling == Scaling::kScaleMin) second[v] = reinterpret_cast<F16>(_mm512_cvtph_ps(two[v]));
        if constexpr (F::kScaling == Scaling::kScaleZero) zero[v] = reinterpret_cast<I16>(_mm512_cvtps_epi32(_mm512_cvtph_ps(two[v])));
      }
    }
  }
};

}  // namespace monolane
