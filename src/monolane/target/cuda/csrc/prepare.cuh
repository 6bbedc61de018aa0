// The input of a projection in shared memory, as bf16, prepared by every block for itself. A norm's weight is multiplied
// in here, its scale at the end, when the sums are in: it is one number per position.
#pragma once
#include "handoff.cuh"

namespace monolane {

// Loads of a thread that are under way together: as many as most inputs need.
constexpr int kNormBurst = 2, kPlainBurst = 6;
constexpr uint32_t kOne = 0x3f800000u;  // the bits of 1.0f

// Four consecutive elements of a token's embedding; `k` is a multiple of 4.
MONOLANE_DEVICE void embedding(int32_t token, int k, float (&v)[4]) {
  const uint16_t* from =
      monolane_launch.table ? monolane_launch.table + static_cast<int64_t>(token) * kHidden + k
                   : reinterpret_cast<const uint16_t*>(monolane_launch.head_tiles[token / kTileRows]) + k / kBlock * (kTileRows * kBlock) +
                         token % kTileRows * kBlock + k % kBlock;
  for (int i = 0; i < 4; i++) v[i] = k + i < kHidden ? widen(from[i]) : 0.0f;
}

// Where a projection's input comes from: the embedding, words with tags, or plain bf16.
struct Source {
  int32_t token;          // the embedding of this token, if not kNone
  const uint32_t* words;  // else these words, if not null
  const uint16_t* plain;  // else these
  uint32_t step;          // the tag of the words

  MONOLANE_DEVICE void load(int stage, int k, int cols, float (&v)[4]) const {
    if (token != kNone) return embedding(token, k, v);
    if (!words && k + 4 <= cols) {  // rows of plain elements are 64-byte aligned
      const uint64_t four = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(plain + k));  // past L1, as all that others write
      for (int i = 0; i < 4; i++) v[i] = widen(static_cast<uint16_t>(four >> 16 * i));
      return;
    }
    for (int i = 0; i < 4; i++)
      v[i] = k + i >= cols ? 0.0f : words ? value_of(await_word(stage, words + k + i, step)) : widen(plain[k + i]);
  }
};

// Four elements, with a norm's weights, into `x`; returns their sum of squares.
MONOLANE_DEVICE float store_four(const float (&v)[4], const Word4& weight, uint16_t* x) {
  const float weights[4] = {ptx::float_of(weight.x), ptx::float_of(weight.y), ptx::float_of(weight.z), ptx::float_of(weight.w)};
  uint32_t bits[4];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    squares += v[i] * v[i];
    bits[i] = narrow_bits(v[i] * weights[i]);
  }
  uint32_t* to = reinterpret_cast<uint32_t*>(x);
  to[0] = bits[0] | bits[1] << 16;
  to[1] = bits[2] | bits[3] << 16;
  return squares;
}

// Words that carry tags: a burst of loads at a time, a norm's weights before them, looked at until all tags are right.
template <bool kNorm, int kBurst>
MONOLANE_DEVICE float prepare_words(int s, const uint32_t* words, uint32_t step, const Word4* weights, uint16_t* x) {
  const int cols = kStages[s].cols / 4 * 4;
  float squares = 0.0f;
  for (int base = thread_index() * 4; base < cols; base += kBurst * kConsumers * 4) {
    Word4 weight[kBurst], v[kBurst];
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int k = base + j * kConsumers * 4;
      weight[j] = {kOne, kOne, kOne, kOne};
      if (kNorm && k < cols) weight[j] = weights[k / 4];
      v[j] = {0, 0, 0, 0};
    }
    Wait waiting(s, kForWords);
    for (;;) {
      uint32_t wrong = 0;
#pragma unroll
      for (int j = 0; j < kBurst; j++) {
        const int k = base + j * kConsumers * 4;
        if (k < cols) {
          v[j] = ptx::load_relaxed(reinterpret_cast<const Word4*>(words + k));
          wrong |= (v[j].x ^ step) | (v[j].y ^ step) | (v[j].z ^ step) | (v[j].w ^ step);
        }
      }
      if ((wrong & 0xffffu) == 0 || waiting.over()) break;
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int k = base + j * kConsumers * 4;
      const float values[4] = {value_of(v[j].x), value_of(v[j].y), value_of(v[j].z), value_of(v[j].w)};
      if (k < cols) squares += store_four(values, weight[j], x + k);
    }
  }
  return squares;
}

// Elements of one position into `x`, thread by thread; returns this thread's part of the sum of squares.
MONOLANE_DEVICE float prepare_part(int s, const Source& source, uint16_t* x, int thread, int threads) {
  const Stage& stage = kStages[s];
  const Word4* weights = stage.input == Input::kNorm ? reinterpret_cast<const Word4*>(monolane_launch.constants + stage.norm) : nullptr;
  float squares = 0.0f;
  int first = 0;
  if (source.token == kNone && source.words) {
    squares = weights ? prepare_words<true, kNormBurst>(s, source.words, source.step, weights, x)
                      : prepare_words<false, kPlainBurst>(s, source.words, source.step, weights, x);
    first = stage.cols / 4 * 4;  // a tail of fewer than four, and the padding, are left
  }
  for (int k = first + thread * 4; k < round_up(stage.cols, kBlock); k += threads * 4) {
    float v[4] = {};
    if (k < stage.cols) source.load(s, k, stage.cols, v);
    squares += store_four(v, weights && k < stage.cols ? weights[k / 4] : Word4{kOne, kOne, kOne, kOne}, x + k);
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
MONOLANE_DEVICE float prepare_one(int s, const Source& source) {
  const float squares = sum_of_warp(prepare_part(s, source, shared::x(), thread_index(), kConsumers));
  if (lane_index() == 0) shared::reduce()[warp_index()] = squares;
  sync_consumers();
  float total = 0.0f;
  for (int w = 0; w < kConsumerWarps; w++) total += shared::reduce()[w];
  return norm_scale(kStages[s], total);
}

// All positions of a wide pass, a warp each; the scales go to `reduce`.
template <class SourceOf>
MONOLANE_DEVICE void prepare_wide(int s, int width, SourceOf source_of) {
  for (int p = warp_index(); p < width; p += kConsumerWarps) {
    const float squares = sum_of_warp(prepare_part(s, source_of(p), shared::wide_x() + p * kWideStride, lane_index(), 32));
    if (lane_index() == 0) shared::reduce()[p] = norm_scale(kStages[s], squares);
  }
  sync_consumers();
}

}  // namespace monolane
