// Streaming a matrix through the tensor cores: the weights are the B operand (8 rows of 16 k), the positions are the rows
// of A, so one position or sixteen cost the same. A sum has a fixed order: per chunk of a tile along k, per warp, in turn.
#pragma once
#include "prepare.cuh"
#include "ring.cuh"

namespace monolane {

constexpr int kMostUnits = kSlotUnits / kGroupWarps;  // of one chunk, for one warp

// A warp's units of one chunk, at one position or at sixteen. `x` is shared memory, or global where it did not fit.
template <int kPositions>
MONOLANE_DEVICE void multiply(const Block& block, const Word4 (&weights)[kMostUnits], int units, const uint16_t* x, int stride, float (&sums)[4][4]) {
  const int warp = block.warp % kGroupWarps, row = block.lane / 4;
  const uint16_t* from = x + (kPositions > 1 ? row * stride : 0) + block.lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < kMostUnits; j++) {
    const int unit = j * kGroupWarps + warp;
    if (unit >= units) break;
    const Word4 a = *reinterpret_cast<const Word4*>(from + unit * kBlock);
    Word4 b = {0, 0, 0, 0};
    if (kPositions > 8) b = *reinterpret_cast<const Word4*>(from + 8 * stride + unit * kBlock);
    ptx::mma(sums[(2 * j) % 4], a.x, b.x, a.y, b.y, weights[j].x, weights[j].y);
    ptx::mma(sums[(2 * j + 1) % 4], a.z, b.z, a.w, b.w, weights[j].z, weights[j].w);
  }
}

// Where the sums of one tile, one part of its chunks and one warp lie: [positions][8 rows].
template <int kPositions>
MONOLANE_DEVICE float* sums_at(const Block& block, int tile, int part, int warp) {
  return block.sums() + ((tile * kGroups + part) * kGroupWarps + warp) * kPositions * kTileRows;
}

template <int kPositions>
MONOLANE_DEVICE void store_sums(const Block& block, int tile, int part, float (&sums)[4][4]) {
  const int row = block.lane / 4, column = block.lane % 4 * 2;
  float total[4];
  for (int i = 0; i < 4; i++) {
    total[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    for (int j = 0; j < 4; j++) sums[j][i] = 0.0f;
  }
  float* to = sums_at<kPositions>(block, tile, part, block.warp % kGroupWarps);
  if (kPositions > 1) {
    to[row * kTileRows + column] = total[0], to[row * kTileRows + column + 1] = total[1];
    to[(row + 8) * kTileRows + column] = total[2], to[(row + 8) * kTileRows + column + 1] = total[3];
  } else if (row == 0) {
    to[column] = total[0], to[column + 1] = total[1];
  }
}

// The dot product of one row at one position: parts and warps in order.
template <int kPositions>
MONOLANE_DEVICE float row_sum(const Block& block, const Cut& cut, int tile, int row, int position) {
  float total = 0.0f;
  for (int part = 0; part < min(cut.chunks, kGroups); part++)
    for (int warp = 0; warp < kGroupWarps; warp++) total += sums_at<kPositions>(block, tile, part, warp)[position * kTileRows + row];
  return total;
}

// Tiles [first, first + count) of this block's segment: every group takes every third chunk.
template <bool kWide, int kPositions>
MONOLANE_DEVICE void stream_tiles(const Block& block, int s, const Cursor<kWide>& cursor, int64_t first, int count, const uint16_t* x, int stride) {
  const Cut cut = kCuts[s];
  const uint32_t base = static_cast<uint32_t>(first) * cut.chunks;
  const int group = block.warp / kGroupWarps;
  int chunk = (group + kGroups - static_cast<int>((cursor.taken + base) % kGroups)) % kGroups;
  float sums[4][4] = {};
  for (; chunk < count * cut.chunks; chunk += kGroups) {
    const int tile = chunk / cut.chunks, part = chunk % cut.chunks;
    const int units = min(cut.chunk_units, cut.units - part * cut.chunk_units);
    Word4 weights[kMostUnits];
    cursor.take(block, s, base + chunk, units, weights);
    multiply<kPositions>(block, weights, units, x + part * cut.chunk_units * kBlock, stride, sums);
    // This group's next chunk of the same tile, if there is one, goes on with the same sums.
    if (part + kGroups >= cut.chunks) store_sums<kPositions>(block, tile, part % kGroups, sums);
  }
}

// A projection of this block's rows. `finish(local row, position, sum)` is called once for each, after each batch of
// tiles; for a gate, with the sums of both its rows.
template <bool kWide, int kPositions, class Finish>
MONOLANE_DEVICE void project(const Block& block, int s, Cursor<kWide>& cursor, const uint16_t* x, int stride, int width, Finish finish) {
  const Stage& stage = kStages[s];
  const Cut cut = kCuts[s];
  const Segment& segment = block.segment(stage.projection);
  constexpr int kBatch = kPositions > 1 ? kBatchOfMany : kBatchOfOne;
  const bool gate = stage.output == Output::kGate;
  const int per_tile = gate ? kTileRows / 2 : kTileRows;
  const int tiles = static_cast<int>(segment.tiles);
  for (int first = 0; first < tiles; first += kBatch) {
    const int count = min(kBatch, tiles - first);
    stream_tiles<kWide, kPositions>(block, s, cursor, first, count, x, stride);
    block.sync();
    for (int i = block.thread; i < count * per_tile * width; i += kConsumers) {
      const int position = i / (count * per_tile), index = i % (count * per_tile);
      const int tile = index / per_tile, row = index % per_tile;
      const int local = (first + tile) * per_tile + row;
      if (gate)
        finish(local, position, row_sum<kPositions>(block, cut, tile, 2 * row, position), row_sum<kPositions>(block, cut, tile, 2 * row + 1, position));
      else
        finish(local, position, row_sum<kPositions>(block, cut, tile, row, position), 0.0f);
    }
    if (first + kBatch < tiles) block.sync();  // the sums are overwritten next
  }
  cursor.taken += tiles * cut.chunks;
}

}  // namespace monolane
