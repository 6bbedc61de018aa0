// Attention. A work item is one split of the context, one position of the pass and one key/value head. The query heads
// that share it are divided among the warps; lanes hold eight dimensions of a few positions each. Where a context has
// several splits, the block that finishes a head's last split merges them, in order.
#pragma once
#include "prepare.cuh"

namespace monolane {

constexpr int kRowLanes = kHeadStride <= 8 ? 1 : kHeadStride <= 16 ? 2 : kHeadStride <= 32 ? 4 : kHeadStride <= 64 ? 8 : kHeadStride <= 128 ? 16 : 32;
constexpr int kStepPositions = 32 / kRowLanes;  // positions one warp looks at together
constexpr int kHeadWarps = kGroup < kConsumerWarps ? kConsumerWarps / kGroup : 1;  // warps per query head
constexpr int kRoundHeads = kConsumerWarps / kHeadWarps;                            // query heads at a time
static_assert(kHeadDim <= 256, "a head has at most 256 dimensions");

struct Partial {  // of one query head over some positions, in shared memory
  MONOLANE_DEVICE explicit Partial(float* p) : values(p), top(p[kHeadStride]), sum(p[kHeadStride + 1]) {}
  float* values;
  float &top, &sum;
};

// One head's vector: norm (where the model has one), then rotation. By one warp, from `raw(d)` to shared memory.
template <class Raw>
MONOLANE_DEVICE void rotate(const Block& block, int norm, float eps, int64_t position, Raw raw, float* out) {
  const float* weight = norm == kNone ? nullptr : block.launch.constants + norm;
  float scale = 1.0f;
  if (weight) {
    float squares = 0.0f;
    for (int d = block.lane; d < kHeadDim; d += 32) squares += raw(d) * raw(d);
    scale = ptx::reciprocal_root(sum_of_warp(squares) / kHeadDim + eps);
  }
  const float* turn = block.launch.rotations + position * kHeadDim;
  for (int i = block.lane; i < kHeadDim / 2; i += 32) {
    float low = raw(i), high = raw(i + kHeadDim / 2);
    if (weight) low *= scale * weight[i], high *= scale * weight[i + kHeadDim / 2];
    out[i] = low * turn[2 * i] - high * turn[2 * i + 1];
    out[i + kHeadDim / 2] = high * turn[2 * i] + low * turn[2 * i + 1];
  }
  for (int d = kHeadDim + block.lane; d < kHeadStride; d += 32) out[d] = 0.0f;
  ptx::sync_warp();
}

MONOLANE_DEVICE void unpack(const Word4& w, float (&v)[8]) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
  for (int i = 0; i < 4; i++) v[2 * i] = ptx::float_of(words[i] << 16), v[2 * i + 1] = ptx::float_of(words[i] & 0xffff0000u);
}

MONOLANE_DEVICE int64_t cache_row(const Launch& launch, int layer, int head, int64_t position) {
  return ((static_cast<int64_t>(layer) * kKvHeads + head) * launch.context + position) * kHeadStride;
}

// One query head over cached positions begin + turn * kStepPositions + …, by one warp; lanes with the same eight
// dimensions end with the same result.
MONOLANE_DEVICE void attend_positions(const Block& block, int layer, int head, const float* query, int64_t begin, int64_t end, int turn, Partial out) {
  const int d = block.lane % kRowLanes * 8;
  const bool active = d < kHeadStride;
  float q[8];
  for (int i = 0; i < 8; i++) q[i] = active ? query[d + i] * kScale : 0.0f;
  float top = -kInfinity, sum = 0.0f, values[8] = {};
  for (int64_t first = begin + turn * kStepPositions; first < end; first += kHeadWarps * kStepPositions) {
    const int64_t position = first + block.lane / kRowLanes;
    const bool seen = position < end && active;
    const int64_t row = cache_row(block.launch, layer, head, position) + d;
    Word4 key_bits = {0, 0, 0, 0}, value_bits = {0, 0, 0, 0};
    if (seen) {
      key_bits = ptx::load_l2(reinterpret_cast<const Word4*>(block.launch.keys + row));
      value_bits = ptx::load_l2(reinterpret_cast<const Word4*>(block.launch.values + row));
    }
    float key[8], value[8], score = 0.0f;
    unpack(key_bits, key);
    unpack(value_bits, value);
    for (int i = 0; i < 8; i++) score += q[i] * key[i];
    for (int mask = kRowLanes / 2; mask; mask >>= 1) score += ptx::shuffle_xor(score, mask);
    if (position >= end) score = -kInfinity;
    float highest = score;
    for (int mask = kRowLanes; mask < 32; mask <<= 1) highest = fmaxf(highest, ptx::shuffle_xor(highest, mask));
    const float above = fmaxf(top, highest), shrink = ptx::exponential(top - above), weight = ptx::exponential(score - above);
    sum = sum * shrink + weight;
    for (int i = 0; i < 8; i++) values[i] = values[i] * shrink + weight * value[i];
    top = above;
  }
  for (int mask = kRowLanes; mask < 32; mask <<= 1) {
    sum += ptx::shuffle_xor(sum, mask);
    for (int i = 0; i < 8; i++) values[i] += ptx::shuffle_xor(values[i], mask);
  }
  if (block.lane < kRowLanes && active)
    for (int i = 0; i < 8; i++) out.values[d + i] = values[i];
  if (block.lane == 0) out.top = top, out.sum = sum;
}

// Several partial results of one head as one, in order; dimension d of it, and its maximum and sum. `at(i)` finds them.
template <class At>
MONOLANE_DEVICE float merge(int count, int d, At at, float& top, float& sum) {
  top = -kInfinity;
  for (int i = 0; i < count; i++) top = fmaxf(top, at(i)[kHeadStride]);
  sum = 0.0f;
  float value = 0.0f;
  for (int i = 0; i < count; i++) {
    const float* part = at(i);
    if (part[kHeadStride] == -kInfinity) continue;
    const float weight = ptx::exponential(part[kHeadStride] - top);
    sum += weight * part[kHeadStride + 1];
    value += weight * part[d];
  }
  return value;
}

// Queries, keys and values of one position of the pass, as the projection made them.
template <bool kWide>
struct Qkv {
  const Block& block;
  int stage, row;
  uint32_t step;

  MONOLANE_DEVICE float operator()(int index) const {
    if (kWide) return block.launch.wide_qkv[row * (kQueries + 2 * kKeys) + index];
    return ptx::float_of(await_wide_word(block, stage, block.launch.qkv_words + index, step, kForWords));
  }
};

// Key and value of one position and head into the cache, by one warp; `scratch` holds one head.
template <bool kWide>
MONOLANE_DEVICE void append(const Block& block, int s, const Qkv<kWide>& qkv, int head, int64_t position, float* scratch) {
  const Stage& stage = kStages[s];
  rotate(block, stage.k_norm, stage.eps, position, [&](int d) { return qkv(kQueries + head * kHeadDim + d); }, scratch);
  const int64_t row = cache_row(block.launch, stage.layer, head, position);
  for (int d = block.lane; d < kHeadStride; d += 32) {
    block.launch.keys[row + d] = static_cast<uint16_t>(narrow_bits(scratch[d]));
    block.launch.values[row + d] = d < kHeadDim ? static_cast<uint16_t>(narrow_bits(qkv(kQueries + kKeys + head * kHeadDim + d))) : 0;
  }
  ptx::sync_warp();  // the scratch may be written again
}

// The item's heads, `round` of them at a time, from queries to merged partials of this split; `publish(head, d, value,
// top, sum)` is called by one thread for each dimension.
template <class Publish>
MONOLANE_DEVICE void attend_heads(const Block& block, int layer, int kv_head, const float* queries, int64_t begin, int64_t end, Publish publish) {
  float* parts = block.sums() + kGroup * kPartial;
  for (int first = 0; first < kGroup; first += kRoundHeads) {
    const int head = first + block.warp / kHeadWarps;
    if (block.warp < kRoundHeads * kHeadWarps && head < kGroup)
      attend_positions(block, layer, kv_head, queries + head * kHeadStride, begin, end, block.warp % kHeadWarps, Partial(parts + block.warp * kPartial));
    block.sync();
    const int heads = min(kRoundHeads, kGroup - first);
    for (int i = block.thread; i < heads * kHeadDim; i += kConsumers) {
      const int h = i / kHeadDim, d = i % kHeadDim;
      float top, sum;
      const float value = merge(kHeadWarps, d, [&](int w) { return parts + (h * kHeadWarps + w) * kPartial; }, top, sum);
      publish(kv_head * kGroup + first + h, d, value, top, sum);
    }
    block.sync();
  }
}

// Partials of all splits are in global memory: the last block to say so merges them.
template <class Publish>
MONOLANE_DEVICE void merge_splits(const Block& block, int row, int kv_head, int64_t first_split, int count, Publish publish) {
  const Launch& launch = block.launch;
  uint32_t* counter = launch.counters + row * kKvHeads + kv_head;
  uint32_t* last = reinterpret_cast<uint32_t*>(block.reduce());
  ptx::fence();
  block.sync();
  if (block.thread == 0) *last = ptx::add_acquire_release(counter, 1) == static_cast<uint32_t>(count) - 1;
  block.sync();
  if (!*last) return;
  ptx::fence();
  if (block.thread == 0) *counter = 0;
  for (int i = block.thread; i < kGroup * kHeadDim; i += kConsumers) {
    const int head = kv_head * kGroup + i / kHeadDim, d = i % kHeadDim;
    const auto at = [&](int j) {
      return launch.partials + ((static_cast<int64_t>(row) * launch.splits + first_split + j) * kHeads + head) * kPartial;
    };
    float top, sum;
    const float value = merge(count, d, at, top, sum);
    publish(head, d, value / sum);
  }
}

// One item. `publish(head, d, value)` hands the finished result over.
template <bool kWide, class Publish>
MONOLANE_DEVICE void attend_item(const Block& block, int s, const Qkv<kWide>& qkv, int64_t position, int64_t split, int kv_head, Publish publish) {
  const Launch& launch = block.launch;
  const Stage& stage = kStages[s];
  float* queries = block.sums();
  const int64_t first_split = first_seen(position, stage.window) / kSplit, last_split = position / kSplit;
  // A narrow pass appends its own position where it is needed; a wide one has appended all of its own before.
  if (!kWide && split == last_split && block.warp == kConsumerWarps - 1) append<kWide>(block, s, qkv, kv_head, position, block.sums() + kGroup * kPartial);
  for (int h = block.warp; h < kGroup; h += kConsumerWarps - 1) {
    if (block.warp == kConsumerWarps - 1) break;
    rotate(block, stage.q_norm, stage.eps, position, [&](int d) { return qkv((kv_head * kGroup + h) * kHeadDim + d); }, queries + h * kHeadStride);
  }
  block.sync();
  const int64_t from = first_seen(position, stage.window), until = (split + 1) * kSplit;
  const int64_t begin = from > split * kSplit ? from : split * kSplit, end = position + 1 < until ? position + 1 : until;
  const int count = static_cast<int>(last_split - first_split) + 1;
  attend_heads(block, stage.layer, kv_head, queries, begin, end, [&](int head, int d, float value, float top, float sum) {
    if (count == 1) return publish(head, d, value / sum);
    float* partial = launch.partials + ((static_cast<int64_t>(qkv.row) * launch.splits + split) * kHeads + head) * kPartial;
    partial[d] = value;
    if (d == 0) partial[kHeadStride] = top, partial[kHeadStride + 1] = sum;
  });
  if (count > 1) merge_splits(block, qkv.row, kv_head, first_split, count, publish);
}

}  // namespace monolane
