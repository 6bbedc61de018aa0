// What lowbit.hpp needs of the instructions, in plain C++. Functions are not inlined, because compilers would spend minutes on the unrolled loops.
#pragma once
#include "block.hpp"

namespace monolane {

typedef uint8_t B64 __attribute__((vector_size(64)));

struct Codes {
  B64 half[2];  // of the first and the last 16 columns of each group: [c][group][4 columns]
};

using F4x4 = F16;
using I4x4 = I16;

template <class F>
constexpr int kBias = 0;  // unpack() subtracts nothing from the codes

using RowSums = I16;  // of a row, over 4 columns each: [c][group]

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
    for (int p = 0; p < 2; p++)
      for (int i = 0; i < 64; i++) out.half[p][i] = F::kTable[out.half[p][i]];
  }
  return out;
}

template <int kFirst, int kLast>
__attribute__((noinline)) RowSums dot(const Codes& codes, const InputUnit& x) {
  RowSums sums{};
  for (int p = kFirst; p <= kLast; p++)
    for (int i = 0; i < kVectorFloats; i++)
      for (int b = 0; b < 4; b++) sums[i] += static_cast<int32_t>(codes.half[p][4 * i + b]) * x.values[p][b % 2][2 * i + b / 2];
  return sums;
}

__attribute__((noinline)) inline I4x4 gather(const RowSums* rows) {
  I16 out;
  for (int r = 0; r < kVectorRows; r++)
    for (int g = 0; g < kUnitGroups; g++) out[4 * r + g] = (rows[r][g] + rows[r][8 + g]) + (rows[r][4 + g] + rows[r][12 + g]);
  return out;
}

inline F4x4 of_groups(const float* p) { return F16{p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3]}; }
inline I4x4 of_groups(const int32_t* p) { return I16{p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3]}; }

inline F4x4 to_floats(I4x4 v) { return __builtin_convertvector(v, F16); }

// The scales of 4 groups of a tile, of each of its vectors of 4 rows, in fp32.
template <class F>
struct TileScales {
  F4x4 scale[kVectors];
  F4x4 second[kVectors];  // the minima, or the scales of the last 16 columns of a group
  I4x4 zero[kVectors];      // zero points of the groups

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
};

}  // namespace monolane
