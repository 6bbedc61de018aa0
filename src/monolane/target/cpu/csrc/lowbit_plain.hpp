// What lowbit.hpp needs of the instructions, in plain C++. Functions are not inlined, because compilers would spend minutes on the unrolled loops.
#pragma once
#include "block.hpp"

namespace monolane {

struct alignas(64) Codes {
  uint8_t half[2][64];  // of the first and the last 16 columns of each group: [c][group][4 columns]
};

template <class F>
constexpr int kBias = 0;  // unpack() subtracts nothing from the codes

struct RowSums {
  int32_t of[kUnitGroups];
};

template <class F>
__attribute__((noinline)) Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit), units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
  const uint8_t* codes = block + Place::codes(unit);
  const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
  Codes out{};
  for (int c = 0; c < 4; c++)
    for (int i = 0; i < 4 * here; i++) {  // [group][4 columns]
      uint8_t both[2];
      for (int p = 0; p < 2; p++) {
        if (F::kBits == 8) {
          both[p] = codes[((p * kTileRows + row) * 4 + c) * 4 * here + i];
        } else {
          both[p] = codes[(row * 4 + c) * 4 * here + i] >> 4 * p & 15;
          const uint8_t bits = F::kBits == 4 ? 0 : high[4 * ((c * units + unit) * words + (words == 2 ? p : 0)) + i % 4] >> 2 * (i / 4);
          if (F::kBits == 5) both[p] |= (bits >> p & 1) << 4;
          if (F::kBits == 6) both[p] |= (bits & 3) << 4;
        }
        out.half[p][16 * c + i] = F::kHasTable ? F::kTable[both[p]] : both[p];
      }
    }
  return out;
}

// Sums over both halves of a group or over one.
template <int kFirst, int kLast>
__attribute__((noinline)) RowSums dot(const Codes& codes, const InputUnit& x) {
  RowSums sums{};
  for (int p = kFirst; p <= kLast; p++)
    for (int i = 0; i < 16; i++)
      for (int b = 0; b < 4; b++) sums.of[i % 4] += static_cast<int32_t>(codes.half[p][4 * i + b]) * x.values[p][b % 2][2 * i + b / 2];
  return sums;
}

// Four rows: [row][group].
inline I16 gather(const RowSums* rows) { return load_bits<I16>(reinterpret_cast<const int32_t*>(rows)); }

template <class V, class T>
inline V repeated(const T* p) {
  T all[kVectorFloats];
  for (int i = 0; i < kVectorFloats; i++) all[i] = p[i % kUnitGroups];
  return load_bits<V>(all);
}
inline F16 of_groups(const float* p) { return repeated<F16>(p); }
inline I16 of_groups(const int32_t* p) { return repeated<I16>(p); }

// The scales of 4 groups of a tile, of each of its vectors of 4 rows, in fp32.
template <class F>
struct TileScales {
  F16 scale[kVectors];
  F16 second[kVectors];  // the minima, or the scales of the last 16 columns of a group
  I16 zero[kVectors];    // zero points of the groups

  __attribute__((noinline)) void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    float ones[kTileRows][kUnitGroups] = {}, twos[kTileRows][kUnitGroups] = {};
    int32_t zeros[kTileRows][kUnitGroups] = {};
    for (int row = 0; row < kTileRows; row++)
      for (int g = 0; g < groups; g++) {
        const int place = g * kTileRows + row;
        float &one = ones[row][g], &two = twos[row][g];
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
        if (F::kScaling == Scaling::kScaleZero) zeros[row][g] = static_cast<int32_t>(two);
      }
    for (int v = 0; v < kVectors; v++) {
      scale[v] = load_bits<F16>(ones[v * kVectorRows]);
      second[v] = load_bits<F16>(twos[v * kVectorRows]);
      zero[v] = load_bits<I16>(zeros[v * kVectorRows]);
    }
  }
};

}  // namespace monolane
