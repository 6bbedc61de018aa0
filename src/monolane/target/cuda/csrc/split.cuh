// Attention over a split of the cache by a block of threads: its warps take blocks of positions in turn and keep running results,
// which are merged in order at the end. In a narrow pass the first cached blocks are in registers before the query is there.
#pragma once
#include "strand.cuh"

namespace monolane {

// Whose split: of a wide pass, of a narrow pass from where the cache lies, or through the ring.
enum class Source { kWide, kNarrow, kRing };

// One split of the cache, for `rows` rows of queries that lie in the scratch, and its result.
template <Source kSource, int kMostRows>
class Split {
 public:
  static constexpr bool kWide = kSource == Source::kWide, kRing = kSource == Source::kRing;
  static constexpr bool kMany = kMostRows > 8;
  static constexpr int kStride = kConsumerWarps * kStepBlocks;  // blocks that all warps see in one step
  // Few splits are short, and many come through the ring.
  static constexpr bool kOneStep = kSource == Source::kNarrow && kStreamsCache && kMostSplits > kFewSplits && kSplitBlocks <= kStride;

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

  // All of this warp's blocks. The queries lie in the scratch, and in a narrow pass the new position's key.
  MONOLANE_DEVICE void see(int rows) {
    if constexpr (kWide)
      strand_.clear();
    else
      step<true>(rows, [] {});
#pragma unroll 1
    while (!kOneStep && block_ < end_) step<false>(rows, [] {});
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
  }

  // The results of all warps as one, four dimensions of a row by a thread: `publish(row, d, four values)`, and `weigh(row,
  // logarithm of the weight of it all)`. `newest`: the position that is being decoded is in this split.
  template <class Publish, class Weigh>
  MONOLANE_DEVICE void merge(int rows, bool newest, Publish publish, Weigh weigh) {
    constexpr int kRowsKept = kWide ? kRowsAtOnce : kMostRows, kTotals = kRowsKept * kPaddedDim, kFours = kValueUnits * 4;
    constexpr int kFit = (kAttendBytes - kTotalsOffset) / (kTotals * 4);  // warps whose results the scratch has room for
    static_assert(kFit > 0, "attention's scratch");
    constexpr int kTogether = divide_up(kConsumerWarps, divide_up(kConsumerWarps, kFit));
    constexpr int kEach = divide_up(kRowsKept * kFours, kConsumers);
    const int warp = warp_index(), thread = thread_index();
    strand_.tell(attention::tops() + warp * kRowsAtOnce, attention::weights() + warp * kRowsAtOnce);
    float value[kEach][4] = {}, weight[kEach] = {}, top[kEach];
#pragma unroll
    for (int first = 0; first < kConsumerWarps; first += kTogether) {
      if (first) sync_consumers();  // the results before these have been read
      if (warp >= first && warp < first + kTogether) strand_.keep(attention::totals() + (warp - first) * kTotals, rows);
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
          const Word4 four = *reinterpret_cast<const Word4*>(attention::totals() + w * kTotals + result_place(row, d));
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
          if (kHeadDim % 16 == 0 || d + j < kHeadDim) value[n][j] += share * widen(attention::fresh_value()[d + j]);
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
        uint32_t loaded = 0;
        if (mine && chunk_ + n < streamed_end_) {
          loaded = held_.take_keys(i, chunk, n);
          if (kValues) loaded ^= held_.take_values(i, chunk, n);
          taken_[i] = chunk_ + n;
        }
        if (kValues || !mine) cursor.leave(loaded);
        chunk_ += kGroups * kChunkBlocks;
      }
    }
    return mine;
  }
  MONOLANE_DEVICE void take_values(Cursor<false>& cursor, bool waits) {
    held_.no_values(0);
    uint32_t loaded = 0;
    if (taken_[0] != kNowhere) loaded = held_.take_values(0, cursor.place.memory(), warp_index() % kGroupWarps % kChunkBlocks);
    if (waits) cursor.leave(loaded);
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
    typename Strand<kMany>::Weights weights;
    strand_.template weigh<kFresh>(held_, rows, blocks, whole, low_, limit_, weights);
    weighed();
    if (!kRing && !kOneStep && next < end_) held_.ask_keys(layer_, head_, next, cached_end());
    if (kSource == Source::kNarrow && !kOneStep) want(next + kWantedAhead * kStride);
    if constexpr (!kWide) {
#pragma unroll
      for (int i = 0; i < kStepBlocks; i++)
        if (is_newest(blocks[i])) strand_.note(last_ % kBlockPositions, weights[i]);
    }
    strand_.template gather<kFresh>(held_, weights);
    if (!kRing && !kOneStep && kHoldValues && next < end_) held_.ask_values(layer_, head_, next, cached_end());
    if (!kRing) block_ = next;
  }

  // Blocks of a later step, into L2: who reads them then need not wait for memory.
  MONOLANE_DEVICE void want(int block) {
    const int count = min(kStepBlocks, end_ - block);
    if (count <= 0) return;
    prefetch_lines(key_block(layer_, head_, block), count * kKeyUnits * kUnitBytes, lane_index(), 32);
    prefetch_lines(value_block(layer_, head_, block), count * kValueUnits * kUnitBytes, lane_index(), 32);
  }

  const int layer_, head_, first_, last_, end_;  // the first row's place in its block; the last row's position
  const int streamed_end_;
  int chunk_, left_ = 0;  // of this group's chunks from the ring: the next one's first block, how many
  int block_, low_[2], limit_[2], highest_low_;
  int taken_[kStepBlocks];  // blocks that are held, where they come through the ring
  Held held_;
  Strand<kMany> strand_;
};

}  // namespace monolane
