// Attention. A work item is one split of the context, one position of the pass and one key/value head; its query heads
// are divided among the warps. Every lane keeps eight dimensions of its query and looks at one position of several at a
// time. Cached keys and values are asked for before the query is there. Where a context has several splits, the block
// that finishes a head's last split merges them, in order.
#pragma once
#include "prepare.cuh"

namespace monolane {

constexpr int lanes_per_row() {
  int lanes = 1;
  while (lanes * 8 < kHeadStride) lanes *= 2;
  return lanes;
}
constexpr int kRowLanes = lanes_per_row();
constexpr int kStepPositions = 32 / kRowLanes;                                     // positions a warp looks at together
constexpr int kHeadWarps = kGroup < kConsumerWarps ? kConsumerWarps / kGroup : 1;  // warps per query head
constexpr int kRoundHeads = kConsumerWarps / kHeadWarps;                           // query heads at a time
constexpr int kAhead = 4;                                                          // steps whose loads are under way
static_assert(kHeadDim <= 256, "a head has at most 256 dimensions");

// Splits are as short as keeps their number small. Their length depends on the position alone.
MONOLANE_DEVICE int64_t split_length(int64_t position, int window) {
  int64_t length = kShortestSplit;
  while ((position - first_seen(position, window)) / length + 2 > kMostSplits) length *= 2;
  return length;
}

MONOLANE_DEVICE void unpack(const Word4& w, float (&v)[8]) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; i++) v[2 * i] = ptx::float_of(words[i] << 16), v[2 * i + 1] = ptx::float_of(words[i] & 0xffff0000u);
}

MONOLANE_DEVICE Word4 pack(const float (&v)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = narrow_bits(v[2 * i]) | narrow_bits(v[2 * i + 1]) << 16;
  return {words[0], words[1], words[2], words[3]};
}

MONOLANE_DEVICE int64_t cache_row(int layer, int head, int64_t position) {
  return ((static_cast<int64_t>(layer) * kKvHeads + head) * monolane_launch.context + position) * kHeadStride;
}

// A number that another block has written: past L1.
MONOLANE_DEVICE float load_float(const float* p) { return ptx::float_of(ptx::load_relaxed(reinterpret_cast<const uint32_t*>(p))); }

// Queries, keys and values of one position of the pass, as the projection made them.
template <bool kWide>
struct Qkv {
  int stage, row;
  uint32_t step;

  // Elements index(0), …, all asked for together; none where an index is negative.
  template <int kCount, class Index>
  MONOLANE_DEVICE void load(Index index, float (&v)[kCount]) const {
    if (kWide) {
      const float* from = monolane_launch.wide_qkv + row * (kQueries + 2 * kKeys);
#pragma unroll
      for (int i = 0; i < kCount; i++) v[i] = index(i) < 0 ? 0.0f : load_float(from + index(i));
      return;
    }
    uint64_t words[kCount];
    Wait waiting(stage, kForWords);
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int i = 0; i < kCount; i++) {
        words[i] = index(i) < 0 ? step : ptx::load_relaxed(monolane_launch.qkv_words + index(i));
        ready &= static_cast<uint32_t>(words[i]) == step;
      }
      if (ready || waiting.over()) break;
    }
#pragma unroll
    for (int i = 0; i < kCount; i++) v[i] = ptx::float_of(static_cast<uint32_t>(words[i] >> 32));
  }
};

// Eight dimensions from `d` of one head's vector: norm (where the model has one) and rotation. `both` has these eight and
// the eight they turn with. All lanes of a row take part.
constexpr int kHalf = kHeadDim / 2;
MONOLANE_DEVICE int mate(int d) { return d < kHalf ? d + kHalf : d - kHalf; }

MONOLANE_DEVICE void rotate(float* both, int d, int norm, float eps, int64_t position, float (&v)[8]) {
  if (kQkNorm) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += both[i] * both[i];
    for (int mask = kRowLanes / 2; mask; mask >>= 1) squares += ptx::shuffle_xor(squares, mask);
    const float scale = ptx::reciprocal_root(squares / kHeadDim + eps);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (d + i >= kHeadDim) continue;
      both[i] *= scale * monolane_launch.constants[norm + d + i];
      both[i + 8] *= scale * monolane_launch.constants[norm + mate(d + i)];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    v[i] = 0.0f;
    if (d + i >= kHeadDim) continue;
    const float* turn = monolane_launch.rotations + position * kHeadDim + 2 * (d + i < kHalf ? d + i : d + i - kHalf);
    v[i] = both[i] * turn[0] + both[i + 8] * (d + i < kHalf ? -turn[1] : turn[1]);
  }
}

// Where element i of eight dimensions from `d` and of their mates lies; `base` is where the vector begins.
MONOLANE_DEVICE int index_of(int base, int d, int i) {
  return d + i % 8 >= kHeadDim ? -1 : i < 8 ? base + d + i : base + mate(d + i - 8);
}

// Key and value of one position, as the cache keeps them; all lanes of a row take part.
struct Fresh {
  Word4 key, value;
};
template <bool kWide>
MONOLANE_DEVICE Fresh fresh(const Stage& stage, const Qkv<kWide>& qkv, int head, int64_t position) {
  const int d = lane_index() % kRowLanes * 8;
  float raw[24], key[8], value[8];  // the key's sixteen and the value's eight, asked for together
  qkv.load([&](int i) { return i < 16 ? index_of(kQueries + head * kHeadDim, d, i) : index_of(kQueries + kKeys + head * kHeadDim, d, i - 16); }, raw);
  rotate(raw, d, stage.k_norm, stage.eps, position, key);
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] = raw[16 + i];
  return {pack(key), pack(value)};
}

MONOLANE_DEVICE void append(int layer, int head, int64_t position, const Fresh& made) {
  const int d = lane_index() % kRowLanes * 8;
  if (d >= kHeadStride) return;
  const int64_t row = cache_row(layer, head, position) + d;
  *reinterpret_cast<Word4*>(monolane_launch.keys + row) = made.key;
  *reinterpret_cast<Word4*>(monolane_launch.values + row) = made.value;
}

// One query head over positions begin, … of one split, every kHeadWarps-th step of them, by one warp; the partial result
// goes to `out`. In a narrow pass the position itself is not in the cache yet: it is made here, and kept by the first head.
template <bool kWide>
MONOLANE_DEVICE void attend_positions(int s, const Qkv<kWide>& qkv, int kv_head, int head, int64_t position, int64_t begin, int64_t end, float* out) {
  const Stage& stage = kStages[s];
  const int d = lane_index() % kRowLanes * 8;
  const bool active = d < kHeadStride;
  const int64_t mine = begin + warp_index() % kHeadWarps * kStepPositions + lane_index() / kRowLanes;
  constexpr int kStride = kHeadWarps * kStepPositions;
  Word4 keys[kAhead], values[kAhead];
  const auto ask = [&](int64_t first) {
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      const int64_t p = first + j * kStride;
      keys[j] = values[j] = {0, 0, 0, 0};
      if (p < end && active && (kWide || p != position)) {
        const int64_t row = cache_row(stage.layer, kv_head, p) + d;
        keys[j] = ptx::load_l2(reinterpret_cast<const Word4*>(monolane_launch.keys + row));
        values[j] = ptx::load_l2(reinterpret_cast<const Word4*>(monolane_launch.values + row));
      }
    }
  };
  ask(mine);
  float raw[16], q[8];
  qkv.load([&](int i) { return index_of((kv_head * kGroup + head) * kHeadDim, d, i); }, raw);
  rotate(raw, d, stage.q_norm, stage.eps, position, q);
#pragma unroll
  for (int i = 0; i < 8; i++) q[i] *= kScale;
  Fresh made{};
  const bool ours = (position - begin) / kStepPositions % kHeadWarps == warp_index() % kHeadWarps;  // this warp's step
  if (!kWide && position < end && ours) {
    made = fresh(stage, qkv, kv_head, position);
    const bool here = (position - mine) % kStride == 0 && position >= mine;
    if (head == 0 && here) append(stage.layer, kv_head, position, made);
  }
  float top = -kInfinity, sum = 0.0f, total[8] = {};
  const int64_t steps = (end - begin + kStride - 1) / kStride;  // the same for all lanes: they shuffle together
  for (int64_t step = 0; step < steps; step += kAhead) {
    const int64_t first = mine + step * kStride;
    if (step) ask(first);
    float score[kAhead], highest = -kInfinity;
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      const int64_t p = first + j * kStride;
      if (!kWide && p == position) keys[j] = made.key, values[j] = made.value;
      float key[8], dot = 0.0f;
      unpack(keys[j], key);
#pragma unroll
      for (int i = 0; i < 8; i++) dot += q[i] * key[i];
      for (int mask = kRowLanes / 2; mask; mask >>= 1) dot += ptx::shuffle_xor(dot, mask);
      score[j] = p < end ? dot : -kInfinity;
      highest = fmaxf(highest, score[j]);
    }
    if (highest == -kInfinity) continue;  // none of this lane's positions is in the split
    const float above = fmaxf(top, highest), shrink = ptx::exponential(top - above);
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < 8; i++) total[i] *= shrink;
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      const float weight = ptx::exponential(score[j] - above);
      float value[8];
      unpack(values[j], value);
      sum += weight;
#pragma unroll
      for (int i = 0; i < 8; i++) total[i] += weight * value[i];
    }
    top = above;
  }
  // Rows of lanes have looked at different positions: bring them to one maximum and add them up.
  float highest = top;
  for (int mask = kRowLanes; mask < 32; mask <<= 1) highest = fmaxf(highest, ptx::shuffle_xor(highest, mask));
  const float shrink = top == -kInfinity ? 0.0f : ptx::exponential(top - highest);
  sum *= shrink;
#pragma unroll
  for (int i = 0; i < 8; i++) total[i] *= shrink;
  for (int mask = kRowLanes; mask < 32; mask <<= 1) {
    sum += ptx::shuffle_xor(sum, mask);
#pragma unroll
    for (int i = 0; i < 8; i++) total[i] += ptx::shuffle_xor(total[i], mask);
  }
  if (lane_index() < kRowLanes && active)
    for (int i = 0; i < 8; i++) out[d + i] = total[i];
  if (lane_index() == 0) out[kHeadStride] = highest, out[kHeadStride + 1] = sum;
}

// Several partial results of one head as one, in order: dimension d of it, its maximum and its sum. `at(i, d)` is
// dimension d of the i-th; behind the dimensions are its maximum and its sum.
template <class At>
MONOLANE_DEVICE float merge(int count, int d, At at, float& top, float& sum) {
  top = -kInfinity;
  for (int i = 0; i < count; i++) top = fmaxf(top, at(i, kHeadStride));
  sum = 0.0f;
  float value = 0.0f;
  for (int i = 0; i < count; i++) {
    const float highest = at(i, kHeadStride);
    const float weight = highest == -kInfinity ? 0.0f : ptx::exponential(highest - top);
    sum += weight * at(i, kHeadStride + 1);
    value += weight * at(i, d);
  }
  return value;
}

// Partials of all splits are in global memory: the last block to say so merges them.
template <class Publish>
MONOLANE_DEVICE void merge_splits(int row, int kv_head, int count, Publish publish) {
  uint32_t* counter = monolane_launch.counters + row * kKvHeads + kv_head;
  uint32_t* last = reinterpret_cast<uint32_t*>(shared::reduce());
  sync_consumers();
  if (thread_index() == 0) *last = ptx::add_acquire_release(counter, 1) == static_cast<uint32_t>(count) - 1;
  sync_consumers();
  if (!*last) return;
  if (thread_index() == 0) *counter = 0;
  for (int i = thread_index(); i < kGroup * kHeadDim; i += kConsumers) {
    const int head = kv_head * kGroup + i / kHeadDim, d = i % kHeadDim;
    const auto at = [&](int j, int k) { return load_float(monolane_launch.partials + ((static_cast<int64_t>(row) * kMostSplits + j) * kHeads + head) * kPartial + k); };
    float top, sum;
    const float value = merge(count, d, at, top, sum);
    publish(head, d, value / sum);
  }
}

// One item. `publish(head, d, value)` hands the finished result over.
template <bool kWide, class Publish>
MONOLANE_DEVICE void attend_item(int s, const Qkv<kWide>& qkv, int64_t position, int64_t length, int64_t split, int kv_head, Publish publish) {
  const Stage& stage = kStages[s];
  const int64_t from = first_seen(position, stage.window), until = (split + 1) * length;
  const int64_t begin = from > split * length ? from : split * length, end = position + 1 < until ? position + 1 : until;
  const int64_t first_split = from / length;
  const int count = static_cast<int>(position / length - first_split) + 1;
  float* parts = shared::sums();
  for (int first = 0; first < kGroup; first += kRoundHeads) {
    const int head = first + warp_index() / kHeadWarps;
    if (warp_index() < kRoundHeads * kHeadWarps && head < kGroup)
      attend_positions<kWide>(s, qkv, kv_head, head, position, begin, end, parts + warp_index() * kPartial);
    sync_consumers();
    const int heads = min(kRoundHeads, kGroup - first);
    for (int i = thread_index(); i < heads * kHeadDim; i += kConsumers) {
      const int h = i / kHeadDim, d = i % kHeadDim, q = kv_head * kGroup + first + h;
      float top, sum;
      const float value = merge(kHeadWarps, d, [&](int w, int k) { return parts[(h * kHeadWarps + w) * kPartial + k]; }, top, sum);
      if (count == 1) {
        publish(q, d, value / sum);
        continue;
      }
      float* partial = monolane_launch.partials + ((static_cast<int64_t>(qkv.row) * kMostSplits + split - first_split) * kHeads + q) * kPartial;
      partial[d] = value;
      if (d == 0) partial[kHeadStride] = top, partial[kHeadStride + 1] = sum;
    }
    sync_consumers();
  }
  if (count > 1) merge_splits(qkv.row, kv_head, count, publish);
}

}  // namespace monolane
