// The stage of attention: who takes which split, where queries, keys and values come from, where results go. Where there
// are a few splits, the stage that follows merges them on its way in (prepare_parts); where there are more, or in a wide
// pass, every block merges some elements here.
#pragma once
#include "split.cuh"

namespace monolane {

// An activation for the stage that follows.
template <bool kPrefill>
MONOLANE_DEVICE void publish_activation(int buffer, int row, int position, float v, uint32_t step) {
  if (kPrefill)
    monolane_launch.prefill_activations[kPrefillOffsets[buffer] + position * kBufferStrides[buffer] + row] = static_cast<uint16_t>(bf16_bits(v));
  else
    ptx::store_relaxed(monolane_launch.activation_words + kWordOffsets[buffer] + row, tagged(v, step));
}

MONOLANE_DEVICE uint32_t* partial_output(int position, int split) { return monolane_launch.partial_outputs + (position * kMaxSplits + split) * kQueryDims; }
// A line of memory each: in one line they would all lie in one slice of L2, and all blocks look at them at once.
constexpr int kLseStride = kLineBytes / 8;
MONOLANE_DEVICE uint64_t* split_lse(int position, int split, int head) {
  return monolane_launch.split_lses + ((position * kMaxSplits + split) * kHeads + head) * kLseStride;
}

// Splits as one: results in order, each with its weight.
struct MergeState {
  float row_max = -kInfinity, row_sum = 0.0f;

  // Factors of the next kCount splits (mass -infinity: not there); what was merged so far is to be multiplied by the result.
  template <int kCount>
  MONOLANE_DEVICE float add(const float (&lse)[kCount], float (&factor)[kCount]) {
    float above = row_max;
#pragma unroll
    for (int i = 0; i < kCount; i++) above = fmaxf(above, lse[i]);
    const float shrink = ptx::exp2(row_max - above);
row_max = above;
row_sum *= shrink;
#pragma unroll
    for (int i = 0; i < kCount; i++) row_sum += factor[i] = ptx::exp2(lse[i] - above);
    return shrink;
  }
};

constexpr int kAttended = AttentionOut::kReads;  // the buffer of results

// Splits of a narrow pass, by every block some elements: a lane has a few elements of a split, or of two, and lanes are
// merged two by two, so that all splits are asked for at once.
constexpr int kMergeLanes = lesser(32, power_of_two_from(kMaxSplits)), kLaneSplits = divide_up(kMaxSplits, kMergeLanes);
constexpr int kMergeElements = kHeadDim % 4 == 0 ? 4 : 1;

template <class Combine>
MONOLANE_DEVICE float over_merge_lanes(float v, Combine combine) {
#pragma unroll
  for (int mask = kMergeLanes / 2; mask; mask /= 2) v = combine(v, ptx::shuffle_xor(v, mask));
  return v;
}

MONOLANE_DEVICE bool load_partial(int split, int element, uint32_t step, float (&v)[kMergeElements]) {
  const uint32_t* from = partial_output(0, split) + element;
  if constexpr (kMergeElements == 4) {
    const Word4 words = ptx::load_relaxed(reinterpret_cast<const Word4*>(from));
    v[0] = value_of(words.x), v[1] = value_of(words.y), v[2] = value_of(words.z), v[3] = value_of(words.w);
    return (((words.x ^ step) | (words.y ^ step) | (words.z ^ step) | (words.w ^ step)) & 0xffffu) == 0;
  } else {
    const uint32_t word = ptx::load_relaxed(from);
    v[0] = value_of(word);
    return is_tagged(word, step);
  }
}

MONOLANE_DEVICE void merge_decode(int splits, uint32_t step) {
  constexpr int kAtOnce = 32 / kMergeLanes, kItems = kQueryDims / kMergeElements, kEach = divide_up(kItems, kWorkers);
  const int lane = lane_id() % kMergeLanes;
#pragma unroll 1
  for (int base = warp_id() * kAtOnce; base < kEach; base += kConsumerWarps * kAtOnce) {
    const int i = base + lane_id() / kMergeLanes, item = worker_id() * kEach + i;
    const int element = min(item, kItems - 1) * kMergeElements;
    float part[kLaneSplits][kMergeElements] = {}, lse[kLaneSplits];
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int j = 0; j < kLaneSplits; j++) {
        const int split = lane + j * kMergeLanes;
        lse[j] = -kInfinity;
        if (split >= splits) continue;
        const uint64_t word = ptx::load_relaxed(split_lse(0, split, element / kHeadDim));
        ready &= load_partial(split, element, step, part[j]) && static_cast<uint32_t>(word) == step;
        lse[j] = ptx::float_of(static_cast<uint32_t>(word >> 32));
      }
      if (all_ready(ready)) break;
    }
    float top = lse[0], weight = 0.0f, total[kMergeElements] = {};
#pragma unroll
    for (int j = 1; j < kLaneSplits; j++) top = fmaxf(top, lse[j]);
    top = over_merge_lanes(top, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int j = 0; j < kLaneSplits; j++) {
      const float factor = ptx::exp2(lse[j] - top);
      weight += factor;
#pragma unroll
      for (int e = 0; e < kMergeElements; e++) total[e] += factor * part[j][e];
    }
    const auto add = [](float a, float b) { return a + b; };
    const float scale = ptx::divide(1.0f, over_merge_lanes(weight, add));
#pragma unroll
    for (int e = 0; e < kMergeElements; e++) total[e] = over_merge_lanes(total[e], add) * scale;
    if (lane || i >= kEach || item >= kItems) continue;
    uint32_t* to = monolane_launch.activation_words + kWordOffsets[kAttended] + element;
    if constexpr (kMergeElements == 4)
      ptx::store_relaxed(reinterpret_cast<Word4*>(to), Word4{tagged(total[0], step), tagged(total[1], step), tagged(total[2], step), tagged(total[3], step)});
    else
      ptx::store_relaxed(to, tagged(total[0], step));
  }
}

// One element of splits [first, …) of a row of a wide pass, and their masses, as soon as they are there.
template <int kCount>
MONOLANE_DEVICE void await_partials(int position, int first, int splits, int element, uint32_t step, float (&value)[kCount], float (&lse)[kCount]) {
  uint32_t words[kCount];
  uint64_t split_lses[kCount];
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      if (first + i >= splits) continue;
      words[i] = ptx::load_relaxed(partial_output(position, first + i) + element);
      split_lses[i] = ptx::load_relaxed(split_lse(position, first + i, element / kHeadDim));
    }
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (first + i < splits) ready &= is_tagged(words[i], step) && static_cast<uint32_t>(split_lses[i]) == step;
    if (ready || shared::failed()) break;
  }
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    value[i] = first + i < splits ? value_of(words[i]) : 0.0f;
    lse[i] = first + i < splits ? ptx::float_of(static_cast<uint32_t>(split_lses[i] >> 32)) : -kInfinity;
  }
}

// Splits of a wide pass: an element by a thread, sixteen times as many.
MONOLANE_DEVICE void merge_prefill(int rows, int splits, uint32_t step) {
  constexpr int kBurst = 8;  // splits that are asked for together
  const int each = divide_up(rows * kQueryDims, kWorkers), first = worker_id() * each, end = min(first + each, rows * kQueryDims);
  for (int i = first + thread_id(); i < end; i += kConsumers) {
    const int position = i / kQueryDims, element = i % kQueryDims;
    MergeState merged;
    float total = 0.0f;
    for (int split = 0; split < splits; split += kBurst) {
      float value[kBurst], lse[kBurst], factor[kBurst];
      await_partials(position, split, splits, element, step, value, lse);
      total *= merged.add(lse, factor);
#pragma unroll
      for (int j = 0; j < kBurst; j++) total += factor[j] * value[j];
    }
    publish_activation<true>(kAttended, element, position, ptx::divide(total, merged.row_sum), step);
  }
}

// Four dimensions of a head, from d on, a result of attention: where it is the only split, for the stage that follows.
template <bool kPrefill>
MONOLANE_DEVICE void publish_partial(int position, int split, int splits, int head, int d, const float (&v)[4], uint32_t step) {
  const int element = head * kHeadDim + d;
  if (kPrefill && splits == 1) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (d + j < kHeadDim) publish_activation<true>(kAttended, element + j, position, v[j], step);
    return;
  }
  uint32_t* to = splits == 1 ? monolane_launch.activation_words + kWordOffsets[kAttended] + element : partial_output(position, split) + element;
  if constexpr (kHeadDim % 4 == 0) {
    if (d < kHeadDim) ptx::store_relaxed(reinterpret_cast<Word4*>(to), Word4{tagged(v[0], step), tagged(v[1], step), tagged(v[2], step), tagged(v[3], step)});
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (d + j < kHeadDim) ptx::store_relaxed(to + j, tagged(v[j], step));
  }
}

MONOLANE_DEVICE int query_norm(int layer) { return kQueryNorm + layer * kConstantsPerLayer; }
MONOLANE_DEVICE int key_norm(int layer) { return kKeyNorm + layer * kConstantsPerLayer; }

// --- narrow: one position ---

template <bool kRing>
using DecodeSplit = SplitAttention<kRing ? Source::kRing : Source::kDecode, lesser(kQueriesPerKv, kMmaRows)>;

// Vector v of the item: its queries, then the new key and value. This lane's pairs, as soon as they are there.
MONOLANE_DEVICE void await_pairs(int at, uint32_t step, float (&low)[kPairs], float (&high)[kPairs]) {
  const uint64_t* from = monolane_launch.qkv_words + at + lane_id();
  uint64_t words[2 * kPairs];
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int j = 0; j < 2 * kPairs; j++) {
      const int i = lane_id() + j / 2 * 32;
      words[j] = kHalf % 32 == 0 || i < kHalf ? ptx::load_relaxed(from + j / 2 * 32 + j % 2 * kHalf) : step;
    }
#pragma unroll
    for (int j = 0; j < 2 * kPairs; j++) ready &= static_cast<uint32_t>(words[j]) == step;
    if (all_ready(ready)) break;
  }
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    low[j] = ptx::float_of(static_cast<uint32_t>(words[2 * j] >> 32));
    high[j] = ptx::float_of(static_cast<uint32_t>(words[2 * j + 1] >> 32));
  }
}

// Queries of `rows` heads, and the new key and value, turned, as bf16 rows in the scratch: a warp per vector.
MONOLANE_DEVICE void receive_qkv(int head, int first_row, int rows, bool newest, const RopeCoefficients& query_rope, const RopeCoefficients& key_rope, uint32_t step) {
  for (int v = warp_id(); v < rows + (newest ? 2 : 0); v += kConsumerWarps) {
    const int at = v < rows ? (head * kQueriesPerKv + first_row + v) * kHeadDim : kQueryDims + (v - rows) * kKvDims + head * kHeadDim;
    uint16_t* to = v < rows ? attention::queries() + v * kQueryStride : v == rows ? attention::new_key() : attention::new_value();
    float low[kPairs], high[kPairs];
    await_pairs(at, step, low, high);
    if (v < rows)
      apply_rope(query_rope, low, high);
    else if (v == rows)
      apply_rope(key_rope, low, high);
    store_pairs<round_up(kHeadDim, kKBlock)>(low, high, [&](int d, uint16_t x) { to[d] = x; });
  }
}

// The new key and value, from the scratch to the cache: of the next pass, so nobody waits for it.
MONOLANE_DEVICE void append_new_kv(int layer, int head, int position) {
  const int r = position % kPageTokens, page = position / kPageTokens;
  uint16_t* keys = key_page(layer, head, page);
  uint16_t* values = value_page(layer, head, page);
  // With the zeros behind a key: what lies there is multiplied with zeros of a query, and may be no number otherwise.
  for (int d = thread_id(); d < kDimFragments * kKBlock; d += kConsumers) {
    keys[key_element(r, d)] = attention::new_key()[d];
    if (d < kHeadDim) values[value_element(r, d)] = attention::new_value()[d];
  }
}

// This block's splits. `received()` is called when the queries are there.
template <bool kRing, class Received>
MONOLANE_DEVICE void attend_splits(int layer, int position, const Span& span, uint32_t step, Cursor<false>& cursor, Received received) {
  for (int item = worker_id(); item < kKvHeads * span.splits; item += kWorkers) {
    const int head = item % kKvHeads, split = item / kKvHeads;
    const bool newest = split == span.splits - 1;
    for (int first_row = 0; first_row < kQueriesPerKv; first_row += kMmaRows) {
      const int rows = min(kMmaRows, kQueriesPerKv - first_row);
      DecodeSplit<kRing> part(layer, head, position, 1, span, split, streamed_end(position, span));
      if constexpr (kRing)
        part.load_first(cursor);
      else
        part.load_first();
      const RopeCoefficients query_rope = rope_coefficients(position, query_norm(layer)), key_rope = kQkNorm ? rope_coefficients(position, key_norm(layer)) : query_rope;
      part.mask_new_values();
      sync_consumers();  // the sums of the stage before have been read, or the scratch
      receive_qkv(head, first_row, rows, newest, query_rope, key_rope, step - 1);
      sync_consumers();
      received();
      if constexpr (kRing)
        part.attend(rows, cursor);
      else
        part.attend(rows);
      part.merge_warps(
          rows, newest, [&](int row, int d, const float (&v)[4]) { publish_partial<false>(0, split, span.splits, head * kQueriesPerKv + first_row + row, d, v, step); },
          [&](int row, float lse) {
            if (span.splits > 1) ptx::store_relaxed(split_lse(0, split, head * kQueriesPerKv + first_row + row), tagged_float(lse, step));
          });
      if (newest && !first_row) append_new_kv(layer, head, position);
    }
  }
}

template <class Received>
MONOLANE_DEVICE void attend_decode(int layer, int position, uint32_t step, Cursor<false>& cursor, Received received) {
  const Span span = span_of<false>(position, window_of(layer));
  if (kStreamsCache && streamed_end(position, span))
    attend_splits<kStreamsCache>(layer, position, span, step, cursor, received);
  else
    attend_splits<false>(layer, position, span, step, cursor, received);
  if (span.splits > kFusedSplits) merge_decode(span.splits, step);
  sync_consumers();  // the scratch is free for others
}

// --- wide: up to sixteen positions of one block of the cache ---

// The new key and value of one position and key/value head, by a warp: `key(element, bf16)`, `value(element, bf16)`.
template <class Key, class Value>
MONOLANE_DEVICE void rope_kv(int layer, int head, int row, int position, Key key, Value value) {
  const int r = position % kPageTokens;
  const float* from = monolane_launch.prefill_qkv + row * (kQueryDims + 2 * kKvDims) + kQueryDims + head * kHeadDim;
  float low[2][kPairs], high[2][kPairs];  // of the key, of the value
  load_pairs(from, low[0], high[0]);
  load_pairs(from + kKvDims, low[1], high[1]);
  apply_rope(rope_coefficients(position, key_norm(layer)), low[0], high[0]);
  store_pairs<kDimFragments * kKBlock>(low[0], high[0], [&](int d, uint16_t x) { key(key_element(r, d), x); });
  store_pairs<kHeadDim>(low[1], high[1], [&](int d, uint16_t x) { value(value_element(r, d), x); });
}

// Keys and values of all positions, for the passes to come. The last blocks of threads begin: they have the least to attend to.
MONOLANE_DEVICE void append_kv(int layer, int start, int rows) {
  for (int i = (kWorkers - 1 - worker_id()) * kConsumerWarps + warp_id(); i < rows * kKvHeads; i += kWorkers * kConsumerWarps) {
    const int head = i % kKvHeads, row = i / kKvHeads, page = (start + row) / kPageTokens;
    uint16_t *keys = key_page(layer, head, page), *values = value_page(layer, head, page);
    rope_kv(layer, head, row, start + row, [&](int at, uint16_t x) { keys[at] = x; }, [&](int at, uint16_t x) { values[at] = x; });
  }
}

// The same for this block's own use: later positions look at earlier ones.
MONOLANE_DEVICE void rope_new_kv(int layer, int head, int start, int rows) {
  for (int row = warp_id(); row < rows; row += kConsumerWarps)
    rope_kv(layer, head, row, start + row, [&](int at, uint16_t x) { attention::new_keys()[at] = x; }, [&](int at, uint16_t x) { attention::new_values()[at] = x; });
}

// The queries of one head, as bf16 rows in the scratch. A warp has two of them, and asks for both before it waits.
MONOLANE_DEVICE void rope_queries(int layer, int head, int start, int rows) {
  constexpr int kEach = kPassRows / kConsumerWarps;
  float low[kEach][kPairs], high[kEach][kPairs];
  RopeCoefficients ropes[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int row = min(warp_id() + i * kConsumerWarps, rows - 1);
    load_pairs(monolane_launch.prefill_qkv + row * (kQueryDims + 2 * kKvDims) + head * kHeadDim, low[i], high[i]);
    ropes[i] = rope_coefficients(start + row, query_norm(layer));
  }
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int row = warp_id() + i * kConsumerWarps;
    if (row >= rows) continue;
    uint16_t* to = attention::queries() + row * kQueryStride;
    apply_rope(ropes[i], low[i], high[i]);
    store_pairs<round_up(kHeadDim, kKBlock)>(low[i], high[i], [&](int d, uint16_t x) { to[d] = x; });
  }
}

MONOLANE_DEVICE void attend_prefill(int layer, int start, int rows, uint32_t step) {
  const Span span = span_of<true>(start, window_of(layer));
  for (int item = worker_id(); item < kHeads * span.splits; item += kWorkers) {
    const int head = item % kHeads, split = item / kHeads;
    SplitAttention<Source::kPrefill, kMmaRows> part(layer, head / kQueriesPerKv, start, rows, span, split, 0);
    part.load_first();
    if (split == span.splits - 1) rope_new_kv(layer, head / kQueriesPerKv, start, rows);
    rope_queries(layer, head, start, rows);
    sync_consumers();
    part.attend(rows);
    part.merge_warps(
        rows, false, [&](int row, int d, const float (&v)[4]) { publish_partial<true>(row, split, span.splits, head, d, v, step); },
        [&](int row, float lse) {
          if (span.splits > 1) ptx::store_relaxed(split_lse(row, split, head), tagged_float(lse, step));
        });
    sync_consumers();  // the scratch is free for others
  }
  if (start % kPageTokens) grid_barrier();  // somebody may be looking at what the block had before
  append_kv(layer, start, rows);
  if (span.splits > 1) merge_prefill(rows, span.splits, step);
}

// --- the stage that follows, where there are a few splits ---

MONOLANE_DEVICE float prepare_splits(int splits, uint32_t step) {
  static_assert(kFusedSplits == 1 || kHeadDim % 4 == 0, "four elements of an input are of one head");
  constexpr int kBurst = kBurstOf<AttentionOut, kConsumers, 2>, kStride = kConsumers * 4;
  return prepare_with<AttentionOut, kConsumers, kBurst>(0, shared::x(), thread_id(), [&](int base, float (&v)[kBurst][4]) {
    Word4 words[kBurst][kFusedSplits] = {};
    uint64_t split_lses[kBurst][kFusedSplits] = {};
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int j = 0; j < kBurst; j++)
#pragma unroll
        for (int i = 0; i < kFusedSplits; i++) {
          const int k = base + j * kStride;
          if (i >= splits || k >= kQueryDims) continue;
          words[j][i] = ptx::load_relaxed(reinterpret_cast<const Word4*>(partial_output(0, i) + k));
          split_lses[j][i] = ptx::load_relaxed(split_lse(0, i, k / kHeadDim));
        }
#pragma unroll
      for (int j = 0; j < kBurst; j++)
#pragma unroll
        for (int i = 0; i < kFusedSplits; i++) {
          const int k = base + j * kStride;
          if (i >= splits || k >= kQueryDims) continue;
          const uint32_t wrong = (words[j][i].x ^ step) | (words[j][i].y ^ step) | (words[j][i].z ^ step) | (words[j][i].w ^ step);
          ready &= (wrong & 0xffffu) == 0 && static_cast<uint32_t>(split_lses[j][i]) == step;
        }
      if (ready || shared::failed()) break;
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      MergeState merged;
      float lse[kFusedSplits], factor[kFusedSplits];
#pragma unroll
      for (int i = 0; i < kFusedSplits; i++) lse[i] = i < splits ? ptx::float_of(static_cast<uint32_t>(split_lses[j][i] >> 32)) : -kInfinity;
      merged.add(lse, factor);
#pragma unroll
      for (int i = 0; i < kFusedSplits; i++) {
        if (i >= splits) continue;
        v[j][0] += factor[i] * value_of(words[j][i].x), v[j][1] += factor[i] * value_of(words[j][i].y);
        v[j][2] += factor[i] * value_of(words[j][i].z), v[j][3] += factor[i] * value_of(words[j][i].w);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) v[j][i] = ptx::divide(v[j][i], merged.row_sum);
    }
  });
}

}  // namespace monolane
