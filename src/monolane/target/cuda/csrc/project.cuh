// Streaming a matrix through the tensor cores: the weights are the B operand (8 rows of 16 k), the positions are the rows
// of A, so one position or sixteen cost the same. A sum has a fixed order: per chunk of a tile along k, per warp, in turn.
#pragma once
#include "prepare.cuh"
#include "ring.cuh"

namespace monolane {

constexpr int kMostUnits = kSlotUnits / kGroupWarps;  // of one chunk, for one warp

// A warp's units of a chunk of kUnits, or, where chunks are not all alike, of `units`; at one position or at sixteen.
// `from` is this lane's place in the input. Inputs are loaded together, so that products need not wait one by one.
template <int kPositions, bool kStaged, int kUnits, bool kAlike>
MONOLANE_DEVICE void multiply(const Word4 (&weights)[kMostUnits], int units, const uint16_t* from, int stride, int warp, float (&sums)[4][4]) {
  // From shared memory, a few at a time; from global memory, where each wait is long, all of them.
  constexpr int kMine = divide_up(kUnits, kGroupWarps), kTogether = !kStaged ? kMostUnits : kPositions > 1 ? 2 : 4;
  // What lies behind a short chunk in its slot is another chunk's: it must not be multiplied, not even with zero.
  const auto there = [&](int j) { return j < kMine && ((kAlike && (j + 1) * kGroupWarps <= kUnits) || j * kGroupWarps + warp < (kAlike ? kUnits : units)); };
#pragma unroll
  for (int first = 0; first < kMine; first += kTogether) {
    Word4 a[kTogether], b[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; j++) {
      a[j] = b[j] = {0, 0, 0, 0};
      if (!there(first + j)) continue;
      const int k = (first + j) * kGroupWarps * kBlock;
      a[j] = input_words<kStaged>(from + k);
      if (kPositions > 8) b[j] = input_words<kStaged>(from + 8 * stride + k);
    }
#pragma unroll
    for (int j = 0; j < kTogether; j++) {
      if (!there(first + j)) continue;
      const Word4 w = weights[first + j];
      ptx::mma(sums[(2 * j) % 4], a[j].x, b[j].x, a[j].y, b[j].y, w.x, w.y);
      ptx::mma(sums[(2 * j + 1) % 4], a[j].z, b[j].z, a[j].w, b[j].w, w.z, w.w);
    }
  }
}

// Where the sums of one tile, one part of its chunks and one warp lie: [positions][8 rows].
template <int kPositions>
MONOLANE_DEVICE float* sums_at(int tile, int part, int warp) {
  float* first = kPositions > 1 ? shared::wide_sums() : shared::sums();
  return first + ((tile * kGroups + part) * kGroupWarps + warp) * kPositions * kTileRows;
}

template <int kPositions>
MONOLANE_DEVICE void store_sums(int tile, int part, int warp, int lane, float (&sums)[4][4]) {
  const int row = lane / 4, column = lane % 4 * 2;
  float total[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    total[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[j][i] = 0.0f;
  }
  float* to = sums_at<kPositions>(tile, part, warp);
  if (kPositions > 1) {
    to[row * kTileRows + column] = total[0], to[row * kTileRows + column + 1] = total[1];
    to[(row + 8) * kTileRows + column] = total[2], to[(row + 8) * kTileRows + column + 1] = total[3];
  } else if (row == 0) {
    to[column] = total[0], to[column + 1] = total[1];
  }
}

// The dot product of one row at one position: parts and warps in order.
template <int kForm, int kPositions>
MONOLANE_DEVICE float row_sum(int tile, int row, int position) {
  const float* from = sums_at<kPositions>(tile, 0, 0) + position * kTileRows + row;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < lesser(kForms[kForm].chunks, kGroups) * kGroupWarps; i++) total += from[i * kPositions * kTileRows];
  return total;
}

// This block's rows of one matrix, a batch of tiles at a time. A group has its next chunks in registers, their slots
// free; at the beginning even before `prepare()` has waited for the input and returned its scale. `finish(local row, position,
// sum, second sum, scale)` is called once for each row, after each batch; for a gate, with the sums of both its rows.
template <bool kWide, int kForm, int kPositions, bool kStaged, class Prepare, class Finish>
MONOLANE_DEVICE void project(int tiles, Cursor<kWide>& cursor, const uint16_t* x, int stride, int width, Prepare prepare, Finish finish) {
  constexpr int kUnits = kForms[kForm].units, kChunks = kForms[kForm].chunks, kChunkUnits = kForms[kForm].chunk_units;
  constexpr int kBatch = kPositions > 1 ? kBatchOfMany : kBatchOfOne;
  constexpr int kAhead = kWide ? 1 : 2;  // chunks in registers
  constexpr bool kGate = kForms[kForm].output == Output::kGate;
  constexpr int kPerTile = kGate ? kTileRows / 2 : kTileRows;
  const int lane = lane_index(), warp = warp_index() % kGroupWarps, chunks = tiles * kChunks;
  const uint16_t* mine = x + (kPositions > 1 ? lane / 4 * stride : 0) + lane % 4 * 8 + warp * kBlock;
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
    const uint16_t* from = mine + part * (kChunkUnits * kBlock);
    multiply<kPositions, kStaged, kChunkUnits, kChunks * kChunkUnits == kUnits>(weights, kUnits - part * kChunkUnits, from, stride, warp, sums);
    if (cursor.chunk < chunks) cursor.take(weights, warp, lane);
    // This group's next chunk of the same tile, if there is one, goes on with the same sums.
    if (part + kGroups >= kChunks) store_sums<kPositions>(tile - first, part % kGroups, warp, lane, sums);
    chunk += kGroups;
    return true;
  };
#pragma unroll 1
  while (step(even) && (kAhead == 1 || step(odd))) {
  }
  cursor.chunk -= chunks;
}

}  // namespace monolane
