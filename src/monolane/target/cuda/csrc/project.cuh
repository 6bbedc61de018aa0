// Streaming a matrix through the tensor cores: the weights are the B operand (8 rows of 16 k), the positions are the rows
// of A, so one position or sixteen cost the same. A sum has a fixed order: per chunk of a tile along k, per warp, in turn.
// At one position tiles come one after the other. At sixteen the first chunks of all tiles of a batch come first, then the second:
// a warp's inputs of a chunk stay in registers meanwhile, so that those from L2 are read once a batch. (At one position that was 2% slower.)
//
// At one position all upper rows of A are alike, and all lower rows. An input lies in shared memory so that four registers
// as they are loaded are an A operand (see input_place). A product with the first two words of a lane's weights counts in the
// upper rows, one with the last two in the lower rows; what stands in the other half is of no use, and costs nothing.
//
// A unit of half a tile has two blocks of k: columns 0 to 3 of B are its four rows in the first, columns 4 to 7 the same
// rows in the second. Of a product with the input of the first, the left half counts, of one with that of the second, the
// right; a row's sum is that of both. At one position one product does: the upper rows of A are the one, the lower the other.
#pragma once
#include "prepare.cuh"
#include "ring.cuh"

namespace monolane {

// How a group of warps takes its chunks of a matrix: of every tile the same ones, or every other tile whole.
template <class P>
struct WarpgroupShare {
  static constexpr int kFragments = P::kFragments, kChunks = P::kChunks, kChunkFragments = P::kChunkFragments;
  static constexpr int kKBlocks = P::kFragmentCols / kKBlock;  // of k, in a unit
  static constexpr bool kWholeTiles = kChunks == 1;
  static_assert(kWholeTiles || kChunks % kWarpgroups == 0, "a warpgroup's chunks are the same ones of every tile");
  static_assert(P::kTileRows * kKBlocks == kMmaCols, "a unit has all columns of a product");
  static constexpr int kOwnChunks = kWholeTiles ? 1 : kChunks / kWarpgroups;    // of a tile that it takes
  static constexpr int kTileStep = kWholeTiles ? kWarpgroups : 1;
  static constexpr int kWarpFragments = divide_up(kChunkFragments, kWarpgroupWarps);    // units of a chunk, for one warp
  static constexpr bool kEqualChunks = kChunks * kChunkFragments == kFragments;

  MONOLANE_DEVICE static int fragments_of(int chunk) { return min(kChunkFragments, kFragments - chunk * kChunkFragments); }

  // Whether a warp has a j-th unit in a chunk of so many. What lies behind a short chunk in its slot is another chunk's: it
  // must not be multiplied, not even with zero.
  MONOLANE_DEVICE static bool has(int j, int fragments, int warp) {
    return (kEqualChunks && (j + 1) * kWarpgroupWarps <= kChunkFragments) || j * kWarpgroupWarps + warp < (kEqualChunks ? kChunkFragments : fragments);
  }
};

// --- one position ---

// A warp's inputs of units [kFirst, kFirst + kCount) of a chunk.
template <class P, int kFirst, int kCount>
struct DecodeInputs {
  using S = WarpgroupShare<P>;
  Word4 values[kCount * S::kKBlocks];

  // `from`: this lane's place in the input of the chunk.
  MONOLANE_DEVICE void load(const uint16_t* from, int fragments, int warp) {
#pragma unroll
    for (int i = 0; i < kCount * S::kKBlocks; i++) {
      const int j = kFirst + i / S::kKBlocks;
      values[i] = {0, 0, 0, 0};
      if (S::has(j, fragments, warp)) values[i] = *reinterpret_cast<const Word4*>(from + (j * kWarpgroupWarps * S::kKBlocks + i % S::kKBlocks) * kKBlock);
    }
  }

  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, float (&sums)[4][4]) const {
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

template <class P, int kFirst>
MONOLANE_DEVICE void multiply_one(const Word4 (&weights)[WarpgroupShare<P>::kWarpFragments], const uint16_t* from, int fragments, int warp, float (&sums)[4][4]) {
  constexpr int kTogether = 8 / WarpgroupShare<P>::kKBlocks, kCount = lesser(kTogether, WarpgroupShare<P>::kWarpFragments - kFirst);
  DecodeInputs<P, kFirst, kCount> inputs;
  inputs.load(from, fragments, warp);
  inputs.multiply(weights, fragments, warp, sums);
  if constexpr (kFirst + kCount < WarpgroupShare<P>::kWarpFragments) multiply_one<P, kFirst + kCount>(weights, from, fragments, warp, sums);
}

// --- sixteen positions ---

// Words 0 and 1 (half 0) or 2 and 3 (half 1) of a block of k, from the registers of a lane's pieces of all blocks.
template <bool kStaged, int kKBlocks>
MONOLANE_DEVICE void words_of(const Word4 (&pieces)[kKBlocks], int block, int half, uint32_t& first, uint32_t& second) {
  const Word4& in_order = pieces[block];
  const Word4& paired = pieces[kKBlocks > 1 ? half : 0];
  if (!kStaged)
    first = half ? in_order.z : in_order.x, second = half ? in_order.w : in_order.y;
  else if (kKBlocks > 1 ? block : half)
    first = paired.y, second = paired.w;
  else
    first = paired.x, second = paired.z;
}

// A warp's inputs of units [first, first + kCount) of a chunk, loaded together, so that products need not wait one by one.
template <class P, bool kStaged, int kCount>
struct PrefillInputs {
  using S = WarpgroupShare<P>;
  Word4 upper[kCount][S::kKBlocks], lower[kCount][S::kKBlocks];

  MONOLANE_DEVICE void load(const uint16_t* from, int stride, int fragments, int warp, int first = 0) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int b = 0; b < S::kKBlocks; b++) {
        upper[i][b] = lower[i][b] = {0, 0, 0, 0};
        if (first + i >= S::kWarpFragments || !S::has(first + i, fragments, warp)) continue;
        const uint16_t* at = from + ((first + i) * kWarpgroupWarps * S::kKBlocks + b) * kKBlock;
        upper[i][b] = input_words<kStaged>(at);
        lower[i][b] = input_words<kStaged>(at + 8 * stride);
      }
  }

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

// From shared memory, a few at a time: they are loaded again for every tile.
template <class P>
MONOLANE_DEVICE void multiply_staged(const Word4 (&weights)[WarpgroupShare<P>::kWarpFragments], const uint16_t* from, int stride, int fragments, int warp, float (&sums)[4][4]) {
  constexpr int kTogether = divide_up(2, WarpgroupShare<P>::kKBlocks);
#pragma unroll
  for (int first = 0; first < WarpgroupShare<P>::kWarpFragments; first += kTogether) {
    PrefillInputs<P, true, kTogether> inputs;
    inputs.load(from, stride, fragments, warp, first);
    inputs.multiply(weights, fragments, warp, sums, first);
  }
}

// What a warp keeps of its input from one tile to the next.
template <class P, int kPositions>
struct KeptInputs {
  PrefillInputs<P, false, WarpgroupShare<P>::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int stride, int fragments, int warp) { inputs.load(from, stride, fragments, warp); }
};
template <class P>
struct KeptInputs<P, 1> {
  DecodeInputs<P, 0, WarpgroupShare<P>::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int, int fragments, int warp) { inputs.load(from, fragments, warp); }
};

// --- sums ---

// Where the sums of one tile, one part of its chunks and one warp lie: [positions][columns].
template <int kPositions>
MONOLANE_DEVICE float* sums_at(int tile, int part, int warp) {
  float* first = kPositions > 1 ? shared::prefill_sums() : shared::sums();
  return first + ((tile * kWarpgroups + part) * kWarpgroupWarps + warp) * kPositions * kMmaCols;
}

// What has been summed up of a chunk of a tile, to `to`, on top of its earlier chunks; and zeros for the next.
template <int kKBlocks, int kPositions>
MONOLANE_DEVICE void store_sums(float* to, int lane, float (&sums)[4][4], bool add) {
  const auto store = [&](int at, float v) { to[at] = add ? to[at] + v : v; };
  const int row = lane / 4, column = lane % 4 * 2;
  const bool right = kKBlocks > 1 && column >= kMmaCols / 2;  // what counts here are products with the second block
  if (kPositions > 1) {
    float total[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float one = sums[0][i] + sums[1][i], two = sums[2][i] + sums[3][i];
      total[i] = kKBlocks == 1 ? one + two : right ? two : one;
    }
    store(row * kMmaCols + column, total[0]), store(row * kMmaCols + column + 1, total[1]);
    store((row + 8) * kMmaCols + column, total[2]), store((row + 8) * kMmaCols + column + 1, total[3]);
  } else {
    // Even products count above, odd ones below; of half tiles, all of them above or all below.
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

// The dot product of one row at one position: parts and warps in order.
template <class P, int kPositions>
MONOLANE_DEVICE float row_sum(int tile, int row, int position) {
  constexpr int kRows = P::kTileRows;
  const float* from = sums_at<kPositions>(tile, 0, 0) + position * kMmaCols + row;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < lesser(P::kChunks, kWarpgroups) * kWarpgroupWarps; i++, from += kPositions * kMmaCols)
    total += kRows < kMmaCols ? from[0] + from[kRows] : from[0];
  return total;
}

// Rows that a tile gives: a gate has two for each.
template <class P>
constexpr int kRowsOfTile = P::kOutput == Output::kGate ? P::kTileRows / 2 : P::kTileRows;

// All rows of a batch of `count` tiles, of which `first` is the first.
template <class P, int kPositions, class Finish>
MONOLANE_DEVICE void finish_batch(int first, int count, int rows, float scale, Finish finish) {
  constexpr bool kGate = P::kOutput == Output::kGate;
  constexpr int kPerTile = kRowsOfTile<P>;
#pragma unroll 1
  for (int i = thread_id(); i < count * kPositions * kPerTile; i += kConsumers) {
    const int row = i % kPerTile, position = i / kPerTile % kPositions, of = i / (kPerTile * kPositions);
    if (position >= rows) continue;
    const float sum = row_sum<P, kPositions>(of, kGate ? 2 * row : row, position);
    const float second = kGate ? row_sum<P, kPositions>(of, 2 * row + 1, position) : 0.0f;
    finish((first + of) * kPerTile + row, position, sum, second, scale);
  }
}

// This block's rows of one matrix, a batch of tiles at a time. A group has its next chunks in registers, their slots
// free; at the beginning even before `prepare()` has waited for the input and returned its scale. `finish(local row, position,
// sum, second sum, scale)` is called once for each row, after each batch; for a gate, with the sums of both its rows.
template <bool kPrefill, class P, int kPositions, bool kStaged, class Prepare, class Finish>
MONOLANE_DEVICE void project(int tiles, Cursor<kPrefill>& cursor, const uint16_t* x, int stride, int rows, Prepare prepare, Finish finish) {
  using S = WarpgroupShare<P>;
  constexpr int kBatch = kPositions > 1 ? kPrefillBatch : kDecodeBatch;
  constexpr int kAhead = kPrefill ? 1 : P::kAhead;  // chunks in registers
  constexpr bool kOneBatch = P::kMaxTiles <= kBatch;
  constexpr bool kByChunks = kPositions > 1 && S::kOwnChunks > 1;   // the same chunk of all tiles of a batch, then the next
  constexpr bool kHolds = kPositions > 1 ? !kStaged : S::kOwnChunks == 1;
  constexpr int kChunkCols = S::kChunkFragments * P::kFragmentCols;
  const int lane = lane_id(), warp = warp_id() % kWarpgroupWarps, warpgroup = cursor.order, part = S::kWholeTiles ? 0 : warpgroup;
  const uint16_t* mine = x + (kPositions > 1 ? lane / 4 * stride : 0) + lane % 4 * 8 + warp * P::kFragmentCols + part * kChunkCols;
  const int own = S::kWholeTiles ? cursor.own_chunks(tiles) : tiles * S::kOwnChunks;  // chunks of this group
  int left = own;
  // Zeroed, or else the compiler keeps what the stage before has left, all the way to here, and spills.
  Word4 one[S::kWarpFragments] = {}, two[S::kWarpFragments] = {}, three[S::kWarpFragments] = {};
  const auto take = [&](Word4 (&weights)[S::kWarpFragments]) {
    if (left > 0) cursor.load_chunk(weights, warp, lane), left--;
  };
  take(one);
  if (kAhead > 1) take(two);
  if (kAhead > 2) take(three);
  note_wait(kWaitActivations);
  const float scale = prepare();
  note_wait(kWaitCopy);
  float sums[4][4] = {};
  int first = 0, count = min(kBatch, tiles);          // of the batch
  int tile = S::kWholeTiles ? warpgroup : 0, chunk = 0;        // of the batch; of this group's chunks of a tile
  KeptInputs<P, kPositions> held;
  const auto inputs = [&] { return mine + (S::kOwnChunks > 1 ? chunk * kWarpgroups * kChunkCols : 0); };
  const auto fragments = [&] { return S::fragments_of((S::kOwnChunks > 1 ? chunk * kWarpgroups : 0) + part); };
  const auto hold = [&] {
    if constexpr (kHolds) held.load(inputs(), stride, fragments(), warp);
  };
  hold();
  const auto end_batch = [&] {
    sync_consumers();
    finish_batch<P, kPositions>(first, count, rows, scale, finish);
    first += kBatch, tile -= kBatch;
    if (kByChunks) tile = chunk = 0;
    count = min(kBatch, tiles - first);
    if (first < tiles) sync_consumers();  // the sums are overwritten next
  };
  // The chunk in `weights`, which then get the next that is not in registers. False when there is none left. Where there is one batch, its
  // end is not in between, and not there once for each chunk in registers: jumps to what is far away take time.
  int steps = own;
  const auto step = [&](Word4 (&weights)[S::kWarpFragments]) {
    if (kOneBatch && !steps--) return false;
    while (!kOneBatch && tile >= count) {
      if (kByChunks && ++chunk < S::kOwnChunks) {
        tile = 0;
      } else {
        end_batch();
        if (first >= tiles) return false;
      }
      if (kByChunks) hold();
    }
    if (kOneBatch && kByChunks && tile >= count) tile = 0, chunk++, hold();
    if constexpr (kHolds)
      held.inputs.multiply(weights, fragments(), warp, sums);
    else if constexpr (kPositions == 1)
      multiply_one<P, 0>(weights, inputs(), fragments(), warp, sums);
    else
      multiply_staged<P>(weights, inputs(), stride, fragments(), warp, sums);
    take(weights);
    if (kByChunks || S::kOwnChunks == 1 || ++chunk == S::kOwnChunks) {
      store_sums<S::kKBlocks, kPositions>(sums_at<kPositions>(tile, part, warp), lane, sums, kByChunks && chunk > 0);
      tile += S::kTileStep;
      if (!kByChunks) chunk = 0;
    }
    return true;
  };
#pragma unroll 1
  while (step(one) && (kAhead < 2 || step(two)) && (kAhead < 3 || step(three))) {
  }
  if (kOneBatch) end_batch();
  cursor.skip(tiles * S::kChunks);
}

}  // namespace monolane
