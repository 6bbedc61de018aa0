// Attention of one worker over one split of the KV cache. The consumer warps take the pages of the split alternately, kStepPages pages at a
// time, and each warp keeps its own softmax state. At the end the states of the warps are merged through the scratch in shared memory, in a
// fixed order, and the caller publishes the result. A warp has its first pages in registers before the queries have arrived.
//
//   page of the split:   0  1 | 2  3 | ... | 14 15 | 16 17 | ...        here kStepPages = 2
//   warp:                  0  |   1  | ... |   7   |   0   | ...
//
// Pages that come through the ring are divided differently: a chunk goes to one warpgroup, and each warp takes one page of it.
#pragma once
#include "softmax.cuh"

namespace monolane {

// Where the pages come from: global memory in a prefill pass, global memory in a decode pass, or the ring in a decode pass. In the last case
// the newest pages, which are not streamed, still come from global memory.
enum class Source { kPrefill, kDecode, kRing };

// kMaxRows: the most queries. The functions are called in this order, by all consumer threads: load_first, load_sinks, mask_new_values (decode
// pass), then, when the queries are in the scratch, attend and merge_warps.
template <Source kSource, int kMaxRows>
class SplitAttention {
 public:
  static constexpr bool kPrefill = kSource == Source::kPrefill, kRing = kSource == Source::kRing;
  static constexpr bool kQueriesAreRows = kMaxRows > 8;
  static constexpr int kStride = kConsumerWarps * kStepPages;  // pages that all warps together process in one step
  // Whether one step suffices: with few splits a split has at most kSplitPages pages, and with many splits the pages come through the ring.
  static constexpr bool kOneStep = kSource == Source::kDecode && kStreamsCache && kMaxSplits > kFusedSplits && kSplitPages <= kStride;

  // `position`: the position of the first row; in a prefill pass each row is one position further. `head`: the KV head. `streamed`: the pages
  // before this one come through the ring.
  MONOLANE_DEVICE SplitAttention(int layer, int head, int position, int pass_rows, const Span& span, int split, int streamed)
      : layer_(layer), head_(head), first_(position % kPageTokens), last_(position + pass_rows - 1), end_(split_end(span, split)),
        streamed_end_(min(streamed, end_)), chunk_page_(split_start(span, split)),
        page_(max(split_start(span, split), streamed_end_) + warp_id() * kStepPages) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row_position = kPrefill ? position + min(lane_id() / 4 + 8 * r, pass_rows - 1) : position;
      first_visible_[r] = first_seen(row_position, window_of(layer));
      last_visible_[r] = min(row_position, end_ * kPageTokens - 1);
    }
    first_visible_to_all_ = first_seen(position + pass_rows - 1, window_of(layer));
  }

  // Issues the loads of this warp's first pages. It does not need the queries.
  MONOLANE_DEVICE void load_first() {
    kv_.load_keys(layer_, head_, page_, cached_end());
    if (kValuesWithKeys || kRing) kv_.load_values(layer_, head_, page_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (kRing) pages_[i] = page_ + i < end_ ? page_ + i : kNowhere;
  }
  // The same where the cache is streamed. If this warp has some of the newest pages, which do not come through the ring, it takes those first.
  MONOLANE_DEVICE void load_first(Cursor<false>& cursor) {
    const int count = divide_up(max(streamed_end_ - chunk_page_, 0), kChunkPages);
    chunks_left_ = cursor.own_chunks(count);
    chunk_page_ += cursor.order * kChunkPages;
    cursor.skip(count);
    if (page_ < end_ || !chunks_left_)
      load_first();
    else
      load_from_ring<true>(cursor);
  }

  // Loads the sinks of the rows that this thread merges, where the model has sinks. `sink_of(row)`: in units of log2; -infinity for none.
  template <class SinkOf>
  MONOLANE_DEVICE void load_sinks(int rows, SinkOf sink_of) {
    if constexpr (kSinks != kNone) {
#pragma unroll
      for (int n = 0; n < kEach; n++) sinks_[n] = sink_of(min((thread_id() + n * kConsumers) / kFours, rows - 1));
    }
  }

  // Zeroes the values behind the last position. In a decode pass the value of the last position is not in the cache yet, so what lies in its
  // place is undefined and is zeroed, too.
  MONOLANE_DEVICE void mask_new_values() {
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (is_newest(page(i))) kv_.mask_values(i, last_ % kPageTokens - !kPrefill);
  }

  // Processes all pages of this warp. The queries are in the scratch, and in a decode pass the key of the new position.
  MONOLANE_DEVICE void attend(int rows) {
    if constexpr (kPrefill)
      softmax_.clear();
    else
      step<true>(rows, [] {});
#pragma unroll 1
    while (!kOneStep && page_ < end_) step<false>(rows, [] {});
  }
  MONOLANE_DEVICE void attend(int rows, Cursor<false>& cursor) {
    step<true>(rows, [] {});
#pragma unroll 1
    while (chunks_left_ > 0) {
      const bool unreleased = load_from_ring<kValuesWithKeys>(cursor);
      step<false>(rows, [&] {
        if (!kValuesWithKeys) load_values_from_ring(cursor, unreleased);
      });
    }
  }

  // Merges the softmax states of all warps. Each thread computes four dimensions of a row at a time, normalised, and calls
  // `publish(row, d, four values)`; one thread per row calls `publish_lse(row, LSE of the split)`. `newest`: the position of a decode pass is in
  // this split, and its value is added here. A sink is part of the row max and the row sum, as the score of a position with the value 0 is.
  // Warps are added in order, so the result does not depend on timing.
  template <class Publish, class PublishLse>
  MONOLANE_DEVICE void merge_warps(int rows, bool newest, Publish publish, PublishLse publish_lse) {
    constexpr int kTotals = kRowsKept * kPaddedDim;
    constexpr int kFit = (kAttendBytes - kAccumulatorsOffset) / (kTotals * 4);  // warps whose accumulators fit the scratch
    static_assert(kFit > 0, "attention's scratch");
    constexpr int kTogether = divide_up(kConsumerWarps, divide_up(kConsumerWarps, kFit));  // warps of one round, as equal as can be
    const int warp = warp_id(), thread = thread_id();
    softmax_.store_stats(attention::row_maxes() + warp * kMmaRows, attention::row_sums() + warp * kMmaRows);
    float value[kEach][4] = {}, row_sum[kEach] = {}, row_max[kEach];
#pragma unroll
    for (int first = 0; first < kConsumerWarps; first += kTogether) {
      if (first) sync_consumers();  // the accumulators of the round before have been read
      if (warp >= first && warp < first + kTogether) softmax_.store_accumulator(attention::accumulators() + (warp - first) * kTotals, rows);
      sync_consumers();
#pragma unroll
      for (int n = 0; n < kEach; n++) {
        const int i = thread + n * kConsumers, row = i / kFours, d = i % kFours * 4;
        if (row >= rows) continue;
        if (!first) {
          row_max[n] = attention::row_maxes()[row];
#pragma unroll
          for (int w = 1; w < kConsumerWarps; w++) row_max[n] = fmaxf(row_max[n], attention::row_maxes()[w * kMmaRows + row]);
          if constexpr (kSinks != kNone) {
            row_max[n] = fmaxf(row_max[n], sinks_[n]);
            row_sum[n] = ptx::exp2(sinks_[n] - row_max[n]);
          }
        }
#pragma unroll
        for (int w = 0; w < kTogether; w++) {
          if (first + w >= kConsumerWarps) continue;
          const int at = (first + w) * kMmaRows + row;
          // The merged row max is finite, because every row sees at least one position in every split.
          const float share = ptx::exp2(attention::row_maxes()[at] - row_max[n]);
          const Word4 four = *reinterpret_cast<const Word4*>(attention::accumulators() + w * kTotals + accumulator_index(row, d));
          row_sum[n] += share * attention::row_sums()[at];
          value[n][0] += share * ptx::float_of(four.x), value[n][1] += share * ptx::float_of(four.y);
          value[n][2] += share * ptx::float_of(four.z), value[n][3] += share * ptx::float_of(four.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kEach; n++) {
      const int i = thread + n * kConsumers, row = i / kFours, d = i % kFours * 4;
      if (row >= rows) continue;
      const float scale = ptx::divide(1.0f, row_sum[n]);
      if (newest) {
        const float share = ptx::exp2(attention::new_row_maxes()[row] - row_max[n]) * attention::new_probabilities()[row];
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (kHeadDim % 16 == 0 || d + j < kHeadDim) value[n][j] += share * bf16_to_float(attention::new_value()[d + j]);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) value[n][j] *= scale;
      publish(row, d, value[n]);
      if (d == 0) publish_lse(row, row_max[n] + ptx::log2(row_sum[n]));
    }
  }

 private:
  // What one thread merges: kEach times four dimensions of a row.
  static constexpr int kRowsKept = kPrefill ? kMmaRows : kMaxRows, kFours = kValueFragments * 4;
  static constexpr int kEach = divide_up(kRowsKept * kFours, kConsumers);

  // The page of the last row.
  MONOLANE_DEVICE int newest() const { return last_ / kPageTokens; }
  // The end of the pages that are loaded from global memory. Where all tokens of the newest page of a prefill pass are new, the page holds
  // nothing yet, and other workers may be writing to it already.
  MONOLANE_DEVICE int cached_end() const { return kPrefill && !first_ ? min(end_, newest()) : end_; }
  // Whether `page` is the newest page. The newest page may belong to a different split.
  MONOLANE_DEVICE bool is_newest(int page) const { return page == newest() && (kRing || page < end_); }

  // The i-th page of the current step, or kNowhere.
  MONOLANE_DEVICE int page(int i) const { return kRing ? pages_[i] : page_ + i < end_ ? page_ + i : kNowhere; }

  // Loads the pages of this warp's next step from the ring, and releases all chunks up to there. A chunk has kChunkPages pages, one for each
  // warp of the warpgroup. With 2 pages or 1, successive chunks serve different warps of the warpgroup; with 3, the fourth warp takes none.
  // Without kValues only keys are loaded, and the chunk stays acquired until load_values_from_ring. Returns whether there is such a chunk.
  template <bool kValues>
  MONOLANE_DEVICE bool load_from_ring(Cursor<false>& cursor) {
    static_assert(kValues || kStepPages == 1, "one chunk at a time");
    constexpr int kChunksPerRound = kWarpgroupWarps / kChunkPages;  // after so many chunks the first warp is served again
    const int warp = warp_id() % kWarpgroupWarps, n = warp % kChunkPages;
    bool served = false;  // whether the last chunk served this warp
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      pages_[i] = kNowhere;
      kv_.zero_keys(i);
      if (kValues) kv_.zero_values(i);
      served = false;
#pragma unroll 1
      for (; chunks_left_ > 0 && !served; chunks_left_--) {
        served = chunk_page_ / (kWarpgroups * kChunkPages) % kChunksPerRound == warp / kChunkPages;
        const char* chunk = cursor.await();
        uint32_t loaded = 0;
        if (served && chunk_page_ + n < streamed_end_) {
          loaded = kv_.copy_keys(i, chunk, n);
          if (kValues) loaded ^= kv_.copy_values(i, chunk, n);
          pages_[i] = chunk_page_ + n;
        }
        if (kValues || !served) cursor.release(loaded);
        chunk_page_ += kWarpgroups * kChunkPages;
      }
    }
    return served;
  }
  MONOLANE_DEVICE void load_values_from_ring(Cursor<false>& cursor, bool unreleased) {
    kv_.zero_values(0);
    uint32_t loaded = 0;
    if (pages_[0] != kNowhere) loaded = kv_.copy_values(0, cursor.place.memory(), warp_id() % kWarpgroupWarps % kChunkPages);
    if (unreleased) cursor.release(loaded);
  }

  // Processes the pages that are in registers. Where pages come from global memory, the loads of the next step are issued meanwhile, into the
  // registers that become free. In the first step (kFirstStep) the caller has masked the values already, if they were loaded with the keys.
  // `keys_done()` is called when the keys in registers are no longer needed.
  template <bool kFirstStep, class KeysDone>
  MONOLANE_DEVICE void step(int rows, KeysDone keys_done) {
    const int next = page_ + kStride;
    int pages[kStepPages];
    bool all_visible = true;
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      pages[i] = page(i);
      all_visible &= pages[i] < newest() && (!kAnyWindow || pages[i] * kPageTokens >= first_visible_to_all_);
    }
    if (!kValuesWithKeys && !kRing) kv_.load_values(layer_, head_, page_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (is_newest(pages[i])) kPrefill ? kv_.insert_new(i, first_, last_ % kPageTokens) : kv_.insert_key(i, last_ % kPageTokens);
    if (!kRing && (!kFirstStep || !kValuesWithKeys)) mask_new_values();  // pages of the ring are older and need no mask
    typename SoftmaxState<kQueriesAreRows>::Probabilities probabilities;
    softmax_.template probabilities<kFirstStep>(kv_, rows, pages, all_visible, first_visible_, last_visible_, probabilities);
    keys_done();
    if (!kRing && !kOneStep && next < end_) kv_.load_keys(layer_, head_, next, cached_end());
    if (kSource == Source::kDecode && !kOneStep) prefetch(next + kPrefetchSteps * kStride);
    if constexpr (!kPrefill) {
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
        if (is_newest(pages[i])) softmax_.store_new_probability(last_ % kPageTokens, probabilities[i]);
    }
    softmax_.template accumulate<kFirstStep>(kv_, probabilities);
    if (!kRing && !kOneStep && kValuesWithKeys && next < end_) kv_.load_values(layer_, head_, next, cached_end());
    if (!kRing) page_ = next;
  }

  // Prefetches the pages of a later step into L2, so that their loads need not wait for memory.
  MONOLANE_DEVICE void prefetch(int page) {
    const int count = min(kStepPages, end_ - page);
    if (count <= 0) return;
    prefetch_lines(key_page(layer_, head_, page), count * kKeyFragments * kFragmentBytes, lane_id(), 32);
    prefetch_lines(value_page(layer_, head_, page), count * kValueFragments * kFragmentBytes, lane_id(), 32);
  }

  const int layer_, head_;
  const int first_, last_;  // token of the first row in its page; position of the last row
  const int end_;           // end of the split's pages
  const int streamed_end_;  // end of those that come through the ring
  int chunk_page_, chunks_left_ = 0;         // of this warpgroup's chunks of the ring: first page of the next chunk, and how many are left
  int page_;                                 // this warp's first page of the current step, from global memory
  int first_visible_[2], last_visible_[2];   // positions that this thread's two rows see in this split
  int first_visible_to_all_;                 // from this position on, every position is in the window of all rows
  int pages_[kStepPages];                    // pages of the current step, where the cache is streamed
  float sinks_[kEach];                       // of the rows that this thread merges, where the model has sinks
  KvFragments kv_;
  SoftmaxState<kQueriesAreRows> softmax_;
};

}  // namespace monolane
