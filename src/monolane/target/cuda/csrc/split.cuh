// Attention on the tensor cores. The rows of a product are, in a narrow pass, the query heads that share a key/value head;
// in a wide pass, the positions of the pass at one query head. A block of threads takes a split of the cache, its warps
// take blocks of positions in turn and keep running results, which are merged in order at the end. In a narrow pass the
// first cached blocks are in registers before the query is there.
#pragma once
#include "cache.cuh"
#include "rotate.cuh"

namespace monolane {

constexpr int kRowsAtOnce = 16;
// Blocks that a warp holds at once, four registers a unit: as many as its running results leave room for. At the beginning
// of a narrow pass there are none yet, and twice as many fit.
constexpr int kPairUnits = kKeyUnits + kValueUnits;
constexpr int kStepBlocks = 2 * kPairUnits <= 16 ? 2 : 1, kFirstBlocks = kGroup > 8 || kPairUnits > 16 ? 1 : 2;
constexpr bool kHoldValues = kStepBlocks * kPairUnits <= 16;  // together with the keys
constexpr int kWantedAhead = 1;  // steps between those that are asked for and those that are wanted in L2
constexpr int kPaddedDim = kValueUnits * 16;

// --- scratch ---

constexpr int kQueryStride = round_up(kHeadDim, 64) + 32;  // elements: two rows share no bank
constexpr int kFreshOffset = kRowsAtOnce * kQueryStride * 2;
constexpr int kTopsOffset = kFreshOffset + 2 * round_up(kHeadDim, kBlock) * 2;
constexpr int kTotalsOffset = kTopsOffset + 2 * kConsumerWarps * kRowsAtOnce * 4;
// Scores are kept as logarithms of two.
constexpr float kScoreFactor = kScale * 1.4426950408889634f;

namespace attention {

MONOLANE_DEVICE uint16_t* queries() { return shared::at<uint16_t>(kXOffset); }                    // [row][kQueryStride]
MONOLANE_DEVICE uint16_t* fresh_key() { return shared::at<uint16_t>(kXOffset + kFreshOffset); }
MONOLANE_DEVICE uint16_t* fresh_value() { return fresh_key() + round_up(kHeadDim, kBlock); }
MONOLANE_DEVICE float* tops() { return shared::at<float>(kXOffset + kTopsOffset); }               // [warp][row]
MONOLANE_DEVICE float* weights() { return tops() + kConsumerWarps * kRowsAtOnce; }                // [warp][row]
MONOLANE_DEVICE float* totals() { return shared::at<float>(kXOffset + kTotalsOffset); }           // [warp][row][kPaddedDim]

}  // namespace attention

// --- what a warp holds and sees ---

// Blocks of the cache in registers.
template <int kSteps>
struct Held {
  Word4 keys[kSteps * kKeyUnits], values[kSteps * kValueUnits];

  MONOLANE_DEVICE void ask_keys(int layer, int head, int block, int end) { ask<kKeyUnits>(keys, key_block(layer, head, block), block, end); }
  MONOLANE_DEVICE void ask_values(int layer, int head, int block, int end) { ask<kValueUnits>(values, value_block(layer, head, block), block, end); }

  // The position that is being decoded is not in the cache yet: put it in its place.
  MONOLANE_DEVICE void put(int i, int r) {
    const int g = lane_index() / 4, t = lane_index() % 4;
    if (g == r % 8) {
#pragma unroll
      for (int j = 0; j < kKeyUnits; j++)
        if (j / kDimUnits == r / 8) keys[i * kKeyUnits + j] = *reinterpret_cast<const Word4*>(attention::fresh_key() + j % kDimUnits * kBlock + t * 8);
    }
    if (t == r % 8 / 2) {
      const uint32_t lower = r % 2 ? 0x5410u : 0x3254u;  // which half of a pair is new
      const auto put = [&](uint32_t& word, uint32_t v) { word = ptx::pick_bytes(word, v, lower); };
#pragma unroll
      for (int j = 0; j < kValueUnits; j++) {
        Word4& unit = values[i * kValueUnits + j];
        const uint32_t first = attention::fresh_value()[j * 16 + g], second = attention::fresh_value()[j * 16 + 8 + g];
        if (r < 8)
          put(unit.x, first), put(unit.z, second);
        else
          put(unit.y, first), put(unit.w, second);
      }
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
// given: until then it takes no registers.
template <bool kHigh>
class Strand {
 public:
  static constexpr int kRows = kHigh ? 2 : 1;
  float top[kRows], sum[kRows], total[2 * kValueUnits][2 * kRows];

  MONOLANE_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kRows; r++) top[r] = -kInfinity, sum[r] = 0.0f;
    clear_totals();
  }

  // Weights of the positions from `first` on that lie in [low, limit] of their row, as pairs for the next product. `whole`:
  // all of them do.
  template <bool kFresh, int kSteps>
  MONOLANE_DEVICE void weigh(const Held<kSteps>& held, int rows, int first, bool whole, const int (&low)[2], const int (&limit)[2], uint32_t (&weights)[kSteps][4]) {
    float scores[2 * kSteps][2 * kRows] = {};
    const int g = lane_index() / 4, t = lane_index() % 4;
    const uint16_t* q = attention::queries() + t * 8;
#pragma unroll
    for (int u = 0; u < kDimUnits; u++) {
      const Word4 a = *reinterpret_cast<const Word4*>(q + min(g, rows - 1) * kQueryStride + u * kBlock);
      Word4 b{0, 0, 0, 0};
      if (kHigh) b = *reinterpret_cast<const Word4*>(q + min(g + 8, rows - 1) * kQueryStride + u * kBlock);
#pragma unroll
      for (int tile = 0; tile < 2 * kSteps; tile++) {
        const Word4& key = held.keys[tile * kDimUnits + u];
        multiply(scores[tile], a.x, b.x, a.y, b.y, key.x, key.y);
        multiply(scores[tile], a.z, b.z, a.w, b.w, key.z, key.w);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      if (!whole) {
#pragma unroll
        for (int tile = 0; tile < 2 * kSteps; tile++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int position = first + tile * 8 + 2 * t + e;
            if (position < low[r] || position > limit[r]) scores[tile][2 * r + e] = -kInfinity;
          }
      }
      float highest = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
      for (int tile = 1; tile < 2 * kSteps; tile++) highest = fmaxf(highest, fmaxf(scores[tile][2 * r], scores[tile][2 * r + 1]));
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
      for (int tile = 0; tile < 2 * kSteps; tile++) {
        const float w0 = ptx::power_of_two(scores[tile][2 * r] * kScoreFactor - base), w1 = ptx::power_of_two(scores[tile][2 * r + 1] * kScoreFactor - base);
        sum[r] += w0 + w1;
        weights[tile / 2][tile % 2 * 2 + r] = ptx::bf16_pair(w0, w1);
        if (!kHigh) weights[tile / 2][tile % 2 * 2 + 1] = 0;
      }
    }
  }

  template <bool kFresh, int kSteps>
  MONOLANE_DEVICE void gather(const Held<kSteps>& held, const uint32_t (&weights)[kSteps][4]) {
    if (kFresh) clear_totals();
#pragma unroll
    for (int i = 0; i < kSteps; i++)
#pragma unroll
      for (int j = 0; j < kValueUnits; j++) {
        const Word4& value = held.values[i * kValueUnits + j];
        multiply(total[2 * j], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.x, value.y);
        multiply(total[2 * j + 1], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.z, value.w);
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
  MONOLANE_DEVICE void clear_totals() {
#pragma unroll
    for (int j = 0; j < 2 * kValueUnits; j++)
#pragma unroll
      for (int i = 0; i < 2 * kRows; i++) total[j][i] = 0.0f;
  }

  MONOLANE_DEVICE static void multiply(float (&c)[2 * kRows], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    float sums[4] = {c[0], c[1], kHigh ? c[2 * kRows - 2] : 0.0f, kHigh ? c[2 * kRows - 1] : 0.0f};
    ptx::mma(sums, a0, a1, a2, a3, b0, b1);
#pragma unroll
    for (int i = 0; i < 2 * kRows; i++) c[i] = sums[i];
  }
};

// --- a split, by a block of threads ---

// One split of the cache, for `rows` rows of queries that lie in the scratch, and its result.
template <bool kWide, int kMostRows>
class Split {
 public:
  static constexpr bool kHigh = kMostRows > 8 || kHeadDim <= 64;
  static constexpr int kFirst = kWide ? kStepBlocks : kFirstBlocks;
  static constexpr bool kHoldFirst = !kWide || kHoldValues;

  // `position`: of the first row; in a wide pass each row is one further.
  MONOLANE_DEVICE Split(int layer, int head, int position, int width, const Span& span, int split)
      : layer_(layer), head_(head), last_(position + width - 1), end_(span.first + min(span.blocks, (split + 1) * span.length)),
        block_(span.first + split * span.length + warp_index() * kFirst) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int own = kWide ? position + min(lane_index() / 4 + 8 * r, width - 1) : position;
      low_[r] = first_seen(own, window_of(layer));
      limit_[r] = min(own, end_ * kBlockPositions - 1);
    }
    highest_low_ = first_seen(position + width - 1, window_of(layer));
  }

  // The first of this warp's blocks, before the queries are there.
  MONOLANE_DEVICE void ask() { ask<kHoldFirst>(held_, block_); }

  // All of this warp's blocks; a new position's key and value lie in the scratch.
  MONOLANE_DEVICE void see(int rows) {
    if constexpr (kWide) {
      strand_.clear();
      see_rest(held_, rows);
      return strand_.finish_sums();
    }
    step<true, kHoldFirst>(held_, rows, [] {});
    block_ += kConsumerWarps * kFirst - warp_index() * (kFirst - kStepBlocks);
    if (block_ < end_) {
      Held<kStepBlocks> rest;
      ask<kHoldValues>(rest, block_);
      see_rest(rest, rows);
    }
    strand_.finish_sums();
  }

  // The results of all warps as one, four dimensions of a row by a thread: `publish(row, d, value)`, and `weigh(row,
  // logarithm of the weight of it all)`.
  template <class Publish, class Weigh>
  MONOLANE_DEVICE void merge(int rows, Publish publish, Weigh weigh) {
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
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (kHeadDim == kPaddedDim || d + j < kHeadDim) publish(row, d + j, value[n][j] * scale);
      if (d == 0) weigh(row, top[n] + ptx::logarithm_of_two(weight[n]));
    }
  }

 private:
  template <bool kValues, int kSteps>
  MONOLANE_DEVICE void ask(Held<kSteps>& held, int block) {
    held.ask_keys(layer_, head_, block, end_);
    if (kValues) held.ask_values(layer_, head_, block, end_);
  }

  // The blocks that are held; `between` is called when their keys are not needed any more.
  template <bool kFresh, bool kValues, int kSteps, class Between>
  MONOLANE_DEVICE void step(Held<kSteps>& held, int rows, Between between) {
    const int newest = last_ / kBlockPositions;
    const bool whole = block_ + kSteps <= min(newest, end_) && (!kAnyWindow || block_ * kBlockPositions >= highest_low_);
    if (!kValues) held.ask_values(layer_, head_, block_, end_);
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      if (block_ + i != newest || newest >= end_) continue;  // the newest position is another split's to see
      if (!kWide) held.put(i, last_ % kBlockPositions);
      held.clean_values(i, last_ % kBlockPositions);
    }
    uint32_t weights[kSteps][4];
    strand_.template weigh<kFresh>(held, rows, block_ * kBlockPositions, whole, low_, limit_, weights);
    between();
    strand_.template gather<kFresh>(held, weights);
  }

  // Blocks of a later step, into L2: who reads them then need not wait for memory.
  MONOLANE_DEVICE void want(int block) {
    const int count = min(kStepBlocks, end_ - block);
    if (count <= 0) return;
    prefetch_lines(key_block(layer_, head_, block), count * kKeyUnits * kUnitBytes, lane_index(), 32);
    prefetch_lines(value_block(layer_, head_, block), count * kValueUnits * kUnitBytes, lane_index(), 32);
  }

  MONOLANE_DEVICE void see_rest(Held<kStepBlocks>& held, int rows) {
#pragma unroll 1
    while (block_ < end_) {
      const int next = block_ + kConsumerWarps * kStepBlocks;
      step<false, kHoldValues>(held, rows, [&] {
        if (next < end_) held.ask_keys(layer_, head_, next, end_);  // on their way while these are gathered
        if (!kWide) want(next + kWantedAhead * kConsumerWarps * kStepBlocks);
      });
      if (kHoldValues && next < end_) held.ask_values(layer_, head_, next, end_);
      block_ = next;
    }
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

  const int layer_, head_, last_, end_;
  int block_, low_[2], limit_[2], highest_low_;
  Held<kFirst> held_;
  Strand<kHigh> strand_;
};

}  // namespace monolane
