// The input of a projection in shared memory, as bf16, prepared by every block for itself. A norm's weight is multiplied
// in here, its scale at the end, when the sums are in: it is one number per position.
#pragma once
#include "handoff.cuh"

namespace monolane {

// Four consecutive elements of a token's embedding; `k` is a multiple of 4.
MONOLANE_DEVICE void embedding(const Launch& launch, int32_t token, int k, float (&v)[4]) {
  const uint16_t* from =
      launch.table ? launch.table + static_cast<int64_t>(token) * kHidden + k
                   : reinterpret_cast<const uint16_t*>(launch.head_tiles[token / kTileRows]) + k / kBlock * (kTileRows * kBlock) +
                         token % kTileRows * kBlock + k % kBlock;
  for (int i = 0; i < 4; i++) v[i] = k + i < kHidden ? widen(from[i]) : 0.0f;
}

// Where a projection's input comes from: the embedding, words with tags, or plain bf16.
struct Source {
  int32_t token;          // the embedding of this token, if not kNone
  const uint32_t* words;  // else these words, if not null
  const uint16_t* plain;  // else these
  uint32_t step;          // the tag of the words

  MONOLANE_DEVICE void load(const Block& block, int stage, int k, int cols, float (&v)[4]) const {
    if (token != kNone) return embedding(block.launch, token, k, v);
    if (words && k + 4 <= cols) {
      const Word4 w = await_words(block, stage, words + k, step);
      v[0] = value_of(w.x), v[1] = value_of(w.y), v[2] = value_of(w.z), v[3] = value_of(w.w);
      return;
    }
    if (!words && k + 4 <= cols) {  // rows of plain elements are 64-byte aligned
      const uint32_t* pairs = reinterpret_cast<const uint32_t*>(plain + k);
      for (int i = 0; i < 2; i++) v[2 * i] = ptx::float_of(pairs[i] << 16), v[2 * i + 1] = ptx::float_of(pairs[i] & 0xffff0000u);
      return;
    }
    for (int i = 0; i < 4; i++)
      v[i] = k + i >= cols ? 0.0f : words ? value_of(await_word(block, stage, words + k + i, step)) : widen(plain[k + i]);
  }
};

// Elements thread * 4, … of one position into `x`; returns this thread's part of the sum of squares.
MONOLANE_DEVICE float prepare_part(const Block& block, int s, const Source& source, uint16_t* x, int thread, int threads) {
  const Stage& stage = kStages[s];
  const float* weight = stage.input == Input::kNorm ? block.launch.constants + stage.norm : nullptr;
  float squares = 0.0f;
  for (int k = thread * 4; k < round_up(stage.cols, kBlock); k += threads * 4) {
    float v[4] = {};
    if (k < stage.cols) source.load(block, s, k, stage.cols, v);
    uint32_t bits[4];
    for (int i = 0; i < 4; i++) {
      squares += v[i] * v[i];
      bits[i] = narrow_bits(weight && k + i < stage.cols ? v[i] * weight[k + i] : v[i]);
    }
    uint32_t* to = reinterpret_cast<uint32_t*>(x + k);
    to[0] = bits[0] | bits[1] << 16;
    to[1] = bits[2] | bits[3] << 16;
  }
  return squares;
}

MONOLANE_DEVICE float sum_of_warp(float v) {
  for (int mask = 16; mask; mask >>= 1) v += ptx::shuffle_xor(v, mask);
  return v;
}

MONOLANE_DEVICE float norm_scale(const Stage& stage, float squares) {
  return stage.input == Input::kNorm ? ptx::reciprocal_root(squares / static_cast<float>(stage.cols) + stage.eps) : 1.0f;
}

// One position, by all consumers; returns its scale.
MONOLANE_DEVICE float prepare_one(const Block& block, int s, const Source& source) {
  const float squares = sum_of_warp(prepare_part(block, s, source, block.x(), block.thread, kConsumers));
  if (block.lane == 0) block.reduce()[block.warp] = squares;
  block.sync();
  float total = 0.0f;
  for (int w = 0; w < kConsumerWarps; w++) total += block.reduce()[w];
  return norm_scale(kStages[s], total);
}

// All positions of a wide pass, a warp each; the scales go to `reduce`.
template <class SourceOf>
MONOLANE_DEVICE void prepare_wide(const Block& block, int s, int width, SourceOf source_of) {
  for (int p = block.warp; p < width; p += kConsumerWarps) {
    const float squares = sum_of_warp(prepare_part(block, s, source_of(p), block.wide_x() + p * kWideStride, block.lane, 32));
    if (block.lane == 0) block.reduce()[p] = norm_scale(kStages[s], squares);
  }
  block.sync();
}

}  // namespace monolane
