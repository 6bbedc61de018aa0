// Streaming a matrix through the tensor cores: the weights are the B operand (8 rows of 16 k), the positions are the rows
// of A, so one position or sixteen cost the same. A sum has a fixed order: per chunk of a tile along k, per warp, in turn.
//
// A unit of half a tile has two blocks of k: columns 0 to 3 of B are its four rows in the first, columns 4 to 7 the same
// rows in the second. Of a product with the input of the first, the left half counts, of one with that of the second, the
// right; a row's sum is that of both. At one position one product does: the upper rows of A are the one, the lower the other.
#pragma once
#include "prepare.cuh"
#include "ring.cuh"

namespace monolane {

constexpr int kMostUnits = kSlotUnits / kGroupWarps;  // of one chunk, for one warp

// A warp's units of a chunk of kUnits, or, where chunks are not all alike, of `units`; at one position or at sixteen.
// `from` is this lane's place in the input. Inputs are loaded together, so that products need not wait one by one.
template <int kBlocks, int kPositions, bool kStaged, int kUnits, bool kAlike>
MONOLANE_DEVICE void multiply(const Word4 (&weights)[kMostUnits], int units, const uint16_t* from, int stride, int warp, float (&sums)[4][4]) {
  constexpr int kMine = divide_up(kUnits, kGroupWarps), kProducts = kPositions > 1 ? kBlocks : 1;
  // From shared memory, a few at a time; from global memory, where each wait is long, as many as there are registers for.
  constexpr int kTogether = divide_up(!kStaged ? kMostUnits : kPositions > 1 ? 2 : 4, kBlocks);
  // What lies behind a short chunk in its slot is another chunk's: it must not be multiplied, not even with zero.
  const auto there = [&](int j) { return j < kMine && ((kAlike && (j + 1) * kGroupWarps <= kUnits) || j * kGroupWarps + warp < (kAlike ? kUnits : units)); };
#pragma unroll
  for (int first = 0; first < kMine; first += kTogether) {
    Word4 a[kTogether * kProducts], b[kTogether * kProducts];  // the upper rows of A, and the lower
#pragma unroll
    for (int i = 0; i < kTogether * kProducts; i++) {
      a[i] = b[i] = {0, 0, 0, 0};
      if (!there(first + i / kProducts)) continue;
      const uint16_t* at = from + ((first + i / kProducts) * kGroupWarps * kBlocks + i % kProducts) * kBlock;
      a[i] = input_words<kStaged>(at);
      if (kPositions > 8)
        b[i] = input_words<kStaged>(at + 8 * stride);
      else if (kBlocks > 1)
        b[i] = input_words<kStaged>(at + kBlock);
    }
#pragma unroll
    for (int i = 0; i < kTogether * kProducts; i++) {
      if (!there(first + i / kProducts)) continue;
      const Word4 w = weights[first + i / kProducts];
      ptx::mma(sums[(2 * i) % 4], a[i].x, b[i].x, a[i].y, b[i].y, w.x, w.y);
      ptx::mma(sums[(2 * i + 1) % 4], a[i].z, b[i].z, a[i].w, b[i].w, w.z, w.w);
    }
  }
}

// Where the sums of one tile, one part of its chunks and one warp lie: [positions][columns].
template <int kPositions>
MONOLANE_DEVICE float* sums_at(int tile, int part, int warp) {
  float* first = kPositions > 1 ? shared::wide_sums() : shared::sums();
  return first + ((tile * kGroups + part) * kGroupWarps + warp) * kPositions * kColumns;
}

template <int kBlocks, int kPositions>
MONOLANE_DEVICE void store_sums(int tile, int part, int warp, int lane, float (&sums)[4][4]) {
  const int row = lane / 4, column = lane % 4 * 2;
  const bool right = kBlocks > 1 && column >= kColumns / 2;  // what counts here are products with the second block
  float total[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float one = sums[0][i] + sums[1][i], two = sums[2][i] + sums[3][i];
    total[i] = kBlocks == 1 || kPositions == 1 ? one + two : right ? two : one;
#pragma unroll
    for (int j = 0; j < 4; j++) sums[j][i] = 0.0f;
  }
  float* to = sums_at<kPositions>(tile, part, warp);
  if (kPositions > 1) {
    to[row * kColumns + column] = total[0], to[row * kColumns + column + 1] = total[1];
    to[(row + 8) * kColumns + column] = total[2], to[(row + 8) * kColumns + column + 1] = total[3];
  } else if (row == 0) {
    to[column] = right ? total[2] : total[0], to[column + 1] = right ? total[3] : total[1];
  }
}

// The dot product of one row at one position: parts and warps in order.
template <int kForm, int kPositions>
MONOLANE_DEVICE float row_sum(int tile, int row, int position) {
  constexpr int kRows = kForms[kForm].tile_rows;
  const float* from = sums_at<kPositions>(tile, 0, 0) + position * kColumns + row;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < lesser(kForms[kForm].chunks, kGroups) * kGroupWarps; i++, from += kPositions * kColumns)
    total += kRows < kColumns ? from[0] + from[kRows] : from[0];
  return total;
}

// This block's rows of one matrix, a batch of tiles at a time. A group has its next chunks in registers, their slots
// free; at the beginning even before `prepare()` has waited for the input and returned its scale. `finish(local row, position,
// sum, second sum, scale)` is called once for each row, after each batch; for a gate, with the sums of both its rows.
template <bool kWide, int kForm, int kPositions, bool kStaged, class Prepare, class Finish>
MONOLANE_DEVICE void project(int tiles, Cursor<kWide>& cursor, const uint16_t* x, int stride, int width, Prepare prepare, Finish finish) {
  constexpr int kRows = kForms[kForm].tile_rows, kUnitCols = kForms[kForm].unit_cols, kBlocks = kUnitCols / kBlock;
  static_assert(kRows * kBlocks == kColumns, "a unit has all columns of a product");
  constexpr int kUnits = kForms[kForm].units, kChunks = kForms[kForm].chunks, kChunkUnits = kForms[kForm].chunk_units;
  constexpr int kBatch = kPositions > 1 ? kBatchOfMany : kBatchOfOne;
  constexpr int kAhead = kWide ? 1 : 2;  // chunks in registers
  constexpr bool kGate = kForms[kForm].output == Output::kGate;
  constexpr int kPerTile = kGate ? kRows / 2 : kRows;
  const int lane = lane_index(), warp = warp_index() % kGroupWarps, chunks = tiles * kChunks;
  const uint16_t* mine = x + (kPositions > 1 ? lane / 4 * stride : 0) + lane % 4 * 8 + warp * kUnitCols;
  int chunk = cursor.chunk, first = 0, count = min(kBatch, tiles);  // of the group; of the batch
  // Zeroed, or else the compiler keeps what the stage before has left, all the way to here, and spills.
  Word4 even[kMostUnits] = {}, odd[kMostUnits] = {};
  if (cursor.chunk < chunks) cursor.take(even, warp, lane);
  if (kAhead > 1 && cursor.chunk < chunks) cursor.take(odd, warp, lane);
  about_to_wait(kForWords);
  const float scale = prepare();
  about_to_wait(kForCopy);
  float sums[4][4] = {};
  const auto end_batch = [&] {
    sync_consumers();
#pragma unroll 1
    for (int i = thread_index(); i < count * kPositions * kPerTile; i += kConsumers) {
      const int row = i % kPerTile, position = i / kPerTile % kPositions, tile = i / (kPerTile * kPositions);
      if (position >= width) continue;
      const float sum = row_sum<kForm, kPositions>(tile, kGate ? 2 * row : row, position);
      const float second = kGate ? row_sum<kForm, kPositions>(tile, 2 * row + 1, position) : 0.0f;
      finish((first + tile) * kPerTile + row, position, sum, second, scale);
    }
    first += kBatch;
    count = min(kBatch, tiles - first);
    if (first < tiles) sync_consumers();  // the sums are overwritten next
  };
  // The chunk in `weights`, which then get the next that is not in registers. False when there is none left.
  const auto step = [&](Word4 (&weights)[kMostUnits]) {
    while (chunk >= (first + count) * kChunks) {
      end_batch();
      if (first >= tiles) return false;
    }
    const int tile = chunk / kChunks, part = chunk % kChunks;
    const uint16_t* from = mine + part * (kChunkUnits * kUnitCols);
    multiply<kBlocks, kPositions, kStaged, kChunkUnits, kChunks * kChunkUnits == kUnits>(weights, kUnits - part * kChunkUnits, from, stride, warp, sums);
    if (cursor.chunk < chunks) cursor.take(weights, warp, lane);
    // This group's next chunk of the same tile, if there is one, goes on with the same sums.
    if (part + kGroups >= kChunks) store_sums<kBlocks, kPositions>(tile - first, part % kGroups, warp, lane, sums);
    chunk += kGroups;
    return true;
  };
#pragma unroll 1
  while (step(even) && (kAhead == 1 || step(odd))) {
  }
  cursor.chunk -= chunks;
}

}  // namespace monolane
