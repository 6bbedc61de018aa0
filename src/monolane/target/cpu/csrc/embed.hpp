// The first stage of a pass: the embedding of each row's token, and the RoPE coefficients of its position. Workers take the rows in turn. Embeddings
// go to the buffer that the stage writes, cosines and sines to Lane.
#pragma once
#include <cmath>

#include "lowbit.hpp"

namespace monolane {

inline void embed_row(Lane& lane, int32_t token, float* out) {
  if (lane.setup.table) {
    const uint8_t* row = lane.setup.table + static_cast<int64_t>(token) * kTableRowBytes;
    with_format(kTableFormat, [&](auto format) { widen_row<decltype(format), 1>(row, 0, kHidden, out); });
    if (kTableFormat == kBf16)
      for (int k = 0; k < kHidden; k++) out[k] = from_bf16(reinterpret_cast<const uint16_t*>(row)[k]);
    return;
  }
  // Tied embedding, with one lane: the token's row is a row of the output head, on the tape of the worker that owns it.
  const int64_t tile = token / kTileRows;
  const uint8_t* bytes = nullptr;
  for (int w = 0; w < lane.setup.workers; w++) {
    const Segment& s = lane.segment(w, kProjections - 1);
    if (tile >= s.first_tile && tile < s.first_tile + s.tiles)
      bytes = lane.setup.tapes[w] + s.offset + (tile - s.first_tile) * kHeadWeights.tile_bytes;
  }
  with_format(kHeadWeights.format, [&](auto format) { widen_row<decltype(format), kTileRows>(bytes, token % kTileRows, kHidden, out); });
  if (kHeadWeights.format != kBf16) return;
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(bytes) + token % kTileRows * kKBlock;
  for (int k = 0; k < kHidden; k++) out[k] = from_bf16(weights[k / kKBlock * (kTileRows * kKBlock) + k % kKBlock]);
}

inline void embed(Worker& worker, const Stage& stage, const Pass& pass) {
  Lane& lane = worker.lane;
  for (int p = worker.rank; p < pass.rows; p += lane.setup.workers) {
    embed_row(lane, pass.tokens[p], lane.row(stage.writes, p));
    for (int i = 0; i < kHeadDim / 2; i++) {
      const double angle = static_cast<double>(pass.start + p) * kFrequencies[i];
      lane.cosines[p * (kHeadDim / 2) + i] = static_cast<float>(std::cos(angle));
      lane.sines[p * (kHeadDim / 2) + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace monolane
