// What one consumer warp does for attention. It loads cache pages into registers (KvFragments), from global memory or from the ring, and
// keeps an online softmax over the pages it has seen: row max, row sum and accumulator of each query (SoftmaxState). Both products run on
// the tensor cores. A row is one query: in a decode pass the query of one of the KV head's query heads, in a prefill pass the query of one
// position at one query head. Queries are read from the scratch in shared memory, and the softmax state of each warp is written there.
#pragma once
#include "ring.cuh"
#include "rope.cuh"

namespace monolane {

// A warp goes through its pages in steps of kStepPages pages, which it holds in registers, 4 registers per fragment and thread. The limit is 16
// fragments, which are 64 registers. More would fit (two pages of 128 dimensions), but the queries would arrive later, because their loads
// queue behind all loads of the SM.
constexpr int kPageFragments = kKeyFragments + kValueFragments;
constexpr int kStepPages = 2 * kPageFragments <= 16 ? 2 : 1;
constexpr bool kValuesWithKeys = kStepPages * kPageFragments <= 16;  // whether values are loaded together with the keys, or after them
constexpr int kPrefetchSteps = 1;                               // steps by which the prefetch into L2 is ahead of the loads into registers
constexpr int kNowhere = INT32_MAX / (2 * kPageTokens);         // stands for no page: it lies behind all positions that a query sees
constexpr int kPaddedDim = round_up(kValueFragments * 16, 32);  // floats of a row of an accumulator in the scratch

// --- scratch: the part of shared memory that holds inputs and sums of projections in other stages ---
//
//   queries                            [kMmaRows][kQueryStride]            bf16
//   new_key, new_value                 [round_up(kHeadDim, 32)] each       bf16, decode pass
//   new_probabilities, new_row_maxes   [kMmaRows] each                     fp32, decode pass
//   row_maxes, row_sums                [kConsumerWarps][kMmaRows] each     fp32
//   accumulators                       [warp][row][kPaddedDim]             fp32, for as many warps at a time as there is room for
//
// The keys and values that are new in a prefill pass lie in the ring's memory instead (new_keys, new_values).

// Index of dimension d of a row of an accumulator in the scratch. The XOR spreads the rows over the banks: where queries are columns, the
// four rows that a warp writes at once (0, 2, 4, 6 or 1, 3, 5, 7) use different banks.
MONOLANE_DEVICE int accumulator_index(int row, int d) { return row * kPaddedDim + (d ^ row / 2 % 4 * 8); }
// Attention scores times this factor, which is the softmax scale times log2(e), are exponents for exp2. Row maxes are in these units.
constexpr float kLog2E = 1.4426950408889634f, kScoreFactor = kScale * kLog2E;

namespace attention {

MONOLANE_DEVICE uint16_t* queries() { return shared::at<uint16_t>(kXOffset); }  // [row][kQueryStride]
// Key and value of the position that a decode pass decodes.
MONOLANE_DEVICE uint16_t* new_key() { return shared::at<uint16_t>(kXOffset + kNewKvOffset); }
MONOLANE_DEVICE uint16_t* new_value() { return new_key() + round_up(kHeadDim, kKBlock); }
// Of that position, for each row: its probability, and the row max that the probability is relative to.
MONOLANE_DEVICE float* new_probabilities() { return shared::at<float>(kXOffset + kNewStatsOffset); }  // [row]
MONOLANE_DEVICE float* new_row_maxes() { return new_probabilities() + kMmaRows; }                     // [row]
// The page that the rows of a prefill pass lie in, in the layout of the cache, as far as it is new. It takes the place of the input of
// projections, which is not needed during attention.
MONOLANE_DEVICE uint16_t* new_keys() { return shared::prefill_x(); }
MONOLANE_DEVICE uint16_t* new_values() { return shared::prefill_x() + kKeyFragments * kFragmentElements; }
MONOLANE_DEVICE float* row_maxes() { return shared::at<float>(kXOffset + kRowMaxesOffset); }         // [warp][row]
MONOLANE_DEVICE float* row_sums() { return row_maxes() + kConsumerWarps * kMmaRows; }                // [warp][row]
MONOLANE_DEVICE float* accumulators() { return shared::at<float>(kXOffset + kAccumulatorsOffset); }  // [warp][row][dim], see accumulator_index

}  // namespace attention

static_assert(kPrefillXOffset + kPageFragments * kFragmentBytes <= kRingBytes, "the new page of a prefill pass does not fit");

// --- pages in registers ---

// The kStepPages pages of one step.
struct KvFragments {
  Word4 keys[kStepPages * kKeyFragments], values[kStepPages * kValueFragments];

  // From global memory: pages `page`, `page` + 1, … before `end`, and zeros in place of pages from `end` on.
  MONOLANE_DEVICE void load_keys(int layer, int head, int page, int end) {
    load<kKeyFragments>(keys, key_page(layer, head, page), page, end);
  }
  MONOLANE_DEVICE void load_values(int layer, int head, int page, int end) {
    load<kValueFragments>(values, value_page(layer, head, page), page, end);
  }

  // From the ring: page i of the step is page n of the chunk. They return the dependency that Cursor::release needs.
  MONOLANE_DEVICE uint32_t copy_keys(int i, const char* chunk, int n) {
    return copy<kKeyFragments>(keys + i * kKeyFragments, chunk, n * kKeyFragments);
  }
  MONOLANE_DEVICE uint32_t copy_values(int i, const char* chunk, int n) {
    return copy<kValueFragments>(values + i * kValueFragments, chunk, kChunkPages * kKeyFragments + n * kValueFragments);
  }
  MONOLANE_DEVICE void zero_keys(int i) { clear<kKeyFragments>(keys + i * kKeyFragments); }
  MONOLANE_DEVICE void zero_values(int i) { clear<kValueFragments>(values + i * kValueFragments); }

  // The position of a decode pass is not in the cache yet. This puts its key into page i, as token r. Its value, times its probability, is
  // added when the results of the warps are merged.
  MONOLANE_DEVICE void insert_key(int i, int r) {
    if (lane_id() / 4 != r % 8) return;
    const Word4* key = reinterpret_cast<const Word4*>(attention::new_key()) + lane_id() % 4;
#pragma unroll
    for (int j = 0; j < kKeyFragments; j++)
      if (j / kDimFragments == r / 8) keys[i * kKeyFragments + j] = key[j % kDimFragments * (kKBlock / 8)];
  }

  // The positions of a prefill pass are not in the cache yet either. This copies their keys and values, tokens `first` to `last` of page i,
  // from new_keys and new_values. Values behind `last` are undefined afterwards (see mask_values).
  MONOLANE_DEVICE void insert_new(int i, int first, int last) {
    const int g = lane_id() / 4, token = lane_id() % 4 * 2;
    const auto new_fragment = [&](const uint16_t* from, int j) { return reinterpret_cast<const Word4*>(from)[j * 32 + lane_id()]; };
#pragma unroll
    for (int j = 0; j < kKeyFragments; j++)
      if (j / kDimFragments * 8 + g >= first && j / kDimFragments * 8 + g <= last)
        keys[i * kKeyFragments + j] = new_fragment(attention::new_keys(), j);
    // Bit masks of tokens r and r + 1, as far as they are cached. Words x and y have tokens 2t and 2t+1, words z and w have 2t+8 and 2t+9.
    const auto cached = [&](int r) { return (r < first ? 0xffffu : 0u) | (r + 1 < first ? 0xffff0000u : 0u); };
    const uint32_t xy = cached(token), zw = cached(token + 8);
#pragma unroll
    for (int j = 0; j < kValueFragments; j++) {
      Word4& fragment = values[i * kValueFragments + j];
      const Word4 v = new_fragment(attention::new_values(), j);
      fragment.x = (fragment.x & xy) | (v.x & ~xy), fragment.y = (fragment.y & xy) | (v.y & ~xy);
      fragment.z = (fragment.z & zw) | (v.z & ~zw), fragment.w = (fragment.w & zw) | (v.w & ~zw);
    }
  }

  // Zeroes the values of page i behind token `last`. Their probabilities are 0, but memory that was never written may hold NaN or infinity,
  // and 0 times those is NaN.
  MONOLANE_DEVICE void mask_values(int i, int last) {
    const int token = lane_id() % 4 * 2;
    const auto mask = [&](int r) { return (r <= last ? 0xffffu : 0u) | (r + 1 <= last ? 0xffff0000u : 0u); };
    const uint32_t xy = mask(token), zw = mask(token + 8);
#pragma unroll
    for (int j = 0; j < kValueFragments; j++) {
      Word4& fragment = values[i * kValueFragments + j];
      fragment.x &= xy, fragment.y &= xy, fragment.z &= zw, fragment.w &= zw;
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

// --- softmax ---

// Softmax state of one row in one thread: the row max, in units of log2 and the same in all threads that share the row, and this thread's
// part of the row sum.
struct RowState {
  float row_max, row_sum;

  // Raises the row max to at least the highest of the new scores, and rescales the row sum. Returns the factor by which the caller rescales
  // the accumulator. In the first step there is no older state.
  template <bool kFirstStep>
  MONOLANE_DEVICE float raise_max(float highest_score) {
    const float old_max = row_max;
    row_max = kFirstStep ? highest_score * kScoreFactor : fmaxf(old_max, highest_score * kScoreFactor);
    const float rescale = kFirstStep ? 0.0f : ptx::exp2(old_max - base());
    row_sum = kFirstStep ? 0.0f : row_sum * rescale;
    return rescale;
  }
  // The probability of a score, not normalised; it is added to the row sum.
  MONOLANE_DEVICE float probability(float score) {
    const float p = ptx::exp2(score * kScoreFactor - base());
    row_sum += p;
    return p;
  }

 private:
  // A row that has seen no position yet has row max -infinity, and -infinity minus itself would be NaN.
  MONOLANE_DEVICE float base() const { return row_max == -kInfinity ? 0.0f : row_max; }
};

// The softmax state of a warp: row max, row sum and accumulator of all rows. In a decode pass it begins with the first step (kFirstStep), so
// it takes no registers while the first pages are loaded. There are two versions, with queries as rows and as columns of the MMA results.
//   probabilities: computes the scores of the pages of a step, raises the row maxes, and returns the probabilities in the layout that
//     `accumulate` needs. Positions outside [first_visible, last_visible] of their row are masked; `all_visible`: there are none.
//   accumulate: adds the values of these pages, each times its probability, to the accumulator.
//   store_new_probability: writes the probabilities of token r of a page to the scratch. It is the position of a decode pass, whose value is
//     not in the cache yet and is added by the merge.
//   store_stats, store_accumulator: write the state to the scratch for the merge.
template <bool kQueriesAreRows>
class SoftmaxState;

// For up to 16 queries, as the rows of the MMA results: S = Q K^T, O = P V. Rows g and g + 8 are those of thread 4g+t. The scores of a page
// are two results of 16 x 8 (queries x tokens), whose registers, as bf16 pairs, are the A operand of the product with the values.
template <>
class SoftmaxState<true> {
 public:
  using Probabilities = uint32_t[kStepPages][4];

  MONOLANE_DEVICE void clear() {
    rows_[0] = rows_[1] = {-kInfinity, 0.0f};
    clear_accumulator();
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void probabilities(const KvFragments& kv, int rows, const int (&pages)[kStepPages], bool all_visible,
                                     const int (&first_visible)[2], const int (&last_visible)[2], Probabilities& probabilities) {
    float scores[2 * kStepPages][4];
    const int t = lane_id() % 4;
#pragma unroll
    for (int tile = 0; tile < 2 * kStepPages; tile += 2) score(kv.keys + tile * kDimFragments, rows, scores[tile], scores[tile + 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (!all_visible) {
#pragma unroll
        for (int tile = 0; tile < 2 * kStepPages; tile++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int position = pages[tile / 2] * kPageTokens + tile % 2 * 8 + 2 * t + e;
            if (position < first_visible[r] || position > last_visible[r]) scores[tile][2 * r + e] = -kInfinity;
          }
      }
      float highest = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
      for (int tile = 1; tile < 2 * kStepPages; tile++) highest = fmaxf(highest, fmaxf(scores[tile][2 * r], scores[tile][2 * r + 1]));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 1));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 2));
      const float rescale = rows_[r].raise_max<kFirstStep>(highest);
      if (!kFirstStep) {
#pragma unroll
        for (int j = 0; j < 2 * kValueFragments; j++) accumulator_[j][2 * r] *= rescale, accumulator_[j][2 * r + 1] *= rescale;
      }
#pragma unroll
      for (int tile = 0; tile < 2 * kStepPages; tile++) {
        const float first = rows_[r].probability(scores[tile][2 * r]), second = rows_[r].probability(scores[tile][2 * r + 1]);
        probabilities[tile / 2][tile % 2 * 2 + r] = ptx::bf16_pair(first, second);
      }
    }
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void accumulate(const KvFragments& kv, const Probabilities& probabilities) {
    if (kFirstStep) clear_accumulator();
    // Fragments that are processed together: enough independent MMAs between two that add to the same sum, and few sums in use before the
    // registers of their values become free.
    constexpr int kTogether = 2;
#pragma unroll
    for (int first = 0; first < kValueFragments; first += kTogether)
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
#pragma unroll
        for (int j = first; j < lesser(first + kTogether, kValueFragments); j++) {
          const Word4& value = kv.values[i * kValueFragments + j];
          ptx::mma(accumulator_[2 * j], probabilities[i][0], probabilities[i][1], probabilities[i][2], probabilities[i][3], value.x, value.z);
          ptx::mma(accumulator_[2 * j + 1], probabilities[i][0], probabilities[i][1], probabilities[i][2], probabilities[i][3], value.y, value.w);
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
  // The attention scores of all queries with the keys of one page: with tokens 0 to 7, and with tokens 8 to 15. Rows beyond the last one
  // repeat it; their results are not used. Queries and keys have the same permutation of dimensions within a fragment, so it cancels out.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&first_tokens)[4], float (&last_tokens)[4]) {
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
    for (int i = 0; i < 4; i++) first_tokens[i] = sums[0][i], last_tokens[i] = sums[1][i];
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

// For up to 8 queries, as the columns of the MMA results: S^T = K Q^T, O^T = V^T P^T. It takes half as many MMAs as queries as rows.
// Columns 2t and 2t + 1 are those of thread 4g+t. The rows are tokens in the first product and dimensions of the values in the second: two
// key fragments, or one value fragment, are an A operand as they lie in memory. The probabilities are transposed to become the B operand.
template <>
class SoftmaxState<false> {
 public:
  using Probabilities = uint32_t[kStepPages][2];

  template <bool kFirstStep>
  MONOLANE_DEVICE void probabilities(const KvFragments& kv, int rows, const int (&pages)[kStepPages], bool all_visible,
                                     const int (&first_visible)[2], const int (&last_visible)[2], Probabilities& probabilities) {
    float scores[kStepPages][4];  // of tokens g and g + 8 of a page, with two queries each
    const int g = lane_id() / 4;
#pragma unroll
    for (int i = 0; i < kStepPages; i++) score(kv.keys + i * kKeyFragments, rows, scores[i]);
    if (!all_visible) {
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int position = pages[i] * kPageTokens + e / 2 * 8 + g;
          if (position < first_visible[0] || position > last_visible[0]) scores[i][e] = -kInfinity;
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
      const float rescale = rows_[r].raise_max<kFirstStep>(highest[r]);
#pragma unroll
      for (int j = 0; !kFirstStep && j < kValueFragments; j++) accumulator_[j][r] *= rescale, accumulator_[j][2 + r] *= rescale;
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
        scores[i][r] = rows_[r].probability(scores[i][r]), scores[i][2 + r] = rows_[r].probability(scores[i][2 + r]);
    }
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) probabilities[i][half] = ptx::transpose(ptx::bf16_pair(scores[i][2 * half], scores[i][2 * half + 1]));
  }

  template <bool kFirstStep>
  MONOLANE_DEVICE void accumulate(const KvFragments& kv, const Probabilities& probabilities) {
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
#pragma unroll
      for (int j = 0; j < kValueFragments; j++) {
        const Word4& value = kv.values[i * kValueFragments + j];
        if (kFirstStep && i == 0) accumulator_[j][0] = accumulator_[j][1] = accumulator_[j][2] = accumulator_[j][3] = 0.0f;
        ptx::mma(accumulator_[j], value.x, value.y, value.z, value.w, probabilities[i][0], probabilities[i][1]);
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

  // The attention scores of all queries with the keys of one page. Columns beyond the last query repeat it; their results are not used.
  MONOLANE_DEVICE static void score(const Word4* keys, int rows, float (&scores)[4]) {
    const uint16_t* q = attention::queries() + min(lane_id() / 4, rows - 1) * kQueryStride + lane_id() % 4 * 8;
    float sums[4][4] = {};  // so that few products depend on one before
#pragma unroll
    for (int u = 0; u < kDimFragments; u++) {
      const Word4 query = *reinterpret_cast<const Word4*>(q + u * kKBlock);
      const Word4 &first = keys[u], &second = keys[kDimFragments + u];
      ptx::mma(sums[u % 2 * 2], first.x, second.x, first.y, second.y, query.x, query.y);
      ptx::mma(sums[u % 2 * 2 + 1], first.z, second.z, first.w, second.w, query.z, query.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  }

 private:
  RowState rows_[2];
  float accumulator_[kValueFragments][4];
};

}  // namespace monolane
