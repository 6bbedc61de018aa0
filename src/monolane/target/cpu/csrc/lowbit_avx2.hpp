// What lowbit.hpp needs of the instructions, for AVX2: two registers have 4 groups of a row, those of c = 0 and 1 and those of c = 2 and 3.
#pragma once
#include "block.hpp"

namespace monolane {

struct Codes {
  __m256i half[2][2];  // of the first and the last 16 columns of each group: [c][group][4 columns]
};

template <class F>
constexpr int kBias = 0;  // unpack() subtracts nothing from the codes

using RowSums = __m256i;  // of a row, over 8 columns each: those of c = 0 and 2, then of c = 1 and 3, of each group

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// [c][group], 4 bytes each; `groups` of 4 are there.
__attribute__((always_inline)) inline void load_words(const uint8_t* p, int groups, __m256i (&out)[2]) {
  if (groups == kUnitGroups) {
    for (int i = 0; i < 2; i++) out[i] = load256(p + 32 * i);
    return;
  }
  alignas(32) uint8_t words[4][16] = {};
  for (int c = 0; c < 4; c++) std::memcpy(words[c], p + c * 4 * groups, 4 * groups);
  for (int i = 0; i < 2; i++) out[i] = load256(words[2 * i]);
}

// The word of high bits of each c, for all four groups: `count` words per c, 1, 2 or 4, of which this is number `index`.
__attribute__((always_inline)) inline void load_high_words(const uint8_t* p, int count, int index, __m256i (&out)[2]) {
  for (int i = 0; i < 2; i++) {
    const __m256i words = count == 4 ? load256(p + 32 * i) : count == 2 ? load256(p) : _mm256_broadcastsi128_si256(load128(p));
    const int first = (count == 4 ? 0 : 2 * i * count) + index, last = first + count;  // of c = 2i and of c = 2i + 1
    out[i] = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(first, first, first, first, last, last, last, last));
  }
}

template <class F>
__attribute__((always_inline)) inline Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit);
  const uint8_t* codes = block + Place::codes(unit);
  Codes out;
  if constexpr (F::kBits == 8) {
    for (int p = 0; p < 2; p++) load_words(codes + (p * kTileRows + row) * 16 * here, here, out.half[p]);
  } else {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i both[2];
    load_words(codes + row * 16 * here, here, both);
    for (int i = 0; i < 2; i++) {
      out.half[0][i] = _mm256_and_si256(both[i], nibble);
      out.half[1][i] = _mm256_and_si256(_mm256_srli_epi16(both[i], 4), nibble);
    }
  }
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    const int units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
    const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
    for (int p = 0; p < 2; p++) {
      // The bits of the groups move to bit 4 of every byte: those of the first two to the left, those of the last ones to the right.
      const int first = words == 2 ? 4 : 4 - p;
      const __m256i left = _mm256_setr_epi32(first, first - 2, 0, 0, first, first - 2, 0, 0);
      const __m256i right = _mm256_setr_epi32(0, 0, 4 - first, 6 - first, 0, 0, 4 - first, 6 - first);
      __m256i all[2];
      load_high_words(high, units * words, unit * words + (words == 2 ? p : 0), all);
      for (int i = 0; i < 2; i++) {
        const __m256i moved = _mm256_srlv_epi32(_mm256_sllv_epi32(all[i], left), right);
        out.half[p][i] = _mm256_or_si256(out.half[p][i], _mm256_and_si256(moved, _mm256_set1_epi8(words == 2 ? 0x30 : 0x10)));
      }
    }
  }
  if constexpr (F::kHasTable) {
    const __m256i table = _mm256_broadcastsi128_si256(load128(F::kTable));
    for (auto& half : out.half)
      for (auto& part : half) part = _mm256_shuffle_epi8(table, part);
  }
  return out;
}

// Sums over both halves of a group or over one.
template <int kFirst, int kLast>
__attribute__((always_inline)) inline RowSums dot(const Codes& codes, const InputUnit& x) {
  __m256i sums = _mm256_setzero_si256();
  for (int p = kFirst; p <= kLast; p++)
    for (int i = 0; i < 2; i++) {
      const __m256i even = _mm256_and_si256(codes.half[p][i], _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes.half[p][i], 8);
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(even, load256(x.values[p][0] + 16 * i)));
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(odd, load256(x.values[p][1] + 16 * i)));
    }
  return sums;
}

// The sums over c of four rows: [row][group].
inline I16 gather(const RowSums* rows) {
  const auto of_two = [](__m256i a, __m256i b) {
    return reinterpret_cast<RegisterI>(_mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)));
  };
  return {of_two(rows[0], rows[1]), of_two(rows[2], rows[3])};
}

inline F16 of_groups(const float* p) {
  const RegisterF twice = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  return {twice, twice};
}
inline I16 of_groups(const int32_t* p) {
  const RegisterI twice = reinterpret_cast<RegisterI>(_mm256_broadcastsi128_si256(load128(p)));
  return {twice, twice};
}

// [group][row] of 16-bit numbers as [row][group], two rows in a register.
inline void transpose(const __m128i (&group)[kUnitGroups], __m128i (&rows)[kTileRows / 2]) {
  for (int last = 0; last < 2; last++) {  // four of the rows
    const __m128i first_groups = last ? _mm_unpackhi_epi16(group[0], group[1]) : _mm_unpacklo_epi16(group[0], group[1]);
    const __m128i last_groups = last ? _mm_unpackhi_epi16(group[2], group[3]) : _mm_unpacklo_epi16(group[2], group[3]);
    rows[2 * last] = _mm_unpacklo_epi32(first_groups, last_groups);
    rows[2 * last + 1] = _mm_unpackhi_epi32(first_groups, last_groups);
  }
}

// Eight 32-bit numbers below 65,536 as 16-bit ones.
inline __m128i narrowed(__m256i v) { return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08)); }

template <class F>
struct TileScales : ScaleVectors {
  // `blocks`: the numbers of the super-block, of all rows. Those of groups that are not there become 0.
  __attribute__((always_inline)) inline void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    constexpr bool kPairs = F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kScaleZero;
    constexpr int kGroupBytes = kTileRows * F::kScaleBytes;
    uint8_t there[kUnitGroups * kGroupBytes];
    if (groups < kUnitGroups) {
      std::memset(there, 0, sizeof there);
      std::memcpy(there, p, groups * kGroupBytes);
      p = there;
    }
    __m128i by_group[kUnitGroups], one[kTileRows / 2], two[kTileRows / 2];
    for (int g = 0; g < kUnitGroups; g++)
      by_group[g] = F::kScaling == Scaling::kExponent ? _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + g * kGroupBytes)))
                    : kPairs                          ? narrowed(_mm256_and_si256(load256(p + g * kGroupBytes), _mm256_set1_epi32(0xffff)))
                                                      : load128(p + g * kGroupBytes);
    transpose(by_group, one);
    if constexpr (kPairs) {
      for (int g = 0; g < kUnitGroups; g++) by_group[g] = narrowed(_mm256_srli_epi32(load256(p + g * kGroupBytes), 16));
      transpose(by_group, two);
    }
    __m256 first_parts[kTileRows / 2], second_parts[kTileRows / 2];
    for (int i = 0; i < kTileRows / 2; i++) {  // rows 2i and 2i + 1
      if constexpr (F::kScaling == Scaling::kBlockMin) {
        const __m256 numbers = _mm256_cvtph_ps(load128(blocks + i / 2 * 16));  // [row][scale, minimum] of four rows
        const int at = i % 2 * 4;
        const __m256i scales = _mm256_setr_epi32(at, at, at, at, at + 2, at + 2, at + 2, at + 2), minima = _mm256_add_epi32(scales, _mm256_set1_epi32(1));
        const __m256i pair = _mm256_cvtepu16_epi32(one[i]);
        first_parts[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_and_si256(pair, _mm256_set1_epi32(255))), _mm256_permutevar8x32_ps(numbers, scales));
        const __m256 minimum = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(pair, 8)), _mm256_permutevar8x32_ps(numbers, minima));
        second_parts[i] = _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f));
      } else if constexpr (F::kScaling == Scaling::kBlock16) {
        const __m256i rows = _mm256_setr_epi32(2 * i, 2 * i, 2 * i, 2 * i, 2 * i + 1, 2 * i + 1, 2 * i + 1, 2 * i + 1);
        const __m256 block = _mm256_permutevar8x32_ps(_mm256_cvtph_ps(load128(blocks)), rows);
        const __m256i pair = _mm256_cvtepi16_epi32(one[i]);
        first_parts[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pair, 24), 24)), block);
        second_parts[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(pair, 8)), block);
      } else if constexpr (F::kScaling == Scaling::kExponent) {
        first_parts[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(one[i]), 23));
        second_parts[i] = _mm256_setzero_ps();
      } else {
        first_parts[i] = _mm256_cvtph_ps(one[i]);
        second_parts[i] = kPairs ? _mm256_cvtph_ps(two[i]) : _mm256_setzero_ps();
      }
    }
    for (int v = 0; v < kVectors; v++) {
      scale[v] = {first_parts[2 * v], first_parts[2 * v + 1]};
      second[v] = {second_parts[2 * v], second_parts[2 * v + 1]};
      if constexpr (F::kScaling == Scaling::kScaleZero) {
        const auto integers = [&](int i) { return reinterpret_cast<RegisterI>(_mm256_cvtps_epi32(second_parts[i])); };
        zero[v] = {integers(2 * v), integers(2 * v + 1)};
      }
    }
  }
};

}  // namespace monolane
