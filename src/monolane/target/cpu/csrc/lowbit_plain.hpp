// What lowbit.hpp needs of the instructions, in plain C++: a register of 16 bytes has one word of 4 columns of each of 4 groups. Every column of a word is
// a vector of 32-bit numbers after a shift and a mask.
#pragma once
#include "block.hpp"

namespace monolane {

static_assert(kRegister == kUnitGroups, "an element for each group");

struct Codes {
  RegisterU half[2][4];  // of the first and the last 16 columns of each group: [c]
};

template <class F>
constexpr int kBias = 0;  // unpack() subtracts nothing from the codes

using RowSums = RegisterI;  // [group]

inline RegisterU words_of(const uint8_t* p, int groups) {  // `groups` of 4 are there
  if (groups == kUnitGroups) return load_bits<RegisterU>(p);
  RegisterU words{};
  std::memcpy(&words, p, 4 * groups);
  return words;
}

template <class F>
__attribute__((always_inline)) inline Codes unpack(const uint8_t* block, int row, int unit, int groups) {
  using Place = BlockPlace<F, kTileRows>;
  const int here = lesser_groups(groups, unit), units = divide_up(groups, kUnitGroups), words = F::kBits - 4;
  const uint8_t* codes = block + Place::codes(unit);
  const uint8_t* high = block + Place::high(groups) + row * units * Place::kHighBytes;
  Codes out;
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++)
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++) {
      RegisterU& half = out.half[p][c];
      if constexpr (F::kBits == 8) {
        half = words_of(codes + ((p * kTileRows + row) * 4 + c) * 4 * here, here);
      } else {
        half = words_of(codes + (row * 4 + c) * 4 * here, here) >> 4 * p & 0x0f0f0f0fu;
      }
      if constexpr (F::kBits == 5 || F::kBits == 6) {
        uint32_t word;
        std::memcpy(&word, high + 4 * ((c * units + unit) * words + (words == 2 ? p : 0)), sizeof word);
        word >>= words == 2 ? 0 : p;
        const RegisterU all = {word, word >> 2, word >> 4, word >> 6};
        half |= (all & (words == 2 ? 0x03030303u : 0x01010101u)) << 4;
      }
      if constexpr (F::kHasTable) {
        uint8_t bytes[sizeof half];
        std::memcpy(bytes, &half, sizeof half);
        for (uint8_t& byte : bytes) byte = F::kTable[byte];
        std::memcpy(&half, bytes, sizeof half);
      }
    }
  return out;
}

// Sums over both halves of a group or over one.
template <int kFirst, int kLast>
__attribute__((always_inline)) inline RowSums dot(const Codes& codes, const InputUnit& x) {
  RowSums sums{};
#pragma GCC unroll 2
  for (int p = kFirst; p <= kLast; p++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        const RegisterU bytes = codes.half[p][c] >> 8 * odd & 0x00ff00ffu;
        const RegisterI pairs = load_bits<RegisterI>(x.values[p][odd] + 8 * c);  // of two columns of each group
#if defined(__SSE2__)
        sums += as<RegisterI>(_mm_madd_epi16(as<__m128i>(bytes), as<__m128i>(pairs)));
#else
        sums += as<RegisterI>(bytes & 255) * (pairs << 16 >> 16) + as<RegisterI>(bytes >> 16) * (pairs >> 16);
#endif
      }
  return sums;
}

// Four rows: [row][group].
inline I16 gather(const RowSums* rows) { return {{rows[0], rows[1]}, {rows[2], rows[3]}}; }

template <class V, class T>
inline Pair<Pair<V>> repeated(const T* p) {
  const V one = load_bits<V>(p);
  return {{one, one}, {one, one}};
}
inline F16 of_groups(const float* p) { return repeated<RegisterF>(p); }
inline I16 of_groups(const int32_t* p) { return repeated<RegisterI>(p); }

template <class F>
struct TileScales : ScaleVectors {
  __attribute__((noinline)) void load(const uint8_t* p, const uint8_t* blocks, int groups) {
    float ones[kTileRows][kUnitGroups] = {}, twos[kTileRows][kUnitGroups] = {};
    int32_t zeros[kTileRows][kUnitGroups] = {};
    for (int row = 0; row < kTileRows; row++) {
      constexpr bool kMin = F::kScaling == Scaling::kBlockMin, kHasBlocks = kMin || F::kScaling == Scaling::kBlock16;
      const float block = kHasBlocks ? from_half(half_at(blocks, kMin ? 2 * row : row)) : 1.0f;
      const float minimum = kMin ? -from_half(half_at(blocks, 2 * row + 1)) : 0.0f;
      for (int g = 0; g < groups; g++) {
        const int place = g * kTileRows + row;
        float &one = ones[row][g], &two = twos[row][g];
        if constexpr (kMin) {
          one = block * p[2 * place];
          two = minimum * p[2 * place + 1];
        } else if constexpr (kHasBlocks) {
          one = block * static_cast<int8_t>(p[2 * place]);
          two = block * static_cast<int8_t>(p[2 * place + 1]);
        } else if constexpr (F::kScaling == Scaling::kScale) {
          one = from_half(half_at(p, place));
        } else if constexpr (F::kScaling == Scaling::kExponent) {
          one = from_exponent(p[place]);
        } else {
          one = from_half(half_at(p, 2 * place));
          two = from_half(half_at(p, 2 * place + 1));
        }
        if (F::kScaling == Scaling::kScaleZero) zeros[row][g] = static_cast<int32_t>(two);
      }
    }
    for (int v = 0; v < kVectors; v++) {
      scale[v] = load_bits<F16>(ones[v * kVectorRows]);
      second[v] = load_bits<F16>(twos[v * kVectorRows]);
      zero[v] = load_bits<I16>(zeros[v * kVectorRows]);
    }
  }
};

}  // namespace monolane
