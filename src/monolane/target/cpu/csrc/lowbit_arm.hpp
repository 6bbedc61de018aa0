// What lowbit.hpp needs of the instructions, for ARM processors with dot products of 8-bit integers. A register has 4 words of 4 columns, one word of each
// of 4 groups, so a dot product adds up the columns of each group, and a row of a unit ends as one register: [group].
//
// Both operands are signed. Codes of 8 bits and values of tables have kBias subtracted for it; the sum of the input puts that right.
#pragma once
#include "block.hpp"

namespace monolane {

template <class F>
constexpr int kBias = F::kIsInteger && (F::kBits == 8 || F::kHasTable) ? 128 : 0;

struct Codes {
  uint8x16_t half[2][4];  // of the first and the last 16 columns of each group: [c], with [group][4 columns] each
};

using RowSums = int32x4_t;  // [group]

inline uint8x16_t words_of(const uint8_t* p, int groups) {  // [group], 4 bytes each; `groups` of 4 are there
  if (groups == kUnitGroups) return vld1q_u8(p);
  uint8_t words[16] = {};
  std::memcpy(words, p, 4 * groups);
  return vld1q_u8(words);
}

template <class F>
__attribute__((always_inline)) inline Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit);
  const uint8_t* codes = block + Place::codes(unit);
  Codes out;
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    if constexpr (F::kBits == 8) {
      for (int p = 0; p < 2; p++) out.half[p][c] = words_of(codes + ((p * kTileRows + row) * 4 + c) * 4 * here, here);
    } else {
      const uint8x16_t both = words_of(codes + (row * 4 + c) * 4 * here, here);
      out.half[0][c] = vandq_u8(both, vdupq_n_u8(15));
      out.half[1][c] = vshrq_n_u8(both, 4);
    }
    if constexpr (F::kBits == 5 || F::kBits == 6) {
      const int units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
      const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
      for (int p = 0; p < 2; p++) {
        uint32_t word;
        std::memcpy(&word, high + 4 * ((c * units + unit) * words + (words == 2 ? p : 0)), sizeof word);
        const int first = words == 2 ? 4 : 4 - p;
        const int32x4_t places = {first, first - 2, first - 4, first - 6};  // to the left
        const uint8x16_t moved = vreinterpretq_u8_u32(vshlq_u32(vdupq_n_u32(word), places));
        out.half[p][c] = vorrq_u8(out.half[p][c], vandq_u8(moved, vdupq_n_u8(words == 2 ? 0x30 : 0x10)));
      }
    }
    for (int p = 0; p < 2; p++) {
      if constexpr (F::kHasTable) out.half[p][c] = vqtbl1q_u8(vld1q_u8(F::kTable), out.half[p][c]);
      if constexpr (kBias<F> != 0) out.half[p][c] = veorq_u8(out.half[p][c], vdupq_n_u8(kBias<F>));
    }
  }
  return out;
}

// Sums over both halves of a group or over one.
template <int kFirst, int kLast>
__attribute__((always_inline)) inline RowSums dot(const Codes& codes, const InputUnit& x) {
  int32x4_t high = vdupq_n_s32(0), low = vdupq_n_s32(0);
#pragma GCC unroll 2
  for (int p = kFirst; p <= kLast; p++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const int8x16_t weights = vreinterpretq_s8_u8(codes.half[p][c]);
      high = vdotq_s32(high, weights, vld1q_s8(x.high[p] + 16 * c));
      low = vdotq_s32(low, weights, vld1q_s8(x.low[p] + 16 * c));
    }
  return vaddq_s32(vshlq_n_s32(high, 7), low);
}

// Four rows: [row][group].
inline I16 gather(const RowSums* rows) {
  return {{rows[0], rows[1]}, {rows[2], rows[3]}};
}

inline F16 of_groups(const float* p) {
  const float32x4_t one = vld1q_f32(p);
  return {{one, one}, {one, one}};
}
inline I16 of_groups(const int32_t* p) {
  const int32x4_t one = vld1q_s32(p);
  return {{one, one}, {one, one}};
}

// [group][row] of 16-bit numbers as [row][group], two rows in a register.
inline void transpose(const uint16x8_t (&groups)[kUnitGroups], uint16x8_t (&out)[kTileRows / 2]) {
  const uint16x8x2_t even = vzipq_u16(groups[0], groups[2]), odd = vzipq_u16(groups[1], groups[3]);
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const uint16x8x2_t rows = vzipq_u16(even.val[i], odd.val[i]);
    out[2 * i] = rows.val[0], out[2 * i + 1] = rows.val[1];
  }
}

template <class F>
struct TileScales : ScaleVectors {
  // `blocks`: the numbers of the super-block, of all rows. Those of groups that are not there become 0.
  inline void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    constexpr bool kPairs = F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kScaleZero;
    uint16x8_t first[kUnitGroups], last[kUnitGroups], one[kTileRows / 2], two[kTileRows / 2];
#pragma GCC unroll 4
    for (int g = 0; g < kUnitGroups; g++) {
      const uint16_t* numbers = reinterpret_cast<const uint16_t*>(p) + g * kTileRows * (kPairs ? 2 : 1);
      first[g] = last[g] = vdupq_n_u16(0);
      if (g >= groups) continue;
      if constexpr (kPairs) {
        const uint16x8x2_t pairs = vld2q_u16(numbers);
        first[g] = pairs.val[0], last[g] = pairs.val[1];
      } else if constexpr (F::kScaling == Scaling::kExponent) {
        first[g] = vmovl_u8(vld1_u8(p + g * kTileRows));
      } else {
        first[g] = vld1q_u16(numbers);
      }
    }
    float of_block[2 * kTileRows];  // the numbers of the super-block
    for (int i = 0; i < kTileRows * F::kBlockBytes / 2; i += 4)
      vst1q_f32(of_block + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(blocks) + i))));
    transpose(first, one);
    if constexpr (kPairs) transpose(last, two);
#pragma GCC unroll 8
    for (int row = 0; row < kTileRows; row++) {
      const auto of_row = [row](const uint16x8_t* rows) { return row % 2 ? vget_high_u16(rows[row / 2]) : vget_low_u16(rows[row / 2]); };
      const auto put = [row](auto* vectors, auto numbers) { std::memcpy(reinterpret_cast<char*>(vectors) + sizeof numbers * row, &numbers, sizeof numbers); };
      const uint16x4_t numbers = of_row(one);
      if constexpr (F::kScaling == Scaling::kBlockMin) {
        const uint32x4_t pair = vmovl_u16(numbers);
        put(scale, vmulq_n_f32(vcvtq_f32_u32(vandq_u32(pair, vdupq_n_u32(255))), of_block[2 * row]));
        put(second, vmulq_n_f32(vcvtq_f32_u32(vshrq_n_u32(pair, 8)), -of_block[2 * row + 1]));
      } else if constexpr (F::kScaling == Scaling::kBlock16) {
        const int32x4_t pair = vmovl_s16(vreinterpret_s16_u16(numbers));
        put(scale, vmulq_n_f32(vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(pair, 24), 24)), of_block[row]));
        put(second, vmulq_n_f32(vcvtq_f32_s32(vshrq_n_s32(pair, 8)), of_block[row]));
      } else if constexpr (F::kScaling == Scaling::kExponent) {
        put(scale, vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(numbers), 23)));
      } else {
        put(scale, vcvt_f32_f16(vreinterpret_f16_u16(numbers)));
        if constexpr (kPairs) {
          const float32x4_t other = vcvt_f32_f16(vreinterpret_f16_u16(of_row(two)));
          if constexpr (F::kScaling == Scaling::kScaleMin) put(second, other);
          if constexpr (F::kScaling == Scaling::kScaleZero) put(zero, vcvtq_s32_f32(other));
        }
      }
    }
  }
};

}  // namespace monolane
