// Dot products of low-bit tiles with quantised rows of the pass. The generated source has a Format<N> for every low-bit format of the program;
// program/tiles.py defines the bytes of a tile.
//
// Per row of the matrix and group of 32 columns (or half of one, where it has a scale of its own) the sum of (code - zero) * integer is exact. It is
// converted to fp32 and multiplied with the scale of the weights and that of the input. A row has four fp32 sums, of the groups 0, 4, 8, …, of 1, 5, 9,
// …, and so on, which are added last. So the result is the same with any instructions that have FMA.
//
// A vector of 16 integers is [4 rows][4 groups] here; a tile has two of them.
#pragma once
#include "quantise.hpp"

namespace monolane {

// The tape is prefetched this many bytes ahead: one core's bandwidth times the latency of memory. The hardware prefetcher alone reaches two thirds of
// the bandwidth. Prefetching beyond the end of a segment is right, because the bytes that follow on the tape are read next.
constexpr int kAhead = 4096;

constexpr int kBlockGroups = 8;  // of a super-block
constexpr int kVectorRows = 4;
constexpr int kVectors = kTileRows / kVectorRows;  // of a tile

typedef uint8_t B64 __attribute__((vector_size(64)));

inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
  uint32_t bits = rest;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  v *= 0x1p112f;  // moves the exponent from a bias of 15 to one of 127, also of subnormal numbers
  std::memcpy(&bits, &v, sizeof bits);
  if (rest >= 0x0f800000u) bits = rest | 0x70000000u;  // infinity and NaN
  bits |= sign;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline uint16_t half_at(const uint8_t* bytes, int index) {
  uint16_t half;
  std::memcpy(&half, bytes + 2 * index, sizeof half);
  return half;
}

inline float float_at(const uint8_t* bytes, int index) {
  float v;
  std::memcpy(&v, bytes + sizeof v * index, sizeof v);
  return v;
}

// An FP8 number is an fp16 one with a bias of 7 instead of 15.
inline float from_e4m3(int code) { return from_half(static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7)) * 0x1p8f; }

// Where the arrays of a super-block with `groups` groups begin, in a tile of kRows rows.
template <class F, int kRows>
struct BlockPlace {
  static constexpr int kCodeBytes = F::kBits == 8 ? 32 : 16;             // of a row and group
  static constexpr int kHighBytes = F::kBits == 8 ? 0 : 16 * (F::kBits - 4);  // of a row and 4 groups

  static constexpr int codes(int half) { return half * kRows * kUnitGroups * kCodeBytes; }
  static constexpr int high(int groups) { return groups * kRows * kCodeBytes; }
  static constexpr int scales(int groups) { return high(groups) + divide_up(groups, kUnitGroups) * kRows * kHighBytes; }
  static constexpr int blocks(int groups) { return scales(groups) + groups * kRows * F::kScaleBytes; }
  static constexpr int end(int groups) { return blocks(groups) + kRows * F::kBlockBytes; }
};

constexpr int lesser_groups(int groups, int unit) { return lesser(kUnitGroups, groups - unit * kUnitGroups); }

struct Codes {
  B64 half[2];  // of the first and the last 16 columns of each group: [c][group][4 columns]
};

#if defined(__AVX512VNNI__)

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

// Sums over 4 columns, of both halves of a group or of one: [c][group].
template <int kFirst, int kLast>
inline I16 dot(const Codes& codes, const InputUnit& x) {
  __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
  for (int p = kFirst; p <= kLast; p++) {
    high = _mm512_dpbusd_epi32(high, reinterpret_cast<__m512i>(codes.half[p]), _mm512_load_si512(x.high[p]));
    low = _mm512_dpbusd_epi32(low, reinterpret_cast<__m512i>(codes.half[p]), _mm512_load_si512(x.low[p]));
  }
  return reinterpret_cast<I16>(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
}

// The sums over c of four rows: [row][group].
inline I16 gather(const I16* rows) {
  const __m512i a = reinterpret_cast<__m512i>(rows[0]), b = reinterpret_cast<__m512i>(rows[1]);
  const __m512i c = reinterpret_cast<__m512i>(rows[2]), d = reinterpret_cast<__m512i>(rows[3]);
  const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
  return reinterpret_cast<I16>(_mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd)));
}

inline F16 of_groups(const float* p) { return reinterpret_cast<F16>(_mm512_broadcast_f32x4(_mm_loadu_ps(p))); }
inline I16 of_groups(const int32_t* p) { return reinterpret_cast<I16>(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))); }

// [group][row] of 16-bit numbers as [row][group]; `groups` of 4 are there, and the others become 0.
inline void transpose(const uint8_t* p, int groups, __m256i out[2]) {
  const __m512i order = _mm512_setr_epi32(0x080000, 0x180010, 0x090001, 0x190011, 0x0a0002, 0x1a0012, 0x0b0003, 0x1b0013, 0x0c0004, 0x1c0014, 0x0d0005,
                                          0x1d0015, 0x0e0006, 0x1e0016, 0x0f0007, 0x1f0017);
  const __m512i all = _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << groups * 8) - 1), p));
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

#else

// Other instructions: not inlined, because compilers would spend minutes on the unrolled loops.
template <class F>
__attribute__((noinline)) Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit);
  const uint8_t* codes = block + Place::codes(unit);
  Codes out{};
  if constexpr (F::kBits == 8) {
    for (int p = 0; p < 2; p++)
      for (int c = 0; c < 4; c++)
        std::memcpy(reinterpret_cast<uint8_t*>(&out.half[p]) + 16 * c, codes + ((p * kTileRows + row) * 4 + c) * 4 * here, 4 * here);
  } else {
    B64 both{};
    for (int c = 0; c < 4; c++) std::memcpy(reinterpret_cast<uint8_t*>(&both) + 16 * c, codes + (row * 4 + c) * 4 * here, 4 * here);
    out.half[0] = both & 15;
    out.half[1] = both >> 4;
  }
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    const int units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
    const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
    for (int p = 0; p < 2; p++) {
      U16 all;
      for (int c = 0; c < 4; c++) {
        uint32_t word;
        std::memcpy(&word, high + 4 * ((c * units + unit) * words + (words == 2 ? p : 0)), 4);
        for (int g = 0; g < kUnitGroups; g++) all[4 * c + g] = word >> (2 * g + (words == 2 ? 0 : p));
      }
      const U16 moved = (all << 4) & (words == 2 ? 0x30303030u : 0x10101010u);
      out.half[p] |= reinterpret_cast<B64>(moved);
    }
  }
  if constexpr (F::kHasTable) {
    for (int p = 0; p < 2; p++) {
#if defined(__AVX2__)
      const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(F::kTable)));
      auto* part = reinterpret_cast<__m256i*>(&out.half[p]);
      for (int i = 0; i < 2; i++) part[i] = _mm256_shuffle_epi8(table, part[i]);
#else
      for (int i = 0; i < 64; i++) out.half[p][i] = F::kTable[out.half[p][i]];
#endif
    }
  }
  return out;
}

template <int kFirst, int kLast>
__attribute__((noinline)) I16 dot(const Codes& codes, const InputUnit& x) {
  alignas(64) int32_t sums[kVectorFloats] = {};
#if defined(__AVX2__)
  for (int part = 0; part < 2; part++) {
    __m256i pairs[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int p = kFirst; p <= kLast; p++)
      for (int i = 0; i < 2; i++) {
        const __m128i* bytes = reinterpret_cast<const __m128i*>(&codes.half[p]) + 2 * part + i;
        const __m256i* integers = reinterpret_cast<const __m256i*>(x.values[p]) + 2 * part + i;
        pairs[i] = _mm256_add_epi32(pairs[i], _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_load_si128(bytes)), _mm256_load_si256(integers)));
      }
    const __m256i mixed = _mm256_hadd_epi32(pairs[0], pairs[1]);
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums) + part, _mm256_permute4x64_epi64(mixed, 0xd8));
  }
#else
  for (int p = kFirst; p <= kLast; p++)
    for (int i = 0; i < kVectorFloats; i++)
      for (int b = 0; b < 4; b++) sums[i] += static_cast<int32_t>(codes.half[p][4 * i + b]) * x.values[p][4 * i + b];
#endif
  I16 out;
  std::memcpy(&out, sums, sizeof out);
  return out;
}

__attribute__((noinline)) inline I16 gather(const I16* rows) {
  I16 out;
  for (int r = 0; r < kVectorRows; r++)
    for (int g = 0; g < kUnitGroups; g++) out[4 * r + g] = (rows[r][g] + rows[r][8 + g]) + (rows[r][4 + g] + rows[r][12 + g]);
  return out;
}

inline F16 of_groups(const float* p) { return F16{p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3]}; }
inline I16 of_groups(const int32_t* p) { return I16{p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3]}; }

#endif

inline F16 to_floats(I16 v) { return __builtin_convertvector(v, F16); }

// The scales of 4 groups of a tile, of each of its vectors of 4 rows, in fp32.
template <class F>
struct TileScales {
  F16 scale[kVectors];
  F16 second[kVectors];  // the minima, or the scales of the last 16 columns of a group
  I16 zero[kVectors];    // zero points of the groups

#if defined(__AVX512VNNI__)
  // `blocks`: the numbers of the super-block, of all rows. Those of groups that are not there become 0.
  inline void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    __m256i one[kVectors], two[kVectors];
    if constexpr (F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kScaleZero)
      transpose_pairs(p, groups, one, two);
    else
      transpose(p, groups, one);
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
      } else {
        scale[v] = reinterpret_cast<F16>(_mm512_cvtph_ps(one[v]));
        if constexpr (F::kScaling == Scaling::kScaleMin) second[v] = reinterpret_cast<F16>(_mm512_cvtph_ps(two[v]));
        if constexpr (F::kScaling == Scaling::kScaleZero) zero[v] = reinterpret_cast<I16>(_mm512_cvtps_epi32(_mm512_cvtph_ps(two[v])));
      }
    }
  }
#else
  __attribute__((noinline)) void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    for (int row = 0; row < kTileRows; row++)
      for (int g = 0; g < kUnitGroups; g++) {
        const int v = row / kVectorRows, i = row % kVectorRows * kUnitGroups + g, place = g * kTileRows + row;
        float one = 0.0f, two = 0.0f;
        if (g < groups) {
          if constexpr (F::kScaling == Scaling::kBlockMin) {
            one = from_half(half_at(blocks, 2 * row)) * p[2 * place];
            two = -from_half(half_at(blocks, 2 * row + 1)) * p[2 * place + 1];
          } else if constexpr (F::kScaling == Scaling::kBlock16) {
            one = from_half(half_at(blocks, row)) * static_cast<int8_t>(p[2 * place]);
            two = from_half(half_at(blocks, row)) * static_cast<int8_t>(p[2 * place + 1]);
          } else if constexpr (F::kScaling == Scaling::kScale) {
            one = from_half(half_at(p, place));
          } else {
            one = from_half(half_at(p, 2 * place));
            two = from_half(half_at(p, 2 * place + 1));
          }
        }
        scale[v][i] = one, second[v][i] = two;
        zero[v][i] = F::kScaling == Scaling::kScaleZero ? static_cast<int32_t>(two) : 0;
      }
  }
#endif
};

// Adds the products of a super-block to the sums of kCount rows of the pass. It is inlined where the number of groups is a constant.
template <class F, int kCount>
__attribute__((always_inline)) inline void dot_block(const uint8_t* block, const InputUnit* x, int stride, int groups, F16 (*sums)[kVectors]) {
  using Place = BlockPlace<F, kTileRows>;
  constexpr bool kHalves = F::kScaling == Scaling::kBlock16, kMinima = F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kBlockMin;
  for (int unit = 0; unit < divide_up(groups, kUnitGroups); unit++) {
    const uint8_t* group_scales = block + Place::scales(groups) + unit * kUnitGroups * kTileRows * F::kScaleBytes;
    __builtin_prefetch(group_scales + kAhead);
    TileScales<F> scales;
    scales.load(group_scales, block + Place::blocks(groups), lesser_groups(groups, unit));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      I16 first[kCount][kVectorRows], last[kCount][kVectorRows];
#pragma GCC unroll 4
      for (int r = 0; r < kVectorRows; r++) {
        const int row = v * kVectorRows + r;
        const uint8_t* ahead = block + Place::codes(unit) + row * kUnitGroups * Place::kCodeBytes + kAhead;
        __builtin_prefetch(ahead);
        if (Place::kCodeBytes == 32) __builtin_prefetch(ahead + 64);
        if (Place::kHighBytes && unit == 0) __builtin_prefetch(block + Place::high(groups) + row * 2 * Place::kHighBytes + kAhead);
        const Codes codes = unpack<F>(block, row, unit, groups);
#pragma GCC unroll 4
        for (int p = 0; p < kCount; p++) {
          const InputUnit& input = x[p * stride + unit];
          first[p][r] = kHalves ? dot<0, 0>(codes, input) : dot<0, 1>(codes, input);
          if constexpr (kHalves) last[p][r] = dot<1, 1>(codes, input);
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < kCount; p++) {
        const InputUnit& input = x[p * stride + unit];
        F16 scaled;
        if constexpr (kHalves) {
          scaled = to_floats(gather(first[p]) - of_groups(input.sums[0]) * F::kZero) * scales.scale[v];
          scaled += to_floats(gather(last[p]) - of_groups(input.sums[1]) * F::kZero) * scales.second[v];
        } else {
          I16 total = gather(first[p]);
          if constexpr (F::kZero != 0) total -= (of_groups(input.sums[0]) + of_groups(input.sums[1])) * F::kZero;
          if constexpr (F::kScaling == Scaling::kScaleZero) total -= (of_groups(input.sums[0]) + of_groups(input.sums[1])) * scales.zero[v];
          scaled = to_floats(total) * scales.scale[v];
        }
        if constexpr (kMinima) sums[p][v] += of_groups(input.total) * scales.second[v];
        sums[p][v] += scaled * of_groups(input.scale);
      }
    }
  }
}

// A last super-block with fewer groups.
template <class F, int kCount>
__attribute__((noinline)) void dot_last_block(const uint8_t* block, const InputUnit* x, int stride, int groups, F16 (*sums)[kVectors]) {
  dot_block<F, kCount>(block, x, stride, groups, sums);
}

// Dot products of all rows of a tile with kCount rows of the pass.
template <class F, int kCount>
inline void dot_lowbit(const uint8_t* tile, const InputUnit* x, int stride, int cols, float (*out)[kTileRows]) {
  F16 sums[kCount][kVectors];
  for (int p = 0; p < kCount; p++)
    for (int v = 0; v < kVectors; v++) sums[p][v] = splat(0.0f);
  int left = divide_up(cols, kGroup);
  for (; left >= kBlockGroups; left -= kBlockGroups, x += kBlockGroups / kUnitGroups) {
    dot_block<F, kCount>(tile, x, stride, kBlockGroups, sums);
    tile += BlockPlace<F, kTileRows>::end(kBlockGroups);
  }
  if constexpr (F::kHasShortBlocks)
    if (left) dot_last_block<F, kCount>(tile, x, stride, left, sums);
  for (int p = 0; p < kCount; p++)
    for (int r = 0; r < kTileRows; r++) {
      const F16& s = sums[p][r / kVectorRows];
      const int i = r % kVectorRows * kUnitGroups;
      out[p][r] = (s[i] + s[i + 2]) + (s[i + 1] + s[i + 3]);
    }
}

// The weights of one row of a tile, in fp32: an embedding.
template <class F, int kRows>
inline void widen_row(const uint8_t* tile, int row, int cols, float* out) {
  using Place = BlockPlace<F, kRows>;
  const uint8_t* block = tile;
  for (int done = 0; done < cols;) {
    const int groups = lesser(divide_up(cols - done, kGroup), kBlockGroups), units = divide_up(groups, kUnitGroups);
    for (int i = 0; i < lesser(cols - done, groups * kGroup); i++) {
      const int g = i / kGroup, unit = g / kUnitGroups, here = lesser_groups(groups, unit);
      const int half = i % kGroup / 16, c = i % 16 / 4, b = i % 4, place = g % kUnitGroups;
      const uint8_t* codes = block + Place::codes(unit);
      int code;
      if (F::kBits == 8) {
        code = codes[((half * kRows + row) * 4 + c) * 4 * here + 4 * place + b];
      } else {
        code = codes[(row * 4 + c) * 4 * here + 4 * place + b] >> 4 * half & 15;
        if (F::kBits == 5) code |= (block[Place::high(groups) + ((row * 4 + c) * units + unit) * 4 + b] >> (2 * place + half) & 1) << 4;
        if (F::kBits == 6) code |= (block[Place::high(groups) + (((row * 4 + c) * units + unit) * 2 + half) * 4 + b] >> 2 * place & 3) << 4;
      }
      const int value = (F::kHasTable ? F::kTable[code] : code) - F::kZero;
      const uint8_t* scales = block + Place::scales(groups) + (g * kRows + row) * F::kScaleBytes;
      const uint8_t* numbers = block + Place::blocks(groups) + row * F::kBlockBytes;
      float weight = 0.0f;
      switch (F::kScaling) {
        case Scaling::kScale: weight = from_half(half_at(scales, 0)) * value; break;
        case Scaling::kScaleMin: weight = from_half(half_at(scales, 0)) * value + from_half(half_at(scales, 1)); break;
        case Scaling::kScaleZero: weight = from_half(half_at(scales, 0)) * (value - from_half(half_at(scales, 1))); break;
        case Scaling::kBlockMin: weight = from_half(half_at(numbers, 0)) * scales[0] * value - from_half(half_at(numbers, 1)) * scales[1]; break;
        case Scaling::kBlock128: weight = float_at(numbers, unit) * from_e4m3(code); break;
        case Scaling::kBlock16: weight = from_half(half_at(numbers, 0)) * static_cast<int8_t>(scales[half]) * value; break;
      }
      out[done + i] = weight;
    }
    block += Place::end(groups);
    done += groups * kGroup;
  }
}

// Calls `what` with the type of format number `format`, which is a low-bit one.
template <int kNumber = 1, class What>
inline void with_format(int format, const What& what) {
  if constexpr (kNumber <= kFormats) {
    if (format == kNumber) what(Format<kNumber>{});
    else with_format<kNumber + 1>(format, what);
  }
}

}  // namespace monolane
