// What the warps of a projection multiply: a warp's weights and inputs as the operands of the tensor core, for 1 row and for up to kPassRows = 16 rows of the pass.
//
// Operands of mma.m16n8k16: the weights are B (16 k, 8 columns), the rows of the pass are the rows of A. So 1 row and 16 rows take the same number of
// MMAs. B's columns are output rows. Thread 4g + t of a warp loads 16 bytes of a weight fragment, four words of two k each: w0 w1 are B of one MMA,
// w2 w3 are B of a second one. The order of k within the two MMAs differs from the order in memory; A has its input words in the same order.
//
//     fragment                                   column g of B            the 16 bytes of thread 4g + t
//     whole tile: 8 output rows x 32 k           output row g             k = 8t to 8t + 7
//     half tile:  4 output rows x 64 k   g < 4:  output row g             k = 8t to 8t + 7 of the first k-block
//                                        g >= 4: output row g - 4         k = 8t to 8t + 7 of the second k-block
//
// What A holds, and which part of the product C (16 rows x 8 columns) counts:
//
//                           A                                                            C that counts
//     1 row,   whole tile   rows 0-7: the input for w0 w1; rows 8-15: that for w2 w3     MMA with w0 w1: rows 0-7; with w2 w3: rows 8-15
//     1 row,   half tile    rows 0-7: the first k-block; rows 8-15: the second           rows 0-7 of columns 0-3; rows 8-15 of columns 4-7
//     16 rows, whole tile   row r: row r of the pass                                     all
//     16 rows, half tile    row r: row r of the pass, one k-block in each MMA            first k-block: columns 0-3; second: columns 4-7
//
// Low-bit weights have fragments of 8 rows x 256 columns; lowbit.cuh and fp8.cuh show how they are multiplied. All else is the same.
//
// The rest of C is ignored and costs nothing. With 1 row all rows of the same half of A are equal; 16 bytes of the input as they lie in shared memory
// are an A operand (see input_index). The sum of an output row of a half tile is the sum of two columns of C.
#pragma once
#include "prepare.cuh"
#include "share.cuh"

namespace monolane {

// --- 1 row ---

// What a thread knows of its own place in the products of a warp.
template <class S, bool kIsInteger = S::kIsInteger>
struct ThreadOf {
  MONOLANE_DEVICE ThreadOf(int, int) {}
};
template <class S>
struct ThreadOf<S, true> : IntegerThread<typename S::Format, S::kKBlocks> {
  using IntegerThread<typename S::Format, S::kKBlocks>::IntegerThread;
};

// A warp's A operands for its fragments [kFirst, kFirst + kCount) of a chunk: one per k-block.
template <class S, int kFirst, int kCount, bool kIsInteger = S::kIsInteger, bool kIsFp8 = S::kIsFp8>
struct DecodeInputs {
  Word4 values[kCount * S::kKBlocks];

  // `from`: this thread's address in the input of the chunk.
  MONOLANE_DEVICE void load(const uint16_t* from, int fragments, int warp, const ThreadOf<S>&) {
#pragma unroll
    for (int i = 0; i < kCount * S::kKBlocks; i++) {
      const int j = kFirst + i / S::kKBlocks;
      values[i] = {0, 0, 0, 0};
      if (S::has(j, fragments, warp))
        values[i] = *reinterpret_cast<const Word4*>(from + (j * kWarpgroupWarps * S::kKBlocks + i % S::kKBlocks) * kKBlock);
    }
  }

  // Two MMAs per fragment. In whole tiles both have the same A operand. In half tiles the first operand holds the words for w0 w1 of both k-blocks,
  // the second those for w2 w3. MMAs alternate between four accumulators, so that an MMA does not depend on the one before.
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, const ThreadOf<S>&, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int j = kFirst + i;
      if (!S::has(j, fragments, warp)) continue;
      const Word4 &w = weights[j], &a = values[i * S::kKBlocks], &b = values[i * S::kKBlocks + S::kKBlocks - 1];
      ptx::mma(sums[2 * j % 4], a.x, a.y, a.z, a.w, w.x, w.y);
      ptx::mma(sums[2 * j % 4 + 1], b.x, b.y, b.z, b.w, w.z, w.w);
    }
  }
};

// The same for integers. The sum of row g over the thread's groups is in sums[0][0].
template <class S, int kFirst, int kCount>
struct DecodeInputs<S, kFirst, kCount, true, false> {
  IntegerInput<typename S::Format, S::kKBlocks, S::kMasksPairs> values[kCount];

  // Those behind the end of a short chunk are loaded, too, as its weights are.
  MONOLANE_DEVICE void load(const uint16_t* from, int, int, const ThreadOf<S>& thread) {
#pragma unroll
    for (int i = 0; i < kCount; i++) values[i].load(from + (kFirst + i) * kWarpgroupWarps * S::kKBlocks * kBlockElements, thread);
  }

  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (S::has(kFirst + i, fragments, warp)) sums[0][0] = multiply_integers(weights[kFirst + i], values[i], thread, sums[0][0]);
  }
};

// The same for FP8: an A operand for each group. The sums of rows 2t and 2t + 1 are in sums[0][0..1].
template <class S, int kFirst, int kCount>
struct DecodeInputs<S, kFirst, kCount, false, true> {
  Word4 values[kCount][kBlockGroups];

  MONOLANE_DEVICE void load(const uint16_t* from, int fragments, int warp, const ThreadOf<S>&) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int j = 0; j < kBlockGroups; j++) {
        values[i][j] = {0, 0, 0, 0};
        if (S::has(kFirst + i, fragments, warp))
          values[i][j] = *reinterpret_cast<const Word4*>(from + (kFirst + i) * kWarpgroupWarps * kBlockCols + j * kGroupCols);
      }
  }

  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>&, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (S::has(kFirst + i, fragments, warp)) multiply_fp8(weights[kFirst + i], values[i], sums[0]);
  }
};

// Multiplies a warp's fragments of a chunk, from kFirst on, with inputs that are loaded from shared memory for this chunk, 8 operands at a time, or 2 of
// integers.
template <class S, int kFirst, class Weights>
MONOLANE_DEVICE void multiply_one(const Weights& weights, const uint16_t* from, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) {
  constexpr int kTogether = S::kIsFp8 ? 1 : S::kIsInteger ? 2 : 8 / S::kKBlocks, kCount = lesser(kTogether, S::kWarpFragments - kFirst);
  DecodeInputs<S, kFirst, kCount> inputs;
  inputs.load(from, fragments, warp, thread);
  inputs.multiply(weights, fragments, warp, thread, sums);
  if constexpr (kFirst + kCount < S::kWarpFragments) multiply_one<S, kFirst + kCount>(weights, from, fragments, warp, thread, sums);
}

// --- up to 16 rows ---

// Two input words of one row and one k-block: those that match w0 w1 (half 0) or w2 w3 (half 1). `pieces` are the thread's 16-byte loads of all
// k-blocks of a fragment: in the layout of input_index() if kStaged, else with their columns in order.
template <bool kStaged, int kKBlocks>
MONOLANE_DEVICE void words_of(const Word4 (&pieces)[kKBlocks], int k_block, int half, uint32_t& first, uint32_t& second) {
  const Word4& in_order = pieces[k_block];
  const Word4& paired = pieces[kKBlocks > 1 ? half : 0];
  if (!kStaged)
    first = half ? in_order.z : in_order.x, second = half ? in_order.w : in_order.y;
  else if (kKBlocks > 1 ? k_block : half)
    first = paired.y, second = paired.w;
  else
    first = paired.x, second = paired.z;
}

// A warp's inputs for its fragments [first, first + kCount) of a chunk. They are loaded together, so that the MMAs do not wait for one load after the
// other. Thread 4g + t holds row g of the pass in `upper` and row g + 8 in `lower`.
template <class S, bool kStaged, int kCount>
struct PrefillInputs {
  Word4 upper[kCount][S::kKBlocks], lower[kCount][S::kKBlocks];

  MONOLANE_DEVICE void load(const uint16_t* from, int lower_row, int fragments, int warp, int first = 0) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int b = 0; b < S::kKBlocks; b++) {
        upper[i][b] = lower[i][b] = {0, 0, 0, 0};
        if (first + i >= S::kWarpFragments || !S::has(first + i, fragments, warp)) continue;
        const uint16_t* at = from + ((first + i) * kWarpgroupWarps * S::kKBlocks + b) * kKBlock;
        upper[i][b] = input_words<kStaged>(at);
        lower[i][b] = input_words<kStaged>(at + lower_row);
      }
  }

  // Two MMAs per fragment and k-block. In half tiles accumulators 0 and 1 are of the first k-block, 2 and 3 of the second.
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, float (&sums)[4][4], int first = 0) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int n = 0; n < 2 * S::kKBlocks; n++) {
        if (first + i >= S::kWarpFragments || !S::has(first + i, fragments, warp)) continue;
        const Word4 w = weights[first + i];
        uint32_t a[4];
        words_of<kStaged>(upper[i], n / 2, n % 2, a[0], a[2]);
        words_of<kStaged>(lower[i], n / 2, n % 2, a[1], a[3]);
        ptx::mma(sums[(2 * i * S::kKBlocks + n) % 4], a[0], a[1], a[2], a[3], n % 2 ? w.z : w.x, n % 2 ? w.w : w.y);
      }
  }
};

// Multiplies a warp's fragments of a chunk with inputs from shared memory. They are loaded again for every tile, a few fragments at a time.
template <class S>
MONOLANE_DEVICE void multiply_staged(const Word4 (&weights)[S::kWarpFragments], const uint16_t* from, int lower_row, int fragments, int warp,
                                     float (&sums)[4][4]) {
  constexpr int kTogether = divide_up(2, S::kKBlocks);
#pragma unroll
  for (int first = 0; first < S::kWarpFragments; first += kTogether) {
    PrefillInputs<S, true, kTogether> inputs;
    inputs.load(from, lower_row, fragments, warp, first);
    inputs.multiply(weights, fragments, warp, sums, first);
  }
}

// The same for low-bit weights, with inputs from shared or from global memory. In the latter their columns are in order.
template <class S, bool kStaged, class Weights>
MONOLANE_DEVICE void multiply_low_bit(const Weights& weights, const uint16_t* from, int lower_row, int fragments, int warp, float (&sums)[4][4]) {
  const auto words = [](const uint16_t* p) -> Word4 {
    if constexpr (kStaged) {
      const Word4 four = *reinterpret_cast<const Word4*>(p);
      return S::kIsFp8 ? Word4{four.x, four.z, four.y, four.w} : four;  // the columns in order
    }
    const uint64_t first = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(p)), last = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(p + 16));
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(last), static_cast<uint32_t>(last >> 32)};
  };
#pragma unroll
  for (int i = 0; i < S::kWarpFragments; i++) {
    if (!S::has(i, fragments, warp)) continue;
    const uint16_t* at = from + i * kWarpgroupWarps * S::kFragmentCols;
    const auto inputs = [&](int group, Word4& upper, Word4& lower) {
      upper = words(at + group * kGroupCols);
      lower = words(at + group * kGroupCols + lower_row);
    };
    if constexpr (S::kIsFp8)
      multiply_fp8_rows(weights[i], sums[0], inputs);
    else
      multiply_widened(weights[i], lane_id(), sums, inputs);
  }
}

// Inputs that a warp keeps in registers from one tile to the next: of all its fragments of a chunk. kInputRows: 1 or kPassRows.
template <class S, int kInputRows>
struct KeptInputs {
  PrefillInputs<S, false, S::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int lower_row, int fragments, int warp, const ThreadOf<S, false>&) { inputs.load(from, lower_row, fragments, warp); }
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, const ThreadOf<S, false>&, float (&sums)[4][4]) const {
    inputs.multiply(weights, fragments, warp, sums);
  }
};
template <class S>
struct KeptInputs<S, 1> {
  DecodeInputs<S, 0, S::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int, int fragments, int warp, const ThreadOf<S>& thread) { inputs.load(from, fragments, warp, thread); }
  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) const {
    inputs.multiply(weights, fragments, warp, thread, sums);
  }
};

}  // namespace monolane
