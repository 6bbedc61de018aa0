// Attention and the projection behind it as one stage of a decode pass, without a hand-off between them. The workers that own the rows of this projection attend, all of them to
// the whole context. That is for a lane with one KV head, whose projection has few columns, and for contexts of up to kAtOncePages pages, which the consumer warps of a worker hold
// in registers, before the queries arrive. Longer contexts are divided into splits, as everywhere (attend.cuh).
//
//   1. Warps 0 to 6 have the pages of the cache in turn: keys, values and a softmax state of their own. Warp 7 has the position that is decoded, which is not in the cache yet. Every
//      warp receives the queries itself.
//   2. The warps do not merge their states. The projection is linear, so what each warp has accumulated is a row of A of its MMAs, and a warp multiplies all eight rows with its
//      tile of the projection: rows of C are the products of the warps.
//   3. The factors of the warps, exp2(row max - highest row max) / row sum, are multiplied with these, and threads add them up by shuffles.
//
// So there is one barrier, behind the accumulators.
#pragma once
#include "attend.cuh"
#include "small_product.cuh"

namespace monolane {

// P: the projection behind attention. The functions are called in this order, by all consumer threads: receive, attend_and_multiply, release, append.
template <class P>
class AttendAtOnce {
  static constexpr int kQueries = kQueriesPerKv < kAtOnceQueries ? kQueriesPerKv : kAtOnceQueries, kPages = divide_up(kAtOncePages, kAtOnceWarps);
  static constexpr int kHeadFragments = divide_up(kHeadDim, kKBlock);  // of a tile, for one query
  static constexpr int kPadding = kDimFragments * kKBlock - kHeadDim;  // dimensions behind a head, of queries, keys and the projection's columns
  static constexpr int kStride = P::kFragments * kKBlock + 8;  // elements of a row of accumulators: consecutive rows begin in different banks
  static constexpr int kSpread = 4 / kQueries;     // threads 4g + t that have the same query, and divide its dimensions
  static constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16
  static_assert(!kStreamOwners || (kKvHeads == 1 && kQueriesPerKv == kQueries && kHeadDim % 16 == 0 && (!kPadding || kQueries == 1) && kSinks == kNone), "stream_owners.py says which lanes have owners that attend");
  static_assert(!kStreamOwners || (P::kChunks == 1 && P::kTileRows == kMmaCols && P::kMaxTiles <= kConsumerWarps), "a warp has a whole tile");
  static_assert(!kStreamOwners || (kConsumerWarps * kStride * 2 <= kAttendBytes - kAccumulatorsOffset && kConsumerWarps * kQueries <= kMmaRows), "the scratch is too small");

 public:
  // Loads this warp's tile and issues the loads of its pages. `position`: of the token that is decoded.
  MONOLANE_DEVICE AttendAtOnce(int tiles, Cursor<false>& cursor, int layer, int position)
      : tiles_(tiles), chunks_(tiles, cursor), layer_(layer), position_(position), newest_(position / kPageTokens) {
    first_ = first_seen(position, window_of(layer));
    page_ = is_newest() ? kNowhere : first_ / kPageTokens + warp_id();
    const Word4* keys = reinterpret_cast<const Word4*>(key_page(layer, 0, page_)) + lane_id();
    const Word4* values = reinterpret_cast<const Word4*>(value_page(layer, 0, page_)) + lane_id();
#pragma unroll
    for (int i = 0; i < kPages; i++) {
      if (has_page(i)) {
#pragma unroll
        for (int j = 0; j < kKeyFragments; j++) keys_[i][j] = ptx::load_l2(keys + (i * kAtOnceWarps * kKeyFragments + j) * 32);
#pragma unroll
        for (int j = 0; j < kValueFragments; j++) values_[i][j] = ptx::load_l2(values + (i * kAtOnceWarps * kValueFragments + j) * 32);
      } else {
        // Zeros, because a register that is loaded behind a condition is kept for what it had in the layer before.
#pragma unroll
        for (int j = 0; j < kKeyFragments; j++) keys_[i][j] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < kValueFragments; j++) values_[i][j] = {0, 0, 0, 0};
      }
    }
    load_weights();
    find_places();
    mask_newest();
  }

  // The result of this thread, counted from the first of the worker; kNone if it has none.
  MONOLANE_DEVICE int result() const {
    const int g = lane_id() / 4;
    return g < 2 && has_tile() ? warp_id() * kMmaCols + lane_id() % 4 * 2 + g : kNone;
  }

  // Waits for the queries, and in the last warp for the new key and value, whose words have the tag `step`.
  MONOLANE_DEVICE void receive(uint32_t step) {
    if (is_newest())
      receive_newest(step);
    else
      receive_queries(step);
  }

  // Returns the sum of this thread's result.
  MONOLANE_DEVICE float attend_and_multiply() {
    const int lane = lane_id(), t = lane % 4;
    if (!is_newest()) {
      float out[kValueFragments][4] = {}, total[4] = {};
      const float row_max = attend(out, total);
      // Thread 4g + t has dimensions g and g + 8 of each value fragment, of query t % kQueries.
      uint16_t* row = shared::at<uint16_t>(row_);
#pragma unroll
      for (int j = 0; j < kValueFragments; j++)
        if (j % kSpread == t / kQueries) {
          const uint32_t pair = ptx::bf16_pair(out[j][0], out[j][2]);
          row[j * 16] = static_cast<uint16_t>(pair), row[j * 16 + 8] = static_cast<uint16_t>(pair >> 16);
        }
      if (lane < kQueries) *shared::at<uint64_t>(stat_) = stat_of(row_max, total[0]);
    }
    sync_consumers();
    return multiply();
  }

  // Appends the new key and value to the cache; only later passes read them there.
  MONOLANE_DEVICE void append() const {
    if (rank() || !is_newest()) return;
    const int token = position_ % kPageTokens;
    uint16_t *keys = key_page(layer_, 0, newest_), *values = value_page(layer_, 0, newest_);
#pragma unroll
    for (int j = 0; j < kPairs; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int d = lane_id() + 32 * j + half * kHalf;
        if (kHalf % 32 && lane_id() + 32 * j >= kHalf) continue;
        keys[key_element(token, d)] = static_cast<uint16_t>(new_key_[j] >> 16 * half), values[value_element(token, d)] = static_cast<uint16_t>(new_value_[j] >> 16 * half);
      }
    if (kPadding && lane_id() < kPadding) keys[key_element(token, kHeadDim + lane_id())] = 0;
  }

  MONOLANE_DEVICE void release() const { chunks_.release(); }

 private:
  // In the scratch: what each warp has accumulated, [warp][kStride]; its row max and row sum, [query][warp]; and its queries.
  MONOLANE_DEVICE static uint16_t* rows() { return reinterpret_cast<uint16_t*>(attention::accumulators()); }
  MONOLANE_DEVICE static uint64_t* stats() { return reinterpret_cast<uint64_t*>(attention::row_maxes()); }
  MONOLANE_DEVICE static uint16_t* queries() { return attention::queries() + warp_id() * (kQueries * kQueryStride); }
  MONOLANE_DEVICE static uint64_t stat_of(float row_max, float row_sum) { return static_cast<uint64_t>(ptx::bits_of(row_sum)) << 32 | ptx::bits_of(row_max); }
  MONOLANE_DEVICE static int offset_of(const void* p) { return static_cast<int>(static_cast<const char*>(p) - shared::at<char>(0)); }

  // Where this thread will store its part of what its warp accumulates, and find a query, what all warps have accumulated, and the row max of one of them: found before
  // the queries are there.
  MONOLANE_DEVICE void find_places() {
    const int warp = warp_id(), lane = lane_id(), g = lane / 4, t = lane % 4;
    row_ = ptx::kept(offset_of(rows() + warp * kStride + t % kQueries * kHeadDim + place_of(g)));
    stat_ = ptx::kept(offset_of(stats() + lane % kQueries * kConsumerWarps + warp));
    query_ = ptx::kept(offset_of(queries() + g / 2 % kQueries * kQueryStride + t * 8 + g % 2 * 2));
    rows_ = ptx::kept(offset_of(rows() + g * kStride + t * 8));
    stats_ = ptx::kept(offset_of(stats() + g));
    if (kPadding && lane < kPadding) queries()[kHeadDim + lane] = rows()[warp * kStride + kHeadDim + lane] = 0;
  }
  // Where dimension d of 8 lies: the words of eight columns are x0 x2 x1 x3, the registers of an A operand (operands.cuh).
  MONOLANE_DEVICE static int place_of(int d) { return d / 4 * 2 + d / 2 % 2 * 4 + d % 2; }

  MONOLANE_DEVICE static bool is_newest() { return warp_id() == kAtOnceWarps; }
  MONOLANE_DEVICE int page(int i) const { return page_ + i * kAtOnceWarps; }
  MONOLANE_DEVICE bool has_page(int i) const { return page(i) <= newest_; }

  MONOLANE_DEVICE void receive_queries(uint32_t step) {
    int at[kQueries];
#pragma unroll
    for (int n = 0; n < kQueries; n++) at[n] = n * kHeadDim;
    const RopeCoefficients rope = rope_coefficients(position_, query_norm(layer_));
    uint16_t* to = queries() + ptx::kept(lane_id());
    float low[kQueries][kPairs], high[kQueries][kPairs];
    await_pairs(at, step, low, high);
#pragma unroll
    for (int n = 0; n < kQueries; n++) {
      apply_rope(rope, low[n], high[n]);
#pragma unroll
      for (int j = 0; j < kPairs; j++)
        if (kHalf % 32 == 0 || lane_id() + 32 * j < kHalf) {
          const uint32_t pair = ptx::bf16_pair(low[n][j], high[n][j]);
          to[n * kQueryStride + 32 * j] = static_cast<uint16_t>(pair), to[n * kQueryStride + 32 * j + kHalf] = static_cast<uint16_t>(pair >> 16);
        }
    }
    ptx::sync_warp();
  }

  // The new position alone: its row max is its score, its row sum is 1, and its value is what it has accumulated.
  MONOLANE_DEVICE void receive_newest(uint32_t step) {
    int at[kQueries + 2];
#pragma unroll
    for (int n = 0; n < kQueries; n++) at[n] = n * kHeadDim;
    at[kQueries] = kQueryDims, at[kQueries + 1] = kQueryDims + kKvDims;
    const RopeCoefficients rope = rope_coefficients(position_, query_norm(layer_)), key_rope = rope_coefficients(position_, key_norm(layer_));
    float low[kQueries + 2][kPairs], high[kQueries + 2][kPairs];
    await_pairs(at, step, low, high);
    apply_rope(key_rope, low[kQueries], high[kQueries]);
    float score[kQueries] = {};
#pragma unroll
    for (int j = 0; j < kPairs; j++) new_key_[j] = ptx::bf16_pair(low[kQueries][j], high[kQueries][j]), new_value_[j] = ptx::bf16_pair(low[kQueries + 1][j], high[kQueries + 1][j]);
#pragma unroll
    for (int n = 0; n < kQueries; n++) {
      apply_rope(rope, low[n], high[n]);
#pragma unroll
      for (int j = 0; j < kPairs; j++) {
        const uint32_t pair = ptx::bf16_pair(low[n][j], high[n][j]);
        const float product = value_of(pair << 16) * value_of(new_key_[j] << 16) + value_of(pair) * value_of(new_key_[j]);
        if (kHalf % 32 == 0 || lane_id() + 32 * j < kHalf) score[n] += product;
      }
    }
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
#pragma unroll
      for (int n = 0; n < kQueries; n++) score[n] += ptx::shuffle_xor(score[n], mask);
    const int lane = lane_id();
    uint16_t* row = rows() + kAtOnceWarps * kStride;
#pragma unroll
    for (int n = 0; n < kQueries; n++) {
#pragma unroll
      for (int j = 0; j < kPairs; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int d = lane + 32 * j + half * kHalf;
          if (kHalf % 32 == 0 || lane + 32 * j < kHalf) row[n * kHeadDim + d / 8 * 8 + place_of(d % 8)] = static_cast<uint16_t>(new_value_[j] >> 16 * half);
        }
      if (lane == 0) stats()[n * kConsumerWarps + kAtOnceWarps] = stat_of(score[n] * kScoreFactor, 1.0f);
    }
  }

  // A warp has the tile of the worker that has its number.
  MONOLANE_DEVICE bool has_tile() const { return P::kMinTiles == kConsumerWarps || warp_id() < tiles_; }
  MONOLANE_DEVICE void load_weights() {
    constexpr int kTiles = P::kChunkTiles;
    const uint32_t tile = warp_id();
    const Word4* from = has_tile() ? chunks_.await(tile / kTiles) + tile % kTiles * (P::kTileBytes / 16) : nullptr;
#pragma unroll
    for (int j = 0; j < P::kFragments; j++) {
      weights_[j] = {0, 0, 0, 0};
      if (has_tile()) weights_[j] = loaded_words(from[j * 32], false);
    }
  }

  // Zeroes the values from the last position on: its own is not in the cache yet, and memory that was never written may hold NaN.
  MONOLANE_DEVICE void mask_newest() {
    const int token = position_ % kPageTokens, first = lane_id() % 4 * 2;
    const auto before = [&](int r) { return (r < token ? 0xffffu : 0u) | (r + 1 < token ? 0xffff0000u : 0u); };
    const uint32_t xy = before(first), zw = before(first + 8);
#pragma unroll
    for (int i = 0; i < kPages; i++)
      if (page(i) == newest_)
#pragma unroll
        for (int j = 0; j < kValueFragments; j++) {
          Word4& v = values_[i][j];
          v.x &= xy, v.y &= xy, v.z &= zw, v.w &= zw;
        }
  }

  // Accumulates the values of this warp's pages and returns the row max, in units of log2. A key fragment is A of an MMA as it lies in memory, as in small_product.cuh: rows 0-7
  // have words x and z of 8 tokens, rows 8-15 words y and w of the same. A query has two columns of B, for these and for those.
  MONOLANE_DEVICE float attend(float (&out)[kValueFragments][4], float (&total)[4]) {
    const uint16_t* q = shared::at<uint16_t>(query_);
    uint32_t x[kDimFragments][2];
#pragma unroll
    for (int u = 0; u < kDimFragments; u++)
#pragma unroll
      for (int k = 0; k < 2; k++) x[u][k] = *reinterpret_cast<const uint32_t*>(q + u * kKBlock + k * 4);
    float scores[kPages][2], highest = -kInfinity;
#pragma unroll
    for (int i = 0; i < kPages; i++) {
      scores[i][0] = scores[i][1] = -kInfinity;
      if (!has_page(i)) continue;
      float sums[2][4] = {};
#pragma unroll
      for (int u = 0; u < kDimFragments; u++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const Word4& key = keys_[i][h * kDimFragments + u];
          ptx::mma(sums[h], key.x, key.y, key.z, key.w, x[u][0], x[u][1]);
        }
#pragma unroll
      for (int h = 0; h < 2; h++) scores[i][h] = sums[h][0] + sums[h][3];
      if (page(i) == newest_ || (kAnyWindow && page(i) * kPageTokens < first_))
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int at = page(i) * kPageTokens + h * 8 + lane_id() / 4;
          if (at < first_ || at >= position_) scores[i][h] = -kInfinity;
        }
      highest = fmaxf(highest, fmaxf(scores[i][0], scores[i][1]));
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) highest = fmaxf(highest, ptx::shuffle_xor(highest, mask));
    highest *= kScoreFactor;
    const float base = highest == -kInfinity ? 0.0f : highest;  // a warp without pages, or whose pages have nothing that is seen
    const uint32_t zero = monolane_launch.zero;  // the compiler would make four registers of ones for every page
    const uint32_t ones[4] = {ptx::exclusive_or(kOnes, zero), ptx::exclusive_or(kOnes, zero), ptx::exclusive_or(kOnes, zero), ptx::exclusive_or(kOnes, zero)};
#pragma unroll
    for (int i = 0; i < kPages; i++) {
      if (!has_page(i)) continue;
      uint32_t p[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float probability = ptx::exp2(scores[i][h] * kScoreFactor - base);
        p[h] = ptx::transpose(ptx::bf16_pair(probability, probability));
      }
#pragma unroll
      for (int j = 0; j < kValueFragments; j++) ptx::mma(out[j], values_[i][j].x, values_[i][j].y, values_[i][j].z, values_[i][j].w, p[0], p[1]);
      ptx::mma(total, ones[0], ones[1], ones[2], ones[3], p[0], p[1]);
    }
    return highest;
  }

  // Multiplies the rows of all warps with this warp's tile, and adds them up.
  MONOLANE_DEVICE float multiply() const {
    const int g = lane_id() / 4;
    const uint16_t* from = shared::at<uint16_t>(rows_);
    float factor[kQueries], sums[kQueries][2][4] = {};
    Word4 x[P::kFragments];
#pragma unroll
    for (int j = 0; j < P::kFragments; j++) x[j] = *reinterpret_cast<const Word4*>(from + j * kKBlock);
    uint64_t stat[kQueries];
    float highest[kQueries];
#pragma unroll
    for (int q = 0; q < kQueries; q++) {
      stat[q] = shared::at<uint64_t>(stats_)[q * kConsumerWarps];
      highest[q] = -kInfinity;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; w++) highest[q] = fmaxf(highest[q], ptx::float_of(static_cast<uint32_t>(stats()[q * kConsumerWarps + w])));
    }
#pragma unroll
    for (int j = 0; j < P::kFragments; j++) {
      const Word4& w = weights_[j];
      float(&of)[2][4] = sums[j / kHeadFragments];
      ptx::mma(of[0], x[j].x, x[j].y, x[j].z, x[j].w, w.x, w.y);
      ptx::mma(of[1], x[j].x, x[j].y, x[j].z, x[j].w, w.z, w.w);
    }
    float result = 0.0f;
#pragma unroll
    for (int q = 0; q < kQueries; q++) {
      factor[q] = ptx::exp2(ptx::float_of(static_cast<uint32_t>(stat[q])) - highest[q]);
      float row_sum = factor[q] * ptx::float_of(static_cast<uint32_t>(stat[q] >> 32));
      // Of columns 2t and 2t + 1 threads with an even g keep the first one, and those with an odd g the second.
      const float(&of)[2][4] = sums[q];
      const float first = factor[q] * (of[0][0] + of[1][2]), second = factor[q] * (of[0][1] + of[1][3]);
      float v = (g % 2 ? second : first) + ptx::shuffle_xor(g % 2 ? first : second, 4);
      v += ptx::shuffle_xor(v, 8);
      v += ptx::shuffle_xor(v, 16);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) row_sum += ptx::shuffle_xor(row_sum, mask);
      result += v * ptx::reciprocal(row_sum);  // the sum is at least 1, or nearly so
    }
    return result;
  }

  const int tiles_;
  const StageChunks<P> chunks_;
  const int layer_, position_, newest_;           // page of the position
  int first_, page_;                              // first position that is seen; first page of this warp
  int row_, stat_, query_, rows_, stats_;         // offsets in shared memory, see find_places()
  uint32_t new_key_[kPairs], new_value_[kPairs];  // in the last warp, of the position: two dimensions each
  Word4 keys_[kPages][kKeyFragments], values_[kPages][kValueFragments], weights_[P::kFragments];
};

}  // namespace monolane
