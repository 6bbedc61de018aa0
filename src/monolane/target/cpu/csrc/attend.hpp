// The attention stage. A work item is one KV head and one split of the context. The worker that has the item appends the new keys and values that
// fall into the split to the cache, and computes attention over the split for all rows of the pass and the KV head's query heads. It reads queries,
// keys and values of the pass from the buffer of the qkv projection and writes partial outputs, one for each row, split and query head; the stage
// that follows merges them (prepare_merge).
//
// Layout of the cache for one layer and one KV head: keys as [page of 16 positions][dimension][position of the page], so that one vector holds the
// attention scores of 16 positions; values as [position][dimension].
#pragma once
#include "prepare.hpp"

namespace monolane {

#if MONOLANE_CACHE_BF16
using Cached = uint16_t;
inline void put(uint16_t* p, float v) { *p = to_bf16(v); }
#else
using Cached = float;
inline void put(float* p, float v) { *p = v; }
#endif

constexpr int kQueries = kHeads * kHeadDim;
constexpr int kKeys = kKvHeads * kHeadDim;

struct CacheView {  // one layer, one KV head
  CacheView(const Lane& lane, int layer, int head) {
    const int64_t positions = lane.splits * kSplit;
    const int64_t base = ((static_cast<int64_t>(lane.local_index) * kLayers + layer) * kKvHeads + head) * positions;
    keys = static_cast<Cached*>(lane.cache.keys) + base * kHeadDim;
    values = static_cast<Cached*>(lane.cache.values) + base * kHeadStride;
  }
  Cached* key(int64_t position, int d) const {
    return keys + (position / kVectorFloats * kHeadDim + d) * kVectorFloats + position % kVectorFloats;
  }
  Cached* value(int64_t position) const { return values + position * kHeadStride; }
  Cached *keys, *values;
};

// QK norm (where the model has one) and RoPE of the query or key vector of one head. `row`: row of the pass.
inline void rotate(const Lane& lane, const float* in, int norm, float eps, int row, float* out) {
  alignas(64) float x[kHeadStride] = {};
  std::copy(in, in + kHeadDim, x);
  if (norm != kNone) {
    const float scale = inverse_rms(x, kHeadDim, eps);
    const float* weight = lane.constants + norm;
    for (int d = 0; d < kHeadDim; d++) x[d] = x[d] * scale * weight[d];
  }
  constexpr int kHalf = kHeadDim / 2;
  const float* cosine = lane.cosines.get() + row * kHalf;
  const float* sine = lane.sines.get() + row * kHalf;
  for (int i = 0; i < kHalf; i++) {
    out[i] = x[i] * cosine[i] - x[i + kHalf] * sine[i];
    out[i + kHalf] = x[i + kHalf] * cosine[i] + x[i] * sine[i];
  }
}

// Appends the new key and value of one row and one KV head to the cache.
inline void append(const Lane& lane, const Stage& stage, const CacheView& cache, const float* qkv, int head, int row, int64_t position) {
  alignas(64) float key[kHeadStride] = {};
  rotate(lane, qkv + kQueries + head * kHeadDim, stage.k_norm, stage.eps, row, key);
  const float* value = qkv + kQueries + kKeys + head * kHeadDim;
  for (int d = 0; d < kHeadDim; d++) {
    put(cache.key(position, d), key[d]);
    put(cache.value(position) + d, value[d]);
  }
}

// Query heads that are computed together: a key is loaded once for all of them, and their sums are independent of each other.
constexpr int kTogether = kQueriesPerKv < 4 ? kQueriesPerKv : 4;

// Attention of kCount query heads over positions [begin, end) of one split. The partial output of a head is its accumulator (values weighted by
// probabilities that are not normalised, kHeadStride floats), then its row max and its row sum.
template <int kCount>
inline void attend_split(const CacheView& cache, const float (*queries)[kHeadStride], int64_t begin, int64_t end, float* const* partials) {
  alignas(64) float weights[kCount][kSplit];
  const int64_t base = begin / kSplit * kSplit;
  const int64_t first_block = (begin - base) / kVectorFloats * kVectorFloats;
  float top[kCount];
  std::fill(top, top + kCount, -INFINITY);
  for (int64_t b = first_block; base + b < end; b += kVectorFloats) {
    F16 even[kCount], odd[kCount];  // sums over even and odd dimensions, so that an addition does not wait for the one before
    for (int q = 0; q < kCount; q++) even[q] = odd[q] = splat(0.0f);
    const Cached* keys = cache.key(base + b, 0);
    for (int d = 0; d < kHeadDim; d += 2) {
      const F16 key0 = load(keys + d * kVectorFloats), key1 = load(keys + (d + 1) * kVectorFloats);
      for (int q = 0; q < kCount; q++) {
        even[q] += splat(queries[q][d]) * key0;
        odd[q] += splat(queries[q][d + 1]) * key1;
      }
    }
    for (int q = 0; q < kCount; q++) {
      store(weights[q] + b, (even[q] + odd[q]) * splat(kScale));
      // Positions outside [begin, end) have undefined keys in the cache: their scores are masked, because a product with zero could be NaN.
      if (base + b < begin || base + b + kVectorFloats > end)
        for (int i = 0; i < kVectorFloats; i++)
          if (base + b + i < begin || base + b + i >= end) weights[q][b + i] = -INFINITY;
      top[q] = std::fmax(top[q], highest(load(weights[q] + b)));
    }
  }
  for (int q = 0; q < kCount; q++) {
    F16 total = splat(0.0f);
    for (int64_t b = first_block; base + b < end; b += kVectorFloats) {
      const F16 scores = load(weights[q] + b);
      const F16 e = select(scores == splat(-INFINITY), splat(0.0f), exponential(scores - splat(top[q])));
      store(weights[q] + b, e);
      total += e;
    }
    partials[q][kHeadStride] = top[q];
    partials[q][kHeadStride + 1] = sum(total);
  }
  for (int d = 0; d < kHeadStride; d += kVectorFloats) {
    F16 sums[kCount];
    for (auto& s : sums) s = splat(0.0f);
    for (int64_t j = begin; j < end; j++) {
      const F16 value = load(cache.value(j) + d);
      for (int q = 0; q < kCount; q++) sums[q] += splat(weights[q][j - base]) * value;
    }
    for (int q = 0; q < kCount; q++) store(partials[q] + d, sums[q]);
  }
}

template <int kCount>
inline void attend_heads(Lane& lane, const Stage& stage, const CacheView& cache, int row, int first_head, int64_t split, int64_t begin,
                         int64_t end) {
  alignas(64) float queries[kCount][kHeadStride] = {};
  float* partials[kCount];
  for (int q = 0; q < kCount; q++) {
    rotate(lane, lane.row(stage.reads, row) + (first_head + q) * kHeadDim, stage.q_norm, stage.eps, row, queries[q]);
    partials[q] = lane.partial(stage.writes, row, split, first_head + q);
  }
  attend_split<kCount>(cache, queries, begin, end, partials);
}

inline void attend(Worker& worker, const Stage& stage, const Pass& pass) {
  Lane& lane = worker.lane;
  const int64_t first = first_seen(pass.start, stage.window) / kSplit, last = (pass.start + pass.rows - 1) / kSplit;
  for (int64_t item = worker.rank; item < (last - first + 1) * kKvHeads; item += lane.setup.workers) {
    const int64_t split = first + item / kKvHeads;
    const int head = static_cast<int>(item % kKvHeads);
    const CacheView cache(lane, stage.layer, head);
    for (int p = 0; p < pass.rows; p++)
      if ((pass.start + p) / kSplit == split) append(lane, stage, cache, lane.row(stage.reads, p), head, p, pass.start + p);
    for (int p = 0; p < pass.rows; p++) {
      const int64_t begin = std::max(first_seen(pass.start + p, stage.window), split * kSplit);
      const int64_t end = std::min(pass.start + p + 1, (split + 1) * kSplit);
      if (begin >= end) continue;
      int q = head * kQueriesPerKv;
      for (; q + kTogether <= (head + 1) * kQueriesPerKv; q += kTogether)
        attend_heads<kTogether>(lane, stage, cache, p, q, split, begin, end);
      for (; q < (head + 1) * kQueriesPerKv; q++) attend_heads<1>(lane, stage, cache, p, q, split, begin, end);
    }
    worker.beat();
  }
}

}  // namespace monolane
