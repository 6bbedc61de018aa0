// The attention stage, run by the consumer warps of all workers. It reads the queries and the new keys and values that the qkv stage wrote,
// applies QK norm and RoPE, attends to the KV cache, appends the new keys and values to the cache, and writes the attention output for the
// stage that follows, the projection o.
//
// An item is one split of one KV head (decode pass) or of one query head (prefill pass); items are divided among the workers. The results of
// several splits are partial outputs, each with its LSE, which have to be merged:
//   - one split: its result is the attention output. No merge.
//   - decode pass, up to kFusedSplits splits: the stage that follows merges them while it loads its input (prepare_splits).
//   - decode pass with more splits, and prefill pass: after the splits every worker merges a share of the elements (merge_decode,
//     merge_prefill), in a hand-off within the stage.
#pragma once
#include "short_split.cuh"

namespace monolane {

constexpr int kAttended = AttentionOut::kReads;  // the buffer of the attention output

// The word at a place (word_place) of a buffer.
MONOLANE_DEVICE uint32_t* placed_word(int buffer, int place) { return buffers().activation_words + kWordOffsets[buffer] + place; }
MONOLANE_DEVICE uint32_t* activation_word(int buffer, int element) { return placed_word(buffer, word_place(element)); }

// Publishes one element of an activation buffer for the stage that follows: a tagged word in a decode pass, a plain bf16 in a prefill pass.
// `element`: index in the buffer. `row`: row of the prefill pass.
template <bool kPrefill>
MONOLANE_DEVICE void publish_activation(int buffer, int element, int row, float v, uint32_t step) {
  if (kPrefill)
    buffers().prefill_activations[kPrefillOffsets[buffer] + row * kBufferStrides[buffer] + element] = static_cast<uint16_t>(bf16_bits(v));
  else
    ptx::store_relaxed(activation_word(buffer, element), tagged(v, step));
}

// Partial output of a split: a 32-bit tagged word for each dimension of each query head. `row`: row of the pass.
MONOLANE_DEVICE uint32_t* partial_output(int row, int split, int element) {
  return buffers().partial_outputs + (row * kMaxSplits + split) * kBufferStrides[kAttended] + word_place(element);
}
// LSE of a split and query head: a 64-bit tagged word. Each has a line of memory of its own: in one line they would all lie in one slice of L2,
// and all workers poll them at once.
constexpr int kLseStride = kLineBytes / 8;
MONOLANE_DEVICE uint64_t* split_lse(int row, int split, int head) {
  return buffers().split_lses + ((row * kMaxSplits + split) * kHeads + head) * kLseStride;
}

// --- merging splits ---

// Merges the partial outputs of one row, split after split: the sum of factor * partial output, divided by the sum of the factors (row_sum).
// A factor is exp2(LSE - row max).
struct MergeState {
  float row_max = -kInfinity, row_sum = 0.0f;

  // Computes the factors of the next kCount splits. A split that does not exist has an LSE of -infinity and gets the factor 0. Returns the
  // factor by which the caller rescales what it has merged so far.
  template <int kCount>
  MONOLANE_DEVICE float add(const float (&lse)[kCount], float (&factor)[kCount]) {
    float new_max = row_max;
#pragma unroll
    for (int i = 0; i < kCount; i++) new_max = fmaxf(new_max, lse[i]);
    const float rescale = ptx::exp2(row_max - new_max);
    row_max = new_max;
    row_sum *= rescale;
#pragma unroll
    for (int i = 0; i < kCount; i++) row_sum += factor[i] = ptx::exp2(lse[i] - new_max);
    return rescale;
  }
};


// How a decode pass merges many splits. Every worker merges a share of the elements, kMergeElements at a time (a merge item). kMergeLanes threads
// of a warp work on a merge item: each loads kLaneSplits splits of it, and shuffles combine the threads. So the loads of all splits are issued
// at once.
constexpr int kMergeLanes = lesser(32, power_of_two_from(kMaxSplits)), kLaneSplits = divide_up(kMaxSplits, kMergeLanes);
constexpr int kMergeElements = kHeadDim % 4 == 0 ? 4 : 1;

// Combines a value over the kMergeLanes threads of a merge item; all of them get the result.
template <class Combine>
MONOLANE_DEVICE float over_merge_lanes(float v, Combine combine) {
#pragma unroll
  for (int mask = kMergeLanes / 2; mask; mask /= 2) v = combine(v, ptx::shuffle_xor(v, mask));
  return v;
}

// Loads the elements of a merge item of one split; returns whether they have the tag of this step.
MONOLANE_DEVICE bool load_partial(int split, int element, uint32_t step, float (&v)[kMergeElements]) {
  const uint32_t* from = partial_output(0, split, element);
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
  constexpr int kAtOnce = 32 / kMergeLanes;  // merge items that a warp works on at once
  constexpr int kItems = kQueryDims / kMergeElements, kEach = divide_up(kItems, kLaneWorkers);
  const int merge_lane = lane_id() % kMergeLanes;
#pragma unroll 1
  for (int base = warp_id() * kAtOnce; base < kEach; base += kConsumerWarps * kAtOnce) {
    const int i = base + lane_id() / kMergeLanes, item = rank() * kEach + i;
    const int element = min(item, kItems - 1) * kMergeElements;
    float partial[kLaneSplits][kMergeElements] = {}, lse[kLaneSplits];
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int j = 0; j < kLaneSplits; j++) {
        const int split = merge_lane + j * kMergeLanes;
        lse[j] = -kInfinity;
        if (split >= splits) continue;
        const uint64_t word = ptx::load_relaxed(split_lse(0, split, element / kHeadDim));
        ready &= load_partial(split, element, step, partial[j]) && static_cast<uint32_t>(word) == step;
        lse[j] = ptx::float_of(static_cast<uint32_t>(word >> 32));
      }
      if (all_ready(ready)) break;
    }
    float row_max = lse[0], row_sum = 0.0f, total[kMergeElements] = {};
#pragma unroll
    for (int j = 1; j < kLaneSplits; j++) row_max = fmaxf(row_max, lse[j]);
    row_max = over_merge_lanes(row_max, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int j = 0; j < kLaneSplits; j++) {
      const float factor = ptx::exp2(lse[j] - row_max);
      row_sum += factor;
#pragma unroll
      for (int e = 0; e < kMergeElements; e++) total[e] += factor * partial[j][e];
    }
    const auto add = [](float a, float b) { return a + b; };
    const float scale = ptx::divide(1.0f, over_merge_lanes(row_sum, add));
#pragma unroll
    for (int e = 0; e < kMergeElements; e++) total[e] = over_merge_lanes(total[e], add) * scale;
    if (merge_lane || i >= kEach || item >= kItems) continue;
    uint32_t* to = activation_word(kAttended, element);
    if constexpr (kMergeElements == 4)
      ptx::store_relaxed(reinterpret_cast<Word4*>(to),
                         Word4{tagged(total[0], step), tagged(total[1], step), tagged(total[2], step), tagged(total[3], step)});
    else
      ptx::store_relaxed(to, tagged(total[0], step));
  }
}

// Polls one element and the LSE of splits [first, first + kCount) of a row of a prefill pass. Splits that do not exist get the element 0 and
// the LSE -infinity.
template <int kCount>
MONOLANE_DEVICE void await_partials(int row, int first, int splits, int element, uint32_t step, float (&value)[kCount], float (&lse)[kCount]) {
  uint32_t words[kCount];
  uint64_t split_lses[kCount];
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      if (first + i >= splits) continue;
      words[i] = ptx::load_relaxed(partial_output(row, first + i, element));
      split_lses[i] = ptx::load_relaxed(split_lse(row, first + i, element / kHeadDim));
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

// Merges the splits of a prefill pass. It has up to 16 times as many elements as a decode pass, so each thread merges whole elements.
MONOLANE_DEVICE void merge_prefill(int rows, int splits, uint32_t step) {
  constexpr int kBurst = 8;  // splits whose loads are issued together
  const int each = divide_up(rows * kQueryDims, kLaneWorkers), first = rank() * each, end = min(first + each, rows * kQueryDims);
  for (int i = first + thread_id(); i < end; i += kConsumers) {
    const int row = i / kQueryDims, element = i % kQueryDims;
    MergeState merged;
    float total = 0.0f;
    for (int split = 0; split < splits; split += kBurst) {
      float value[kBurst], lse[kBurst], factor[kBurst];
      await_partials(row, split, splits, element, step, value, lse);
      total *= merged.add(lse, factor);
#pragma unroll
      for (int j = 0; j < kBurst; j++) total += factor[j] * value[j];
    }
    publish_activation<true>(kAttended, element, row, ptx::divide(total, merged.row_sum), step);
  }
}

// --- publishing ---

// Publishes dimensions d to d + 3 of a query head: as a partial output, or, where there is one split, as the attention output.
template <bool kPrefill>
MONOLANE_DEVICE void publish_partial(int row, int split, int splits, int head, int d, const float (&v)[4], uint32_t step) {
  const int element = head * kHeadDim + d;
  if (kPrefill && splits == 1) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (d + j < kHeadDim) publish_activation<true>(kAttended, element + j, row, v[j], step);
    return;
  }
  const auto place = [&](int e) { return splits == 1 ? activation_word(kAttended, e) : partial_output(row, split, e); };
  if constexpr (kHeadDim % 4 == 0) {
    if (d < kHeadDim)
      ptx::store_relaxed(reinterpret_cast<Word4*>(place(element)), Word4{tagged(v[0], step), tagged(v[1], step), tagged(v[2], step), tagged(v[3], step)});
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (d + j < kHeadDim) ptx::store_relaxed(place(element + j), tagged(v[j], step));
  }
}

// Offsets of the QK norm's weights among the constants.
MONOLANE_DEVICE int query_norm(int layer) { return kQueryNorm + layer * kConstantsPerLayer; }
MONOLANE_DEVICE int key_norm(int layer) { return kKeyNorm + layer * kConstantsPerLayer; }

// The sink of a query head in one of its splits, in units of log2. A sink is part of the row's softmax once: the first split has it, and
// in the others it is -infinity, which adds nothing. The LSE of the first split contains it, so merging splits is the same with sinks.
MONOLANE_DEVICE float sink_of(int layer, int head, int split) {
  return split ? -kInfinity : buffers().constants[kSinks + layer * kConstantsPerLayer + head] * kLog2E;
}

// --- decode pass: one row ---

// A split that is read from global memory is a short one where there are many workers.
template <bool kRing, bool kShort = !kRing && ShortSplit::kFits>
struct DecodeSplitOf {
  using Type = SplitAttention<kRing ? Source::kRing : Source::kDecode, lesser(kQueriesPerKv, kMmaRows)>;
};
template <bool kRing>
struct DecodeSplitOf<kRing, true> {
  using Type = ShortSplit;
};

// Polls this thread's pairs (see rope.cuh) of the vectors at offsets `at` of the words that the qkv stage published, all of them at once. A negative offset: no
// vector.
template <int kCount>
MONOLANE_DEVICE void await_pairs(const int (&at)[kCount], uint32_t step, float (&low)[kCount][kPairs], float (&high)[kCount][kPairs]) {
  uint64_t words[kCount][2 * kPairs];
  const uint64_t* from[kCount];  // one address for each vector: the others are constant distances away
#pragma unroll
  for (int n = 0; n < kCount; n++) from[n] = buffers().qkv_words + at[n] + lane_id();
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int n = 0; n < kCount; n++)
#pragma unroll
      for (int j = 0; j < 2 * kPairs; j++) {
        words[n][j] = step;
        if ((n == 0 || at[n] >= 0) && (kHalf % 32 == 0 || lane_id() + j / 2 * 32 < kHalf)) words[n][j] = ptx::load_relaxed(from[n] + (j / 2 * 32 + j % 2 * kHalf));
      }
#pragma unroll
    for (int j = 0; j < 2 * kPairs * kCount; j++) ready &= static_cast<uint32_t>(words[j / (2 * kPairs)][j % (2 * kPairs)]) == step;
    if (all_ready(ready)) break;
  }
#pragma unroll
  for (int j = 0; j < kPairs * kCount; j++) {
    const uint64_t(&own)[2 * kPairs] = words[j / kPairs];
    low[j / kPairs][j % kPairs] = ptx::float_of(static_cast<uint32_t>(own[j % kPairs * 2] >> 32));
    high[j / kPairs][j % kPairs] = ptx::float_of(static_cast<uint32_t>(own[j % kPairs * 2 + 1] >> 32));
  }
}

// The most vectors of an item that a warp receives: some of the queries, and the new key and value.
constexpr int kWarpVectors = divide_up(lesser(kQueriesPerKv, kMmaRows) + 2, kConsumerWarps);

// Receives the vectors of an item, divided among the warps, and stores them in the scratch as bf16: queries first_row to first_row + rows - 1 of
// the KV head and, if `newest`, the new key and value. QK norm and RoPE are applied to queries and key; `ropes` are those of this warp's vectors. What can be
// computed before the words have arrived is.
MONOLANE_DEVICE void receive_qkv(int head, int first_row, int rows, bool newest, const RopeCoefficients (&ropes)[kWarpVectors], uint32_t step) {
  constexpr int kPadded = round_up(kHeadDim, kKBlock);
  const int count = rows + (newest ? 2 : 0), lane = lane_id();
  if (warp_id() >= count) return;
  int at[kWarpVectors];
  uint16_t* to[kWarpVectors];  // of this thread's first pair
#pragma unroll
  for (int n = 0; n < kWarpVectors; n++) {
    const int v = warp_id() + n * kConsumerWarps;
    at[n] = v >= count ? -1 : v < rows ? (head * kQueriesPerKv + first_row + v) * kHeadDim : kQueryDims + (v - rows) * kKvDims + head * kHeadDim;
    to[n] = (v < rows ? attention::queries() + v * kQueryStride : v == rows ? attention::new_key() : attention::new_value()) + lane;
  }
  float low[kWarpVectors][kPairs], high[kWarpVectors][kPairs];
  await_pairs(at, step, low, high);
#pragma unroll
  for (int n = 0; n < kWarpVectors; n++) {
    const int v = warp_id() + n * kConsumerWarps;
    if (v >= count) break;
    if (v <= rows) apply_rope(ropes[n], low[n], high[n]);
#pragma unroll
    for (int j = 0; j < kPairs; j++)
      if (kHalf % 32 == 0 || lane + 32 * j < kHalf)
        to[n][32 * j] = static_cast<uint16_t>(bf16_bits(low[n][j])), to[n][32 * j + kHalf] = static_cast<uint16_t>(bf16_bits(high[n][j]));
    if (kHeadDim + lane < kPadded) to[n][kHeadDim] = 0;
  }
}

// Copies the new key and value from the scratch to the KV cache. Only later passes read them there, so no warp waits for it.
MONOLANE_DEVICE void append_new_kv(int layer, int head, int position) {
  const int r = position % kPageTokens, page = position / kPageTokens;
  uint16_t* keys = key_page(layer, head, page);
  uint16_t* values = value_page(layer, head, page);
  // The zeros of the key's padding are copied, too: the MMA multiplies the padding with zeros of the query, and a NaN there would spoil the sum.
  for (int d = thread_id(); d < kDimFragments * kKBlock; d += kConsumers) {
    keys[key_element(r, d)] = attention::new_key()[d];
    if (d < kHeadDim) values[value_element(r, d)] = attention::new_value()[d];
  }
}

// Attends to this worker's items. Where a KV head has more than kMmaRows query heads, it goes through the split again for the next of them.
// `received()` is called when the queries have arrived.
template <bool kRing, class Received>
MONOLANE_DEVICE void attend_splits(int layer, int position, const Span& span, uint32_t step, Cursor<false>& cursor, Received received) {
  for (int item = rank(); item < kKvHeads * span.splits; item += kLaneWorkers) {
    const int head = item % kKvHeads, split = split_of(item, span);
    const bool newest = split == span.splits - 1;
    for (int first_row = 0; first_row < kQueriesPerKv; first_row += kMmaRows) {
      const int rows = min(kMmaRows, kQueriesPerKv - first_row);
      typename DecodeSplitOf<kRing>::Type split_attention(layer, head, position, 1, span, split, streamed_end(position, span));
      if constexpr (kRing)
        split_attention.load_first(cursor);
      else
        split_attention.load_first();
      split_attention.load_sinks(rows, [&](int row) { return sink_of(layer, head * kQueriesPerKv + first_row + row, split); });
      RopeCoefficients ropes[kWarpVectors];
#pragma unroll
      for (int n = 0; n < kWarpVectors; n++) ropes[n] = rope_coefficients(position, warp_id() + n * kConsumerWarps < rows ? query_norm(layer) : key_norm(layer));
      split_attention.mask_new_values();
      // The word of an element of the output: of a partial output, or, where there is one split, of the attention output.
      const auto place = [&](int row, int d) {
        const int element = (head * kQueriesPerKv + first_row + row) * kHeadDim + d;
        return span.splits == 1 ? activation_word(kAttended, element) : partial_output(0, split, element);
      };
      const auto publish_lse = [&](int row, float lse) {
        if (span.splits > 1) ptx::store_relaxed(split_lse(0, split, head * kQueriesPerKv + first_row + row), tagged_float(lse, step));
      };
      constexpr bool kShort = !kRing && ShortSplit::kFits;
      if constexpr (kShort) split_attention.find_output(rows, place);
      sync_consumers();  // all warps have read the sums of the stage before, or the scratch of the item before: the memory is free
      receive_qkv(head, first_row, rows, newest, ropes, step - 1);
      sync_consumers();
      received();
      if constexpr (kRing)
        split_attention.attend(rows, cursor);
      else
        split_attention.attend(rows);
      if constexpr (kShort) {
        constexpr bool kWhole = kHeadDim % 16 == 0;  // d % 16 < 8, so the place of element d + 8 is known from that of element d
        split_attention.publish_output(
            rows,
            [&](uint32_t* to, int row, int d, uint32_t first, uint32_t last) {
              uint32_t* second = kWhole ? to + (kAnyLowBit ? 4 : 8) : place(row, d + 8);
              if (kWhole || d < kHeadDim) ptx::store_relaxed(reinterpret_cast<uint64_t*>(to), tagged_pair(first, step));
              if (kWhole || d + 8 < kHeadDim) ptx::store_relaxed(reinterpret_cast<uint64_t*>(second), tagged_pair(last, step));
            },
            publish_lse);
      } else {
        split_attention.merge_warps(
            rows, newest,
            [&](int row, int d, const float (&v)[4]) {
              publish_partial<false>(0, split, span.splits, head * kQueriesPerKv + first_row + row, d, v, step);
            },
            publish_lse);
      }
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
  sync_consumers();  // all warps have read the scratch: the next stage may use the memory
}

// --- prefill pass: up to kPassRows = 16 rows, all in one page of the cache ---

// Applies QK norm and RoPE to the new key of one row and KV head, by one warp, and calls `key(element, bf16)` and `value(element, bf16)` for all
// elements of key and value, with their indices in the page.
template <class Key, class Value>
MONOLANE_DEVICE void rope_kv(int layer, int head, int row, int position, Key key, Value value) {
  const int r = position % kPageTokens;
  const float* from = buffers().prefill_qkv + row * (kQueryDims + 2 * kKvDims) + kQueryDims + head * kHeadDim;
  float low[2][kPairs], high[2][kPairs];  // [0] of the key, [1] of the value
  load_pairs(from, low[0], high[0]);
  load_pairs(from + kKvDims, low[1], high[1]);
  apply_rope(rope_coefficients(position, key_norm(layer)), low[0], high[0]);
  store_pairs<kDimFragments * kKBlock>(low[0], high[0], [&](int d, uint16_t x) { key(key_element(r, d), x); });
  store_pairs<kHeadDim>(low[1], high[1], [&](int d, uint16_t x) { value(value_element(r, d), x); });
}

// Appends the keys and values of all rows to the KV cache, for later passes; one warp per row and KV head. The last workers get the first of
// them, because they have the fewest items of attention.
MONOLANE_DEVICE void append_kv(int layer, int start, int rows) {
  for (int i = (kLaneWorkers - 1 - rank()) * kConsumerWarps + warp_id(); i < rows * kKvHeads; i += kLaneWorkers * kConsumerWarps) {
    const int head = i % kKvHeads, row = i / kKvHeads, page = (start + row) / kPageTokens;
    uint16_t *keys = key_page(layer, head, page), *values = value_page(layer, head, page);
    rope_kv(
        layer, head, row, start + row, [&](int at, uint16_t x) { keys[at] = x; }, [&](int at, uint16_t x) { values[at] = x; });
  }
}

// The same for this worker's own use, into shared memory: later rows of the pass attend to earlier ones.
MONOLANE_DEVICE void rope_new_kv(int layer, int head, int start, int rows) {
  for (int row = warp_id(); row < rows; row += kConsumerWarps)
    rope_kv(
        layer, head, row, start + row, [&](int at, uint16_t x) { attention::new_keys()[at] = x; },
        [&](int at, uint16_t x) { attention::new_values()[at] = x; });
}

// Applies QK norm and RoPE to the queries of one query head and stores them in the scratch as bf16. A warp has two rows, and issues the loads
// of both before it waits for either.
MONOLANE_DEVICE void rope_queries(int layer, int head, int start, int rows) {
  constexpr int kEach = kPassRows / kConsumerWarps;
  float low[kEach][kPairs], high[kEach][kPairs];
  RopeCoefficients ropes[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int row = min(warp_id() + i * kConsumerWarps, rows - 1);
    load_pairs(buffers().prefill_qkv + row * (kQueryDims + 2 * kKvDims) + head * kHeadDim, low[i], high[i]);
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
  for (int item = rank(); item < kHeads * span.splits; item += kLaneWorkers) {
    const int head = item % kHeads, split = item / kHeads;
    SplitAttention<Source::kPrefill, kMmaRows> split_attention(layer, head / kQueriesPerKv, start, rows, span, split, 0);
    split_attention.load_first();
    split_attention.load_sinks(rows, [&](int) { return sink_of(layer, head, split); });
    if (split == span.splits - 1) rope_new_kv(layer, head / kQueriesPerKv, start, rows);
    rope_queries(layer, head, start, rows);
    sync_consumers();
    split_attention.attend(rows);
    split_attention.merge_warps(
        rows, false, [&](int row, int d, const float (&v)[4]) { publish_partial<true>(row, split, span.splits, head, d, v, step); },
        [&](int row, float lse) {
          if (span.splits > 1) ptx::store_relaxed(split_lse(row, split, head), tagged_float(lse, step));
        });
    sync_consumers();  // all warps have read the scratch: the next item may overwrite it
  }
  if (start % kPageTokens) lane_barrier();  // other workers may still be reading the older tokens of the page that append_kv writes to
  append_kv(layer, start, rows);
  if (span.splits > 1) merge_prefill(rows, span.splits, step);
}

// --- the stage that follows attention, in a decode pass with few splits ---

// The fours of a thread that are merged together. kOfHead of them have elements of one head, and so the same LSEs.
template <class P>
struct MergedFours {
  static_assert(kFusedSplits == 1 || kHeadDim % 4 == 0, "four elements of an input are of one head");
  static constexpr To kTo = kOneRow<P>;
  static constexpr int kBurst = burst_of<P, kConsumers, 2, kTo>();
  using Own = Fours<kTo, kConsumers>;
  static constexpr int kOfHead = Own::kTogether > 1 && kHeadDim % (4 * Own::kTogether) == 0 ? Own::kTogether : 1, kLses = kBurst / kOfHead;
};

// Polls the partial outputs of kSplits splits, from element `base` on, and merges them. There is one version for each number of splits, and none of its loads is
// behind a condition: a poll has no more instructions than it needs, and no register keeps the words of an earlier layer, in case they were not loaded again.
template <class P, int kSplits>
MONOLANE_DEVICE void await_merged(int base, uint32_t step, float (&v)[MergedFours<P>::kBurst][4]) {
  using M = MergedFours<P>;
  // Threads without elements poll the first ones, which others poll as well.
  const auto exists = [&](int j) { return base + M::Own::offset(j) < kQueryDims; };
  Word4 words[M::kBurst][kSplits];
  uint64_t lses[M::kLses][kSplits];
  for (;;) {
    uint32_t wrong = 0;
    bool ready = true;
#pragma unroll
    for (int j = 0; j < M::kBurst; j++)
#pragma unroll
      for (int i = 0; i < kSplits; i++) {
        const int k = exists(j) ? base + M::Own::offset(j) : 0;
        words[j][i] = ptx::load_relaxed(reinterpret_cast<const Word4*>(partial_output(0, i, k)));
        if (j % M::kOfHead == 0) lses[j / M::kOfHead][i] = ptx::load_relaxed(split_lse(0, i, k / kHeadDim));
      }
#pragma unroll
    for (int i = 0; i < kSplits; i++) {
#pragma unroll
      for (int j = 0; j < M::kBurst; j++) wrong |= (words[j][i].x ^ step) | (words[j][i].y ^ step) | (words[j][i].z ^ step) | (words[j][i].w ^ step);
#pragma unroll
      for (int n = 0; n < M::kLses; n++) ready &= static_cast<uint32_t>(lses[n][i]) == step;
    }
    ready &= (wrong & 0xffffu) == 0;
    if (kShuffles<P> ? all_ready(ready) : ready || shared::failed()) break;
  }
#pragma unroll
  for (int n = 0; n < M::kLses; n++) {
    float factor[kSplits], row_max = -kInfinity, row_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplits; i++) {
      factor[i] = ptx::float_of(static_cast<uint32_t>(lses[n][i] >> 32));
      row_max = fmaxf(row_max, factor[i]);
    }
#pragma unroll
    for (int i = 0; i < kSplits; i++) row_sum += factor[i] = ptx::exp2(factor[i] - row_max);
    const float scale = exists(n * M::kOfHead) ? ptx::reciprocal(row_sum) : 0.0f;  // the sum is at least 1
#pragma unroll
    for (int i = 0; i < kSplits; i++) {
      const float share = factor[i] * scale;
#pragma unroll
      for (int j = n * M::kOfHead; j < (n + 1) * M::kOfHead; j++) {
        v[j][0] += share * value_of(words[j][i].x), v[j][1] += share * value_of(words[j][i].y);
        v[j][2] += share * value_of(words[j][i].z), v[j][3] += share * value_of(words[j][i].w);
      }
    }
  }
}

// The same for 2 to kFusedSplits splits, a number that is known only now.
template <class P, int kSplits = 2>
MONOLANE_DEVICE void await_merged(int splits, int base, uint32_t step, float (&v)[MergedFours<P>::kBurst][4]) {
  if constexpr (kSplits < kFusedSplits)
    if (splits > kSplits) return await_merged<P, kSplits + 1>(splits, base, step, v);
  await_merged<P, kSplits>(base, step, v);
}

// Merges 2 to kFusedSplits splits and prepares the result as the input of P in shared memory. Returns this thread's part of the sum of squares, as all prepare
// functions do. `step`: the step of the attention stage.
template <class P>
MONOLANE_DEVICE float prepare_splits(int splits, uint32_t step) {
  using M = MergedFours<P>;
  return prepare_with<P, kConsumers, M::kBurst, M::kTo>(0, shared::x(), thread_id(), [&](int, int base, float (&v)[M::kBurst][4]) { await_merged<P>(splits, base, step, v); });
}

}  // namespace monolane
