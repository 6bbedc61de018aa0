// Attention on the tensor cores. The rows of a product are, in a narrow pass, the query heads that share a key/value head;
// in a wide pass, the positions of the pass at one query head. A block of threads takes a split of the cache, its warps
// take blocks of positions in turn and keep running results, which are merged in order at the end. In a narrow pass the
// first cached blocks are in registers before the query is there.
#pragma once
#include "ring.cuh"
#include "rotate.cuh"

namespace monolane {

// Blocks that a warp holds at once, four registers a unit. More would fit (two blocks of 128 dimensions, two steps of two
// blocks of 64), but then other things do not, and are spilled.
constexpr int kPairUnits = kKeyUnits + kValueUnits;
constexpr int kStepBlocks = 2 * kPairUnits <= 16 ? 2 : 1;
constexpr bool kHoldValues = kStepBlocks * kPairUnits <= 16;  // together with the keys
constexpr int kWantedAhead = 1;  // steps between those that are asked for and those that are wanted in L2
constexpr int kNowhere = INT32_MAX / (2 * kBlockPositions);  // a block that nobody sees
constexpr int kPaddedDim = kValueUnits * 16;

// --- scratch ---

constexpr int kQueryStride = round_up(kHeadDim, 64) + 32;  // elements: two rows share no bank
constexpr int kFreshOffset = kRowsAtOnce * kQueryStride * 2;
constexpr int kShareOffset = kFreshOffset + 2 * round_up(kHeadDim, kBlock) * 2;
constexpr int kTopsOffset = kShareOffset + 2 * kRowsAtOnce * 4;
constexpr int kTotalsOffset = kTopsOffset + 2 * kConsumerWarps * kRowsAtOnce * 4;
// Scores are kept as logarithms of two.
constexpr float kScoreFactor = kScale * 1.4426950408889634f;

namespace attention {

MONOLANE_DEVICE uint16_t* queries() { return shared::at<uint16_t>(kXOffset); }                    // [row][kQueryStride]
MONOLANE_DEVICE uint16_t* fresh_key() { return shared::at<uint16_t>(kXOffset + kFreshOffset); }
MONOLANE_DEVICE uint16_t* fresh_value() { return fresh_key() + round_up(kHeadDim, kBlock); }
MONOLANE_DEVICE float* fresh_weights() { return shared::at<float>(kXOffset + kShareOffset); }        // [row]
MONOLANE_DEVICE float* fresh_tops() { return fresh_weights() + kRowsAtOnce; }                       // [row]
// Of a wide pass: the block of the cache that its positions are in, as far as they are new. Its inputs are not there meanwhile.
MONOLANE_DEVICE uint16_t* fresh_keys() { return shared::wide_x(); }
MONOLANE_DEVICE uint16_t* fresh_values() { return shared::wide_x() + kKeyUnits * kUnitElements; }
MONOLANE_DEVICE float* tops() { return shared::at<float>(kXOffset + kTopsOffset); }               // [warp][row]
MONOLANE_DEVICE float* weights() { return tops() + kConsumerWarps * kRowsAtOnce; }                // [warp][row]
MONOLANE_DEVICE float* totals() { return shared::at<float>(kXOffset + kTotalsOffset); }           // [warp][row][kPaddedDim]

}  // namespace attention

static_assert(kWideXOffset + kPairUnits * kUnitBytes <= kRingBytes, "the new block of a wide pass does not fit");

// --- what a warp holds and sees ---

// Blocks of the cache in registers.
struct Held {
  Word4 keys[kStepBlocks * kKeyUnits], values[kStepBlocks * kValueUnits];

  MONOLANE_DEVICE void ask_keys(int layer, int head, int block, int end) { ask<kKeyUnits>(keys, key_block(layer, head, block), block, end); }
  MONOLANE_DEVICE void ask_values(int layer, int head, int block, int end) { ask<kValueUnits>(values, value_block(layer, head, block), block, end); }

  // Block i, from a chunk of the ring where it is the n-th.
  MONOLANE_DEVICE void take_keys(int i, const char* chunk, int n) { take<kKeyUnits>(keys + i * kKeyUnits, chunk, n * kKeyUnits); }
  MONOLANE_DEVICE void take_values(int i, const char* chunk, int n) { take<kValueUnits>(values + i * kValueUnits, chunk, kChunkBlocks * kKeyUnits + n * kValueUnits); }
  MONOLANE_DEVICE void no_keys(int i) { clear<kKeyUnits>(keys + i * kKeyUnits); }
  MONOLANE_DEVICE void no_values(int i) { clear<kValueUnits>(values + i * kValueUnits); }

  // The position that is being decoded is not in the cache yet: put its key in its place. Its value, times its weight, is
  // added when results are merged.
  MONOLANE_DEVICE void put_key(int i, int r) {
    if (lane_index() / 4 != r % 8) return;
#pragma unroll
    for (int j = 0; j < kKeyUnits; j++)
      if (j / kDimUnits == r / 8) keys[i * kKeyUnits + j] = *reinterpret_cast<const Word4*>(attention::fresh_key() + j % kDimUnits * kBlock + lane_index() % 4 * 8);
  }

  // The positions of a wide pass, `first` to `last` of block i, are not in the cache yet either: they lie in the scratch.
  MONOLANE_DEVICE void put_many(int i, int first, int last) {
    const int g = lane_index() / 4, low = lane_index() % 4 * 2;
    const auto fresh = [&](const uint16_t* from, int j) { return reinterpret_cast<const Word4*>(from)[j * 32 + lane_index()]; };
#pragma unroll
    for (int j = 0; j < kKeyUnits; j++)
      if (j / kDimUnits * 8 + g >= first && j / kDimUnits * 8 + g <= last) keys[i * kKeyUnits + j] = fresh(attention::fresh_keys(), j);
    const auto old = [&](int r) { return (r < first ? 0xffffu : 0u) | (r + 1 < first ? 0xffff0000u : 0u); };
    const uint32_t one = old(low), two = old(low + 8);
#pragma unroll
    for (int j = 0; j < kValueUnits; j++) {
      Word4& unit = values[i * kValueUnits + j];
      const Word4 v = fresh(attention::fresh_values(), j);
      unit.x = (unit.x & one) | (v.x & ~one), unit.y = (unit.y & two) | (v.y & ~two);
      unit.z = (unit.z & one) | (v.z & ~one), unit.w = (unit.w & two) | (v.w & ~two);
    }
  }

  // What lies behind the last position may be anything, and its weight of zero times anything need not be zero.
  MONOLANE_DEVICE void clean_values(int i, int last) {
    const int low = lane_index() % 4 * 2;
    const auto mask = [&](int r) { return (r <= last ? 0xffffu : 0u) | (r + 1 <= last ? 0xffff0000u : 0u); };
    const uint32_t first = mask(low), second = mask(low + 8);
#pragma unroll
    for (int j = 0; j < kValueUnits; j++) {
      Word4& unit = values[i * kValueUnits + j];
      unit.x &= first, unit.y &= second, unit.z &= first, unit.w &= second;
    }
  }

 private:
  template <int kCount>
  MONOLANE_DEVICE static void take(Word4* units, const char* chunk, int first) {
#pragma unroll
    for (int j = 0; j < kCount; j++) units[j] = reinterpret_cast<const Word4*>(chunk)[(first + j) * 32 + lane_index()];
  }
  template <int kCount>
  MONOLANE_DEVICE static void clear(Word4* units) {
#pragma unroll
    for (int j = 0; j < kCount; j++) units[j] = {0, 0, 0, 0};
  }
  template <int kUnits, int kCount>
  MONOLANE_DEVICE static void ask(Word4 (&units)[kCount], const uint16_t* from, int block, int end) {
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      units[j] = {0, 0, 0, 0};
      if (block + j / kUnits < end) units[j] = ptx::load_l2(reinterpret_cast<const Word4*>(from) + j * 32 + lane_index());
    }
  }
};

// A warp's running result: of rows g and, where there are more than eight, g + 8. A fresh one begins with the blocks it is
// given: until then it takes no registers. Where there are no more than eight rows, the lower half of a product is of no
// use; that of scores has a second half of the dimensions (see query_place).
template <bool kHigh>
class Strand {
 public:
  static constexpr int kRows = kHigh ? 2 : 1;
  float top[kRows], sum[kRows], total[2 * kValueUnits][4];

  MONOLANE_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kRows; r++) top[r] = -kInfinity, sum[r] = 0.0f;
    clear_totals();
  }

  // Weights of the positions of these blocks that lie in [low, limit] of their row, as pairs for the next product. `whole`:
  // all of them do.
  template <bool kFresh>
  MONOLANE_DEVICE void weigh(const Held& held, int rows, const int (&blocks)[kStepBlocks], bool whole, const int (&low)[2], const int (&limit)[2], uint32_t (&weights)[kStepBlocks][4]) {
    float scores[2 * kStepBlocks][2 * kRows];
    const int t = lane_index() % 4;
#pragma unroll
    for (int tile = 0; tile < 2 * kStepBlocks; tile += 2) score(held.keys + tile * kDimUnits, rows, scores[tile], scores[tile + 1]);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      if (!whole) {
#pragma unroll
        for (int tile = 0; tile < 2 * kStepBlocks; tile++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int position = blocks[tile / 2] * kBlockPositions + tile % 2 * 8 + 2 * t + e;
            if (position < low[r] || position > limit[r]) scores[tile][2 * r + e] = -kInfinity;
          }
      }
      float highest = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
      for (int tile = 1; tile < 2 * kStepBlocks; tile++) highest = fmaxf(highest, fmaxf(scores[tile][2 * r], scores[tile][2 * r + 1]));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 1));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 2));
      highest = kFresh ? highest * kScoreFactor : fmaxf(top[r], highest * kScoreFactor);
      const float base = highest == -kInfinity ? 0.0f : highest;
      if (kFresh) {
        sum[r] = 0.0f;
      } else {
        const float shrink = ptx::power_of_two(top[r] - base);
        sum[r] *= shrink;
#pragma unroll
        for (int j = 0; j < 2 * kValueUnits; j++) total[j][2 * r] *= shrink, total[j][2 * r + 1] *= shrink;
      }
      top[r] = highest;
#pragma unroll
      for (int tile = 0; tile < 2 * kStepBlocks; tile++) {
        const float w0 = ptx::power_of_two(scores[tile][2 * r] * kScoreFactor - base), w1 = ptx::power_of_two(scores[tile][2 * r + 1] * kScoreFactor - base);
        sum[r] += w0 + w1;
        weights[tile / 2][tile % 2 * 2 + r] = ptx::bf16_pair(w0, w1);
        if (!kHigh) weights[tile / 2][tile % 2 * 2 + 1] = 0;  // anything
      }
    }
  }

  template <bool kFresh>
  MONOLANE_DEVICE void gather(const Held& held, const uint32_t (&weights)[kStepBlocks][4]) {
    if (kFresh) clear_totals();
    constexpr int kTogether = 2;  // units: enough products between two of one sum, and few sums before their values are used up
#pragma unroll
    for (int first = 0; first < kValueUnits; first += kTogether)
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++)
#pragma unroll
        for (int j = first; j < lesser(first + kTogether, kValueUnits); j++) {
          const Word4& value = held.values[i * kValueUnits + j];
          ptx::mma(total[2 * j], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.x, value.y);
          ptx::mma(total[2 * j + 1], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.z, value.w);
        }
  }

  // The weights of position r of a block, for the merge: the value they belong to is not in the cache yet.
  MONOLANE_DEVICE void note(int r, const uint32_t (&weights)[4]) const {
    if (lane_index() % 4 != r % 8 / 2) return;
#pragma unroll
    for (int n = 0; n < kRows; n++) {
      const uint32_t pair = r < 8 ? weights[n] : weights[2 + n];
      const int row = lane_index() / 4 + 8 * n;
      attention::fresh_weights()[row] = ptx::float_of(r % 2 ? pair & 0xffff0000u : pair << 16);
      attention::fresh_tops()[row] = top[n];
    }
  }

  MONOLANE_DEVICE void finish_sums() {
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sum[r] += ptx::shuffle_xor(sum[r], 1);
      sum[r] += ptx::shuffle_xor(sum[r], 2);
    }
  }

 private:
  // The keys of one block with all queries.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&low)[2 * kRows], float (&high)[2 * kRows]) {
    const int g = lane_index() / 4;
    const uint16_t* q = attention::queries() + lane_index() % 4 * 8;
    float sums[2][4] = {}, others[2][4] = {};
#pragma unroll
    for (int u = 0; u < kDimUnits; u++) {
      const Word4 a = *reinterpret_cast<const Word4*>(q + min(g, rows - 1) * kQueryStride + u * kBlock);
      Word4 b{0, 0, 0, 0};
      if (kHigh) b = *reinterpret_cast<const Word4*>(q + min(g + 8, rows - 1) * kQueryStride + u * kBlock);
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        const Word4& key = keys[tile * kDimUnits + u];
        if (kHigh) {
          ptx::mma(sums[tile], a.x, b.x, a.y, b.y, key.x, key.y);
          ptx::mma(sums[tile], a.z, b.z, a.w, b.w, key.z, key.w);
        } else {
          ptx::mma(sums[tile], a.x, a.y, a.z, a.w, key.x, key.y);
          ptx::mma(others[tile], a.x, a.y, a.z, a.w, key.z, key.w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kRows; i++) {
      low[i] = kHigh ? sums[0][i] : sums[0][i] + others[0][i + 2 * !kHigh];
      high[i] = kHigh ? sums[1][i] : sums[1][i] + others[1][i + 2 * !kHigh];
    }
  }

  MONOLANE_DEVICE void clear_totals() {
#pragma unroll
    for (int j = 0; j < 2 * kValueUnits; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) total[j][i] = 0.0f;
  }
};

// --- a split, by a block of threads ---

// Whose split: of a wide pass, of a narrow pass from where the cache lies, or through the ring.
enum class Source { kWide, kNarrow, kRing };

// One split of the cache, for `rows` rows of queries that lie in the scratch, and its result.
template <Source kSource, int kMostRows>
class Split {
 public:
  static constexpr bool kWide = kSource == Source::kWide, kRing = kSource == Source::kRing;
  static constexpr bool kHigh = kMostRows > 8;
  static constexpr int kStride = kConsumerWarps * kStepBlocks;  // blocks that all warps see in one step

  // `position`: of the first row; in a wide pass each row is one further. `streamed`: the blocks before this one come through
  // the ring.
  MONOLANE_DEVICE Split(int layer, int head, int position, int width, const Span& span, int split, int streamed)
      : layer_(layer), head_(head), first_(position % kBlockPositions), last_(position + width - 1), end_(split_end(span, split)),
        streamed_end_(min(streamed, end_)), chunk_(split_start(span, split)),
        block_(max(split_start(span, split), streamed_end_) + warp_index() * kStepBlocks) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int own = kWide ? position + min(lane_index() / 4 + 8 * r, width - 1) : position;
      low_[r] = first_seen(own, window_of(layer));
      limit_[r] = min(own, end_ * kBlockPositions - 1);
    }
    highest_low_ = first_seen(position + width - 1, window_of(layer));
  }

  // The first of this warp's blocks, before the queries are there.
  MONOLANE_DEVICE void ask() {
    held_.ask_keys(layer_, head_, block_, cached_end());
    if (kHoldValues || kRing) held_.ask_values(layer_, head_, block_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++)
      if (kRing) taken_[i] = block_ + i < end_ ? block_ + i : kNowhere;
  }
  // The same where the cache comes through the ring: of the newest blocks, which do not, if this warp has any.
  MONOLANE_DEVICE void ask(Cursor<false>& cursor) {
    const int count = divide_up(max(streamed_end_ - chunk_, 0), kChunkBlocks);
    left_ = cursor.own(count);
    chunk_ += cursor.turn * kChunkBlocks;
    cursor.pass(count);
    if (block_ < end_ || !left_)
      ask();
    else
      take<true>(cursor);
  }

  // In a narrow pass the value of the last position is not there yet, and what lies in its place is as good as nothing.
  MONOLANE_DEVICE void clean() {
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++)
      if (is_newest(block(i))) held_.clean_values(i, last_ % kBlockPositions - !kWide);
  }

  // The queries lie in the scratch: where the dimensions of a row lie. Where rows are few, as four registers want them that
  // are an operand as they are loaded, as inputs of projections do (see input_place).
  MONOLANE_DEVICE static int query_place(int d) { return kHigh ? d : d / 8 * 8 + d % 4 / 2 * 4 + d % 8 / 4 * 2 + d % 2; }

  // All of this warp's blocks. In a narrow pass the new position's key lies in the scratch.
  MONOLANE_DEVICE void see(int rows) {
    if (kWide)
      strand_.clear();
    else
      step<true>(rows, [] {});
#pragma unroll 1
    while (block_ < end_) step<false>(rows, [] {});
    strand_.finish_sums();
  }
  MONOLANE_DEVICE void see(int rows, Cursor<false>& cursor) {
    step<true>(rows, [] {});
#pragma unroll 1
    while (left_ > 0) {
      const bool waits = take<kHoldValues>(cursor);
      step<false>(rows, [&] {
        if (!kHoldValues) take_values(cursor, waits);
      });
    }
    strand_.finish_sums();
  }

  // The results of all warps as one, four dimensions of a row by a thread: `publish(row, d, four values)`, and `weigh(row,
  // logarithm of the weight of it all)`. `newest`: the position that is being decoded is in this split.
  template <class Publish, class Weigh>
  MONOLANE_DEVICE void merge(int rows, bool newest, Publish publish, Weigh weigh) {
    constexpr int kRowsKept = kWide ? kRowsAtOnce : kMostRows, kTotals = kRowsKept * kPaddedDim, kFours = kPaddedDim / 4;
    constexpr int kFit = (kAttendBytes - kTotalsOffset) / (kTotals * 4);  // warps whose results the scratch has room for
    static_assert(kFit > 0, "attention's scratch");
    constexpr int kTogether = divide_up(kConsumerWarps, divide_up(kConsumerWarps, kFit));
    constexpr int kEach = divide_up(kRowsKept * kFours, kConsumers);
    const int g = lane_index() / 4, t = lane_index() % 4, warp = warp_index(), thread = thread_index();
#pragma unroll
    for (int r = 0; r < Strand<kHigh>::kRows; r++)
      if (t == 0) attention::tops()[warp * kRowsAtOnce + g + 8 * r] = strand_.top[r], attention::weights()[warp * kRowsAtOnce + g + 8 * r] = strand_.sum[r];
    float value[kEach][4] = {}, weight[kEach] = {}, top[kEach];
#pragma unroll
    for (int first = 0; first < kConsumerWarps; first += kTogether) {
      if (first) sync_consumers();  // the results before these have been read
      if (warp >= first && warp < first + kTogether) keep(attention::totals() + (warp - first) * kTotals, rows);
      sync_consumers();
#pragma unroll
      for (int n = 0; n < kEach; n++) {
        const int i = thread + n * kConsumers, row = i / kFours, d = i % kFours * 4;
        if (row >= rows) continue;
        if (!first) {
          top[n] = attention::tops()[row];
#pragma unroll
          for (int w = 1; w < kConsumerWarps; w++) top[n] = fmaxf(top[n], attention::tops()[w * kRowsAtOnce + row]);
        }
#pragma unroll
        for (int w = 0; w < kTogether; w++) {
          if (first + w >= kConsumerWarps) continue;
          const int at = (first + w) * kRowsAtOnce + row;
          const float share = ptx::power_of_two(attention::tops()[at] - top[n]);  // every row sees something in every split
          const Word4 four = *reinterpret_cast<const Word4*>(attention::totals() + w * kTotals + row * kPaddedDim + d);
          weight[n] += share * attention::weights()[at];
          value[n][0] += share * ptx::float_of(four.x), value[n][1] += share * ptx::float_of(four.y);
          value[n][2] += share * ptx::float_of(four.z), value[n][3] += share * ptx::float_of(four.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kEach; n++) {
      const int i = thread + n * kConsumers, row = i / kFours, d = i % kFours * 4;
      if (row >= rows) continue;
      const float scale = ptx::divide(1.0f, weight[n]);
      if (newest) {
        const float share = ptx::power_of_two(attention::fresh_tops()[row] - top[n]) * attention::fresh_weights()[row];
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (kHeadDim == kPaddedDim || d + j < kHeadDim) value[n][j] += share * widen(attention::fresh_value()[d + j]);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) value[n][j] *= scale;
      publish(row, d, value[n]);
      if (d == 0) weigh(row, top[n] + ptx::logarithm_of_two(weight[n]));
    }
  }

 private:
  MONOLANE_DEVICE int newest() const { return last_ / kBlockPositions; }
  // In a block that is all new nothing is cached, and somebody may be writing there.
  MONOLANE_DEVICE int cached_end() const { return kWide && !first_ ? min(end_, newest()) : end_; }
  // The newest position may be another split's to see.
  MONOLANE_DEVICE bool is_newest(int block) const { return block == newest() && (kRing || block < end_); }

  // The i-th block that is held.
  MONOLANE_DEVICE int block(int i) const { return kRing ? taken_[i] : block_ + i < end_ ? block_ + i : kNowhere; }

  // This warp's next blocks from the ring. A chunk has a block for each warp of a group, or for some of them, in turn.
  // Without values: whether a chunk that has them has not been left.
  template <bool kValues>
  MONOLANE_DEVICE bool take(Cursor<false>& cursor) {
    static_assert(kValues || kStepBlocks == 1, "one chunk at a time");
    constexpr int kTurns = kGroupWarps / kChunkBlocks;
    const int warp = warp_index() % kGroupWarps, n = warp % kChunkBlocks;
    bool mine = false;
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++) {
      taken_[i] = kNowhere;
      held_.no_keys(i);
      if (kValues) held_.no_values(i);
      mine = false;
#pragma unroll 1
      for (; left_ > 0 && !mine; left_--) {
        mine = chunk_ / (kGroups * kChunkBlocks) % kTurns == warp / kChunkBlocks;
        const char* chunk = cursor.await();
        if (mine && chunk_ + n < streamed_end_) {
          held_.take_keys(i, chunk, n);
          if (kValues) held_.take_values(i, chunk, n);
          taken_[i] = chunk_ + n;
        }
        if (kValues || !mine) cursor.leave();
        chunk_ += kGroups * kChunkBlocks;
      }
    }
    return mine;
  }
  MONOLANE_DEVICE void take_values(Cursor<false>& cursor, bool waits) {
    held_.no_values(0);
    if (taken_[0] != kNowhere) held_.take_values(0, cursor.place.memory(), warp_index() % kGroupWarps % kChunkBlocks);
    if (waits) cursor.leave();
  }

  // The blocks that are held. Where they lie, the next ones are on their way meanwhile, into the registers that become free.
  // Fresh: the first, whose values are clean. `weighed()` is called when the keys are not needed any more.
  template <bool kFresh, class Weighed>
  MONOLANE_DEVICE void step(int rows, Weighed weighed) {
    const int next = block_ + kStride;
    int blocks[kStepBlocks];
    bool whole = true;
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++) {
      blocks[i] = block(i);
      whole &= blocks[i] < newest() && (!kAnyWindow || blocks[i] * kBlockPositions >= highest_low_);
    }
    if (!kHoldValues && !kRing) held_.ask_values(layer_, head_, block_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++)
      if (is_newest(blocks[i])) kWide ? held_.put_many(i, first_, last_ % kBlockPositions) : held_.put_key(i, last_ % kBlockPositions);
    if (!kRing && (!kFresh || !kHoldValues)) clean();  // blocks of the ring are older
    uint32_t weights[kStepBlocks][4];
    strand_.template weigh<kFresh>(held_, rows, blocks, whole, low_, limit_, weights);
    weighed();
    if (!kRing && next < end_) held_.ask_keys(layer_, head_, next, cached_end());
    if (kSource == Source::kNarrow) want(next + kWantedAhead * kStride);
    if constexpr (!kWide) {
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++)
        if (is_newest(blocks[i])) strand_.note(last_ % kBlockPositions, weights[i]);
    }
    strand_.template gather<kFresh>(held_, weights);
    if (!kRing && kHoldValues && next < end_) held_.ask_values(layer_, head_, next, cached_end());
    if (!kRing) block_ = next;
  }

  // Blocks of a later step, into L2: who reads them then need not wait for memory.
  MONOLANE_DEVICE void want(int block) {
    const int count = min(kStepBlocks, end_ - block);
    if (count <= 0) return;
    prefetch_lines(key_block(layer_, head_, block), count * kKeyUnits * kUnitBytes, lane_index(), 32);
    prefetch_lines(value_block(layer_, head_, block), count * kValueUnits * kUnitBytes, lane_index(), 32);
  }

  MONOLANE_DEVICE void keep(float* to, int rows) {
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int r = 0; r < Strand<kHigh>::kRows; r++) {
      if (g + 8 * r >= rows) continue;
#pragma unroll
      for (int j = 0; j < 2 * kValueUnits; j++) {
        float* pair = to + (g + 8 * r) * kPaddedDim + j * 8 + 2 * t;
        pair[0] = strand_.total[j][2 * r], pair[1] = strand_.total[j][2 * r + 1];
      }
    }
  }

  const int layer_, head_, first_, last_, end_;  // the first row's place in its block; the last row's position
  const int streamed_end_;
  int chunk_, left_ = 0;  // of this group's chunks from the ring: the next one's first block, how many
  int block_, low_[2], limit_[2], highest_low_;
  int taken_[kStepBlocks];  // blocks that are held, where they come through the ring
  Held held_;
  Strand<kHigh> strand_;
};

}  // namespace monolane
