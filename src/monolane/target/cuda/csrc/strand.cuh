// What a warp does for attention: it holds blocks of the cache in registers and keeps running results of what it has seen. The
// queries are, in a narrow pass, those of the heads that share a key/value head; in a wide pass, those of its positions at one
// query head. They lie in the scratch, in shared memory.
#pragma once
#include "ring.cuh"
#include "rotate.cuh"

namespace monolane {

// Blocks that a warp holds at once, four registers a unit. More would fit (two blocks of 128 dimensions), but the query would
// come later, behind all those on their way to one multiprocessor.
constexpr int kPairUnits = kKeyUnits + kValueUnits;
constexpr int kStepBlocks = 2 * kPairUnits <= 16 ? 2 : 1;
constexpr bool kHoldValues = kStepBlocks * kPairUnits <= 16;  // together with the keys
constexpr int kWantedAhead = 1;  // steps between those that are asked for and those that are wanted in L2
constexpr int kNowhere = INT32_MAX / (2 * kBlockPositions);  // a block that nobody sees
constexpr int kPaddedDim = round_up(kValueUnits * 16, 32);

// --- scratch ---

constexpr int kQueryStride = round_up(kHeadDim, 64) + 32;  // elements: two rows share no bank
constexpr int kFreshOffset = kRowsAtOnce * kQueryStride * 2;
constexpr int kShareOffset = kFreshOffset + 2 * round_up(kHeadDim, kBlock) * 2;
constexpr int kTopsOffset = kShareOffset + 2 * kRowsAtOnce * 4;
constexpr int kTotalsOffset = kTopsOffset + 2 * kConsumerWarps * kRowsAtOnce * 4;
// Where dimension d of a row of results lies in the scratch: rows that are written at once share no bank.
MONOLANE_DEVICE int result_place(int row, int d) { return row * kPaddedDim + (d ^ row / 2 % 4 * 8); }
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
MONOLANE_DEVICE float* totals() { return shared::at<float>(kXOffset + kTotalsOffset); }           // [warp][row][dimension], see result_place

}  // namespace attention

static_assert(kWideXOffset + kPairUnits * kUnitBytes <= kRingBytes, "the new block of a wide pass does not fit");

// --- what a warp holds and sees ---

// Blocks of the cache in registers.
struct Held {
  Word4 keys[kStepBlocks * kKeyUnits], values[kStepBlocks * kValueUnits];

  MONOLANE_DEVICE void ask_keys(int layer, int head, int block, int end) { ask<kKeyUnits>(keys, key_block(layer, head, block), block, end); }
  MONOLANE_DEVICE void ask_values(int layer, int head, int block, int end) { ask<kValueUnits>(values, value_block(layer, head, block), block, end); }

  // Block i, from a chunk of the ring where it is the n-th; returns what Cursor::leave wants.
  MONOLANE_DEVICE uint32_t take_keys(int i, const char* chunk, int n) { return take<kKeyUnits>(keys + i * kKeyUnits, chunk, n * kKeyUnits); }
  MONOLANE_DEVICE uint32_t take_values(int i, const char* chunk, int n) { return take<kValueUnits>(values + i * kValueUnits, chunk, kChunkBlocks * kKeyUnits + n * kValueUnits); }
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
  MONOLANE_DEVICE static uint32_t take(Word4* units, const char* chunk, int first) {
#pragma unroll
    for (int j = 0; j < kCount; j++) units[j] = reinterpret_cast<const Word4*>(chunk)[(first + j) * 32 + lane_index()];
    return mixed<kCount>(units);
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

// The highest score of a query so far, and the sum of its weights, this lane's part of it.
struct Running {
  float top, sum;

  // There are new scores, of which this is the highest: what older results are to be multiplied by. Fresh: there are none.
  template <bool kFresh>
  MONOLANE_DEVICE float raise(float highest) {
    const float before = top;
    top = kFresh ? highest * kScoreFactor : fmaxf(before, highest * kScoreFactor);
    const float shrink = kFresh ? 0.0f : ptx::power_of_two(before - base());
    sum = kFresh ? 0.0f : sum * shrink;
    return shrink;
  }
  MONOLANE_DEVICE float weigh(float score) {
    const float weight = ptx::power_of_two(score * kScoreFactor - base());
    sum += weight;
    return weight;
  }

 private:
  MONOLANE_DEVICE float base() const { return top == -kInfinity ? 0.0f : top; }
};

// A warp's running results. A fresh one begins with the blocks it is given: until then it takes no registers.
//   weigh: weights of the positions of these blocks that lie in [low, limit] of their query, as the next product wants them;
//     `whole`: all of them do.
//   gather: the values of these blocks, each times its weight.
//   note: the weights of position r of a block, for the merge: the value they belong to is not in the cache yet.
//   tell, keep: what is merged in the end, to the scratch.
template <bool kMany>
class Strand;

// Of up to sixteen queries: they are the rows of a product, and this lane's are g and g + 8.
template <>
class Strand<true> {
 public:
  using Weights = uint32_t[kStepBlocks][4];

  MONOLANE_DEVICE void clear() {
    running_[0] = running_[1] = {-kInfinity, 0.0f};
    clear_totals();
  }

  template <bool kFresh>
  MONOLANE_DEVICE void weigh(const Held& held, int rows, const int (&blocks)[kStepBlocks], bool whole, const int (&low)[2], const int (&limit)[2], Weights& weights) {
    float scores[2 * kStepBlocks][4];
    const int t = lane_index() % 4;
#pragma unroll
    for (int tile = 0; tile < 2 * kStepBlocks; tile += 2) score(held.keys + tile * kDimUnits, rows, scores[tile], scores[tile + 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
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
      const float shrink = running_[r].raise<kFresh>(highest);
      if (!kFresh) {
#pragma unroll
        for (int j = 0; j < 2 * kValueUnits; j++) total_[j][2 * r] *= shrink, total_[j][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int tile = 0; tile < 2 * kStepBlocks; tile++) {
        const float first = running_[r].weigh(scores[tile][2 * r]), second = running_[r].weigh(scores[tile][2 * r + 1]);
        weights[tile / 2][tile % 2 * 2 + r] = ptx::bf16_pair(first, second);
      }
    }
  }

  template <bool kFresh>
  MONOLANE_DEVICE void gather(const Held& held, const Weights& weights) {
    if (kFresh) clear_totals();
    constexpr int kTogether = 2;  // units: enough products between two of one sum, and few sums before their values are used up
#pragma unroll
    for (int first = 0; first < kValueUnits; first += kTogether)
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++)
#pragma unroll
        for (int j = first; j < lesser(first + kTogether, kValueUnits); j++) {
          const Word4& value = held.values[i * kValueUnits + j];
          ptx::mma(total_[2 * j], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.x, value.y);
          ptx::mma(total_[2 * j + 1], weights[i][0], weights[i][1], weights[i][2], weights[i][3], value.z, value.w);
        }
  }

  MONOLANE_DEVICE void note(int r, const uint32_t (&weights)[4]) const {
    if (lane_index() % 4 != r % 8 / 2) return;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const uint32_t pair = r < 8 ? weights[n] : weights[2 + n];
      const int row = lane_index() / 4 + 8 * n;
      attention::fresh_weights()[row] = ptx::float_of(r % 2 ? pair & 0xffff0000u : pair << 16);
      attention::fresh_tops()[row] = running_[n].top;
    }
  }

  MONOLANE_DEVICE void tell(float* tops, float* weights) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float& sum = running_[r].sum;
      sum += ptx::shuffle_xor(sum, 1);
      sum += ptx::shuffle_xor(sum, 2);
      if (lane_index() % 4 == 0) tops[lane_index() / 4 + 8 * r] = running_[r].top, weights[lane_index() / 4 + 8 * r] = sum;
    }
  }

  MONOLANE_DEVICE void keep(float* to, int rows) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = lane_index() / 4 + 8 * r;
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < 2 * kValueUnits; j++) {
        float* pair = to + result_place(row, j * 8 + lane_index() % 4 * 2);
        pair[0] = total_[j][2 * r], pair[1] = total_[j][2 * r + 1];
      }
    }
  }

 private:
  // The keys of one block with all queries.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&low)[4], float (&high)[4]) {
    const int g = lane_index() / 4;
    const uint16_t* q = attention::queries() + lane_index() % 4 * 8;
    float sums[2][4] = {};
#pragma unroll
    for (int u = 0; u < kDimUnits; u++) {
      const Word4 a = *reinterpret_cast<const Word4*>(q + min(g, rows - 1) * kQueryStride + u * kBlock);
      const Word4 b = *reinterpret_cast<const Word4*>(q + min(g + 8, rows - 1) * kQueryStride + u * kBlock);
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        const Word4& key = keys[tile * kDimUnits + u];
        ptx::mma(sums[tile], a.x, b.x, a.y, b.y, key.x, key.y);
        ptx::mma(sums[tile], a.z, b.z, a.w, b.w, key.z, key.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = sums[0][i], high[i] = sums[1][i];
  }

  MONOLANE_DEVICE void clear_totals() {
#pragma unroll
    for (int j = 0; j < 2 * kValueUnits; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) total_[j][i] = 0.0f;
  }

  Running running_[2];
  float total_[2 * kValueUnits][4];
};

// Of up to eight queries: they are the columns of a product, so that half the products do, and this lane's are 2t and 2t + 1.
// The rows are positions, and then dimensions of values: two units of keys, or one of values, are an A operand as they lie.
template <>
class Strand<false> {
 public:
  using Weights = uint32_t[kStepBlocks][2];

  template <bool kFresh>
  MONOLANE_DEVICE void weigh(const Held& held, int rows, const int (&blocks)[kStepBlocks], bool whole, const int (&low)[2], const int (&limit)[2], Weights& weights) {
    float scores[kStepBlocks][4];  // of positions g and g + 8, two queries each
    const int g = lane_index() / 4;
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++) score(held.keys + i * kKeyUnits, rows, scores[i]);
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int position = blocks[i] * kBlockPositions + e / 2 * 8 + g;
          if (position < low[0] || position > limit[0]) scores[i][e] = -kInfinity;
        }
    }
    float highest[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      highest[r] = fmaxf(scores[0][r], scores[0][2 + r]);
#pragma unroll
      for (int i = 1; i < kStepBlocks; i++) highest[r] = fmaxf(highest[r], fmaxf(scores[i][r], scores[i][2 + r]));
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; r++) highest[r] = fmaxf(highest[r], ptx::shuffle_xor(highest[r], mask));
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float shrink = running_[r].raise<kFresh>(highest[r]);
#pragma unroll
      for (int j = 0; !kFresh && j < kValueUnits; j++) total_[j][r] *= shrink, total_[j][2 + r] *= shrink;
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++) scores[i][r] = running_[r].weigh(scores[i][r]), scores[i][2 + r] = running_[r].weigh(scores[i][2 + r]);
    }
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) weights[i][half] = ptx::transpose(ptx::bf16_pair(scores[i][2 * half], scores[i][2 * half + 1]));
  }

  template <bool kFresh>
  MONOLANE_DEVICE void gather(const Held& held, const Weights& weights) {
#pragma unroll
    for (int i = 0; i < kStepBlocks; i++)
#pragma unroll
      for (int j = 0; j < kValueUnits; j++) {
        const Word4& value = held.values[i * kValueUnits + j];
        if (kFresh && i == 0) total_[j][0] = total_[j][1] = total_[j][2] = total_[j][3] = 0.0f;
        ptx::mma(total_[j], value.x, value.z, value.y, value.w, weights[i][0], weights[i][1]);
      }
  }

  MONOLANE_DEVICE void note(int r, const uint32_t (&weights)[2]) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
    const uint32_t pair = r < 8 ? weights[0] : weights[1];
    if (t == r % 8 / 2) attention::fresh_weights()[g] = ptx::float_of(r % 2 ? pair & 0xffff0000u : pair << 16);
    if (g == 0) attention::fresh_tops()[2 * t] = running_[0].top, attention::fresh_tops()[2 * t + 1] = running_[1].top;
  }

  MONOLANE_DEVICE void tell(float* tops, float* weights) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; r++) running_[r].sum += ptx::shuffle_xor(running_[r].sum, mask);
    if (lane_index() >= 4) return;
#pragma unroll
    for (int r = 0; r < 2; r++) tops[lane_index() * 2 + r] = running_[r].top, weights[lane_index() * 2 + r] = running_[r].sum;
  }

  MONOLANE_DEVICE void keep(float* to, int rows) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = 2 * t + e % 2;
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < kValueUnits; j++) to[result_place(row, j * 16 + e / 2 * 8 + g)] = total_[j][e];
    }
  }

 private:
  // The keys of one block with all queries.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&scores)[4]) {
    const uint16_t* q = attention::queries() + min(lane_index() / 4, rows - 1) * kQueryStride + lane_index() % 4 * 8;
    float sums[2][4] = {};
#pragma unroll
    for (int u = 0; u < kDimUnits; u++) {
      const Word4 query = *reinterpret_cast<const Word4*>(q + u * kBlock);
      const Word4 &first = keys[u], &second = keys[kDimUnits + u];
      ptx::mma(sums[0], first.x, second.x, first.y, second.y, query.x, query.y);
      ptx::mma(sums[1], first.z, second.z, first.w, second.w, query.z, query.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = sums[0][i] + sums[1][i];
  }

  Running running_[2];
  float total_[kValueUnits][4];
};

}  // namespace monolane
