// The stage of attention: who takes which split, where queries, keys and values come from, where results go. Where there
// are a few splits, the stage that follows merges them on its way in (prepare_parts); where there are more, or in a wide
// pass, every block merges some elements here.
#pragma once
#include "split.cuh"

namespace monolane {

// An activation for the stage that follows.
template <bool kWide>
MONOLANE_DEVICE void hand_over(int buffer, int row, int position, float v, uint32_t step) {
  if (kWide)
    monolane_launch.wide[kWideOffsets[buffer] + position * kBufferStrides[buffer] + row] = static_cast<uint16_t>(narrow_bits(v));
  else
    ptx::store_relaxed(monolane_launch.words + kWordOffsets[buffer] + row, tagged(v, step));
}

MONOLANE_DEVICE uint32_t* part_of(int position, int split) { return monolane_launch.parts + (position * kMostSplits + split) * kQueries; }
// A line of memory each: in one line they would all lie in one slice of L2, and all blocks look at them at once.
constexpr int kMassStride = kLineBytes / 8;
MONOLANE_DEVICE uint64_t* mass_of(int position, int split, int head) {
  return monolane_launch.masses + ((position * kMostSplits + split) * kHeads + head) * kMassStride;
}

// Splits as one: results in order, each with its weight.
struct Merged {
  float top = -kInfinity, weight = 0.0f;

  // Factors of the next kCount splits (mass -infinity: not there); what was merged so far is to be multiplied by the result.
  template <int kCount>
  MONOLANE_DEVICE float add(const float (&mass)[kCount], float (&factor)[kCount]) {
    float above = top;
#pragma unroll
    for (int i = 0; i < kCount; i++) above = fmaxf(above, mass[i]);
    const float shrink = ptx::power_of_two(top - above);
    top = above;
    weight *= shrink;
#pragma unroll
    for (int i = 0; i < kCount; i++) weight += factor[i] = ptx::power_of_two(mass[i] - above);
    return shrink;
  }
};

constexpr int kAttended = kForms[kMergeForm].reads;  // the buffer of results

// Splits of a narrow pass, by every block some elements: a lane has a few elements of a split, or of two, and lanes are
// merged two by two, so that all splits are asked for at once.
constexpr int kMergeLanes = lesser(32, power_of_two_from(kMostSplits)), kLaneSplits = divide_up(kMostSplits, kMergeLanes);
constexpr int kMergeElements = kHeadDim % 4 == 0 ? 4 : 1;

template <class Combine>
MONOLANE_DEVICE float over_merge_lanes(float v, Combine combine) {
#pragma unroll
  for (int mask = kMergeLanes / 2; mask; mask /= 2) v = combine(v, ptx::shuffle_xor(v, mask));
  return v;
}

MONOLANE_DEVICE bool load_part(int split, int element, uint32_t step, float (&v)[kMergeElements]) {
  const uint32_t* from = part_of(0, split) + element;
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

MONOLANE_DEVICE void merge_narrow(int splits, uint32_t step) {
  constexpr int kAtOnce = 32 / kMergeLanes, kItems = kQueries / kMergeElements, kEach = divide_up(kItems, kWorkers);
  const int lane = lane_index() % kMergeLanes;
#pragma unroll 1
  for (int base = warp_index() * kAtOnce; base < kEach; base += kConsumerWarps * kAtOnce) {
    const int i = base + lane_index() / kMergeLanes, item = worker_index() * kEach + i;
    const int element = min(item, kItems - 1) * kMergeElements;
    float part[kLaneSplits][kMergeElements] = {}, mass[kLaneSplits];
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int j = 0; j < kLaneSplits; j++) {
        const int split = lane + j * kMergeLanes;
        mass[j] = -kInfinity;
        if (split >= splits) continue;
        const uint64_t word = ptx::load_relaxed(mass_of(0, split, element / kHeadDim));
        ready &= load_part(split, element, step, part[j]) && static_cast<uint32_t>(word) == step;
        mass[j] = ptx::float_of(static_cast<uint32_t>(word >> 32));
      }
      if (all_ready(ready)) break;
    }
    float top = mass[0], weight = 0.0f, total[kMergeElements] = {};
#pragma unroll
    for (int j = 1; j < kLaneSplits; j++) top = fmaxf(top, mass[j]);
    top = over_merge_lanes(top, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int j = 0; j < kLaneSplits; j++) {
      const float factor = ptx::power_of_two(mass[j] - top);
      weight += factor;
#pragma unroll
      for (int e = 0; e < kMergeElements; e++) total[e] += factor * part[j][e];
    }
    const auto add = [](float a, float b) { return a + b; };
    const float scale = ptx::divide(1.0f, over_merge_lanes(weight, add));
#pragma unroll
    for (int e = 0; e < kMergeElements; e++) total[e] = over_merge_lanes(total[e], add) * scale;
    if (lane || i >= kEach || item >= kItems) continue;
    uint32_t* to = monolane_launch.words + kWordOffsets[kAttended] + element;
    if constexpr (kMergeElements == 4)
      ptx::store_relaxed(reinterpret_cast<Word4*>(to), Word4{tagged(total[0], step), tagged(total[1], step), tagged(total[2], step), tagged(total[3], step)});
    else
      ptx::store_relaxed(to, tagged(total[0], step));
  }
}

// One element of splits [first, …) of a row of a wide pass, and their masses, as soon as they are there.
template <int kCount>
MONOLANE_DEVICE void await_parts(int position, int first, int splits, int element, uint32_t step, float (&value)[kCount], float (&mass)[kCount]) {
  uint32_t words[kCount];
  uint64_t masses[kCount];
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      if (first + i >= splits) continue;
      words[i] = ptx::load_relaxed(part_of(position, first + i) + element);
      masses[i] = ptx::load_relaxed(mass_of(position, first + i, element / kHeadDim));
    }
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (first + i < splits) ready &= is_tagged(words[i], step) && static_cast<uint32_t>(masses[i]) == step;
    if (ready || shared::over()) break;
  }
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    value[i] = first + i < splits ? value_of(words[i]) : 0.0f;
    mass[i] = first + i < splits ? ptx::float_of(static_cast<uint32_t>(masses[i] >> 32)) : -kInfinity;
  }
}

// Splits of a wide pass: an element by a thread, sixteen times as many.
MONOLANE_DEVICE void merge_wide(int width, int splits, uint32_t step) {
  constexpr int kBurst = 8;  // splits that are asked for together
  const int each = divide_up(width * kQueries, kWorkers), first = worker_index() * each, end = min(first + each, width * kQueries);
  for (int i = first + thread_index(); i < end; i += kConsumers) {
    const int position = i / kQueries, element = i % kQueries;
    Merged merged;
    float total = 0.0f;
    for (int split = 0; split < splits; split += kBurst) {
      float value[kBurst], mass[kBurst], factor[kBurst];
      await_parts(position, split, splits, element, step, value, mass);
      total *= merged.add(mass, factor);
#pragma unroll
      for (int j = 0; j < kBurst; j++) total += factor[j] * value[j];
    }
    hand_over<true>(kAttended, element, position, ptx::divide(total, merged.weight), step);
  }
}

// Four dimensions of a head, from d on, a result of attention: where it is the only split, for the stage that follows.
template <bool kWide>
MONOLANE_DEVICE void publish_part(int position, int split, int splits, int head, int d, const float (&v)[4], uint32_t step) {
  const int element = head * kHeadDim + d;
  if (kWide && splits == 1) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (d + j < kHeadDim) hand_over<true>(kAttended, element + j, position, v[j], step);
    return;
  }
  uint32_t* to = splits == 1 ? monolane_launch.words + kWordOffsets[kAttended] + element : part_of(position, split) + element;
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
using NarrowSplit = Split<kRing ? Source::kRing : Source::kNarrow, lesser(kGroup, kRowsAtOnce)>;

// Vector v of the item: its queries, then the new key and value. This lane's pairs, as soon as they are there.
MONOLANE_DEVICE void await_pairs(int at, uint32_t step, float (&low)[kPairs], float (&high)[kPairs]) {
  const uint64_t* from = monolane_launch.qkv_words + at + lane_index();
  uint64_t words[2 * kPairs];
  for (;;) {
    bool ready = true;
#pragma unroll
    for (int j = 0; j < 2 * kPairs; j++) {
      const int i = lane_index() + j / 2 * 32;
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
MONOLANE_DEVICE void receive(int head, int first_row, int rows, bool newest, const Turn& query_turn, const Turn& key_turn, uint32_t step) {
  for (int v = warp_index(); v < rows + (newest ? 2 : 0); v += kConsumerWarps) {
    const int at = v < rows ? (head * kGroup + first_row + v) * kHeadDim : kQueries + (v - rows) * kKeys + head * kHeadDim;
    uint16_t* to = v < rows ? attention::queries() + v * kQueryStride : v == rows ? attention::fresh_key() : attention::fresh_value();
    float low[kPairs], high[kPairs];
    await_pairs(at, step, low, high);
    if (v < rows)
      rotate(query_turn, low, high);
    else if (v == rows)
      rotate(key_turn, low, high);
    store_pairs<round_up(kHeadDim, kBlock)>(low, high, [&](int d, uint16_t x) { to[d] = x; });
  }
}

// The new key and value, from the scratch to the cache: of the next pass, so nobody waits for it.
MONOLANE_DEVICE void keep(int layer, int head, int position) {
  const int r = position % kBlockPositions, block = position / kBlockPositions;
  uint16_t* keys = key_block(layer, head, block);
  uint16_t* values = value_block(layer, head, block);
  // With the zeros behind a key: what lies there is multiplied with zeros of a query, and may be no number otherwise.
  for (int d = thread_index(); d < kDimUnits * kBlock; d += kConsumers) {
    keys[key_element(r, d)] = attention::fresh_key()[d];
    if (d < kHeadDim) values[value_element(r, d)] = attention::fresh_value()[d];
  }
}

// This block's splits. `received()` is called when the queries are there.
template <bool kRing, class Received>
MONOLANE_DEVICE void attend_splits(int layer, int position, const Span& span, uint32_t step, Cursor<false>& cursor, Received received) {
  for (int item = worker_index(); item < kKvHeads * span.splits; item += kWorkers) {
    const int head = item % kKvHeads, split = item / kKvHeads;
    const bool newest = split == span.splits - 1;
    for (int first_row = 0; first_row < kGroup; first_row += kRowsAtOnce) {
      const int rows = min(kRowsAtOnce, kGroup - first_row);
      NarrowSplit<kRing> part(layer, head, position, 1, span, split, streamed_end(position, span));
      if constexpr (kRing)
        part.ask(cursor);
      else
        part.ask();
      const Turn query_turn = turn_of(position, query_norm(layer)), key_turn = kQkNorm ? turn_of(position, key_norm(layer)) : query_turn;
      part.clean();
      sync_consumers();  // the sums of the stage before have been read, or the scratch
      receive(head, first_row, rows, newest, query_turn, key_turn, step - 1);
      sync_consumers();
      received();
      if constexpr (kRing)
        part.see(rows, cursor);
      else
        part.see(rows);
      part.merge(
          rows, newest, [&](int row, int d, const float (&v)[4]) { publish_part<false>(0, split, span.splits, head * kGroup + first_row + row, d, v, step); },
          [&](int row, float mass) {
            if (span.splits > 1) ptx::store_relaxed(mass_of(0, split, head * kGroup + first_row + row), tagged_float(mass, step));
          });
      if (newest && !first_row) keep(layer, head, position);
    }
  }
}

template <class Received>
MONOLANE_DEVICE void attend_narrow(int layer, int position, uint32_t step, Cursor<false>& cursor, Received received) {
  const Span span = span_of<false>(position, window_of(layer));
  if (kStreamsCache && streamed_end(position, span))
    attend_splits<kStreamsCache>(layer, position, span, step, cursor, received);
  else
    attend_splits<false>(layer, position, span, step, cursor, received);
  if (span.splits > kFewSplits) merge_narrow(span.splits, step);
  sync_consumers();  // the scratch is free for others
}

// --- wide: up to sixteen positions of one block of the cache ---

// The new key and value of one position and key/value head, by a warp: `key(element, bf16)`, `value(element, bf16)`.
template <class Key, class Value>
MONOLANE_DEVICE void turn_pair(int layer, int head, int row, int position, Key key, Value value) {
  const int r = position % kBlockPositions;
  const float* from = monolane_launch.wide_qkv + row * (kQueries + 2 * kKeys) + kQueries + head * kHeadDim;
  float low[2][kPairs], high[2][kPairs];  // of the key, of the value
  load_pairs(from, low[0], high[0]);
  load_pairs(from + kKeys, low[1], high[1]);
  rotate(turn_of(position, key_norm(layer)), low[0], high[0]);
  store_pairs<kDimUnits * kBlock>(low[0], high[0], [&](int d, uint16_t x) { key(key_element(r, d), x); });
  store_pairs<kHeadDim>(low[1], high[1], [&](int d, uint16_t x) { value(value_element(r, d), x); });
}

// Keys and values of all positions, for the passes to come. The last blocks of threads begin: they have the least to attend to.
MONOLANE_DEVICE void append_wide(int layer, int start, int width) {
  for (int i = (kWorkers - 1 - worker_index()) * kConsumerWarps + warp_index(); i < width * kKvHeads; i += kWorkers * kConsumerWarps) {
    const int head = i % kKvHeads, row = i / kKvHeads, block = (start + row) / kBlockPositions;
    uint16_t *keys = key_block(layer, head, block), *values = value_block(layer, head, block);
    turn_pair(layer, head, row, start + row, [&](int at, uint16_t x) { keys[at] = x; }, [&](int at, uint16_t x) { values[at] = x; });
  }
}

// The same for this block's own use: later positions look at earlier ones.
MONOLANE_DEVICE void turn_keys(int layer, int head, int start, int width) {
  for (int row = warp_index(); row < width; row += kConsumerWarps)
    turn_pair(layer, head, row, start + row, [&](int at, uint16_t x) { attention::fresh_keys()[at] = x; }, [&](int at, uint16_t x) { attention::fresh_values()[at] = x; });
}

// The queries of one head, as bf16 rows in the scratch. A warp has two of them, and asks for both before it waits.
MONOLANE_DEVICE void turn_queries(int layer, int head, int start, int width) {
  constexpr int kEach = kWidth / kConsumerWarps;
  float low[kEach][kPairs], high[kEach][kPairs];
  Turn turns[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int row = min(warp_index() + i * kConsumerWarps, width - 1);
    load_pairs(monolane_launch.wide_qkv + row * (kQueries + 2 * kKeys) + head * kHeadDim, low[i], high[i]);
    turns[i] = turn_of(start + row, query_norm(layer));
  }
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const int row = warp_index() + i * kConsumerWarps;
    if (row >= width) continue;
    uint16_t* to = attention::queries() + row * kQueryStride;
    rotate(turns[i], low[i], high[i]);
    store_pairs<round_up(kHeadDim, kBlock)>(low[i], high[i], [&](int d, uint16_t x) { to[d] = x; });
  }
}

MONOLANE_DEVICE void attend_wide(int layer, int start, int width, uint32_t step) {
  const Span span = span_of<true>(start, window_of(layer));
  for (int item = worker_index(); item < kHeads * span.splits; item += kWorkers) {
    const int head = item % kHeads, split = item / kHeads;
    Split<Source::kWide, kRowsAtOnce> part(layer, head / kGroup, start, width, span, split, 0);
    part.ask();
    if (split == span.splits - 1) turn_keys(layer, head / kGroup, start, width);
    turn_queries(layer, head, start, width);
    sync_consumers();
    part.see(width);
    part.merge(
        width, false, [&](int row, int d, const float (&v)[4]) { publish_part<true>(row, split, span.splits, head, d, v, step); },
        [&](int row, float mass) {
          if (span.splits > 1) ptx::store_relaxed(mass_of(row, split, head), tagged_float(mass, step));
        });
    sync_consumers();  // the scratch is free for others
  }
  if (start % kBlockPositions) grid_barrier();  // somebody may be looking at what the block had before
  append_wide(layer, start, width);
  if (span.splits > 1) merge_wide(width, span.splits, step);
}

// --- the stage that follows, where there are a few splits ---

MONOLANE_DEVICE float prepare_parts(int splits, uint32_t step) {
  static_assert(kFewSplits == 1 || kHeadDim % 4 == 0, "four elements of an input are of one head");
  constexpr int kBurst = kBurstOf<kMergeForm, kConsumers, 2>, kStride = kConsumers * 4;
  return prepare_part<kMergeForm, kConsumers, kBurst>(0, shared::x(), thread_index(), [&](int base, float (&v)[kBurst][4]) {
    Word4 words[kBurst][kFewSplits] = {};
    uint64_t masses[kBurst][kFewSplits] = {};
    for (;;) {
      bool ready = true;
#pragma unroll
      for (int j = 0; j < kBurst; j++)
#pragma unroll
        for (int i = 0; i < kFewSplits; i++) {
          const int k = base + j * kStride;
          if (i >= splits || k >= kQueries) continue;
          words[j][i] = ptx::load_relaxed(reinterpret_cast<const Word4*>(part_of(0, i) + k));
          masses[j][i] = ptx::load_relaxed(mass_of(0, i, k / kHeadDim));
        }
#pragma unroll
      for (int j = 0; j < kBurst; j++)
#pragma unroll
        for (int i = 0; i < kFewSplits; i++) {
          const int k = base + j * kStride;
          if (i >= splits || k >= kQueries) continue;
          const uint32_t wrong = (words[j][i].x ^ step) | (words[j][i].y ^ step) | (words[j][i].z ^ step) | (words[j][i].w ^ step);
          ready &= (wrong & 0xffffu) == 0 && static_cast<uint32_t>(masses[j][i]) == step;
        }
      if (ready || shared::over()) break;
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      Merged merged;
      float mass[kFewSplits], factor[kFewSplits];
#pragma unroll
      for (int i = 0; i < kFewSplits; i++) mass[i] = i < splits ? ptx::float_of(static_cast<uint32_t>(masses[j][i] >> 32)) : -kInfinity;
      merged.add(mass, factor);
#pragma unroll
      for (int i = 0; i < kFewSplits; i++) {
        if (i >= splits) continue;
        v[j][0] += factor[i] * value_of(words[j][i].x), v[j][1] += factor[i] * value_of(words[j][i].y);
        v[j][2] += factor[i] * value_of(words[j][i].z), v[j][3] += factor[i] * value_of(words[j][i].w);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) v[j][i] = ptx::divide(v[j][i], merged.weight);
    }
  });
}

}  // namespace monolane
