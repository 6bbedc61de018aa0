// The sums of a projection: where the consumer warps leave what each has added up, and how results come of it, once for each output row.
#pragma once
#include "share.cuh"

namespace monolane {

// The sums of a batch lie in shared memory as [tile of the batch][part][share][row of the pass][column of C], fp32. `part` is the warpgroup where all
// warpgroups take chunks of a tile, else 0. Of integers there are four sums for each column, one of every thread that has groups of it (lowbit.cuh): it
// takes less time to add them up later, once for a tile, than to shuffle them for every chunk. Tiles without parts then have no room for them.
template <class S, int kInputRows>
struct Sums {
  static constexpr bool kFours = S::kIsInteger && kInputRows == 1;
  static constexpr int kColumn = kFours ? 4 : 1, kParts = kFours && S::kWholeTiles ? 1 : kWarpgroups;
  static constexpr int kShare = kInputRows * kMmaCols * kColumn, kTile = kParts * kWarpgroupWarps * kShare;
  static constexpr int kBatch = kInputRows > 1 ? kPrefillBatch : kFours && kParts > 1 ? kDecodeBatch / 2 : kDecodeBatch;  // tiles

  MONOLANE_DEVICE static float* at(int tile, int part, int share) {
    return (kInputRows > 1 ? shared::prefill_sums() : shared::sums()) + tile * kTile + (part * kWarpgroupWarps + share) * kShare;
  }
};

// Adds up the four accumulators, stores the part of C that counts at `to` (or adds it to what earlier chunks of the tile have left there, if `add`;
// or does neither, unless `exists`), and clears the accumulators for the next tile. Thread 4g + t holds columns 2t and 2t + 1 of C: of row g in sums[.][0..1], of row g + 8 in
// sums[.][2..3].
template <class S, int kInputRows>
MONOLANE_DEVICE void store_sums(float* to, uint32_t lane_index, float (&sums)[4][4], bool add, bool exists) {
  constexpr int kKBlocks = S::kKBlocks;
  const auto store = [&](int at, float v) {
    if (exists) to[at] = add ? to[at] + v : v;
  };
  const uint32_t row = lane_index / 4, column = lane_index % 4 * 2;
  const bool right = kKBlocks > 1 && column >= kMmaCols / 2;  // columns 4-7 of a half tile: MMAs with the second k-block count
  if (kInputRows > 1) {
    float total[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float one = sums[0][i] + sums[1][i], two = sums[2][i] + sums[3][i];
      total[i] = kKBlocks == 1 ? one + two : right ? two : one;
    }
    store(row * kMmaCols + column, total[0]), store(row * kMmaCols + column + 1, total[1]);
    store((row + 8) * kMmaCols + column, total[2]), store((row + 8) * kMmaCols + column + 1, total[3]);
  } else if (S::kIsInteger) {  // thread 4g + t has the sum of row g over its groups
    store(lane_index, sums[0][0]);
  } else if (S::kIsFp8) {
    if (row == 0) store(column, sums[0][0]), store(column + 1, sums[0][1]);
  } else {
    // Whole tiles: even accumulators (w0 w1) count in rows 0-7 (`above`), odd ones (w2 w3) in rows 8-15 (`below`). Half tiles: all accumulators count
    // in rows 0-7 for columns 0-3, and in rows 8-15 for columns 4-7.
    float total[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float above = sums[0][i] + sums[2][i], below = sums[1][i + 2] + sums[3][i + 2];
      const float one = above + (sums[1][i] + sums[3][i]), two = (sums[0][i + 2] + sums[2][i + 2]) + below;
      total[i] = kKBlocks == 1 ? above + below : right ? two : one;
    }
    if (row == 0) store(column, total[0]), store(column + 1, total[1]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) sums[j][i] = 0.0f;
}

// The sum of one output row where there are four sums for each column: kVectors times four numbers, added up in pairs, pairs of pairs and so on. So the order is the
// same, however many threads share them. In half tiles columns output_row and output_row + 4 of C belong to the same output row.
template <class P, class S>
struct SumOfFours {
  using Of = Sums<S, 1>;
  static constexpr int kColumns = kMmaCols / P::kTileRows, kVectors = lesser(S::kChunks, kWarpgroups) * kWarpgroupWarps * kColumns;

  // From the first vector of a row to the n-th.
  MONOLANE_DEVICE static constexpr int distance(int n) { return n / kColumns * Of::kShare + n % kColumns * (P::kTileRows * Of::kColumn); }

  // Of kCount vectors. `from`: the first of them, `share`: the share it is of.
  template <int kCount = kVectors, int kOffset = 0>
  MONOLANE_DEVICE static float of(const float* from, uint32_t share = 0) {
    if constexpr (kCount > 1) {
      return of<kCount / 2, kOffset>(from, share) + of<kCount / 2, kOffset + kCount / 2>(from, share);
    } else {
      if ((share + kOffset / kColumns) % kWarpgroupWarps >= S::kShares) return 0.0f;
      const Word4 four = *reinterpret_cast<const Word4*>(from + distance(kOffset));
      return (ptx::float_of(four.x) + ptx::float_of(four.y)) + (ptx::float_of(four.z) + ptx::float_of(four.w));
    }
  }
};

// The sum of all parts and shares of one output row, in a fixed order. `from`: where they begin.
template <class P, class S, int kInputRows>
MONOLANE_DEVICE float sum_of_shares(const float* from) {
  using Of = Sums<S, kInputRows>;
  constexpr int kRows = P::kTileRows;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < lesser(S::kChunks, kWarpgroups) * kWarpgroupWarps; i++, from += Of::kShare)
    if (i % kWarpgroupWarps < S::kShares) total += kRows < kMmaCols ? from[0] + from[kRows] : from[0];
  return total;
}

// The dot product of one output row of a tile with one row of the pass.
template <class P, class S, int kInputRows>
MONOLANE_DEVICE float row_sum(int tile, int output_row, int row) {
  const float* from = Sums<S, kInputRows>::at(tile, 0, 0) + (row * kMmaCols + output_row) * Sums<S, kInputRows>::kColumn;
  if constexpr (Sums<S, kInputRows>::kFours) return SumOfFours<P, S>::of(from);
  return sum_of_shares<P, S, kInputRows>(from);
}

// Results of a tile for each row of the pass: one per output row, or, where the projection is a gate, one per pair of a gate row and an up row.
template <class P>
constexpr int kRowsOfTile = P::kOutput == Output::kGate ? P::kTileRows / 2 : P::kTileRows;

// Whether no thread has more than one output row in a decode pass, and there is one batch (Sums::kBatch).
template <class P>
constexpr bool kOneResult = P::kMaxTiles * P::kTileRows <= kConsumers && P::kMaxTiles <= (P::kSegments * P::kChunks > 1 ? kDecodeBatchOf<P> : kDecodeBatch);

// How many neighbouring threads share the sum of an output row in a decode pass, if kOneResult. Where weights are integers each of them adds up at least kLeastVectors
// vectors: fewer take no longer than a shuffle. Of a gate the threads of the gate row and those of the up row are neighbours.
constexpr int kLeastVectors = 4;
template <class P>
constexpr int row_threads() {
  int threads = 1;
  if (P::Format::kIsInteger)
    while (2 * threads * P::kMaxTiles * P::kTileRows <= kConsumers &&
           2 * threads * kLeastVectors <= SumOfFours<P, WarpgroupShare<P, P::kChunkTiles, P::kSegments>>::kVectors)
      threads *= 2;
  return threads;
}
template <class P>
constexpr int kRowThreads = kOneResult<P> ? row_threads<P>() : 1;
template <class P>
constexpr int kResultThreads = P::kOutput == Output::kGate ? 2 * kRowThreads<P> : kRowThreads<P>;
// The first result of a decode pass that this thread will finish, or have a share of.
template <class P>
MONOLANE_DEVICE int own_result() {
  return kOneResult<P> ? thread_id() / kResultThreads<P> : thread_id();
}

// Where a thread finds the sums of its result in a decode pass, if kOneResult.
template <class P, class S>
struct OwnSums {
  using Of = Sums<S, 1>;
  static constexpr int kOfRow = kRowThreads<P>, kOfResult = kResultThreads<P>;
  int threads;     // how many threads have results of this worker, counted from the first thread of this warp
  uint32_t first;  // where the first sum of this thread lies, in floats
  uint32_t share;  // the share that it is of

  // `tiles`: those of the worker.
  MONOLANE_DEVICE void find(int tiles) {
    const uint32_t own = thread_id(), row = min(own / kOfRow, tiles * P::kTileRows - 1u), vector = own % kOfRow * (kOfRow > 1 ? SumOfFours<P, S>::kVectors / kOfRow : 0);
    threads = ptx::kept(tiles * (kRowsOfTile<P> * kOfResult) - static_cast<int>(own / 32 * 32));
    first = ptx::kept(row / P::kTileRows * Of::kTile + row % P::kTileRows * Of::kColumn + (kOfRow > 1 ? SumOfFours<P, S>::distance(vector) : 0));
    share = kOfRow > 1 ? ptx::kept(vector / SumOfFours<P, S>::kColumns) : 0;
  }

  MONOLANE_DEVICE float sum() const {
    const float* from = Of::at(0, 0, 0) + first;
    if constexpr (!Of::kFours) return sum_of_shares<P, S, 1>(from);
    using Sum = SumOfFours<P, S>;
    float sum = Sum::template of<Sum::kVectors / kOfRow>(from, share);
#pragma unroll
    for (int mask = 1; mask < kOfRow; mask *= 2) sum += ptx::shuffle_xor(sum, mask);
    return sum;
  }
};

// Calls `finish` for this thread's result, if it has one. All threads have stored their sums.
template <class P, class S, class Finish>
MONOLANE_DEVICE void finish_own(const OwnSums<P, S>& sums, float scale, Finish finish) {
  constexpr int kOfRow = kRowThreads<P>, kOfResult = kResultThreads<P>;
  if (sums.threads <= 0) return;  // the warp has none
  const float sum = sums.sum(), other = P::kOutput == Output::kGate ? ptx::shuffle_xor(sum, kOfRow) : 0.0f;
  const int lane_index = lane_id();
  if (lane_index % kOfResult == 0 && lane_index < sums.threads) finish(own_result<P>(), 0, sum, other, scale);
}

// Calls `finish` for every result of a batch: tiles [first, first + count), of which the sums lie in shared memory, and `rows` rows of the pass.
template <class P, class S, int kInputRows, class Finish>
MONOLANE_DEVICE void finish_batch(int first, int count, int rows, float scale, Finish finish) {
  constexpr bool kGate = P::kOutput == Output::kGate;
  constexpr int kPerTile = kRowsOfTile<P>;
  const uint32_t results = count * kInputRows * kPerTile;
#pragma unroll 1
  for (uint32_t i = thread_id(); i < results; i += kConsumers) {  // unsigned: divisions are shifts
    const int output_row = i % kPerTile, row = i / kPerTile % kInputRows, tile = i / (kPerTile * kInputRows);
    if (kInputRows > 1 && row >= rows) continue;
    const float sum = row_sum<P, S, kInputRows>(tile, kGate ? 2 * output_row : output_row, row);
    const float second = kGate ? row_sum<P, S, kInputRows>(tile, 2 * output_row + 1, row) : 0.0f;
    finish((first + tile) * kPerTile + output_row, row, sum, second, scale);
  }
}

}  // namespace monolane
