// Low-bit weights: codes of 4 to 8 bits with a scale, and in some formats a minimum, per group of 32 columns. program/tiles.py defines their bytes, and
// docs/formats.md the formats. The generated source has a type F for every format of the program, with
//
//     kBits, kZero               of a code
//     kInPairs                   whether a word of codes has two groups
//     kInThrees                  whether three words of codes have four groups
//     kHasTable, kTable0 to 3    whether codes are looked up, and the 16 values of the table, with kZero added, four in a word
//     kHasSmallTable             whether all of these are less than 128
//     kLookup0 to 3              the same of codes 0 to 7 and then 15 to 8, if the table is small; else the magnitudes of its values, of which those of half
//                                kNegativeHalf of the table, 0 or 1, are negative or 0
//     kScaling                   what its scales are
//     kScaleBytes, kBlockBytes   bytes of the scales of a row and group, and of a row and super-block
//     kIsInteger                 whether codes are integers; fp8.cuh multiplies the others
//
// A fragment of such a matrix is a super-block of a tile: 8 rows x 256 columns, the 8 groups j = 0 to 7. Thread 4g + t of a warp has of row g: the codes of
// columns 4t to 4t + 3 and 16 + 4t to 19 + 4t of every group, and the scales of groups t and 4 + t.
//
// 1 row: 8-bit integers. The input is 15-bit integers, high * 128 + low, with a scale per group (store_integers in prepare.cuh). The codes are A, and the
// input is B. Two MMAs multiply 4 groups, 4s to 4s + 3 for s = 0 or 1. Rows 0-7 of A are the 8 rows of weights with one group, rows 8-15 are the same
// rows with another group. Each group has two columns of B, one for its high parts and one for its low parts, and zeros where it is not in the MMA:
//
//     MMA   rows 0-7 of A   rows 8-15 of A   columns 0 1 of B   2 3            4 5            6 7
//     0     group 4s        group 4s + 2     group 4s           0              group 4s + 2   0
//     1     group 4s + 1    group 4s + 3     0                  group 4s + 1   0              group 4s + 3
//
// Thread 4g + t then has row g of C, columns 2t and 2t + 1. In rows 0-7 these are the sums of group 4s + t if t < 2, in rows 8-15 if t >= 2, and it is
// the scales of this group that the thread has. The other half of C are products of one group's weights with the input of another, and is ignored.
//
// 4-bit codes in pairs (kInPairs): of groups 2i and 2i + 1, in bytes of 16 * (code of 2i + 1) + (code of 2i). Both MMAs have the same rows of A: MMA 0 the bytes as
// they are, MMA 1 the bytes without their low 4 bits. So 8 codes take one instruction, and the 16 bytes of a thread are its registers of A:
//
//     MMA   rows 0-7 of A                 rows 8-15 of A                 columns 0 1 of B   2 3            4 5             6 7
//     0     pair of 4s and 4s + 1         pair of 4s + 2 and 4s + 3      group 4s           0              group 4s + 2    0
//     1     16 * (code of 4s + 1)         16 * (code of 4s + 3)          minus group 4s     group 4s + 1   minus 4s + 2    group 4s + 3
//
// The sums of the two are those of group 4s, without what its neighbour's codes have added, and 16 times those of group 4s + 1.
//
// 6-bit codes in threes (kInThrees): of four groups, in bytes of 4 * (code of 4s + i) + (two bits of the code of 4s + 3) for i = 0 to 2, less their zero. So a mask
// leaves the signed bytes 4 * code of three groups, and the fourth is put together from the lowest bits of all three words. Each half of a group has a scale
// of its own, and so an MMA with 16 k.
//
// 16 rows: bf16. All rows of A are rows of the pass, so weights become bf16, and two MMAs multiply a group.
#pragma once
#include "handoff.cuh"

namespace monolane {

constexpr int kGroupCols = 32, kBlockGroups = 8, kHalfGroups = 4, kBlockCols = kGroupCols * kBlockGroups;
// Of the input of a super-block in integers, with what lies behind it (input_index in prepare.cuh), in elements of bf16.
constexpr int kBlockElements = kBlockCols + kBlockGroups * 8;

// Where the arrays of a super-block of kRows rows with `groups` groups begin, in bytes.
template <class F, int kRows>
struct BlockPlace {
  static constexpr int kCodeBytes = F::kBits == 8 ? 32 : 16;                  // of a row and group
  static constexpr int kHighBytes = F::kBits == 8 ? 0 : 16 * (F::kBits - 4);  // of a row and 4 groups

  static constexpr int high(int groups) { return groups * kRows * kCodeBytes; }
  static constexpr int scales(int groups) { return high(groups) + divide_up(groups, kHalfGroups) * kRows * kHighBytes; }
  static constexpr int blocks(int groups) { return scales(groups) + groups * kRows * F::kScaleBytes; }
  static constexpr int end(int groups) { return blocks(groups) + kRows * F::kBlockBytes; }
};

MONOLANE_DEVICE uint32_t word_of(const Word4& words, int i) { return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w; }

// What a table of 16 has for four codes of 4 bits: the lowest 16 bits of `codes`. An instruction selects among 8 bytes by the lowest 3 bits of a code, so
// each half of the table is looked up. The fourth bit chooses: where it is set, the instruction returns the sign bit of the byte it selects, eight times,
// which is 0 if all bytes of the table are less than 128 (a small table). Then the other half is looked up with the fourth bits inverted.
template <class F>
MONOLANE_DEVICE uint32_t looked_up(uint32_t codes) {
  if constexpr (F::kHasSmallTable)
    return ptx::byte_perm_signed(F::kTable0, F::kTable1, codes) | ptx::byte_perm_signed(F::kTable2, F::kTable3, codes ^ 0x8888u);
  const uint32_t lower = ptx::byte_perm(F::kTable0, F::kTable1, codes), upper = ptx::byte_perm(F::kTable2, F::kTable3, codes);
  return ptx::byte_perm(lower, upper, 0x3210u | (codes & 0x8888u) >> 1);
}

// What kLookup has for 8 codes: found[half of the table][first or last four codes], 0 for codes of the other half. Inverted codes select from the upper half: the highest
// bit of these is clear (see looked_up), and codes 15 to 8 become 0 to 7. A second MMA would take longer than the sum of both halves: for its 6 cycles neither ALUs nor FMA
// units get anything.
template <class F>
MONOLANE_DEVICE void look_up_halves(uint32_t codes, uint32_t (&found)[2][2]) {
  const uint32_t last = ptx::high_half(codes);
  found[0][0] = ptx::byte_perm_signed(F::kLookup0, F::kLookup1, codes), found[0][1] = ptx::byte_perm_signed(F::kLookup0, F::kLookup1, last);
  found[1][0] = ptx::byte_perm_signed(F::kLookup2, F::kLookup3, ~codes), found[1][1] = ptx::byte_perm_signed(F::kLookup2, F::kLookup3, ~last);
}

// The high bits of the codes of a group: `word` has two bits of every column for each of 4 groups, or one bit of both halves of a group.
template <int kBits>
MONOLANE_DEVICE uint32_t high_bits(uint32_t word, int group, int half) {
  const int shift = 4 - 2 * group - (kBits == 5 ? half : 0);  // to the left
  return (shift >= 0 ? word << max(shift, 0) : word >> max(-shift, 0)) & (kBits == 5 ? 0x10101010u : 0x30303030u);
}

// What a code counts in the bytes that codes_of() returns.
template <class F>
constexpr int kCodeUnit = F::kInThrees ? 4 : 1;

// Half tiles: a fragment is two neighbouring super-blocks of 4 rows, kKBlocks = 2. Row g of the fragment is row g % 4 of the first super-block if g < 4, of
// the second otherwise. The same two MMAs then multiply 4 groups of both. Each of these has rows of A of its own, two columns of B, and no zeros:
//
//     MMA   rows 0-3, 4-7 of A          rows 8-11, 12-15             columns 0 1 of B    2 3         4 5            6 7
//     0     group 4s of both            group 4s + 2 of both         4s, the first       second      4s + 2, first  second
//     1     group 4s + 1 of both        group 4s + 3 of both         4s + 1, the second  first       4s + 3, second first
//
// In pairs, MMA 0 has the low 4 bits of the bytes, and MMA 1 the others: all columns of B are taken, and a third MMA took longer than to clear bits.
//
// So the sums of a thread that count are those of group 4s + own_group().
template <int kKBlocks>
MONOLANE_DEVICE int own_group(uint32_t lane_index) {
  return kKBlocks > 1 ? lane_index % 4 ^ lane_index / 16 : lane_index % 4;
}

// What a thread has of a fragment, in registers.
template <class F, int kKBlocks>
struct LowBitFragment {
  using Place = BlockPlace<F, kTileRows>;
  static constexpr int kPlanes = F::kBits == 8 ? 2 : 1;  // words of codes of a group
  static constexpr int kHighWords = F::kBits == 8 ? 0 : F::kBits - 4;  // of 4 groups

  Word4 codes[2][kPlanes];            // of 4 groups each, a word for each
  uint32_t high[2 * kHighWords + 1];  // [4 groups][word]; the last element is not used
  uint32_t scales[2];                 // of row g, groups own_group() and 4 + own_group()
  uint32_t blocks[4];                 // of row g; of FP8, those of rows 2t and 2t + 1

  // A thread's places in the arrays of a fragment, in bytes, which it keeps in registers: of codes, of scales, and of those of a super-block.
  struct Thread {
    uint32_t code, scale, block;

    MONOLANE_DEVICE explicit Thread(uint32_t lane)
        : code(ptx::kept(lane * 16)),
          scale(ptx::kept((own_group<kKBlocks>(lane) * kTileRows + lane / 4) * F::kScaleBytes)),
          block(ptx::kept(F::kIsInteger ? lane / 4 * F::kBlockBytes : lane % 4 * 16)) {}
  };

  // Loads it; returns a value that depends on everything loaded.
  MONOLANE_DEVICE uint32_t load(const char* from, const Thread& thread) {
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 2 * kPlanes; i++) {
      codes[i / kPlanes][i % kPlanes] = *reinterpret_cast<const Word4*>(from + i * (32 * 16) + thread.code);
      loaded ^= codes[i / kPlanes][i % kPlanes].x;
    }
    loaded ^= words<2 * kHighWords>(high, from + Place::high(kBlockGroups) + thread.code / 16 * (2 * kHighWords * 4));
    if constexpr (!F::kIsInteger) return loaded ^ words<4>(blocks, from + Place::blocks(kBlockGroups) + thread.block);
#pragma unroll
    for (int s = 0; s < 2; s++) loaded ^= scales[s] = number<F::kScaleBytes>(from + Place::scales(kBlockGroups) + s * (kHalfGroups * kTileRows * F::kScaleBytes) + thread.scale);
    return loaded ^ (blocks[0] = number<F::kBlockBytes>(from + Place::blocks(kBlockGroups) + thread.block));
  }

  // The places of a thread in what may be the last fragment of a tile: one of kGroups groups, if `is_last`, else one like all others.
  template <int kGroups>
  struct Last {
    uint32_t codes[2 * kPlanes];  // of 4 groups each
    uint32_t scales;
    uint32_t present[2];  // all bits set where the fragment has the thread's groups, else none

    MONOLANE_DEVICE Last(uint32_t lane, bool is_last, const Thread& thread) {
      static_assert(kKBlocks == 1 && kHighWords == 0 && F::kBlockBytes == 0 && kGroups % 2 == 0, "a format whose words have one group each");
#pragma unroll
      for (int s = 0; s < 2; s++) {
        const int groups = s == 0 ? lesser(kGroups, kHalfGroups) : greater(kGroups - kHalfGroups, 0);
#pragma unroll
        for (int i = 0; i < kPlanes; i++)
          codes[s * kPlanes + i] = ptx::kept((s * kPlanes + i) * 512 + (is_last && groups ? lane * 4 * groups - i * (512 - 128 * groups) : lane * 16));
        present[s] = ptx::kept(is_last && static_cast<int>(own_group<kKBlocks>(lane)) >= groups ? 0 : -1);
      }
      scales = ptx::kept(thread.scale + (is_last ? Place::scales(kGroups) : Place::scales(kBlockGroups)));
    }
  };

  // Loads what may be the last fragment of a tile. The codes of groups that it does not have are those of anything that lies there, and their scales are 0.
  template <int kGroups>
  MONOLANE_DEVICE uint32_t load_last(const char* from, const Last<kGroups>& last) {
    uint32_t loaded = blocks[0] = 0;
#pragma unroll
    for (int i = 0; i < 2 * kPlanes; i++) {
      const uint64_t* at = reinterpret_cast<const uint64_t*>(from + last.codes[i]);
      const uint64_t one = at[0], two = at[1];
      codes[i / kPlanes][i % kPlanes] = {static_cast<uint32_t>(one), static_cast<uint32_t>(one >> 32), static_cast<uint32_t>(two), static_cast<uint32_t>(two >> 32)};
      loaded ^= codes[i / kPlanes][i % kPlanes].x ^ codes[i / kPlanes][i % kPlanes].z;
    }
#pragma unroll
    for (int s = 0; s < 2; s++) {
      scales[s] = number<F::kScaleBytes>(from + last.scales + s * (kHalfGroups * kTileRows * F::kScaleBytes));
      loaded ^= scales[s];
      scales[s] &= last.present[s];
    }
    return loaded;
  }

  // The codes of four groups in threes, of the first or of the last 16 columns.
  struct Three {
    uint32_t words[3];

    // Those of a group, as signed bytes of kCodeUnit * (code - zero).
    MONOLANE_DEVICE uint32_t code(int place) const {
      if (place < 3) return (place == 0 ? words[0] : place == 1 ? words[1] : words[2]) & 0xfcfcfcfcu;
      return (words[0] << 2 & 0x0c0c0c0cu) | (words[1] << 4 & 0x30303030u) | (words[2] << 6 & 0xc0c0c0c0u);
    }
  };
  MONOLANE_DEVICE Three three(int part, int half) const {
    const Word4& first = codes[part][0];
    if (half) return {{first.w, high[2 * part], high[2 * part + 1]}};
    return {{first.x, first.y, first.z}};
  }

  // The codes of the first and of the last 16 columns of group j, four in a word, in kCodeUnit; what a table has for them, where there is one.
  MONOLANE_DEVICE void codes_of(int j, uint32_t (&halves)[2]) const {
    const int part = j / kHalfGroups, place = j % kHalfGroups;
    if constexpr (F::kBits == 8) {
      halves[0] = word_of(codes[part][0], place), halves[1] = word_of(codes[part][1], place);
    } else if constexpr (F::kInThrees) {
#pragma unroll
      for (int half = 0; half < 2; half++) halves[half] = three(part, half).code(place) ^ 0x80808080u;
      return;
    } else if constexpr (F::kInPairs) {
      const int pair = place / 2, shift = place % 2 * 4;
      halves[0] = word_of(codes[part][0], pair) >> shift & 0x0f0f0f0fu, halves[1] = word_of(codes[part][0], 2 + pair) >> shift & 0x0f0f0f0fu;
    } else {
      const uint32_t both = word_of(codes[part][0], place);
      if constexpr (F::kHasTable)
        halves[0] = looked_up<F>(both), halves[1] = looked_up<F>(both >> 16);
      else
        halves[0] = both & 0x0f0f0f0fu, halves[1] = both >> 4 & 0x0f0f0f0fu;
    }
    if constexpr (F::kBits == 5)
#pragma unroll
      for (int half = 0; half < 2; half++) halves[half] |= high_bits<F::kBits>(high[part * kHighWords + half * (kHighWords - 1)], place, half);
  }

  // Moves the second half of the codes and scales into the place of the first.
  MONOLANE_DEVICE void skip_half() {
#pragma unroll
    for (int i = 0; i < kPlanes; i++) codes[0][i] = codes[1][i];
#pragma unroll
    for (int i = 0; i < kHighWords; i++) high[i] = high[kHighWords + i];
    scales[0] = scales[1];
  }

 private:
  // A number of kBytes bytes: 0, 1, 2 or 4.
  template <int kBytes>
  MONOLANE_DEVICE static uint32_t number(const char* from) {
    if constexpr (kBytes == 1) return *reinterpret_cast<const uint8_t*>(from);
    if constexpr (kBytes == 2) return *reinterpret_cast<const uint16_t*>(from);
    if constexpr (kBytes == 4) return *reinterpret_cast<const uint32_t*>(from);
    return 0;
  }

  // kCount words, loaded at once.
  template <int kCount, int kSize>
  MONOLANE_DEVICE static uint32_t words(uint32_t (&to)[kSize], const char* from) {
    if constexpr (kCount == 0) return 0;
    if constexpr (kCount == 1) return to[0] = *reinterpret_cast<const uint32_t*>(from);
    if constexpr (kCount == 2) {
      const uint64_t both = *reinterpret_cast<const uint64_t*>(from);
      to[1] = static_cast<uint32_t>(both >> 32);
      return to[0] = static_cast<uint32_t>(both);
    }
    if constexpr (kCount == 4) {
      const Word4 four = *reinterpret_cast<const Word4*>(from);
      to[1] = four.y, to[2] = four.z, to[3] = four.w;
      return to[0] = four.x;
    }
  }
};

// A byte of a word as a float, less `zero`. The byte becomes the lowest one of a float of 2^23: conversions of integers have an eighth of the throughput.
constexpr float kShifted = 8388608.0f;  // 2^23
MONOLANE_DEVICE float shifted_byte(uint32_t word, int place, uint32_t exponent) { return ptx::float_of(ptx::byte_perm(word, exponent, 0x7540u | place)); }
MONOLANE_DEVICE float byte_to_float(uint32_t word, int place, float zero = 0.0f) { return shifted_byte(word, place, 0x4b000000u) - (kShifted + zero); }

// A byte of a word that is less than 128, as a half and kByte times the byte: the highest bits of the mantissa of a number between a half and 1. `half`: the bits of a half.
constexpr float kByte = 1.0f / 256.0f;
MONOLANE_DEVICE float fraction_of_byte(uint32_t word, int place, uint32_t half) { return ptx::float_of(ptx::byte_perm(word, half, 0x7044u | place << 8)); }

// The numbers of a row and group as they are stored: 8, 16 or 32 bits of `scales`, and `blocks` of the super-block. `exponent`: the bits of kShifted; the
// caller has them in a register, because an instruction that takes bytes has room for one constant, which is the places.
template <class F>
struct Scales {
  // last_scale: of the last 16 columns, where they have one of their own. of_block: what both scales are to be multiplied with, divided by kCodeUnit.
  float scale, last_scale, of_block, minimum, zero;

  MONOLANE_DEVICE Scales(uint32_t numbers, uint32_t block, uint32_t exponent = 0x4b000000u)
      : scale(0.0f), last_scale(0.0f), of_block(1.0f), minimum(0.0f), zero(0.0f) {
    constexpr Scaling kScaling = F::kScaling;
    if constexpr (kScaling == Scaling::kBlockMin) {
      // Only the sum is rounded: the product with a power of two is exact.
      const float factor = ptx::half_to_float(block), negative = -ptx::upper_half_to_float(block);
      scale = ptx::multiply_add(factor, shifted_byte(numbers, 0, exponent), -kShifted * factor);
      minimum = ptx::multiply_add(negative, shifted_byte(numbers, 1, exponent), -kShifted * negative);
    } else if constexpr (kScaling == Scaling::kBlock16) {
      // The scales are signed, and 128 has been added to them.
      scale = (shifted_byte(numbers, 0, exponent) - (kShifted + 128.0f));
      last_scale = (shifted_byte(numbers, 1, exponent) - (kShifted + 128.0f));
      of_block = ptx::half_to_float(block) * (1.0f / kCodeUnit<F>);
    } else if constexpr (kScaling == Scaling::kExponent) {
      scale = ptx::float_of(numbers << 23);
    } else {
      scale = ptx::half_to_float(numbers);
      if constexpr (kScaling == Scaling::kScaleMin) minimum = ptx::upper_half_to_float(numbers);
      if constexpr (kScaling == Scaling::kScaleZero) zero = ptx::upper_half_to_float(numbers);
    }
  }
};

// Whether the scales and minimums of groups are bytes, to be multiplied with those of the super-block (see multiply_integers).
template <class F>
constexpr bool kByteScales = F::kScaling == Scaling::kBlockMin;

// What all products of a thread have in common. It is computed before the input is there, and kept in registers.
template <class F, int kKBlocks>
struct IntegerThread {
  int place;           // among the four threads of a row: a bit of it is tested in one instruction, and a bool that lives across a loop in two
  uint32_t second;     // all bits set if the sums of its groups are of the second MMA, else none
  int32_t codes_unit;  // pairs: what a code of 1 counts in the sums of its groups: 16 where they are the second ones
  uint32_t exponent;   // see Scales
  uint32_t half;       // see fraction_of_byte()
  // Places in the input, in bytes.
  uint32_t operands;  // of the first MMA
  uint32_t others;    // half tiles: those of the second MMA; whole tiles: not 0 if the operands are those of the second MMA
  uint32_t about;     // what belongs to group own_group() and, kHalfInput further, to 4 + own_group()
  uint32_t unit;  // the bits of what scales of the input are multiplied with (see IntegerInput)
  static constexpr int kHalfInput = kHalfGroups * 8 * 2;

  // `from`: where the input begins that the warp has, in elements.
  MONOLANE_DEVICE IntegerThread(uint32_t lane, uint32_t from)
      : place(ptx::kept(lane % 4)),
        second(ptx::kept(-(own_group<kKBlocks>(lane) % 2))),
        codes_unit(own_group<kKBlocks>(lane) % 2 ? 16 : 1),
        exponent(kByteScales<F> ? 0u : ptx::kept(0x4b000000)),
        half(kByteScales<F> ? ptx::kept(0x3f000000) : 0) {
    const uint32_t g = lane / 4, in_second = lane / 8 % 2;
    const uint32_t own = kKBlocks == 1 ? lane * 8 : in_second * kBlockElements + ((g / 4 * 4 + g % 2) * 4 + lane % 4) * 8;
    operands = ptx::kept((from + own) * 2);
    others = kKBlocks > 1 ? ptx::kept((from + own + (in_second ? 0 : 2 * kBlockElements) - kBlockElements + 2 * 4 * 8) * 2) : ptx::kept(in_second);
    about = ptx::kept((from + (kKBlocks > 1 ? lane / 16 * kBlockElements : 0) + kBlockCols + own_group<kKBlocks>(lane) * 8) * 2);
    constexpr float kUnit = kByteScales<F> ? 1.0f / kByte : 1.0f;
    unit = F::kInPairs ? ptx::kept(own_group<kKBlocks>(lane) % 2 ? ptx::bits_of(kUnit / 16.0f) : ptx::bits_of(kUnit)) : ptx::bits_of(kUnit);
  }

  // The sum of this thread's groups: high parts * 128 + low parts, which are in rows 0-7 or in rows 8-15 of C.
  MONOLANE_DEVICE int32_t own_sum(const int32_t (&n)[1][4]) const { return place & 2 ? n[0][2] * 128 + n[0][3] : n[0][0] * 128 + n[0][1]; }
  // Half tiles: of one of the MMAs. It is chosen by a mask, because the compiler would make branches of a condition.
  MONOLANE_DEVICE int32_t own_sum(const int32_t (&n)[2][4]) const {
    const auto of_mma = [&](int i) { return static_cast<uint32_t>(place & 2 ? n[i][2] * 128 + n[i][3] : n[i][0] * 128 + n[i][1]); };
    return static_cast<int32_t>((of_mma(0) & ~second) | (of_mma(1) & second));
  }
};

// Minus each of the four integers of 8 bits, of which none is -128.
MONOLANE_DEVICE uint32_t negated_bytes(uint32_t x) { return (0x80808080u - (x & 0x7f7f7f7fu)) ^ (~x & 0x80808080u); }

// The input of a fragment in integers, what a thread has of it. F: the format of the weights. kMasksPairs: see multiply_integers().
template <class F, int kKBlocks, bool kMasksPairs>
struct IntegerInput {
  uint32_t operand[2][2][2];      // B of each MMA: [s][MMA][first or last 16 columns]
  uint32_t minus[2][2][2];        // minus the operands, where magnitudes are looked up
  float scale[2];                 // of groups own_group() and 4 + own_group(); in pairs, of what a code of 1 counts in the sums; with kByteScales, divided by kByte
  int32_t first[2], last[2];      // the sums of their integers, of the first and of the last 16 columns
  float total[2];                 // first + last, multiplied with the scale of the group; with kByteScales, divided by minus kByte
  float minus_half;               // kByteScales: minus half of both totals

  // `from`: the input of the fragment, less that of the first fragment of the warp.
  MONOLANE_DEVICE void load(const uint16_t* from, const IntegerThread<F, kKBlocks>& thread) {
    const char* bytes = reinterpret_cast<const char*>(from);
    const Word4 own = *reinterpret_cast<const Word4*>(bytes + thread.operands);  // of two groups: both halves of one, then those of the other
    const uint32_t words[2][2] = {{own.x, own.y}, {own.z, own.w}};
    if constexpr (kKBlocks == 1) {
      const bool in_second = thread.others;  // the MMA that these groups are in
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t word = words[i / 2][i % 2];
        operand[i / 2][0][i % 2] = in_second ? 0 : word;
        operand[i / 2][1][i % 2] = in_second ? word : F::kInPairs && !kMasksPairs ? negated_bytes(word) : 0;
      }
    } else {
      const Word4 other = *reinterpret_cast<const Word4*>(bytes + thread.others);
      operand[0][0][0] = own.x, operand[0][0][1] = own.y, operand[1][0][0] = own.z, operand[1][0][1] = own.w;
      operand[0][1][0] = other.x, operand[0][1][1] = other.y, operand[1][1][0] = other.z, operand[1][1][1] = other.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) minus[i / 4][i / 2 % 2][i % 2] = negated_bytes(operand[i / 4][i / 2 % 2][i % 2]);
#pragma unroll
    for (int s = 0; s < 2; s++) {
      const Word4 group = *reinterpret_cast<const Word4*>(bytes + thread.about + s * thread.kHalfInput);
      const float own = ptx::float_of(group.x);
      first[s] = static_cast<int32_t>(group.y), last[s] = static_cast<int32_t>(group.z);
      total[s] = (kByteScales<F> ? own * (-1.0f / kByte) : own) * static_cast<float>(first[s] + last[s]);
      scale[s] = own * ptx::float_of(thread.unit);
    }
    minus_half = -0.5f * (total[0] + total[1]);
  }
};

// The products of 4 groups, 4s to 4s + 3: c[half of the groups, where each has its own scale][MMA of a half tile]. `upper`, `lower`: the first and the last 16 columns in
// rows 0-7 and 8-15 of A. `x`: B of both halves.
template <class F>
MONOLANE_DEVICE void multiply_groups(int32_t (&first)[4], int32_t (&last)[4], const uint32_t (&upper)[2], const uint32_t (&lower)[2], const uint32_t (&x)[2]) {
  if constexpr (F::kInThrees)
    ptx::mma_signed(first, upper[0], lower[0], x[0]), ptx::mma_signed(last, upper[1], lower[1], x[1]);
  else if constexpr (F::kScaling == Scaling::kBlock16)
    ptx::mma(first, upper[0], lower[0], x[0]), ptx::mma(last, upper[1], lower[1], x[1]);
  else
    ptx::mma(first, upper[0], lower[0], upper[1], lower[1], x[0], x[1]);
}

// 1 row: adds to `sum` the products of a fragment, of row g and the groups that the thread has. kMasksPairs: of codes in pairs MMA 0 has the low 4 bits of the bytes, as in half tiles.
// Then x needs no negated bytes: to make these takes longer than to clear bits where an input is used for one chunk only.
template <class F, int kKBlocks, bool kMasksPairs>
MONOLANE_DEVICE float multiply_integers(const LowBitFragment<F, kKBlocks>& weights, const IntegerInput<F, kKBlocks, kMasksPairs>& x, const IntegerThread<F, kKBlocks>& thread, float sum) {
  constexpr bool kHalves = F::kScaling == Scaling::kBlock16;  // sums of 16 columns: each half of a group has its own scale
  constexpr int kOther = kKBlocks - 1;
  // With kByteScales the scales and minimums of both groups are bytes less than 64, and multiplied with those of the super-block at the end. To the fraction of a minimum a half has
  // been added: `minus_half` takes away what comes of it.
  float result = kByteScales<F> || kHalves ? 0.0f : sum, minimums = kByteScales<F> ? x.minus_half : 0.0f;
#pragma unroll
  for (int s = 0; s < 2; s++) {
    int32_t c[2][kKBlocks][4] = {};
    if constexpr (F::kInPairs) {
      const Word4& pairs = weights.codes[s][0];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t mask = i ? 0xf0f0f0f0u : kMasksPairs ? 0x0f0f0f0fu : 0xffffffffu;
        const uint32_t upper[2] = {pairs.x & mask, pairs.z & mask}, lower[2] = {pairs.y & mask, pairs.w & mask};
        multiply_groups<F>(c[0][i & kOther], c[1][i & kOther], upper, lower, x.operand[s][i]);
      }
    } else if constexpr (F::kHasTable) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint32_t upper[2][2], lower[2][2];
        look_up_halves<F>(word_of(weights.codes[s][0], i), upper);
        look_up_halves<F>(word_of(weights.codes[s][0], 2 + i), lower);
        if constexpr (F::kHasSmallTable) {  // one of the halves is 0
          const uint32_t above[2] = {upper[0][0] + upper[1][0], upper[0][1] + upper[1][1]}, below[2] = {lower[0][0] + lower[1][0], lower[0][1] + lower[1][1]};
          multiply_groups<F>(c[0][i & kOther], c[1][i & kOther], above, below, x.operand[s][i]);
        } else {  // in each half all values have the same sign, so a product with the codes is the difference of two with magnitudes
#pragma unroll
          for (int half = 0; half < 2; half++)
            multiply_groups<F>(c[0][i & kOther], c[1][i & kOther], upper[half], lower[half], half == F::kNegativeHalf ? x.minus[s][i] : x.operand[s][i]);
        }
      }
    } else if constexpr (F::kInThrees) {
      const auto first = weights.three(s, 0), last = weights.three(s, 1);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t upper[2] = {first.code(i), last.code(i)}, lower[2] = {first.code(i + 2), last.code(i + 2)};
        multiply_groups<F>(c[0][i & kOther], c[1][i & kOther], upper, lower, x.operand[s][i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint32_t upper[2], lower[2];
        weights.codes_of(4 * s + i, upper);
        weights.codes_of(4 * s + 2 + i, lower);
        multiply_groups<F>(c[0][i & kOther], c[1][i & kOther], upper, lower, x.operand[s][i]);
      }
    }
    [[maybe_unused]] const Scales<F> own(weights.scales[s], weights.blocks[0], thread.exponent);
    // The sum of products with the codes less their zero.
    const auto sum_of = [&](const int32_t (&n)[kKBlocks][4], int32_t input) {
      const int32_t own = thread.own_sum(n);
      if constexpr (F::kInThrees || (F::kHasTable && !F::kHasSmallTable)) return static_cast<float>(own);
      return static_cast<float>(own - F::kZero * (F::kInPairs ? thread.codes_unit : 1) * input);
    };
    if constexpr (kHalves) {
      result += x.scale[s] * (own.scale * sum_of(c[0], x.first[s]) + own.last_scale * sum_of(c[1], x.last[s]));
      if (s) result = ptx::multiply_add(own.of_block, result, sum);
    } else {
      const float product = sum_of(c[0], x.first[s] + x.last[s]);
      if constexpr (kByteScales<F>) {
        result += (x.scale[s] * product) * (fraction_of_byte(weights.scales[s], 0, thread.half) - 0.5f);
        minimums = ptx::multiply_add(x.total[s], fraction_of_byte(weights.scales[s], 1, thread.half), minimums);
      } else if constexpr (F::kScaling == Scaling::kScaleZero)
        result += own.scale * (x.scale[s] * product - own.zero * x.total[s]);
      else
        result += x.scale[s] * (own.scale * product);
      if constexpr (F::kScaling == Scaling::kScaleMin) result += own.minimum * x.total[s];
    }
  }
  if constexpr (kByteScales<F>)
    result = ptx::multiply_add(ptx::half_to_float(weights.blocks[0]), result, ptx::multiply_add(ptx::upper_half_to_float(weights.blocks[0]), minimums, sum));
  return result;
}

// A weight from its code.
template <class F>
MONOLANE_DEVICE float widened(uint32_t codes, int place, const Scales<F>& own, bool last) {
  const float code = byte_to_float(codes, place, static_cast<float>(F::kZero * kCodeUnit<F>)) - own.zero;
  if constexpr (F::kScaling == Scaling::kBlock16) return code * ((last ? own.last_scale : own.scale) * own.of_block);
  return code * own.scale + own.minimum;
}

// 16 rows: multiplies a fragment. `inputs(j, upper, lower)`: loads the input of this thread's columns of group j, for rows g and g + 8 of the pass. In half
// tiles groups 8 to 15 are those of the second super-block, and each weight is multiplied with the input of both: accumulators 0 and 1 are of the first.
template <class F, int kKBlocks, class Inputs>
MONOLANE_DEVICE void multiply_widened(const LowBitFragment<F, kKBlocks>& weights, uint32_t lane_index, float (&sums)[4][4], Inputs inputs) {
  // A loop over the two halves of a super-block, not unrolled: otherwise the compiler mixes the instructions of all 8 groups, and spills.
  LowBitFragment<F, kKBlocks> left = weights;
#pragma unroll 1
  for (int first = 0; first < kBlockGroups; first += kHalfGroups) {
#pragma unroll
    for (int j = 0; j < kHalfGroups; j++) {
      Word4 upper[kKBlocks], lower[kKBlocks];
#pragma unroll
      for (int b = 0; b < kKBlocks; b++) inputs(b * kBlockGroups + first + j, upper[b], lower[b]);
      const uint32_t holder = lane_index / 4 * 4 + (kKBlocks > 1 ? j ^ lane_index / 16 : j);  // of the scales of group j
      const Scales<F> own(ptx::shuffle(left.scales[0], holder), weights.blocks[0]);
      uint32_t codes[2];
      left.codes_of(j, codes);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const auto weight = [&](int place) { return widened<F>(codes[half], place, own, half); };
        const uint32_t one = ptx::bf16_pair(weight(0), weight(1)), two = ptx::bf16_pair(weight(2), weight(3));
#pragma unroll
        for (int b = 0; b < kKBlocks; b++)
          ptx::mma(sums[kKBlocks > 1 ? 2 * b + half : (2 * j + half) % 4], half ? upper[b].z : upper[b].x, half ? lower[b].z : lower[b].x,
                   half ? upper[b].w : upper[b].y, half ? lower[b].w : lower[b].y, one, two);
      }
    }
    left.skip_half();
  }
}

// The value of an E4M3 code: an fp16 number with a bias of 7 instead of 15.
MONOLANE_DEVICE float float_of_code(uint32_t code) { return ptx::half_to_float((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256.0f; }

// Four consecutive weights of a row, from column k on, a multiple of 4: of the embedding. `tile`: the bytes of a tile of kRows rows with kCols columns,
// of which the last super-block may be short. Rows of a table begin at even addresses, or at any where scales are bytes.
template <class F, int kRows, int kCols>
MONOLANE_DEVICE void four_weights(const uint8_t* tile, int row, int k, float (&v)[4]) {
  using Place = BlockPlace<F, kRows>;
  constexpr int kGroups = divide_up(kCols, kGroupCols);
  const int block = k / kBlockCols, groups = min(kBlockGroups, kGroups - block * kBlockGroups);
  const int group = k % kBlockCols / kGroupCols, part = group / kHalfGroups, half = k % kGroupCols / 16, c = k % 16 / 4;
  const int here = min(kHalfGroups, groups - part * kHalfGroups);  // groups of this half of the super-block
  const uint8_t* from = tile + block * Place::end(kBlockGroups);
  const auto number = [&](int at) {
    if constexpr (F::kScaleBytes == 1) return static_cast<uint32_t>(from[at]) | static_cast<uint32_t>(from[at + 1]) << 8;
    return static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from + at)[0]);
  };
  const auto word = [&](int at) { return number(at) | number(at + 2) << 16; };
  // Codes: [half of the super-block][plane][row][c][group].
  const int place = (row * 4 + c) * here + group % kHalfGroups, first = part * kHalfGroups * kRows * Place::kCodeBytes;
  uint32_t codes;
  if constexpr (F::kBits == 8)
    codes = word(first + (half * kRows * 4 * here + place) * 4);
  else if constexpr (F::kInThrees && kRows > 1) {
    // Of six words of four groups, four are where codes of 4 bits would be.
    const auto of_three = [&](int i) {
      const int at = 3 * half + i;
      return word(at < kHalfGroups ? first + ((row * 4 + c) * here + at) * 4 : Place::high(groups) + (((row * 4 + c) * 2 + part) * 2 + at - kHalfGroups) * 4);
    };
    const typename LowBitFragment<F, 1>::Three three{{of_three(0), of_three(1), of_three(2)}};
    codes = three.code(group % kHalfGroups) ^ 0x80808080u;
  } else if constexpr (F::kInPairs && kRows > 1)
    codes = word(first + ((row * 4 + c) * here + 2 * half + group % kHalfGroups / 2) * 4) >> 4 * (group % 2) & 0x0f0f0f0fu;
  else if constexpr (F::kHasTable && kRows > 1)
    codes = looked_up<F>(word(first + place * 4) >> 16 * half);
  else
    codes = word(first + place * 4) >> 4 * half & 0x0f0f0f0fu;
  if constexpr (F::kBits == 5 || (F::kBits == 6 && kRows == 1)) {
    constexpr int kWords = F::kBits - 4;
    const int halves = divide_up(groups, kHalfGroups);
    codes |= high_bits<F::kBits>(word(Place::high(groups) + (((row * 4 + c) * halves + part) * kWords + half * (kWords - 1)) * 4), group % kHalfGroups, half);
    codes *= kCodeUnit<F>;
  }
  if constexpr (!F::kIsInteger) {
    const float scale = ptx::float_of(word(Place::blocks(groups) + row * F::kBlockBytes + 4 * part));
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = scale * float_of_code(codes >> 8 * i & 0xffu);
    return;
  }
  if constexpr (F::kHasTable && kRows == 1) codes = looked_up<F>(ptx::byte_perm(codes | codes >> 4, 0, 0x4420));  // a row of the table is not in order
  const int numbers_at = Place::scales(groups) + (group * kRows + row) * F::kScaleBytes, block_at = Place::blocks(groups) + row * F::kBlockBytes;
  uint32_t numbers, of_block = 0;
  if constexpr (F::kScaleBytes == 1) numbers = from[numbers_at];
  if constexpr (F::kScaleBytes == 2) numbers = number(numbers_at) ^ (F::kScaling == Scaling::kBlock16 && kRows == 1 ? 0x8080u : 0);  // as in tiles
  if constexpr (F::kScaleBytes == 4) numbers = word(numbers_at);
  if constexpr (F::kBlockBytes == 2) of_block = number(block_at);
  if constexpr (F::kBlockBytes == 4) of_block = word(block_at);
  const Scales<F> own(numbers, of_block);
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = widened<F>(codes, i, own, half);
}

}  // namespace monolane
