// Attention over a cache of keys and values. A work item is one key/value head and one split of the context: its owner
// appends this pass's keys and values that fall into the split, and attends to it for all positions and query heads.
// Keys lie in blocks of 16 positions, [block][dimension][position], so that 16 scores grow in one register;
// values lie row by row.
#pragma once
#include "prepare.hpp"

namespace monolane {

#if MONOLANE_CACHE_BF16
using Cached = uint16_t;
inline void put(uint16_t* p, float v) { *p = narrow(v); }
#else
using Cached = float;
inline void put(float* p, float v) { *p = v; }
#endif

constexpr int kQueries = kHeads * kHeadDim;
constexpr int kKeys = kKvHeads * kHeadDim;

struct CacheView {  // one layer, one key/value head
  CacheView(const Shared& shared, int layer, int head) {
    const int64_t positions = shared.splits * kSplit;
    const int64_t base = (static_cast<int64_t>(layer) * kKvHeads + head) * positions;
    keys = static_cast<Cached*>(shared.setup.keys) + base * kHeadDim;
    values = static_cast<Cached*>(shared.setup.values) + base * kHeadStride;
  }
  Cached* key(int64_t position, int d) const {
    return keys + (position / kLanes * kHeadDim + d) * kLanes + position % kLanes;
  }
  Cached* value(int64_t position) const { return values + position * kHeadStride; }
  Cached *keys, *values;
};

// Norm (where the model has one) and rotation of one head's vector.
inline void rotate(const Shared& shared, const float* in, int norm, float eps, int row, float* out) {
  alignas(64) float x[kHeadStride] = {};
  std::copy(in, in + kHeadDim, x);
  if (norm != kNone) {
    const float scale = inverse_rms(x, kHeadDim, eps);
    const float* weight = shared.setup.constants + norm;
    for (int d = 0; d < kHeadDim; d++) x[d] = x[d] * scale * weight[d];
  }
  constexpr int kHalf = kHeadDim / 2;
  const float* cosine = shared.cosines.get() + row * kHalf;
  const float* sine = shared.sines.get() + row * kHalf;
  for (int i = 0; i < kHalf; i++) {
    out[i] = x[i] * cosine[i] - x[i + kHalf] * sine[i];
    out[i + kHalf] = x[i + kHalf] * cosine[i] + x[i] * sine[i];
  }
}

inline void append(const Shared& shared, const Stage& stage, const CacheView& cache, const float* qkv, int head, int row, int64_t position) {
  alignas(64) float key[kHeadStride] = {};
  rotate(shared, qkv + kQueries + head * kHeadDim, stage.k_norm, stage.eps, row, key);
  const float* value = qkv + kQueries + kKeys + head * kHeadDim;
  for (int d = 0; d < kHeadDim; d++) {
    put(cache.key(position, d), key[d]);
    put(cache.value(position) + d, value[d]);
  }
}

// One query head over positions [begin, end) of one split: maximum, sum of exponentials, weighted values.
inline void attend_split(const CacheView& cache, const float* query, int64_t begin, int64_t end, float* partial) {
  alignas(64) float weights[kSplit];
  const int64_t base = begin / kSplit * kSplit;
  const int64_t first_block = (begin - base) / kLanes * kLanes;
  float top = -INFINITY;
  for (int64_t b = first_block; base + b < end; b += kLanes) {
    F16 scores = splat(0.0f);
    const Cached* keys = cache.key(base + b, 0);
    for (int d = 0; d < kHeadDim; d++) scores += splat(query[d]) * load(keys + d * kLanes);
    scores *= splat(kScale);
    // Keys outside [begin, end) have whatever the cache held before: they are masked, not multiplied by zero.
    for (int i = 0; i < kLanes; i++)
      if (base + b + i < begin || base + b + i >= end) scores[i] = -INFINITY;
    store(weights + b, scores);
    top = std::fmax(top, highest(scores));
  }
  F16 total = splat(0.0f);
  for (int64_t b = first_block; base + b < end; b += kLanes) {
    F16 e = exponential(load(weights + b) - splat(top));
    for (int i = 0; i < kLanes; i++)
      if (base + b + i < begin || base + b + i >= end) e[i] = 0.0f;
    store(weights + b, e);
    total += e;
  }
  F16 sums[kHeadStride / kLanes];
  for (auto& s : sums) s = splat(0.0f);
  for (int64_t j = begin; j < end; j++) {
    const F16 weight = splat(weights[j - base]);
    const Cached* value = cache.value(j);
    for (int d = 0; d < kHeadStride / kLanes; d++) sums[d] += weight * load(value + d * kLanes);
  }
  for (int d = 0; d < kHeadStride / kLanes; d++) store(partial + d * kLanes, sums[d]);
  partial[kHeadStride] = top;
  partial[kHeadStride + 1] = sum(total);
}

inline void attend(Worker& worker, const Stage& stage, const Pass& pass) {
  Shared& shared = worker.shared;
  const int64_t first = first_seen(pass.start, stage.window) / kSplit, last = (pass.start + pass.width - 1) / kSplit;
  for (int64_t item = worker.id; item < (last - first + 1) * kKvHeads; item += shared.setup.workers) {
    const int64_t split = first + item / kKvHeads;
    const int head = static_cast<int>(item % kKvHeads);
    const CacheView cache(shared, stage.layer, head);
    for (int p = 0; p < pass.width; p++)
      if ((pass.start + p) / kSplit == split) append(shared, stage, cache, shared.row(stage.reads, p), head, p, pass.start + p);
    for (int p = 0; p < pass.width; p++) {
      const int64_t begin = std::max(first_seen(pass.start + p, stage.window), split * kSplit);
      const int64_t end = std::min(pass.start + p + 1, (split + 1) * kSplit);
      if (begin >= end) continue;
      for (int q = head * kGroup; q < (head + 1) * kGroup; q++) {
        alignas(64) float query[kHeadStride] = {};
        rotate(shared, shared.row(stage.reads, p) + q * kHeadDim, stage.q_norm, stage.eps, p, query);
        attend_split(cache, query, begin, end, shared.partial(stage.writes, p, split, q));
      }
    }
  }
}

}  // namespace monolane
