// What a warp does for attention: it holds blocks of the cache in registers and keeps running results of what it has seen. The
// queries are, in a narrow pass, those of the heads that share a key/value head; in a wide pass, those of its positions at one
// query head. They lie in the scratch, in shared memory.
#pragma once
#include "ring.cuh"
#include "rope.cuh"

namespace monolane {

// Blocks that a warp holds at once, four registers a unit. More would fit (two blocks of 128 dimensions), but the query would
// come later, behind all those on their way to one multiprocessor.
constexpr int kPageFragments = kKeyFragments + kValueFragments;
constexpr int kStepPages = 2 * kPageFragments <= 16 ? 2 : 1;
constexpr bool kValuesWithKeys = kStepPages * kPageFragments <= 16;  // together with the keys
constexpr int kPrefetchSteps = 1;  // steps between those that are asked for and those that are wanted in L2
constexpr int kNowhere = INT32_MAX / (2 * kPageTokens);  // a block that nobody sees
constexpr int kPaddedDim = round_up(kValueFragments * 16, 32);

// --- scratch ---

// Where dimension d of a row of results lies in the scratch: rows that are written at once share no bank.
MONOLANE_DEVICE int accumulator_index(int row, int d) { return row * kPaddedDim + (d ^ row / 2 % 4 * 8); }
// Scores are kept as logarithms of two.
constexpr float kScoreFactor = kScale * 1.4426950408889634f;

namespace attention {

MONOLANE_DEVICE uint16_t* queries() { return shared::at<uint16_t>(kXOffset); }                    // [row][kQueryStride]
MONOLANE_DEVICE uint16_t* new_key() { return shared::at<uint16_t>(kXOffset + kNewKvOffset); }
MONOLANE_DEVICE uint16_t* new_value() { return new_key() + round_up(kHeadDim, kKBlock); }
MONOLANE_DEVICE float* new_probabilities() { return shared::at<float>(kXOffset + kNewStatsOffset); }        // [row]
MONOLANE_DEVICE float* new_row_maxes() { return new_probabilities() + kMmaRows; }                       // [row]
// Of a wide pass: the block of the cache that its positions are in, as far as they are new. Its inputs are not there meanwhile.
MONOLANE_DEVICE uint16_t* new_keys() { return shared::prefill_x(); }
MONOLANE_DEVICE uint16_t* new_values() { return shared::prefill_x() + kKeyFragments * kFragmentElements; }
MONOLANE_DEVICE float* row_maxes() { return shared::at<float>(kXOffset + kRowMaxesOffset); }               // [warp][row]
MONOLANE_DEVICE float* row_sums() { return row_maxes() + kConsumerWarps * kMmaRows; }                // [warp][row]
MONOLANE_DEVICE float* accumulators() { return shared::at<float>(kXOffset + kAccumulatorsOffset); }           // [warp][row][dimension], see result_place

}  // namespace attention

static_assert(kPrefillXOffset + kPageFragments * kFragmentBytes <= kRingBytes, "the new block of a wide pass does not fit");

// --- what a warp holds and sees ---

// Blocks of the cache in registers.
struct KvFragments {
  Word4 keys[kStepPages * kKeyFragments], values[kStepPages * kValueFragments];

  MONOLANE_DEVICE void load_keys(int layer, int head, int page, int end) { load<kKeyFragments>(keys, key_page(layer, head, page), page, end); }
  MONOLANE_DEVICE void load_values(int layer, int head, int page, int end) { load<kValueFragments>(values, value_page(layer, head, page), page, end); }

  // Block i, from a chunk of the ring where it is the n-th; returns what Cursor::leave wants.
  MONOLANE_DEVICE uint32_t copy_keys(int i, const char* chunk, int n) { return copy<kKeyFragments>(keys + i * kKeyFragments, chunk, n * kKeyFragments); }
  MONOLANE_DEVICE uint32_t copy_values(int i, const char* chunk, int n) { return copy<kValueFragments>(values + i * kValueFragments, chunk, kChunkPages * kKeyFragments + n * kValueFragments); }
  MONOLANE_DEVICE void zero_keys(int i) { clear<kKeyFragments>(keys + i * kKeyFragments); }
  MONOLANE_DEVICE void zero_values(int i) { clear<kValueFragments>(values + i * kValueFragments); }

  // The position that is being decoded is not in the cache yet: put its key in its place. Its value, times its weight, is
  // added when results are merged.
  MONOLANE_DEVICE void insert_key(int i, int r) {
    if (lane_id() / 4 != r % 8) return;
#pragma unroll
    for (int j = 0; j < kKeyFragments; j++)
      if (j / kDimFragments == r / 8) keys[i * kKeyFragments + j] = *reinterpret_cast<const Word4*>(attention::new_key() + j % kDimFragments * kKBlock + lane_id() % 4 * 8);
  }

  // The positions of a wide pass, `first` to `last` of block i, are not in the cache yet either: they lie in the scratch.
  MONOLANE_DEVICE void insert_new(int i, int first, int last) {
    const int g = lane_id() / 4, low = lane_id() % 4 * 2;
    const auto fresh = [&](const uint16_t* from, int j) { return reinterpret_cast<const Word4*>(from)[j * 32 + lane_id()]; };
#pragma unroll
    for (int j = 0; j < kKeyFragments; j++)
      if (j / kDimFragments * 8 + g >= first && j / kDimFragments * 8 + g <= last) keys[i * kKeyFragments + j] = fresh(attention::new_keys(), j);
    const auto old = [&](int r) { return (r < first ? 0xffffu : 0u) | (r + 1 < first ? 0xffff0000u : 0u); };
    const uint32_t one = old(low), two = old(low + 8);
#pragma unroll
    for (int j = 0; j < kValueFragments; j++) {
      Word4& fragment = values[i * kValueFragments + j];
      const Word4 v = fresh(attention::new_values(), j);
      fragment.x = (fragment.x & one) | (v.x & ~one), fragment.y = (fragment.y & two) | (v.y & ~two);
      fragment.z = (fragment.z & one) | (v.z & ~one), fragment.w = (fragment.w & two) | (v.w & ~two);
    }
  }

  // What lies behind the last position may be anything, and its weight of zero times anything need not be zero.
  MONOLANE_DEVICE void mask_values(int i, int last) {
    const int low = lane_id() % 4 * 2;
    const auto mask = [&](int r) { return (r <= last ? 0xffffu : 0u) | (r + 1 <= last ? 0xffff0000u : 0u); };
    const uint32_t first = mask(low), second = mask(low + 8);
#pragma unroll
    for (int j = 0; j < kValueFragments; j++) {
      Word4& fragment = values[i * kValueFragments + j];
      fragment.x &= first, fragment.y &= second, fragment.z &= first, fragment.w &= second;
    }
  }

 private:
  template <int kCount>
  MONOLANE_DEVICE static uint32_t copy(Word4* fragments, const char* chunk, int first) {
#pragma unroll
    for (int j = 0; j < kCount; j++) fragments[j] = reinterpret_cast<const Word4*>(chunk)[(first + j) * 32 + lane_id()];
    return load_dependency<kCount>(fragments);
  }
  template <int kCount>
  MONOLANE_DEVICE static void clear(Word4* fragments) {
#pragma unroll
    for (int j = 0; j < kCount; j++) fragments[j] = {0, 0, 0, 0};
  }
  template <int kFragmentsOfPage, int kCount>
  MONOLANE_DEVICE static void load(Word4 (&fragments)[kCount], const uint16_t* from, int page, int end) {
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      fragments[j] = {0, 0, 0, 0};
      if (page + j / kFragmentsOfPage < end) fragments[j] = ptx::load_l2(reinterpret_cast<const Word4*>(from) + j * 32 + lane_id());
    }
  }
};

// The highest score of a query so far, and the sum of its weights, this lane's part of it.
struct RowState {
  float row_max, row_sum;

  // There are new scores, of which this is the highest: what older results are to be multiplied by. Fresh: there are none.
  template <bool kFirstStep>
  MONOLANE_DEVICE float raise_max(float highest) {
    const float before = row_max;
    row_max = kFirstStep ? highest * kScoreFactor : fmaxf(before, highest * kScoreFactor);
    const float shrink = kFirstStep ? 0.0f : ptx::exp2(before - base());
    row_sum = kFirstStep ? 0.0f : row_sum * shrink;
    return shrink;
  }
  MONOLANE_DEVICE float probability(float score) {
    const float weight = ptx::exp2(score * kScoreFactor - base());
row_sum += weight;
    return weight;
  }

 private:
  MONOLANE_DEVICE float base() const { return row_max == -kInfinity ? 0.0f : row_max; }
};

// A warp's running results. A fresh one begins with the blocks it is given: until then it takes no registers.
//   weigh: weights of the positions of these blocks that lie in [low, limit] of their query, as the next product wants them;
//     `whole`: all of them do.
//   gather: the values of these blocks, each times its weight.
//   note: the weights of position r of a block, for the merge: the value they belong to is not in the cache yet.
//   tell, keep: what is merged in the end, to the scratch.
template <bool kQueriesAreRows>
class SoftmaxState;

// Of up to sixteen queries: they are the rows of a product, and this lane's are g and g + 8.
template <>
class SoftmaxState<true> {
 public:
  using Probabilities = uint32_t[kStepPages][4];

  MONOLANE_DEVICE void clear() {
    rows_[0] = rows_[1] = {-kInfinity, 0.0f};
    clear_accumulator();
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void probabilities(const KvFragments& held, int rows, const int (&pages)[kStepPages], bool whole, const int (&low)[2], const int (&limit)[2], Probabilities& probabilities) {
    float scores[2 * kStepPages][4];
    const int t = lane_id() % 4;
#pragma unroll
    for (int tile = 0; tile < 2 * kStepPages; tile += 2) score(held.keys + tile * kDimFragments, rows, scores[tile], scores[tile + 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (!whole) {
#pragma unroll
        for (int tile = 0; tile < 2 * kStepPages; tile++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int position = pages[tile / 2] * kPageTokens + tile % 2 * 8 + 2 * t + e;
            if (position < low[r] || position > limit[r]) scores[tile][2 * r + e] = -kInfinity;
          }
      }
      float highest = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
      for (int tile = 1; tile < 2 * kStepPages; tile++) highest = fmaxf(highest, fmaxf(scores[tile][2 * r], scores[tile][2 * r + 1]));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 1));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 2));
      const float shrink = rows_[r].raise_max<kFirstStep>(highest);
      if (!kFirstStep) {
#pragma unroll
        for (int j = 0; j < 2 * kValueFragments; j++) accumulator_[j][2 * r] *= shrink, accumulator_[j][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int tile = 0; tile < 2 * kStepPages; tile++) {
        const float first = rows_[r].probability(scores[tile][2 * r]), second = rows_[r].probability(scores[tile][2 * r + 1]);
        probabilities[tile / 2][tile % 2 * 2 + r] = ptx::bf16_pair(first, second);
      }
    }
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void accumulate(const KvFragments& held, const Probabilities& probabilities) {
    if (kFirstStep) clear_accumulator();
    constexpr int kTogether = 2;  // units: enough products between two of one sum, and few sums before their values are used up
#pragma unroll
    for (int first = 0; first < kValueFragments; first += kTogether)
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
#pragma unroll
        for (int j = first; j < lesser(first + kTogether, kValueFragments); j++) {
          const Word4& value = held.values[i * kValueFragments + j];
          ptx::mma(accumulator_[2 * j], probabilities[i][0], probabilities[i][1], probabilities[i][2], probabilities[i][3], value.x, value.y);
          ptx::mma(accumulator_[2 * j + 1], probabilities[i][0], probabilities[i][1], probabilities[i][2], probabilities[i][3], value.z, value.w);
        }
  }

  MONOLANE_DEVICE void store_new_probability(int r, const uint32_t (&probabilities)[4]) const {
    if (lane_id() % 4 != r % 8 / 2) return;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const uint32_t pair = r < 8 ? probabilities[n] : probabilities[2 + n];
      const int row = lane_id() / 4 + 8 * n;
      attention::new_probabilities()[row] = ptx::float_of(r % 2 ? pair & 0xffff0000u : pair << 16);
      attention::new_row_maxes()[row] = rows_[n].row_max;
    }
  }

  MONOLANE_DEVICE void store_stats(float* row_maxes, float* row_sums) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float& sum = rows_[r].row_sum;
      sum += ptx::shuffle_xor(sum, 1);
      sum += ptx::shuffle_xor(sum, 2);
      if (lane_id() % 4 == 0) row_maxes[lane_id() / 4 + 8 * r] = rows_[r].row_max, row_sums[lane_id() / 4 + 8 * r] = sum;
    }
  }

  MONOLANE_DEVICE void store_accumulator(float* to, int rows) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = lane_id() / 4 + 8 * r;
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < 2 * kValueFragments; j++) {
        float* pair = to + accumulator_index(row, j * 8 + lane_id() % 4 * 2);
        pair[0] = accumulator_[j][2 * r], pair[1] = accumulator_[j][2 * r + 1];
      }
    }
  }

 private:
  // The keys of one block with all queries.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&low)[4], float (&high)[4]) {
    const int g = lane_id() / 4;
    const uint16_t* q = attention::queries() + lane_id() % 4 * 8;
    float sums[2][4] = {};
#pragma unroll
    for (int u = 0; u < kDimFragments; u++) {
      const Word4 a = *reinterpret_cast<const Word4*>(q + min(g, rows - 1) * kQueryStride + u * kKBlock);
      const Word4 b = *reinterpret_cast<const Word4*>(q + min(g + 8, rows - 1) * kQueryStride + u * kKBlock);
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        const Word4& key = keys[tile * kDimFragments + u];
        ptx::mma(sums[tile], a.x, b.x, a.y, b.y, key.x, key.y);
        ptx::mma(sums[tile], a.z, b.z, a.w, b.w, key.z, key.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = sums[0][i], high[i] = sums[1][i];
  }

  MONOLANE_DEVICE void clear_accumulator() {
#pragma unroll
    for (int j = 0; j < 2 * kValueFragments; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) accumulator_[j][i] = 0.0f;
  }

  RowState rows_[2];
  float accumulator_[2 * kValueFragments][4];
};

// Of up to eight queries: they are the columns of a product, so that half the products do, and this lane's are 2t and 2t + 1.
// The rows are positions, and then dimensions of values: two units of keys, or one of values, are an A operand as they lie.
template <>
class SoftmaxState<false> {
 public:
  using Probabilities = uint32_t[kStepPages][2];

  template <bool kFirstStep>
  MONOLANE_DEVICE void probabilities(const KvFragments& held, int rows, const int (&pages)[kStepPages], bool whole, const int (&low)[2], const int (&limit)[2], Probabilities& probabilities) {
    float scores[kStepPages][4];  // of positions g and g + 8, two queries each
    const int g = lane_id() / 4;
#pragma unroll
    for (int i = 0; i < kStepPages; i++) score(held.keys + i * kKeyFragments, rows, scores[i]);
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int position = pages[i] * kPageTokens + e / 2 * 8 + g;
          if (position < low[0] || position > limit[0]) scores[i][e] = -kInfinity;
        }
    }
    float highest[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      highest[r] = fmaxf(scores[0][r], scores[0][2 + r]);
#pragma unroll
      for (int i = 1; i < kStepPages; i++) highest[r] = fmaxf(highest[r], fmaxf(scores[i][r], scores[i][2 + r]));
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; r++) highest[r] = fmaxf(highest[r], ptx::shuffle_xor(highest[r], mask));
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float shrink = rows_[r].raise_max<kFirstStep>(highest[r]);
#pragma unroll
      for (int j = 0; !kFirstStep && j < kValueFragments; j++) accumulator_[j][r] *= shrink, accumulator_[j][2 + r] *= shrink;
#pragma unroll
      for (int i = 0; i < kStepPages; i++) scores[i][r] = rows_[r].probability(scores[i][r]), scores[i][2 + r] = rows_[r].probability(scores[i][2 + r]);
    }
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) probabilities[i][half] = ptx::transpose(ptx::bf16_pair(scores[i][2 * half], scores[i][2 * half + 1]));
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void accumulate(const KvFragments& held, const Probabilities& probabilities) {
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
#pragma unroll
      for (int j = 0; j < kValueFragments; j++) {
        const Word4& value = held.values[i * kValueFragments + j];
        if (kFirstStep && i == 0) accumulator_[j][0] = accumulator_[j][1] = accumulator_[j][2] = accumulator_[j][3] = 0.0f;
        ptx::mma(accumulator_[j], value.x, value.z, value.y, value.w, probabilities[i][0], probabilities[i][1]);
      }
  }

  MONOLANE_DEVICE void store_new_probability(int r, const uint32_t (&probabilities)[2]) const {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const uint32_t pair = r < 8 ? probabilities[0] : probabilities[1];
    if (t == r % 8 / 2) attention::new_probabilities()[g] = ptx::float_of(r % 2 ? pair & 0xffff0000u : pair << 16);
    if (g == 0) attention::new_row_maxes()[2 * t] = rows_[0].row_max, attention::new_row_maxes()[2 * t + 1] = rows_[1].row_max;
  }

  MONOLANE_DEVICE void store_stats(float* row_maxes, float* row_sums) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; r++) rows_[r].row_sum += ptx::shuffle_xor(rows_[r].row_sum, mask);
    if (lane_id() >= 4) return;
#pragma unroll
    for (int r = 0; r < 2; r++) row_maxes[lane_id() * 2 + r] = rows_[r].row_max, row_sums[lane_id() * 2 + r] = rows_[r].row_sum;
  }

  MONOLANE_DEVICE void store_accumulator(float* to, int rows) const {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = 2 * t + e % 2;
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < kValueFragments; j++) to[accumulator_index(row, j * 16 + e / 2 * 8 + g)] = accumulator_[j][e];
    }
  }

 private:
  // The keys of one block with all queries.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&scores)[4]) {
    const uint16_t* q = attention::queries() + min(lane_id() / 4, rows - 1) * kQueryStride + lane_id() % 4 * 8;
    float sums[2][4] = {};
#pragma unroll
    for (int u = 0; u < kDimFragments; u++) {
      const Word4 query = *reinterpret_cast<const Word4*>(q + u * kKBlock);
      const Word4 &first = keys[u], &second = keys[kDimFragments + u];
      ptx::mma(sums[0], first.x, second.x, first.y, second.y, query.x, query.y);
      ptx::mma(sums[1], first.z, second.z, first.w, second.w, query.z, query.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = sums[0][i] + sums[1][i];
  }

  RowState rows_[2];
  float accumulator_[kValueFragments][4];
};

}  // namespace monolane
