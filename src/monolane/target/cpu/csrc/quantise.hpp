// The input of a low-bit matrix as integers: 15 bits with a scale per group of 32 columns (program/activations.py defines them). A unit has 4 groups,
// in the order in which a tile has the codes of the weights (program/tiles.py): words of 4 columns, [half of a group][c][group].
#pragma once
#include "state.hpp"

namespace monolane {

constexpr float kLargest = 127 * 128, kSmallest = 1e-30f;

struct alignas(64) InputUnit {
#if defined(__AVX512VNNI__)
  int8_t high[2][64], low[2][64];  // value = high * 128 + low
#else
  int16_t values[2][64];
#endif
  float scale[kUnitGroups];
  int32_t sums[2][kUnitGroups];  // of the integers of half a group
};

static_assert(sizeof(InputUnit) == kUnitBytes, "Worker::quantised has another size");

inline void store_words(InputUnit& unit, int half, int group, I16 v) {
#if defined(__AVX512VNNI__)
  typedef int8_t Bytes16 __attribute__((vector_size(16)));
  const I16 high = (v + 64) >> 7;
  const Bytes16 h = __builtin_convertvector(high, Bytes16), l = __builtin_convertvector(v - (high << 7), Bytes16);
  for (int c = 0; c < 4; c++) {
    std::memcpy(unit.high[half] + 16 * c + 4 * group, reinterpret_cast<const char*>(&h) + 4 * c, 4);
    std::memcpy(unit.low[half] + 16 * c + 4 * group, reinterpret_cast<const char*>(&l) + 4 * c, 4);
  }
#else
  for (int c = 0; c < 4; c++)
    for (int b = 0; b < 4; b++) unit.values[half][16 * c + 4 * group + b] = static_cast<int16_t>(v[4 * c + b]);
#endif
}

inline int32_t sum(I16 v) {
  int32_t total = 0;
  for (int i = 0; i < kVectorFloats; i++) total += v[i];
  return total;
}

// `in` has `cols` numbers, and zeros behind them up to a whole group.
inline void quantise(const float* in, int cols, InputUnit* out) {
  const int groups = divide_up(cols, kGroup);
  std::memset(static_cast<void*>(out + groups / kUnitGroups), 0, sizeof(InputUnit) * (groups % kUnitGroups ? 1 : 0));
  for (int g = 0; g < groups; g++) {
    InputUnit& unit = out[g / kUnitGroups];
    const int place = g % kUnitGroups;
    const F16 x[2] = {load(in + g * kGroup), load(in + g * kGroup + kVectorFloats)};
    // Magnitudes are compared as integers, of which that of NaN is the highest.
    const U16 a = reinterpret_cast<U16>(x[0]) & 0x7fffffffu, b = reinterpret_cast<U16>(x[1]) & 0x7fffffffu;
    const U16 greater = a > b ? a : b;
    uint32_t bits = 0;
    for (int i = 0; i < kVectorFloats; i++) bits = std::max<uint32_t>(bits, greater[i]);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const bool finite = bits < 0x7f800000u, counts = finite && largest >= kSmallest;
    const float factor = counts ? kLargest / largest : 0.0f;
    unit.scale[place] = counts ? largest * (1.0f / kLargest) : finite ? 0.0f : __builtin_nanf("");
    for (int half = 0; half < 2; half++) {
      const F16 shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
      const F16 shifted = (counts ? x[half] : splat(0.0f)) * splat(factor) + shift;
      const I16 v = reinterpret_cast<I16>(shifted) - reinterpret_cast<I16>(shift);
      unit.sums[half][place] = sum(v);
      store_words(unit, half, place, v);
    }
  }
}

}  // namespace monolane
