// Where the numbers of a low-bit tile lie, super-block by super-block (program/tiles.py defines the bytes), and what its 16-bit and 8-bit floating-point
// numbers are.
#pragma once
#include "quantise.hpp"

namespace monolane {

// The tape is prefetched this many bytes ahead: one core's bandwidth times the latency of memory. The hardware prefetcher alone reaches two thirds of
// the bandwidth. Prefetching beyond the end of a segment is right, because the bytes that follow on the tape are read next.
constexpr int kAhead = 4096;

constexpr int kBlockGroups = 8;  // of a super-block
constexpr int kVectorRows = 4;
constexpr int kVectors = kTileRows / kVectorRows;  // of a tile

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

// A power of two by its exponent; 0 for an exponent of 0.
inline float from_exponent(uint8_t exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent) << 23;
  float v;
  std::memcpy(&v, &bits, sizeof v);
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

// The scales of 4 groups of a tile, of each of its vectors of 4 rows, in fp32. TileScales<F> loads them, each kind of instructions in its own way.
struct ScaleVectors {
  F16 scale[kVectors];
  F16 second[kVectors];  // the minima, or the scales of the last 16 columns of a group
  I16 zero[kVectors];    // zero points of the groups
};

constexpr int lesser_groups(int groups, int unit) { return lesser(kUnitGroups, groups - unit * kUnitGroups); }

}  // namespace monolane
