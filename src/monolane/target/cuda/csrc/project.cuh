// Streaming a matrix through the tensor cores: the weights are the B operand (8 rows of 16 k), the positions are the rows
// of A, so one position or sixteen cost the same. A sum has a fixed order: per chunk of a tile along k, per warp, in turn.
#pragma once
#include "prepare.cuh"
#include "ring.cuh"

namespace monolane {

constexpr int kMostUnits = kSlotUnits / kGroupWarps;  // of one chunk, for one warp
// The chunks most of this model's bytes are in, if they are not full: they get code without conditions too.
constexpr int kCommonUnits = divide_up(round_up(kHidden, kBlock) / kBlock, divide_up(round_up(kHidden, kBlock) / kBlock, kSlotUnits)) / kGroupWarps;

// Four words of the input, from shared memory, or from global where it did not fit: past L1, which others do not write to.
template <bool kStaged>
MONOLANE_DEVICE Word4 input_words(const uint16_t* p) {
  return kStaged ? *reinterpret_cast<const Word4*>(p) : ptx::load_l2(reinterpret_cast<const Word4*>(p));
}

// A warp's units of one chunk, at one position or at sixteen; kUnits of them, or as many as the chunk has. Inputs are
// loaded together, so that the products need not wait one by one.
template <int kPositions, bool kStaged, int kUnits>
MONOLANE_DEVICE void multiply(const Word4 (&weights)[kMostUnits], int units, const uint16_t* x, int stride, float (&sums)[4][4]) {
  constexpr int kTogether = kPositions > 1 ? 2 : 4;
  const int warp = warp_index() % kGroupWarps, row = lane_index() / 4;
  const uint16_t* from = x + (kPositions > 1 ? row * stride : 0) + lane_index() % 4 * 8 + warp * kBlock;
  constexpr int kMost = kUnits ? kUnits : kMostUnits;
#pragma unroll
  for (int first = 0; first < kMost; first += kTogether) {
    Word4 a[kTogether], b[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; j++) {
      const int unit = (first + j) * kGroupWarps;
      a[j] = b[j] = {0, 0, 0, 0};
      if (first + j < kMost && (kUnits || unit + warp < units)) {
        a[j] = input_words<kStaged>(from + unit * kBlock);
        if (kPositions > 8) b[j] = input_words<kStaged>(from + 8 * stride + unit * kBlock);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; j++) {
      if (first + j >= kMost) continue;
      const Word4 w = weights[first + j];
      // What lies behind a short chunk in its slot is another chunk's: it must not be multiplied, not even with zero.
      if (!kUnits && (first + j) * kGroupWarps + warp >= units) continue;
      ptx::mma(sums[(2 * j) % 4], a[j].x, b[j].x, a[j].y, b[j].y, w.x, w.y);
      ptx::mma(sums[(2 * j + 1) % 4], a[j].z, b[j].z, a[j].w, b[j].w, w.z, w.w);
    }
  }
}

// Where the sums of one tile, one part of its chunks and one warp lie: [positions][8 rows].
template <int kPositions>
MONOLANE_DEVICE float* sums_at(int tile, int part, int warp) {
  return shared::sums() + ((tile * kGroups + part) * kGroupWarps + warp) * kPositions * kTileRows;
}

template <int kPositions>
MONOLANE_DEVICE void store_sums(int tile, int part, float (&sums)[4][4]) {
  const int row = lane_index() / 4, column = lane_index() % 4 * 2;
  float total[4];
  for (int i = 0; i < 4; i++) {
    total[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    for (int j = 0; j < 4; j++) sums[j][i] = 0.0f;
  }
  float* to = sums_at<kPositions>(tile, part, warp_index() % kGroupWarps);
  if (kPositions > 1) {
    to[row * kTileRows + column] = total[0], to[row * kTileRows + column + 1] = total[1];
    to[(row + 8) * kTileRows + column] = total[2], to[(row + 8) * kTileRows + column + 1] = total[3];
  } else if (row == 0) {
    to[column] = total[0], to[column + 1] = total[1];
  }
}

// The dot product of one row at one position: parts and warps in order.
template <int kPositions>
MONOLANE_DEVICE float row_sum(const Cut& cut, int tile, int row, int position) {
  float total = 0.0f;
  for (int part = 0; part < min(cut.chunks, kGroups); part++)
    for (int warp = 0; warp < kGroupWarps; warp++) total += sums_at<kPositions>(tile, part, warp)[position * kTileRows + row];
  return total;
}

// Tiles [first, first + count) of this block's segment: every group takes every third chunk.
template <bool kWide, int kPositions, bool kStaged>
MONOLANE_DEVICE void stream_tiles(int s, const Cursor<kWide>& cursor, int64_t first, int count, const uint16_t* x, int stride) {
  const Cut cut = kCuts[s];
  const uint32_t base = static_cast<uint32_t>(first) * cut.chunks;
  const int group = warp_index() / kGroupWarps;
  int chunk = (group + kGroups - static_cast<int>((cursor.taken + base) % kGroups)) % kGroups;
  int tile = 0, part = chunk;  // of this chunk: counted along, a division would cost as much as the product
  float sums[4][4] = {};
  for (; chunk < count * cut.chunks; chunk += kGroups, part += kGroups) {
    for (; part >= cut.chunks; part -= cut.chunks) tile++;
    const int units = min(cut.chunk_units, cut.units - part * cut.chunk_units);
    Word4 weights[kMostUnits];
    cursor.take(s, base + chunk, weights);
    const uint16_t* input = x + part * cut.chunk_units * kBlock;
    if (units == kMostUnits * kGroupWarps)
      multiply<kPositions, kStaged, kMostUnits>(weights, units, input, stride, sums);
    else if (units == kCommonUnits * kGroupWarps)
      multiply<kPositions, kStaged, kCommonUnits>(weights, units, input, stride, sums);
    else
      multiply<kPositions, kStaged, 0>(weights, units, input, stride, sums);
    // This group's next chunk of the same tile, if there is one, goes on with the same sums.
    if (part + kGroups >= cut.chunks) store_sums<kPositions>(tile, part % kGroups, sums);
  }
}

// A projection of this block's rows. `finish(local row, position, sum)` is called once for each, after each batch of
// tiles; for a gate, with the sums of both its rows.
template <bool kWide, int kPositions, bool kStaged, class Finish>
MONOLANE_DEVICE void project(int s, Cursor<kWide>& cursor, const uint16_t* x, int stride, int width, Finish finish) {
  const Stage& stage = kStages[s];
  const Cut cut = kCuts[s];
  constexpr int kBatch = kPositions > 1 ? kBatchOfMany : kBatchOfOne;
  const bool gate = stage.output == Output::kGate;
  const int per_tile = gate ? kTileRows / 2 : kTileRows;
  const int tiles = shared::own()[stage.projection].tiles;
  for (int first = 0; first < tiles; first += kBatch) {
    const int count = min(kBatch, tiles - first);
    stream_tiles<kWide, kPositions, kStaged>(s, cursor, first, count, x, stride);
    sync_consumers();
    for (int i = thread_index(); i < count * per_tile * width; i += kConsumers) {
      const int position = i / (count * per_tile), index = i % (count * per_tile);
      const int tile = index / per_tile, row = index % per_tile;
      const int local = (first + tile) * per_tile + row;
      if (gate)
        finish(local, position, row_sum<kPositions>(cut, tile, 2 * row, position), row_sum<kPositions>(cut, tile, 2 * row + 1, position));
      else
        finish(local, position, row_sum<kPositions>(cut, tile, row, position), 0.0f);
    }
    if (first + kBatch < tiles) sync_consumers();  // the sums are overwritten next
  }
  cursor.taken += tiles * cut.chunks;
}

}  // namespace monolane
