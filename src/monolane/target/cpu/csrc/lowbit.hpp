// Dot products of low-bit tiles with quantised rows of the pass. The generated source has a Format<N> for every low-bit format of the program;
// program/tiles.py defines the bytes of a tile.
//
// Per row of the matrix and group of 32 columns (or half of one, where it has a scale of its own) the sum of (code - zero) * integer is exact. It is
// converted to fp32 and multiplied with the scale of the weights and that of the input. A row has four fp32 sums, of the groups 0, 4, 8, …, of 1, 5, 9,
// …, and so on, which are added last. So the result is the same with any instructions that have FMA.
//
// A vector of 16 integers or sums is [4 rows][4 groups] here; a tile has two of them.
#pragma once
#if defined(__AVX512BW__)
#include "lowbit_avx512.hpp"
#elif defined(__AVX2__)
#include "lowbit_avx2.hpp"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "lowbit_arm.hpp"
#else
#include "lowbit_plain.hpp"
#endif

namespace monolane {

// Numbers of 4 groups times `factor`, for all rows of a vector. They are multiplied before they are repeated: compilers take vectors of several registers
// apart.
template <class... Numbers>
inline I16 of_groups_times(int factor, const Numbers&... numbers) {
  typedef int32_t I4 __attribute__((vector_size(16)));
  const auto load = [](const int32_t* p) {
    I4 v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const I4 product = (load(numbers) + ...) * factor;
  return of_groups(reinterpret_cast<const int32_t*>(&product));
}

// Adds the products of a super-block to the sums of kCount rows of the pass. It is inlined where the number of groups is a constant.
template <class F, int kCount>
__attribute__((always_inline)) inline void dot_block(const uint8_t* block, const InputUnit* x, int stride, int groups, F16 (*sums)[kVectors]) {
  using Place = BlockPlace<F, kTileRows>;
  constexpr bool kHalves = F::kScaling == Scaling::kBlock16, kMinima = F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kBlockMin;
  constexpr int kZero = F::kZero - kBias<F>;
  for (int unit = 0; unit < divide_up(groups, kUnitGroups); unit++) {
    const uint8_t* group_scales = block + Place::scales(groups) + unit * kUnitGroups * kTileRows * F::kScaleBytes;
    __builtin_prefetch(group_scales + kAhead);
    TileScales<F> scales;
    scales.load(group_scales, block + Place::blocks(groups), lesser_groups(groups, unit));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      RowSums first[kCount][kVectorRows], last[kCount][kVectorRows];
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
          scaled = converted<F16>(gather(first[p]) - of_groups_times(kZero, input.sums[0])) * scales.scale[v];
          scaled += converted<F16>(gather(last[p]) - of_groups_times(kZero, input.sums[1])) * scales.second[v];
        } else {
          I16 total = gather(first[p]);
          if constexpr (kZero != 0) total = total - of_groups_times(kZero, input.sums[0], input.sums[1]);
          if constexpr (F::kScaling == Scaling::kScaleZero) total = total - of_groups_times(1, input.sums[0], input.sums[1]) * scales.zero[v];
          scaled = converted<F16>(total) * scales.scale[v];
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
  F16 sums[kCount][kVectors] = {};
  int left = divide_up(cols, kGroup);
  for (; left >= kBlockGroups; left -= kBlockGroups, x += kBlockGroups / kUnitGroups) {
    dot_block<F, kCount>(tile, x, stride, kBlockGroups, sums);
    tile += BlockPlace<F, kTileRows>::end(kBlockGroups);
  }
  if constexpr (F::kHasShortBlocks)
    if (left) dot_last_block<F, kCount>(tile, x, stride, left, sums);
  for (int p = 0; p < kCount; p++) {
    float s[kTileRows][kUnitGroups];
    static_assert(sizeof s == sizeof sums[p], "a sum for each row and group of a unit");
    std::memcpy(s, sums[p], sizeof s);
    for (int r = 0; r < kTileRows; r++) out[p][r] = (s[r][0] + s[r][2]) + (s[r][1] + s[r][3]);
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
        case Scaling::kExponent: weight = from_exponent(scales[0]) * value; break;
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
