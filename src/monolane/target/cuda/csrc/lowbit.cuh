// Low-bit weights: codes of 4 to 8 bits with a scale, and in some formats a minimum, per group of 32 columns. program/tiles.py defines their bytes, and
// docs/formats.md the formats. The generated source has a type F for every format of the program, with
//
//     kBits, kZero               of a code
//     kHasTable, kTable0 to 3    whether codes are looked up, and the 16 values of the table, signed, four in a word
//     kScaling                   what its scales are
//     kScaleBytes, kBlockBytes   bytes of the scales of a row and group, and of a row and super-block
//     kIsInteger                 whether codes are integers; fp8.cuh multiplies the others
//
// A fragment of such a matrix is a super-block of a tile: 8 rows x 256 columns, the 8 groups j = 0 to 7. Thread 4g + t of a warp has the codes of row g,
// columns 4t to 4t + 3 and 16 + 4t to 19 + 4t of every group, and the scales of group g for rows 2t and 2t + 1.
//
// 1 row: 8-bit integers. The input is 15-bit integers, high * 128 + low, with a scale per group (store_integers in prepare.cuh). The input of group j is
// in two rows of A, its high parts in row j and its low parts in row j + 8, and all other rows are zero. So after 8 MMAs, with the codes of one group as
// B each, thread 4g + t has the sums of group g for rows 2t and 2t + 1: these are the ones that it has the scales of.
//
// 16 rows: bf16. All rows of A are rows of the pass, so weights become bf16, and two MMAs multiply a group.
#pragma once
#include "handoff.cuh"

namespace monolane {

constexpr int kGroupCols = 32, kBlockGroups = 8, kHalfGroups = 4, kBlockCols = kGroupCols * kBlockGroups;

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

// The values of four codes of 4 bits, one in each byte, from a table of 16. byte_perm selects among 8 bytes by the lowest 3 bits of a digit, so each
// half of the table is looked up, and the fourth bit chooses.
template <class F>
MONOLANE_DEVICE uint32_t looked_up(uint32_t codes) {
  const uint32_t digits = ptx::byte_perm(codes | codes >> 4, 0, 0x4420);  // the four codes as digits
  const uint32_t lower = ptx::byte_perm(F::kTable0, F::kTable1, digits), upper = ptx::byte_perm(F::kTable2, F::kTable3, digits);
  return ptx::byte_perm(lower, upper, 0x3210u | (digits & 0x8888u) >> 1);
}

// The high bits of the codes of a group: `word` has two bits of every column for each of 4 groups, or one bit of both halves of a group.
template <int kBits>
MONOLANE_DEVICE uint32_t high_bits(uint32_t word, int group, int half) {
  const int shift = 4 - 2 * group - (kBits == 5 ? half : 0);  // to the left
  return (shift >= 0 ? word << max(shift, 0) : word >> max(-shift, 0)) & (kBits == 5 ? 0x10101010u : 0x30303030u);
}

// What a thread has of a fragment, in registers.
template <class F>
struct LowBitFragment {
  using Place = BlockPlace<F, kTileRows>;
  static constexpr int kPlanes = F::kBits == 8 ? 2 : 1;  // words of codes of a group
  static constexpr int kHighWords = F::kBits == 8 ? 0 : F::kBits - 4;  // of 4 groups
  static constexpr int kScaleWords = F::kScaleBytes / 2, kBlockWords = F::kBlockBytes / 2;  // of two rows

  Word4 codes[2][kPlanes];           // of 4 groups each, a word for each
  uint32_t high[2 * kHighWords + 1];  // [4 groups][word]; the last element is not used, nor are the last ones of the next two
  uint32_t scales[kScaleWords + 1];   // of rows 2t and 2t + 1
  uint32_t blocks[kBlockWords + 1];

  // Loads it; returns a value that depends on everything loaded.
  MONOLANE_DEVICE uint32_t load(const char* from, int lane_index) {
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 2 * kPlanes; i++) {
      codes[i / kPlanes][i % kPlanes] = *reinterpret_cast<const Word4*>(from + (i * 32 + lane_index) * 16);
      loaded ^= codes[i / kPlanes][i % kPlanes].x;
    }
    loaded ^= words<2 * kHighWords>(high, from + Place::high(kBlockGroups), lane_index);
    loaded ^= words<kScaleWords>(scales, from + Place::scales(kBlockGroups), lane_index);
    return loaded ^ words<kBlockWords>(blocks, from + Place::blocks(kBlockGroups), lane_index % 4);
  }

  // The codes of the first and of the last 16 columns of group j, four in a word: signed values where there is a table, else as they are.
  MONOLANE_DEVICE void codes_of(int j, uint32_t (&halves)[2]) const {
    const int part = j / kHalfGroups, place = j % kHalfGroups;
    if constexpr (F::kBits == 8) {
      halves[0] = word_of(codes[part][0], place), halves[1] = word_of(codes[part][1], place);
    } else {
      const uint32_t both = word_of(codes[part][0], place);
      halves[0] = both & 0x0f0f0f0fu, halves[1] = both >> 4 & 0x0f0f0f0fu;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if constexpr (kHighWords > 0) halves[half] |= high_bits<F::kBits>(high[part * kHighWords + half * (kHighWords - 1)], place, half);
      if constexpr (F::kHasTable) halves[half] = looked_up<F>(halves[half]);
    }
  }

  // Moves the second half of the codes into the place of the first.
  MONOLANE_DEVICE void skip_half() {
#pragma unroll
    for (int i = 0; i < kPlanes; i++) codes[0][i] = codes[1][i];
#pragma unroll
    for (int i = 0; i < kHighWords; i++) high[i] = high[kHighWords + i];
  }

 private:
  // kCount consecutive words for each thread (or each of 4), loaded at once.
  template <int kCount, int kSize>
  MONOLANE_DEVICE static uint32_t words(uint32_t (&to)[kSize], const char* from, int thread) {
    if constexpr (kCount == 0) return 0;
    if constexpr (kCount == 1) return to[0] = reinterpret_cast<const uint32_t*>(from)[thread];
    if constexpr (kCount == 2) {
      const uint64_t both = reinterpret_cast<const uint64_t*>(from)[thread];
      to[1] = static_cast<uint32_t>(both >> 32);
      return to[0] = static_cast<uint32_t>(both);
    }
    if constexpr (kCount == 4) {
      const Word4 four = reinterpret_cast<const Word4*>(from)[thread];
      to[1] = four.y, to[2] = four.z, to[3] = four.w;
      return to[0] = four.x;
    }
  }
};

// A byte of a word as a float, less `zero`. The byte becomes the lowest one of a float of 2^23: conversions of integers have an eighth of the throughput.
MONOLANE_DEVICE float byte_to_float(uint32_t word, int place, float zero = 0.0f) {
  return ptx::float_of(ptx::byte_perm(word, 0x4b000000u, 0x7540u | place)) - (8388608.0f + zero);
}

// The numbers of a row and group as they are stored: 16 or 32 bits of `scales`, and `blocks` of the super-block.
template <class F>
struct Scales {
  float scale, last_scale, minimum, zero;  // last_scale: of the last 16 columns, where they have one of their own

  MONOLANE_DEVICE Scales(uint32_t numbers, uint32_t block) : scale(0.0f), last_scale(0.0f), minimum(0.0f), zero(0.0f) {
    constexpr Scaling kScaling = F::kScaling;
    if constexpr (kScaling == Scaling::kBlockMin) {
      scale = ptx::half_to_float(block) * byte_to_float(numbers, 0);
      minimum = -ptx::half_to_float(block >> 16) * byte_to_float(numbers, 1);
    } else if constexpr (kScaling == Scaling::kBlock16) {
      const float factor = ptx::half_to_float(block);
      scale = factor * byte_to_float(numbers ^ 0x8080u, 0, 128.0f);
      last_scale = factor * byte_to_float(numbers ^ 0x8080u, 1, 128.0f);
    } else {
      scale = ptx::half_to_float(numbers);
      if constexpr (kScaling == Scaling::kScaleMin) minimum = ptx::half_to_float(numbers >> 16);
      if constexpr (kScaling == Scaling::kScaleZero) zero = ptx::half_to_float(numbers >> 16);
    }
  }
};

// The numbers of row 2t + `which` among those of rows 2t and 2t + 1.
template <class F>
MONOLANE_DEVICE Scales<F> scales_of(const LowBitFragment<F>& weights, int which) {
  constexpr bool kPacked = F::kScaleBytes == 2, kPackedBlocks = F::kBlockBytes < 4;
  return {kPacked ? weights.scales[0] >> 16 * which : weights.scales[which], kPackedBlocks ? weights.blocks[0] >> 16 * which : weights.blocks[which]};
}

// 1 row: adds the products of a fragment to `sums`, of this thread's group and rows 2t and 2t + 1. `operand(j)`: the A operand of group j. `about`: the
// scale of this thread's group of the input, and the sums of its integers over both halves.
template <class F, class Operand>
MONOLANE_DEVICE void multiply_integers(const LowBitFragment<F>& weights, Operand operand, const Word4& about, float (&sums)[4]) {
  constexpr bool kHalves = F::kScaling == Scaling::kBlock16;  // sums of 16 columns: each half of a group has its own scale
  constexpr int kZero = F::kBits == 8 ? 0 : F::kZero;         // 8-bit codes become signed
  int32_t c[2][4] = {};  // of the first and of the last 16 columns, or of even and odd groups
#pragma unroll
  for (int j = 0; j < kBlockGroups; j++) {
    const Word4 a = operand(j);
    uint32_t b[2];
    weights.codes_of(j, b);
    if constexpr (F::kBits == 8) b[0] ^= 0x80808080u, b[1] ^= 0x80808080u;
    if constexpr (kHalves)
      ptx::mma(c[0], a.x, a.y, b[0]), ptx::mma(c[1], a.z, a.w, b[1]);
    else
      ptx::mma(c[j % 2], a.x, a.y, a.z, a.w, b[0], b[1]);
  }
  const float scale = ptx::float_of(about.x);
  const int32_t first = static_cast<int32_t>(about.y), last = static_cast<int32_t>(about.z), whole = first + last;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Scales<F> own = scales_of(weights, i);
    if constexpr (kHalves) {
      const int32_t n0 = c[0][i] * 128 + c[0][i + 2] - kZero * first, n1 = c[1][i] * 128 + c[1][i + 2] - kZero * last;
      sums[i] += scale * (own.scale * static_cast<float>(n0) + own.last_scale * static_cast<float>(n1));
    } else {
      const int32_t n = (c[0][i] + c[1][i]) * 128 + (c[0][i + 2] + c[1][i + 2]) - kZero * whole;
      const float sum = static_cast<float>(whole);
      float total = static_cast<float>(n);
      if constexpr (F::kScaling == Scaling::kScaleZero) total -= own.zero * sum;
      total *= own.scale;
      if constexpr (F::kScaling == Scaling::kScaleMin || F::kScaling == Scaling::kBlockMin) total += own.minimum * sum;
      sums[i] += scale * total;
    }
  }
}

// A weight from its code, as an unsigned byte: `kWidenedZero` is subtracted.
template <class F>
constexpr float kWidenedZero = F::kHasTable ? 128.0f : static_cast<float>(F::kZero);
template <class F>
MONOLANE_DEVICE float widened(uint32_t codes, int place, const Scales<F>& own, bool last) {
  const float code = byte_to_float(codes, place, kWidenedZero<F>) - own.zero;
  return code * (F::kScaling == Scaling::kBlock16 && last ? own.last_scale : own.scale) + own.minimum;
}

// 16 rows: multiplies a fragment. `inputs(j, upper, lower)`: loads the input of this thread's columns of group j, for rows g and g + 8 of the pass.
template <class F, class Inputs>
MONOLANE_DEVICE void multiply_widened(const LowBitFragment<F>& weights, int lane_index, float (&sums)[4][4], Inputs inputs) {
  const int row = lane_index / 4, which = row % 2;  // of the weights: B's column
  // The numbers of row g are in the threads that have rows 2t and 2t + 1, where t = g / 2.
  uint32_t block = 0;
  if constexpr (F::kBlockBytes == 2) block = ptx::shuffle(weights.blocks[0], row / 2) >> 16 * which;
  if constexpr (F::kBlockBytes == 4) {
    const uint32_t even = ptx::shuffle(weights.blocks[0], row / 2), odd = ptx::shuffle(weights.blocks[1], row / 2);
    block = which ? odd : even;
  }
  // A loop over the two halves of a super-block, not unrolled: otherwise the compiler mixes the instructions of all 8 groups, and spills.
  LowBitFragment<F> left = weights;
#pragma unroll 1
  for (int first = 0; first < kBlockGroups; first += kHalfGroups) {
#pragma unroll
    for (int j = 0; j < kHalfGroups; j++) {
      Word4 upper, lower;
      inputs(first + j, upper, lower);
      const int source = 4 * (first + j) + row / 2;
      uint32_t numbers = ptx::shuffle(weights.scales[0], source);
      if constexpr (F::kScaleBytes == 2) numbers >>= 16 * which;
      if constexpr (F::kScaleBytes == 4) {
        const uint32_t odd = ptx::shuffle(weights.scales[1], source);
        numbers = which ? odd : numbers;
      }
      const Scales<F> own(numbers, block);
      uint32_t codes[2];
      left.codes_of(j, codes);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if constexpr (F::kHasTable) codes[half] ^= 0x80808080u;
        const auto weight = [&](int place) { return widened<F>(codes[half], place, own, half); };
        ptx::mma(sums[(2 * j + half) % 4], half ? upper.z : upper.x, half ? lower.z : lower.x, half ? upper.w : upper.y, half ? lower.w : lower.y,
                 ptx::bf16_pair(weight(0), weight(1)), ptx::bf16_pair(weight(2), weight(3)));
      }
    }
    left.skip_half();
  }
}

// The value of an E4M3 code: an fp16 number with a bias of 7 instead of 15.
MONOLANE_DEVICE float float_of_code(uint32_t code) { return ptx::half_to_float((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256.0f; }

// Four consecutive weights of a row, from column k on, a multiple of 4: of the embedding. `tile`: the bytes of a tile of kRows rows with kCols columns,
// of which the last super-block may be short. Rows of a table begin at even addresses.
template <class F, int kRows, int kCols>
MONOLANE_DEVICE void four_weights(const uint8_t* tile, int row, int k, float (&v)[4]) {
  using Place = BlockPlace<F, kRows>;
  constexpr int kGroups = divide_up(kCols, kGroupCols);
  const int block = k / kBlockCols, groups = min(kBlockGroups, kGroups - block * kBlockGroups);
  const int group = k % kBlockCols / kGroupCols, part = group / kHalfGroups, half = k % kGroupCols / 16, c = k % 16 / 4;
  const int here = min(kHalfGroups, groups - part * kHalfGroups);  // groups of this half of the super-block
  const uint8_t* from = tile + block * Place::end(kBlockGroups);
  const auto number = [&](int at) { return static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from + at)[0]); };
  const auto word = [&](int at) { return number(at) | number(at + 2) << 16; };
  // Codes: [half of the super-block][plane][row][c][group].
  const int place = (row * 4 + c) * here + group % kHalfGroups, first = part * kHalfGroups * kRows * Place::kCodeBytes;
  uint32_t codes;
  if constexpr (F::kBits == 8)
    codes = word(first + (half * kRows * 4 * here + place) * 4);
  else
    codes = word(first + place * 4) >> 4 * half & 0x0f0f0f0fu;
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    constexpr int kWords = F::kBits - 4;
    const int halves = divide_up(groups, kHalfGroups);
    codes |= high_bits<F::kBits>(word(Place::high(groups) + (((row * 4 + c) * halves + part) * kWords + half * (kWords - 1)) * 4), group % kHalfGroups, half);
  }
  if constexpr (!F::kIsInteger) {
    const float scale = ptx::float_of(word(Place::blocks(groups) + row * F::kBlockBytes + 4 * part));
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = scale * float_of_code(codes >> 8 * i & 0xffu);
    return;
  }
  if constexpr (F::kHasTable) codes = looked_up<F>(codes) ^ 0x80808080u;
  const int numbers_at = Place::scales(groups) + (group * kRows + row) * F::kScaleBytes, block_at = Place::blocks(groups) + row * F::kBlockBytes;
  uint32_t numbers, of_block = 0;
  if constexpr (F::kScaleBytes == 2) numbers = number(numbers_at);
  if constexpr (F::kScaleBytes == 4) numbers = word(numbers_at);
  if constexpr (F::kBlockBytes == 2) of_block = number(block_at);
  if constexpr (F::kBlockBytes == 4) of_block = word(block_at);
  const Scales<F> own(numbers, of_block);
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = widened<F>(codes, i, own, half);
}

}  // namespace monolane
