// Attention over a split of the cache by a block of threads: its warps take blocks of positions in turn and keep running results,
// which are merged in order at the end. In a narrow pass the first cached blocks are in registers before the query is there.
#pragma once
#include "softmax.cuh"

namespace monolane {

// Whose split: of a wide pass, of a narrow pass from where the cache lies, or through the ring.
enum class Source { kPrefill, kDecode, kRing };

// One split of the cache, for `rows` rows of queries that lie in the scratch, and its result.
template <Source kSource, int kMaxRows>
class SplitAttention {
 public:
  static constexpr bool kPrefill = kSource == Source::kPrefill, kRing = kSource == Source::kRing;
  static constexpr bool kQueriesAreRows = kMaxRows > 8;
  static constexpr int kStride = kConsumerWarps * kStepPages;  // blocks that all warps see in one step
  // Few splits are short, and many come through the ring.
  static constexpr bool kOneStep = kSource == Source::kDecode && kStreamsCache && kMaxSplits > kFusedSplits && kSplitPages <= kStride;

  // `position`: of the first row; in a wide pass each row is one further. `streamed`: the blocks before this one come through
  // the ring.
  MONOLANE_DEVICE SplitAttention(int layer, int head, int position, int pass_rows, const Span& span, int split, int streamed)
      : layer_(layer), head_(head), first_(position % kPageTokens), last_(position + pass_rows - 1), end_(split_end(span, split)),
        streamed_end_(min(streamed, end_)), chunk_page_(split_start(span, split)),
        page_(max(split_start(span, split), streamed_end_) + warp_id() * kStepPages) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int own = kPrefill ? position + min(lane_id() / 4 + 8 * r, pass_rows - 1) : position;
      low_[r] = first_seen(own, window_of(layer));
      limit_[r] = min(own, end_ * kPageTokens - 1);
    }
    highest_low_ = first_seen(position + pass_rows - 1, window_of(layer));
  }

  // The first of this warp's blocks, before the queries are there.
  MONOLANE_DEVICE void load_first() {
    kv_.load_keys(layer_, head_, page_, cached_end());
    if (kValuesWithKeys || kRing) kv_.load_values(layer_, head_, page_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (kRing) pages_[i] = page_ + i < end_ ? page_ + i : kNowhere;
  }
  // The same where the cache comes through the ring: of the newest blocks, which do not, if this warp has any.
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

  // In a narrow pass the value of the last position is not there yet, and what lies in its place is as good as nothing.
  MONOLANE_DEVICE void mask_new_values() {
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (is_newest(page(i))) kv_.mask_values(i, last_ % kPageTokens - !kPrefill);
  }

  // All of this warp's blocks. The queries lie in the scratch, and in a narrow pass the new position's key.
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

  // The results of all warps as one, four dimensions of a row by a thread: `publish(row, d, four values)`, and `weigh(row,
  // logarithm of the weight of it all)`. `newest`: the position that is being decoded is in this split.
  template <class Publish, class PublishLse>
  MONOLANE_DEVICE void merge_warps(int rows, bool newest, Publish publish, PublishLse publish_lse) {
    constexpr int kRowsKept = kPrefill ? kMmaRows : kMaxRows, kTotals = kRowsKept * kPaddedDim, kFours = kValueFragments * 4;
    constexpr int kFit = (kAttendBytes - kAccumulatorsOffset) / (kTotals * 4);  // warps whose results the scratch has room for
    static_assert(kFit > 0, "attention's scratch");
    constexpr int kTogether = divide_up(kConsumerWarps, divide_up(kConsumerWarps, kFit));
    constexpr int kEach = divide_up(kRowsKept * kFours, kConsumers);
    const int warp = warp_id(), thread = thread_id();
    softmax_.store_stats(attention::row_maxes() + warp * kMmaRows, attention::row_sums() + warp * kMmaRows);
    float value[kEach][4] = {}, row_sum[kEach] = {}, row_max[kEach];
#pragma unroll
    for (int first = 0; first < kConsumerWarps; first += kTogether) {
      if (first) sync_consumers();  // the results before these have been read
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
        }
#pragma unroll
        for (int w = 0; w < kTogether; w++) {
          if (first + w >= kConsumerWarps) continue;
          const int at = (first + w) * kMmaRows + row;
          const float share = ptx::exp2(attention::row_maxes()[at] - row_max[n]);  // every row sees something in every split
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
  MONOLANE_DEVICE int newest() const { return last_ / kPageTokens; }
  // In a block that is all new nothing is cached, and somebody may be writing there.
  MONOLANE_DEVICE int cached_end() const { return kPrefill && !first_ ? min(end_, newest()) : end_; }
  // The newest position may be another split's to see.
  MONOLANE_DEVICE bool is_newest(int page) const { return page == newest() && (kRing || page < end_); }

  // The i-th block that is held.
  MONOLANE_DEVICE int page(int i) const { return kRing ? pages_[i] : page_ + i < end_ ? page_ + i : kNowhere; }

  // This warp's next blocks from the ring. A chunk has a block for each warp of a group, or for some of them, in turn.
  // Without values: whether a chunk that has them has not been left.
  template <bool kValues>
  MONOLANE_DEVICE bool load_from_ring(Cursor<false>& cursor) {
    static_assert(kValues || kStepPages == 1, "one chunk at a time");
    constexpr int kTurns = kWarpgroupWarps / kChunkPages;
    const int warp = warp_id() % kWarpgroupWarps, n = warp % kChunkPages;
    bool mine = false;
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      pages_[i] = kNowhere;
      kv_.zero_keys(i);
      if (kValues) kv_.zero_values(i);
      mine = false;
#pragma unroll 1
      for (; chunks_left_ > 0 && !mine; chunks_left_--) {
        mine = chunk_page_ / (kWarpgroups * kChunkPages) % kTurns == warp / kChunkPages;
        const char* chunk = cursor.await();
        uint32_t loaded = 0;
        if (mine && chunk_page_ + n < streamed_end_) {
          loaded = kv_.copy_keys(i, chunk, n);
          if (kValues) loaded ^= kv_.copy_values(i, chunk, n);
          pages_[i] = chunk_page_ + n;
        }
        if (kValues || !mine) cursor.release(loaded);
        chunk_page_ += kWarpgroups * kChunkPages;
      }
    }
    return mine;
  }
  MONOLANE_DEVICE void load_values_from_ring(Cursor<false>& cursor, bool unreleased) {
    kv_.zero_values(0);
    uint32_t loaded = 0;
    if (pages_[0] != kNowhere) loaded = kv_.copy_values(0, cursor.place.memory(), warp_id() % kWarpgroupWarps % kChunkPages);
    if (unreleased) cursor.release(loaded);
  }

  // The blocks that are held. Where they lie, the next ones are on their way meanwhile, into the registers that become free.
  // Fresh: the first, whose values are clean. `weighed()` is called when the keys are not needed any more.
  template <bool kFirstStep, class KeysDone>
  MONOLANE_DEVICE void step(int rows, KeysDone keys_done) {
    const int next = page_ + kStride;
    int pages[kStepPages];
    bool whole = true;
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      pages[i] = page(i);
      whole &= pages[i] < newest() && (!kAnyWindow || pages[i] * kPageTokens >= highest_low_);
    }
    if (!kValuesWithKeys && !kRing) kv_.load_values(layer_, head_, page_, cached_end());
#pragma unroll
    for (int i = 0; i < kStepPages; i++)
      if (is_newest(pages[i])) kPrefill ? kv_.insert_new(i, first_, last_ % kPageTokens) : kv_.insert_key(i, last_ % kPageTokens);
    if (!kRing && (!kFirstStep || !kValuesWithKeys)) mask_new_values();  // blocks of the ring are older
    typename SoftmaxState<kQueriesAreRows>::Probabilities probabilities;
    softmax_.template probabilities<kFirstStep>(kv_, rows, pages, whole, low_, limit_, probabilities);
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

  // Blocks of a later step, into L2: who reads them then need not wait for memory.
  MONOLANE_DEVICE void prefetch(int page) {
    const int count = min(kStepPages, end_ - page);
    if (count <= 0) return;
    prefetch_lines(key_page(layer_, head_, page), count * kKeyFragments * kFragmentBytes, lane_id(), 32);
    prefetch_lines(value_page(layer_, head_, page), count * kValueFragments * kFragmentBytes, lane_id(), 32);
  }

  const int layer_, head_, first_, last_, end_;  // the first row's place in its block; the last row's position
  const int streamed_end_;
  int chunk_page_, chunks_left_ = 0;  // of this group's chunks from the ring: the next one's first block, how many
  int page_, low_[2], limit_[2], highest_low_;
  int pages_[kStepPages];  // blocks that are held, where they come through the ring
  KvFragments kv_;
  SoftmaxState<kQueriesAreRows> softmax_;
};

}  // namespace monolane
