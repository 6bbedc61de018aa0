// Prepares the input of a projection: the vector x that the weights are multiplied with, one for each row of the pass, in bf16 or, for weights that are
// integers in a decode pass, in integers. The consumer warps of every worker prepare the whole input for their own worker.
//
// The source is one of: tagged words of a decode pass, plain bf16 activations of a prefill pass in global memory, or the embedding of a token (first
// layer). attend.cuh adds a fourth: partial outputs of splits. The result lies in shared memory, in the layout of input_index(), or in global memory
// with its columns in order, where the normalised input of a prefill pass does not fit shared memory.
//
// Where the projection has an RMS norm, x is multiplied here by the weights of the norm, column by column. The factor 1 / rms is one number for each
// row of the pass, so it is applied later, to the sums: the functions here return a thread's sum of squares, from which norm_scale() computes it.
#pragma once
#include "fp8.cuh"

namespace monolane {

constexpr uint32_t kOne = 0x3f800000u;  // the bits of 1.0f

// Four words (8 columns) of a prepared input: from shared memory if kStaged, else from global memory. The load from global memory bypasses L1,
// because L1 does not see the stores of other thread blocks.
template <bool kStaged>
MONOLANE_DEVICE Word4 input_words(const uint16_t* p) {
  return kStaged ? *reinterpret_cast<const Word4*>(p) : ptx::load_l2(reinterpret_cast<const Word4*>(p));
}

// The same as embedding() for low-bit weights, the bits of four floats. A function of its own, because loops over it are unrolled.
template <class F>
MONOLANE_NOINLINE Word4 low_bit_embedding(int32_t token, int k) {
  float v[4];
  if (monolane_launch.table)
    four_weights<F, 1, kHidden>(monolane_launch.table + static_cast<int64_t>(token) * kTableRowBytes, 0, k, v);
  else
    four_weights<F, kTileRows, kHeadCols>(monolane_launch.head_tiles[token / kTileRows], token % kTileRows, k, v);
  const auto bits = [&](int i) { return k + i < kHidden ? ptx::bits_of(v[i]) : 0; };
  return {bits(0), bits(1), bits(2), bits(3)};
}

// Four consecutive elements of a token's embedding, from `k` on, a multiple of 4. The embedding comes from the table or, where it is tied to the
// output head, from the head's row of this token, which lies on its owner's tape in the layout [tile][k-block][row of the tile][column].
MONOLANE_DEVICE void embedding(int32_t token, int k, float (&v)[4]) {
  if constexpr (EmbeddingFormat::kIsLowBit) {
    const Word4 four = low_bit_embedding<EmbeddingFormat>(token, k);
    v[0] = ptx::float_of(four.x), v[1] = ptx::float_of(four.y), v[2] = ptx::float_of(four.z), v[3] = ptx::float_of(four.w);
    return;
  }
  const uint16_t* from =
      monolane_launch.table
          ? reinterpret_cast<const uint16_t*>(monolane_launch.table) + static_cast<int64_t>(token) * kHidden + k
          : reinterpret_cast<const uint16_t*>(monolane_launch.head_tiles[token / kTileRows]) + k / kKBlock * (kTileRows * kKBlock) +
                token % kTileRows * kKBlock + k % kKBlock;
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = k + i < kHidden ? bf16_to_float(from[i]) : 0.0f;
}

// The bits of one element of a token's embedding.
template <class F>
MONOLANE_NOINLINE uint32_t embedding_element(int32_t token, int k) {
  float v[4];
  embedding(token, k & ~3, v);
  return ptx::bits_of(k & 2 ? (k & 1 ? v[3] : v[2]) : (k & 1 ? v[1] : v[0]));
}

// In shared memory an input lies as an MMA A operand: the 16 bytes that one thread loads are its registers a0 a1 a2 a3 of mma.m16n8k16, so a decode
// pass moves no register between load and MMA. a0 and a2 belong to rows 0-7 of A, a1 and a3 to rows 8-15.
//
// Thread 4g + t of a warp holds 16 bytes of a weight fragment: four words w0 w1 w2 w3 of two columns each. w0 w1 are the B operand of one MMA, w2 w3
// of a second one (see operands.cuh). The input words x0 x1 x2 x3 of the same eight columns lie so that each MMA finds its words in one half of A.
//
// Whole tiles: a fragment has 32 columns (one k-block), and thread t loads the input of columns 8t to 8t + 7:
//
//     word in memory   x0    x2    x1    x3          xi: columns 8t + 2i and 8t + 2i + 1
//     A register       a0    a1    a2    a3
//     rows of A        0-7   8-15  0-7   8-15        rows 0-7 match w0 w1, rows 8-15 match w2 w3
//
// Half tiles: a fragment has 64 columns, the k-blocks p and q. Rows 0-7 of A hold k-block p, rows 8-15 hold k-block q. The words that match w0 w1 of
// all four t come first, then those that match w2 w3:
//
//     bytes            0 .. 63: t = 0 to 3                 64 .. 127: t = 0 to 3
//     word in memory   p0    q0    p1    q1                p2    q2    p3    q3
//     A register       a0    a1    a2    a3                a0    a1    a2    a3
//
// FP8 weights: thread t has columns 4t to 4t + 3 and 16 + 4t to 19 + 4t of a group of 32, four codes in a word, of which each is a B operand:
//
//     A register       a0                 a1                      a2                      a3
//     columns          4t, 4t + 1         16 + 4t, 17 + 4t        4t + 2, 4t + 3          18 + 4t, 19 + 4t
//
// Other low-bit weights: thread t has columns 4t to 4t + 3 and 16 + 4t to 19 + 4t of a group of 32. With 16 rows it loads their input as 16 bytes, the
// eight columns in bf16. With 1 row the input is B of mma.m16n8k32 for 8-bit integers, with the high parts of the 15-bit integers in one column of B and
// the low parts in the next (lowbit.cuh). Thread 4g + t of a warp loads 16 bytes of a super-block, at 16 * (4g + t):
//
//     word             0                        1                             2                           3
//     group            g / 2                    g / 2                         4 + g / 2                   4 + g / 2
//     columns          4t .. 4t + 3             16 + 4t .. 19 + 4t            4t .. 4t + 3                16 + 4t .. 19 + 4t
//     what             high parts if g is even, else low parts
//
// After the 8 groups of a super-block, 512 bytes, there are 16 bytes for each of them: the scale of the integers, and the sums of the first and of the
// last 16 of them, which zero points and minimums of the weights are multiplied with.
//
// Returns the index, in elements of bf16, of columns k and k + 1, where k is a multiple of 4. Columns k + 2 and k + 3 lie 4 elements further, or 2 where
// weights are integers. kIntegers: 1 row of such weights; returns the index of the high parts of columns k to k + 3, and kLowParts is the distance of the
// low parts.
constexpr int kLowParts = 4 * 8;
template <class P, bool kIntegers = false>
MONOLANE_DEVICE int input_index(uint32_t k) {
  if constexpr (kIntegers) {
    const uint32_t group = k % kBlockCols / kGroupCols, half = k % kGroupCols / 16, c = k % 16 / 4;
    return k / kBlockCols * kBlockElements + (group % kHalfGroups * 8 + c) * 8 + group / kHalfGroups * 4 + half * 2;
  }
  if constexpr (P::Format::kIsLowBit) return k / kGroupCols * kGroupCols + k % 16 / 4 * 8 + k % kGroupCols / 16 * (P::Format::kIsInteger ? 4 : 2);
  if constexpr (P::kFragmentCols == kKBlock) return k / 8 * 8 + k % 8 / 4 * 2;
  return k / (2 * kKBlock) * (2 * kKBlock) + k % 8 / 4 * kKBlock + k % kKBlock / 8 * 8 + k / kKBlock % 2 * 2;
}

// What a prepared input is: bf16 in shared memory, in the layout of input_index(); integers there; or bf16 in global memory with its columns in order.
enum class To { kShared, kIntegers, kGlobal };
// The input of 1 row.
template <class P>
constexpr To kOneRow = P::Format::kIsInteger ? To::kIntegers : To::kShared;

// Stores eight consecutive columns as integers at `x`, and its share of what belongs to their group at `about`. The 4 threads of a group call it together. The scale
// of a group is its largest magnitude / 16256; program/activations.py says the same. `between()` is called five times, where there is time for a shuffle: its
// own have to wait for each other.
template <class Between>
MONOLANE_DEVICE void store_integers(const float (&v)[2][4], int thread, uint16_t* x, uint16_t* about, Between between) {
  constexpr float kLargest = 16256.0f;  // 127 * 128
  float pairs[4];  // NaN where any value is
#pragma unroll
  for (int i = 0; i < 4; i++) pairs[i] = ptx::larger_magnitude(v[0][i], v[1][i]);
  float largest = ptx::larger_magnitude(ptx::larger_magnitude(pairs[0], pairs[1]), ptx::larger_magnitude(pairs[2], pairs[3]));
#pragma unroll
  for (int mask = 1; mask < 4; mask *= 2) {
    const float other = ptx::shuffle_xor(largest, mask);
    between();
    largest = ptx::larger_magnitude(largest, other);
  }
  // Where no value is larger than 5e-35 or so, the factor is infinite, and the integers are anything: times the scale, they are 0 or nearly so.
  const float factor = kLargest * ptx::reciprocal(largest);
  // An integer n and 64 are added to 1.5 * 2^23. Then the lowest bits of the sum are those of n + 64 = 128 * high + (low + 64): low + 64 in bits 0 to 6,
  // high in bits 7 to 14.
  constexpr float kShift = 12582912.0f + 64.0f;
  uint32_t sum = 8u * (0u - 0x4b400040u);  // minus the bits of 8 * kShift
#pragma unroll
  for (int four = 0; four < 2; four++) {
    uint32_t n[4];
#pragma unroll
    for (int i = 0; i < 4; i++) n[i] = ptx::bits_of(v[four][i] * factor + kShift), sum += n[i];
    between();
    const uint32_t first = ptx::byte_perm(n[0], n[1], 0x5410), last = ptx::byte_perm(n[2], n[3], 0x5410);
    const uint32_t high = ptx::byte_perm(first >> 7, last >> 7, 0x6420);
    const uint32_t low = (ptx::byte_perm(first, last, 0x6420) & 0x7f7f7f7fu) ^ 0x40404040u;  // 7-bit integers, which become 8-bit ones
    uint32_t* to = reinterpret_cast<uint32_t*>(x + four * 8);
    to[0] = high, to[kLowParts / 2] = low + (low & 0x40404040u) * 2;
  }
  const uint32_t other = ptx::shuffle_xor(sum, 1);
  between();
  sum += other;
  // Zero times infinity is not a number: so is the scale of a group with a value that is not finite.
  const float scale = ptx::multiply_add(largest, 0.0f, largest * (1.0f / kLargest));
  // The threads store the scale, the sum of the first half, that of the last half, and what nobody reads, which takes fewer instructions than a condition.
  *reinterpret_cast<uint32_t*>(about) = thread % 4 ? sum : ptx::bits_of(scale);
}

// Multiplies columns by the weights of the norm; returns their sum of squares before that.
MONOLANE_DEVICE float scale_four(float (&v)[4], const Word4& weight) {
  const float squares = (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
  v[0] *= ptx::float_of(weight.x), v[1] *= ptx::float_of(weight.y), v[2] *= ptx::float_of(weight.z), v[3] *= ptx::float_of(weight.w);
  return squares;
}

// Stores four columns in bf16.
template <class P, To kTo>
MONOLANE_DEVICE void store_four(const float (&v)[4], uint16_t* x) {
  uint32_t* words = reinterpret_cast<uint32_t*>(x);
  words[0] = ptx::bf16_pair(v[0], v[1]);
  words[kTo == To::kShared && !P::Format::kIsInteger ? 2 : 1] = ptx::bf16_pair(v[2], v[3]);
}

template <class P>
MONOLANE_DEVICE const float* norm_weights(int layer) {
  return buffers().constants + P::kNorm + layer * kConstantsPerLayer;
}

// Whether an input is more than a copy of what the stage before has left.
template <class P>
constexpr bool kIsPrepared = P::kNorm != kNone || P::kOrder != kNone;

// The elements of the buffer behind columns k to k + 3 of the matrix, which may have its columns in an order of its own. k is less than P::kCols: an
// ordered matrix has whole groups.
template <class P>
MONOLANE_DEVICE Word4 elements_of(int layer, int k) {
  const uint32_t first = static_cast<uint32_t>(k);
  if constexpr (P::kOrder == kNone) {
    return {first, first + 1, first + 2, first + 3};
  } else {
    static_assert(P::kCols % 4 == 0, "four columns have four elements");
    const float* order = buffers().constants + P::kOrder + layer * kConstantsPerLayer + k;
    return {static_cast<uint32_t>(order[0]), static_cast<uint32_t>(order[1]), static_cast<uint32_t>(order[2]), static_cast<uint32_t>(order[3])};
  }
}
// Four values, each from `get(element)`.
template <class Get>
MONOLANE_DEVICE Word4 gather(const Word4& elements, Get get) {
  return {get(elements.x), get(elements.y), get(elements.z), get(elements.w)};
}

// The columns of an input, padded to whole fragments, and to whole super-blocks where any matrix of the model is low-bit. Where each chosen expert has an
// input of its own (kSegments), those of one: in a decode pass they follow each other, in a prefill pass there is one at a time.
template <class P>
constexpr int kPaddedCols = round_up(P::kCols, greater(P::kFragmentCols, kAnyLowBit ? kBlockCols : P::kSegments > 1 ? 2 * kKBlock : 1));

// Which columns a thread prepares: fours of consecutive columns. Those of neighbouring threads follow each other; where the input becomes integers, a
// thread has pairs of fours, so that the largest value of a group is found with fewer shuffles. first(thread) is the column of a thread's first four, and
// offset(j) the distance of its j-th; word_offset(j) is that of their tagged words (word_place).
template <To kTo, int kThreadCount>
struct Fours {
  static constexpr int kTogether = kTo == To::kIntegers ? 2 : 1, kStride = kThreadCount * kTogether * 4;

  MONOLANE_DEVICE static int first(int thread) { return thread * kTogether * 4; }
  static constexpr int offset(int j) { return j / kTogether * kStride + j % kTogether * 4; }
  static constexpr int word_offset(int j) { return j / kTogether * kStride + j % kTogether * kSecondHalf; }
};

// Whether prepare_with() returns the sum of squares of the whole warp: where a thread has no more than 8 columns, and makes integers of them. Then both kinds of
// shuffles are on their way at the same time.
template <class P, To kTo>
constexpr bool kSumsWarps = kTo == To::kIntegers && P::kNorm != kNone && kPaddedCols<P> <= Fours<kTo, kConsumers>::kStride;

// Prepares columns [0, kCols), and zeros up to kPaddedCols, with kThreadCount threads, of which this one is `thread`, kBurst fours at a time.
// `fetch(first, base, v)` fills v with the fours at base + offset(0), base + offset(1), … of a burst; `first` is the base of thread 0, which the compiler knows.
// The norm weights of a burst are loaded before `fetch` is called, so that they arrive while `fetch` polls. Returns this thread's sum of squares.
template <class P, int kThreadCount, int kBurst, To kTo = To::kShared, int kSegments = 1, class Fetch>
MONOLANE_DEVICE float prepare_with(int layer, uint16_t* x, int thread, Fetch fetch) {
  using Own = Fours<kTo, kThreadCount>;
  constexpr int kCols = P::kCols, kPadded = kSegments * kPaddedCols<P>, kTogether = Own::kTogether, kStride = Own::kStride;
  constexpr bool kNorm = P::kNorm != kNone;
  constexpr int kRounds = divide_up(kPadded, kBurst / kTogether * kStride);
  const int own = Own::first(thread);
  const float* weights = kNorm ? norm_weights<P>(layer) + own : nullptr;
  constexpr bool kIntegers = kTo == To::kIntegers;
  static_assert(kBurst % kTogether == 0, "a burst has whole pairs");
  static_assert(!kIntegers || (kStride % kBlockCols == 0 && kPadded % 256 == 0), "a warp has whole groups, all of them or none");
  // kStride is a multiple of a fragment's columns, so the index of a later four is the index of the first one plus a multiple of kStride.
  uint16_t* to = x + (kTo == To::kGlobal ? own : input_index<P, kIntegers>(own));
  const uint32_t column = own;  // unsigned: divisions are shifts
  uint16_t* about = x + column / kBlockCols * kBlockElements + kBlockCols + column % kBlockCols / kGroupCols * 8 + column % kGroupCols / 8 * 2;
  float squares = 0.0f;
#pragma unroll
  for (int round = 0; round < kRounds; round++) {
    const int first = round * (kBurst / kTogether) * kStride;
    Word4 weight[kBurst];
    float v[kBurst][4] = {};
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int from = first + Own::offset(j);  // column of thread 0: a compile-time constant, so that most bounds checks vanish
      weight[j] = {kOne, kOne, kOne, kOne};
      if (kNorm && (from + kStride <= kCols || from + own < kCols)) {
        if constexpr (P::kOrder == kNone)
          weight[j] = *reinterpret_cast<const Word4*>(weights + from);
        else
          weight[j] = gather(elements_of<P>(layer, from + own), [&](uint32_t i) { return ptx::bits_of(weights[static_cast<int>(i) - own]); });
      }
    }
    fetch(first, first + own, v);
#pragma unroll
    for (int j = 0; j < kBurst; j++) squares += scale_four(v[j], weight[j]);
#pragma unroll
    for (int j = 0; j < kBurst; j += kTogether) {
      const int from = first + Own::offset(j);
      if (from + kStride > kPadded && from + own >= kPadded) continue;
      if constexpr (kIntegers) {
        const int at = from / kBlockCols * kBlockElements;
        const float eight[2][4] = {{v[j][0], v[j][1], v[j][2], v[j][3]}, {v[j + 1][0], v[j + 1][1], v[j + 1][2], v[j + 1][3]}};
        int mask = kSumsWarps<P, kTo> ? 16 : 0;
        store_integers(eight, thread, to + at, about + at, [&] {
          if (mask) squares += ptx::shuffle_xor(squares, mask), mask /= 2;
        });
      } else {
        store_four<P, kTo>(v[j], to + from);
      }
    }
  }
  return squares;
}

// Fours of a burst: at most kMost, and bursts as equal as possible.
template <class P, int kThreadCount, int kMost, To kTo, int kSegments = 1>
constexpr int burst_of() {
  using Own = Fours<kTo, kThreadCount>;
  constexpr int kUnits = divide_up(kSegments * kPaddedCols<P>, Own::kStride);
  return divide_up(kUnits, divide_up(kUnits, kMost / Own::kTogether)) * Own::kTogether;
}

// Whether shuffles follow the polling of an input, for a norm's sum of squares or a group's largest value: then the threads of a warp leave the loop
// together (see all_ready).
template <class P>
constexpr bool kShuffles = P::kNorm != kNone || P::Format::kIsInteger;

// How long a worker waits before it polls for the first time. The stages of all workers end at about the same time, and it takes some 0.4 µs until the words of one are
// seen by all others. A worker that polls a little too early polls once more, and then sees them later than one that has waited.
constexpr uint32_t kSpinCycles = 120;

// The input of a decode pass: polls the tagged words of the stage before until all of a thread's words have the tag `step`.
template <class P>
MONOLANE_DEVICE float prepare_words(int layer, uint32_t step) {
  constexpr To kTo = kOneRow<P>;
  // A burst is a round trip to L2. Where there are no weights of a norm, registers allow for more loads at a time.
  constexpr int kMost = P::kNorm == kNone && kTo == To::kIntegers ? 12 : 6;
  constexpr int kSegments = P::kSegments, kBurst = burst_of<P, kConsumers, kMost, kTo, kSegments>(), kCols = P::kCols;
  using Own = Fours<kTo, kConsumers>;
  // Of a column among those of all segments: its place in its own segment, or kCols behind the last segment.
  const auto column_of = [](int k) { return kSegments == 1 ? k : k < kSegments * kPaddedCols<P> ? k % kPaddedCols<P> : kCols; };
  const uint32_t* words = buffers().activation_words + kWordOffsets[P::kReads];
  const int thread = thread_id(), own_place = word_place(Own::first(thread));
  const uint32_t blank = step & 0xffffu;  // the value zero with the right tag, for columns behind the last one
  // Where some threads have no columns, a branch around their loads takes longer than loads of words that they do not need. Without it, and with the question
  // whether the launch has failed asked while words are on their way, a token of small models takes 2 to 4% less; with inputs in integers it takes more.
  constexpr bool kNoBranches = kTo == To::kShared && P::kOrder == kNone && kSegments == 1 && kPaddedCols<P> % Own::kStride != 0;
  return prepare_with<P, kConsumers, kBurst, kTo, kSegments>(layer, shared::x(), thread, [&](int first, int base, float (&v)[kBurst][4]) {
    Word4 four[kBurst], from[kBurst];
#pragma unroll
    for (int j = 0; j < kBurst; j++)
      if (P::kOrder != kNone && base + Own::offset(j) < kCols) from[j] = elements_of<P>(layer, base + Own::offset(j));
#pragma unroll
    for (int j = 0; j < kBurst; j++) four[j] = {blank, blank, blank, blank};
    if constexpr (kTo == To::kShared) ptx::spin(kSpinCycles);
    for (;;) {
      uint32_t wrong = 0;
#pragma unroll
      for (int j = 0; j < kBurst; j++) {
        const int k = base + Own::offset(j), column = column_of(k), place = own_place + first + Own::word_offset(j);
        if (kNoBranches) {
          four[j] = ptx::load_relaxed(reinterpret_cast<const Word4*>(words + (column < kCols ? place : 0)));
        } else if ((kSegments == 1 && first + Own::offset(j) + Own::kStride <= kCols) || column < kCols) {  // the first part is known to the compiler
          if constexpr (P::kOrder == kNone)
            four[j] = ptx::load_relaxed(reinterpret_cast<const Word4*>(words + place));
          else
            four[j] = gather(from[j], [&](uint32_t i) { return ptx::load_relaxed(words + word_place(static_cast<int>(i))); });
        }
        if (kCols % 4 && column + 4 > kCols) {
          if (column + 1 >= kCols) four[j].y = blank;
          if (column + 2 >= kCols) four[j].z = blank;
          if (column + 3 >= kCols) four[j].w = blank;
        }
      }
      const bool failed = kNoBranches && shared::failed();
#pragma unroll
      for (int j = 0; j < kBurst; j++) wrong |= (four[j].x ^ step) | (four[j].y ^ step) | (four[j].z ^ step) | (four[j].w ^ step);
      const bool ready = (wrong & 0xffffu) == 0;
      if constexpr (kNoBranches) {
        if (kShuffles<P> ? !ptx::any(!ready && !failed) : ready || failed) break;
      } else {
        if (kShuffles<P> ? all_ready(ready) : ready || shared::failed()) break;
      }
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const uint32_t own = !kNoBranches || base + Own::offset(j) < kCols ? ~0u : 0u;
      v[j][0] = value_of(four[j].x & own), v[j][1] = value_of(four[j].y & own);
      v[j][2] = value_of(four[j].z & own), v[j][3] = value_of(four[j].w & own);
    }
  });
}

// The input of the first projection: the embedding of `token`.
template <class P, int kThreadCount, To kTo = To::kShared>
MONOLANE_DEVICE float prepare_embedding(int layer, int32_t token, uint16_t* x, int thread) {
  using Own = Fours<kTo, kThreadCount>;
  return prepare_with<P, kThreadCount, Own::kTogether, kTo>(layer, x, thread, [&](int, int base, float (&v)[Own::kTogether][4]) {
#pragma unroll
    for (int j = 0; j < Own::kTogether; j++) {
      const int k = base + Own::offset(j);
      if (k >= kHidden) return;
      if constexpr (P::kOrder == kNone)
        embedding(token, k, v[j]);
      else {
        const Word4 four = gather(elements_of<P>(layer, k), [&](uint32_t i) { return embedding_element<EmbeddingFormat>(token, static_cast<int>(i)); });
        v[j][0] = ptx::float_of(four.x), v[j][1] = ptx::float_of(four.y), v[j][2] = ptx::float_of(four.z), v[j][3] = ptx::float_of(four.w);
      }
    }
  });
}

// The factor 1 / rms of a row from its sum of squares over all columns.
template <class P>
MONOLANE_DEVICE float norm_scale(float squares) {
  constexpr float kShare = 1.0f / static_cast<float>(P::kCols);
  return ptx::rsqrt(squares * kShare + P::kEps);
}

// Waits until all consumer warps have stored their part of a row's input. Returns the row's factor 1 / rms, summed over all consumer threads from
// their sums of squares, or 1 where the projection has no norm.
template <class P, To kTo>
MONOLANE_DEVICE float finish_prepare(float squares) {
  if constexpr (P::kNorm == kNone) {
    sync_consumers();
    return 1.0f;
  } else {
    if (!kSumsWarps<P, kTo>) squares = warp_sum(squares);
    if (lane_id() == 0) shared::reduce()[warp_id()] = squares;
    sync_consumers();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w++) total += shared::reduce()[w];
    return norm_scale<P>(total);
  }
}

// The input of one row of a prefill pass from plain bf16 activations. All loads of a burst are issued before the first of them is used. Rows of the
// activations are padded to whole fragments.
template <class P, int kThreadCount, To kTo = To::kShared>
MONOLANE_DEVICE float prepare_plain(int layer, const uint16_t* plain, uint16_t* x, int thread) {
  constexpr int kBurst = burst_of<P, kThreadCount, 16, kTo>(), kCols = P::kCols;
  using Own = Fours<kTo, kThreadCount>;
  return prepare_with<P, kThreadCount, kBurst, kTo>(layer, x, thread, [&](int, int base, float (&v)[kBurst][4]) {
    uint64_t four[kBurst];
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int k = base + Own::offset(j);
      four[j] = 0;
      if (k < kCols) {  // loads bypass L1: other thread blocks wrote it
        if constexpr (P::kOrder == kNone) {
          four[j] = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(plain + k));
        } else {
          const Word4 each = gather(elements_of<P>(layer, k), [&](uint32_t i) {
            return ptx::load_relaxed(reinterpret_cast<const uint32_t*>(plain + i / 2 * 2)) >> i % 2 * 16 & 0xffffu;
          });
          four[j] = each.x | each.y << 16 | static_cast<uint64_t>(each.z | each.w << 16) << 32;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) v[j][i] = base + Own::offset(j) + i < kCols ? bf16_to_float(static_cast<uint16_t>(four[j] >> 16 * i)) : 0.0f;
  });
}

}  // namespace monolane
