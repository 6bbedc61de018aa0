// Attention of one worker over one split of a decode pass that all consumer warps together hold in registers: kStepPages pages of keys for each. The
// keys are divided by pages, the values by dimensions:
//
//   keys      warp w has pages w * kStepPages, ... of the split, and computes their probabilities
//   values    warp w has 16 dimensions (a value fragment) of all pages, and computes these dimensions of the output
//
// So the warps exchange row maxes and probabilities through the scratch, and not accumulators, as those of SplitAttention do: a tenth of the bytes, and nothing
// is rescaled. The sum of the probabilities is a product of theirs with ones. Every sum has a fixed order. With heads of 64 dimensions half of the warps would
// have no values, and nothing is gained.
#pragma once
#include "split.cuh"

namespace monolane {

// Its functions are those of SplitAttention, and are called in the same order; publish_output() has the place of merge_warps().
class ShortSplit {
 public:
  static constexpr int kMaxRows = 8;  // queries are the columns of a product
  // Whether all splits that are not streamed are so short. A context of more than kFusedSplits * kSplitPages pages must have more than kFusedSplits splits.
  static constexpr bool kFits = kStreamsCache && kMaxSplits > kFusedSplits && divide_up(kFusedSplits * kSplitPages + 1, kChunkPages) > kFusedSplits &&
                                kQueriesPerKv <= kMaxRows && kSplitPages <= kConsumerWarps * kStepPages && kValueFragments >= kConsumerWarps;

  MONOLANE_DEVICE ShortSplit(int layer, int head, int position, int, const Span& span, int split, int)
      : layer_(layer), head_(head), position_(position), first_page_(split_start(span, split)), end_(split_end(span, split)) {}

  // Issues the loads of this warp's keys and values. The values of the newest page are kept apart: some of them are not in the cache yet.
  MONOLANE_DEVICE void load_first() {
    kv_.load_keys(layer_, head_, first_page_ + warp_id() * kStepPages, end_);
    const Word4* values = reinterpret_cast<const Word4*>(value_page(layer_, head_, first_page_)) + warp_id() * 32 + lane_id();
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      newest_[j] = {0, 0, 0, 0};
      if (has_newest() && has(j)) newest_[j] = ptx::load_l2(values + ((newest() - first_page_) * kValueFragments + j * kConsumerWarps) * 32);
#pragma unroll
      for (int i = 0; i < kSplitPages; i++) {
        values_[i][j] = {0, 0, 0, 0};
        if (first_page_ + i < min(end_, newest()) && has(j)) values_[i][j] = ptx::load_l2(values + (i * kValueFragments + j * kConsumerWarps) * 32);
      }
    }
  }

  template <class SinkOf>
  MONOLANE_DEVICE void load_sinks(int rows, SinkOf sink_of) {
    if constexpr (kSinks != kNone)
      for (int r = 0; r < 2; r++) sinks_[r] = sink_of(min(row(r), rows - 1));
  }

  // Zeroes the values of the newest page from the last position on: its own comes later, and memory that was never written may hold NaN or infinity.
  MONOLANE_DEVICE void mask_new_values() {
    if (!has_newest()) return;
    const int token = position_ % kPageTokens, first = lane_id() % 4 * 2;
    const auto cached = [&](int r) { return (r < token ? 0xffffu : 0u) | (r + 1 < token ? 0xffff0000u : 0u); };
    const auto here = [&](int r) { return (r == token ? 0xffffu : 0u) | (r + 1 == token ? 0xffff0000u : 0u); };
    const uint32_t xy = cached(first), zw = cached(first + 8);
    new_xy_ = here(first), new_zw_ = here(first + 8);
#pragma unroll
    for (int j = 0; j < kEach; j++) newest_[j].x &= xy, newest_[j].y &= xy, newest_[j].z &= zw, newest_[j].w &= zw;
  }

  // Finds where this thread will store its part of the output: `place(row, d)` is the word of dimension d.
  template <class Place>
  MONOLANE_DEVICE void find_output(int rows, Place place) {
#pragma unroll
    for (int j = 0; j < kEach; j++) output_[j] = place(min(lane_id() / 4, rows - 1), dim(j));
  }

  // Computes the probabilities of this warp's pages, not normalised, and stores them in the scratch, as the B operand that a thread has of a page.
  MONOLANE_DEVICE void attend(int rows) {
    int pages[kStepPages];
    bool all_visible = true;
    const int first_visible = first_seen(position_, window_of(layer_));
    float scores[kStepPages][4];  // of tokens g and g + 8 of a page, with two queries each
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      const int page = first_page_ + warp_id() * kStepPages + i;
      pages[i] = page < end_ ? page : kNowhere;
      all_visible &= pages[i] < newest() && (!kAnyWindow || pages[i] * kPageTokens >= first_visible);
      if (pages[i] == newest()) kv_.insert_key(i, position_ % kPageTokens);
    }
#pragma unroll
    for (int i = 0; i < kStepPages; i++) SoftmaxState<false>::score(kv_.keys + i * kKeyFragments, rows, scores[i]);
    if (!all_visible) {
#pragma unroll
      for (int i = 0; i < kStepPages; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int position = pages[i] * kPageTokens + e / 2 * 8 + lane_id() / 4;
          if (position < first_visible || position > position_) scores[i][e] = -kInfinity;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      row_max_[r] = fmaxf(scores[0][r], scores[0][2 + r]);
#pragma unroll
      for (int i = 1; i < kStepPages; i++) row_max_[r] = fmaxf(row_max_[r], fmaxf(scores[i][r], scores[i][2 + r]));
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) row_max_[r] = fmaxf(row_max_[r], ptx::shuffle_xor(row_max_[r], mask));
    }
    if (lane_id() < 4) *maxes(warp_id()) = pair_of(row_max_[0], row_max_[1]);
    sync_consumers();
#pragma unroll
    for (int w = 0; w < kKeyWarps; w++) {
      const uint64_t pair = *maxes(w);
      row_max_[0] = fmaxf(row_max_[0], ptx::float_of(static_cast<uint32_t>(pair)));
      row_max_[1] = fmaxf(row_max_[1], ptx::float_of(static_cast<uint32_t>(pair >> 32)));
    }
    // Finite, because every row sees at least one position in every split.
#pragma unroll
    for (int r = 0; r < 2; r++) {
      row_max_[r] *= kScoreFactor;
      if constexpr (kSinks != kNone) row_max_[r] = fmaxf(row_max_[r], sinks_[r]);
    }
#pragma unroll
    for (int i = 0; i < kStepPages; i++) {
      const auto probability = [&](int e) { return ptx::exp2(scores[i][e] * kScoreFactor - row_max_[e % 2]); };
      const uint32_t first = ptx::transpose(ptx::bf16_pair(probability(0), probability(1)));
      const uint32_t last = ptx::transpose(ptx::bf16_pair(probability(2), probability(3)));
      if (kSplitPages == kConsumerWarps * kStepPages || warp_id() * kStepPages + i < kSplitPages)
        *operand(warp_id() * kStepPages + i) = static_cast<uint64_t>(last) << 32 | first;
    }
  }

  // Multiplies the probabilities with this warp's dimensions of the values. Calls `publish(word of d, row, d, bf16 of dimensions d and d + 1, of d + 8 and d + 9)`
  // for what a thread has of the output, and `publish_lse(row, LSE of the split)` once for each row.
  template <class Publish, class PublishLse>
  MONOLANE_DEVICE void publish_output(int rows, Publish publish, PublishLse publish_lse) {
    if (has_newest()) insert_new_value();
    sync_consumers();
    constexpr uint32_t kOnes = 0x3f803f80u;
    float of_pages[2][4] = {}, outputs_of_pages[kEach][2][4] = {};  // of even and of odd pages, so that few products depend on one before
    const uint64_t* operands = operand(0);
    const auto add = [&](int page, int which, const Word4 (&values)[kEach]) {
      const uint64_t b = operands[page * 32];
      const uint32_t first = static_cast<uint32_t>(b), last = static_cast<uint32_t>(b >> 32);
#pragma unroll
      for (int j = 0; j < kEach; j++) ptx::mma(outputs_of_pages[j][which], values[j].x, values[j].y, values[j].z, values[j].w, first, last);
      return b;
    };
#pragma unroll
    for (int i = 0; i < kSplitPages; i++) {
      const uint64_t b = add(i, i % 2, values_[i]);
      ptx::mma(of_pages[i % 2], kOnes, kOnes, kOnes, kOnes, static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32));
    }
    if (has_newest()) add(newest() - first_page_, kSplitPages % 2, newest_);
    float sums[2] = {of_pages[0][0] + of_pages[1][0], of_pages[0][1] + of_pages[1][1]}, output[kEach][4];
#pragma unroll
    for (int j = 0; j < kEach; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) output[j][e] = outputs_of_pages[j][0][e] + outputs_of_pages[j][1][e];
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if constexpr (kSinks != kNone) sums[r] += ptx::exp2(sinks_[r] - row_max_[r]);
      scale[r] = ptx::reciprocal(sums[r]);  // the highest score of a row has the probability 1, or its sink has
    }
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const uint32_t first = ptx::transpose(ptx::bf16_pair(output[j][0] * scale[0], output[j][1] * scale[1]));
      const uint32_t last = ptx::transpose(ptx::bf16_pair(output[j][2] * scale[0], output[j][3] * scale[1]));
      if (lane_id() / 4 < rows && has(j)) publish(output_[j], lane_id() / 4, dim(j), first, last);
    }
    // All threads of a column have the same sums, so two of them take a row each.
    const int r = lane_id() / 4;
    if (warp_id() == 0 && r < 2 && row(r) < rows) publish_lse(row(r), (r ? row_max_[1] : row_max_[0]) + ptx::log2(r ? sums[1] : sums[0]));
  }

 private:
  static constexpr int kPageOperand = 32 * 8;                               // bytes of the probabilities of a page
  static constexpr int kEach = divide_up(kValueFragments, kConsumerWarps);  // value fragments of a warp
  static constexpr int kKeyWarps = divide_up(kSplitPages, kStepPages);      // that have any pages
  static_assert(!kFits || kSplitPages * kPageOperand <= kAttendBytes - kAccumulatorsOffset, "the probabilities do not fit the scratch");

  // Whether this warp has a j-th value fragment.
  MONOLANE_DEVICE static bool has(int j) { return kValueFragments % kConsumerWarps == 0 || warp_id() + j * kConsumerWarps < kValueFragments; }
  // The first dimension of the output that this thread publishes of the j-th fragment. The second one is the next, and two are 8 further.
  MONOLANE_DEVICE static int dim(int j) { return (warp_id() + j * kConsumerWarps) * 16 + lane_id() % 4 * 2; }
  // The rows of a thread: columns of a product.
  MONOLANE_DEVICE static int row(int r) { return lane_id() % 4 * 2 + r; }
  // The page of the last position, and whether it belongs to this split.
  MONOLANE_DEVICE int newest() const { return position_ / kPageTokens; }
  MONOLANE_DEVICE bool has_newest() const { return newest() < end_; }

  // The row maxes of a warp, of the two rows of this thread, and what it has of the probabilities of a page of the split.
  MONOLANE_DEVICE static uint64_t* maxes(int warp) { return reinterpret_cast<uint64_t*>(attention::row_maxes() + warp * kMaxRows) + lane_id() % 4; }
  MONOLANE_DEVICE static uint64_t* operand(int page) { return reinterpret_cast<uint64_t*>(attention::accumulators()) + page * 32 + lane_id(); }
  MONOLANE_DEVICE static uint64_t pair_of(float first, float second) { return static_cast<uint64_t>(ptx::bits_of(second)) << 32 | ptx::bits_of(first); }

  // Puts the value of the last position into the newest page.
  MONOLANE_DEVICE void insert_new_value() {
    const uint16_t* value = attention::new_value() + warp_id() * 16 + lane_id() / 4;
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const uint32_t above = value[j * kConsumerWarps * 16] * 0x10001u, below = value[j * kConsumerWarps * 16 + 8] * 0x10001u;
      newest_[j].x |= above & new_xy_, newest_[j].y |= below & new_xy_;
      newest_[j].z |= above & new_zw_, newest_[j].w |= below & new_zw_;
    }
  }

  const int layer_, head_, position_, first_page_, end_;
  float sinks_[2];  // of the rows of this thread, where the model has sinks
  float row_max_[2];
  uint32_t* output_[kEach];  // see find_output()
  KvFragments kv_;  // keys
  Word4 values_[kSplitPages][kEach], newest_[kEach];
  uint32_t new_xy_ = 0, new_zw_ = 0;  // bits of the last position in the words of the newest page
};

}  // namespace monolane
