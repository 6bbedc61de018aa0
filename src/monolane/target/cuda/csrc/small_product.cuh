// The product of a small projection in a decode pass: one of which the consumer warps hold all weights of the worker in registers before its input arrives. Then a stage takes
// what passes between its last input word and its first output word, so nothing stands between them that could be done before, and one barrier:
//
//   - All 8 warps share the columns of the matrix: warp w has fragments w, w + 8, ... of every tile. So a warp prepares the columns that it multiplies with, and waits for no
//     other warp before it multiplies.
//   - Weights are A of the MMA and the input is B, so that one MMA multiplies a whole fragment, where it takes two with weights as B (operands.cuh). Of the four words w0 w1 w2
//     w3 that a thread has of a fragment, w0 and w1 are in rows 0-7 of A, and w2 and w3 of the same output rows in rows 8-15. In even columns B has the input x0 and x1 that
//     belongs to w0 and w1, in odd columns x2 and x3. So the sum of an output row is an even column of C in rows 0-7 and an odd one in rows 8-15: c0 and c3 of a thread.
//   - The sums of the warps meet in shared memory, behind the barrier, together with the sums of squares that the norm's factor comes from.
//
// Every sum has a fixed order, that of a prefill pass. The sums of two stages in a row lie in different places, by the parity of the step: a warp that begins a stage may be
// ahead of one that still adds up the results of the stage before, but not of the stage before that, because there is a barrier in each.
#pragma once
#include "sums.cuh"

namespace monolane {

// The sums of the warps, [row][kSmallStride], of which the first eight are those of the warps; then their sums of squares, [warp].
MONOLANE_DEVICE float* small_sums(uint32_t step) { return shared::at<float>(kSmallOffset) + step % 2 * (kSmallRows * kSmallStride + kConsumerWarps); }
MONOLANE_DEVICE float* small_squares(uint32_t step) { return small_sums(step) + kSmallRows * kSmallStride; }

// The chunks of a stage that are in the ring at the same time, all of them whole tiles. All warps load from all chunks.
template <class P>
class StageChunks {
 public:
  static constexpr int kTiles = P::kChunkTiles;  // of a chunk

  // Takes the chunks of `tiles` tiles from the warpgroups' cursors.
  MONOLANE_DEVICE StageChunks(int tiles, Cursor<false>& cursor) : count_(divide_up(tiles, kTiles)), first_(cursor.place) {
    static_assert(P::kChunks == 1 && divide_up(P::kMaxTiles, kTiles) <= lesser(kSlots, 32), "all chunks of a stage are in the ring at the same time");
    first_.rewind(cursor.order);
    const int own = cursor.own_chunks(count_);
    cursor.place.advance(own * kWarpgroups);
    cursor.skip(count_);
  }

  // Waits for a chunk and returns this thread's words of its first fragment; there must be such a chunk.
  MONOLANE_DEVICE const Word4* await(int chunk) const {
    RingPosition<false> at = first_;
    at.advance(chunk);
    while (!ptx::mbarrier_try_wait(at.full(), at.round & 1))
      if (shared::failed()) break;
    return reinterpret_cast<const Word4*>(at.memory()) + lane_id();
  }

  // Releases the slots. All warps have used what they have loaded, and have passed a barrier since.
  MONOLANE_DEVICE void release() const {
    if (warp_id() < kWarpgroupWarps && lane_id() < count_) {
      RingPosition<false> at = first_;
      at.advance(lane_id());
      ptx::mbarrier_arrive(at.empty());
    }
  }

 private:
  const int count_;
  RingPosition<false> first_;  // the slot of the first chunk
};

// The words of a fragment, of which A has the second and the third one exchanged. The exclusive or with 0, which the compiler does not know to be 0, keeps it from exchanging
// them behind the input; and where it has been executed, the words have been loaded.
MONOLANE_DEVICE Word4 loaded_words(const Word4& w, bool exchanged) {
  const uint32_t zero = monolane_launch.zero, second = ptx::exclusive_or(exchanged ? w.z : w.y, zero), third = ptx::exclusive_or(exchanged ? w.y : w.z, zero);
  return {ptx::exclusive_or(w.x, zero), second, third, ptx::exclusive_or(w.w, zero)};
}

// The functions are called in this order, by all consumer threads: prepare, multiply.
template <class P>
class SmallProduct {
  static constexpr int kShare = divide_up(P::kFragments, kConsumerWarps);  // most fragments of a warp, of a tile
  static constexpr int kWarps = lesser(P::kFragments, kConsumerWarps);     // that have any
  static constexpr int kTiles = P::kChunkTiles;
  static constexpr int kFours = kKBlock / 4, kLoads = divide_up(kShare * kFours, 32);  // fours of columns of a fragment, and of a thread
  static_assert(P::kTileRows == kMmaCols && P::kFragmentCols == kKBlock, "whole tiles");
  static_assert(kWarps * kShare * kKBlock * 2 <= kXBytes, "the inputs of the warps do not fit");

 public:
  // Loads this warp's fragments of all tiles, and finds where this thread will read and write. `step`: of the stage.
  MONOLANE_DEVICE SmallProduct(int tiles, Cursor<false>& cursor, uint32_t step) : tiles_(tiles), chunks_(tiles, cursor) {
#pragma unroll
    for (int c = 0; c < divide_up(P::kMaxTiles, kTiles); c++) {
      const bool exists = c * kTiles < P::kMinTiles || c * kTiles < tiles;
      const Word4* from = exists ? chunks_.await(c) : nullptr;
#pragma unroll
      for (int i = 0; i < kTiles; i++)
#pragma unroll
        for (int j = 0; j < kShare; j++) {
          if (c * kTiles + i >= P::kMaxTiles) continue;
          Word4& fragment = weights_[c * kTiles + i][j];
          fragment = {0, 0, 0, 0};
          if (exists && has(j)) fragment = loaded_words(from[i * (P::kTileBytes / 16) + (warp_id() + j * kConsumerWarps) * 32], true);
        }
    }
    const uint32_t lane = lane_id(), g = lane / 4, t = lane % 4, row = min(thread_id(), tiles * kMmaCols - 1);
    const int sums = static_cast<int>(reinterpret_cast<char*>(small_sums(step)) - shared::at<char>(0));
    from_ = ptx::kept(static_cast<int>(reinterpret_cast<char*>(input()) - shared::at<char>(0)) + t * 16 + g % 2 * 8);
    to_ = ptx::kept(sums + (g * kSmallStride + warp_id()) * 4);
    row_ = ptx::kept(sums + row * (kSmallStride * 4));
  }

  // Prepares this warp's columns. `fetch(columns, v)` fills v with the fours of columns that begin at `columns`; one that is negative does not exist, and what is fetched for it
  // is ignored.
  template <class Fetch>
  MONOLANE_DEVICE void prepare(int layer, Fetch fetch) {
    int columns[kLoads];
    Word4 weight[kLoads];
    float v[kLoads][4];
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      const uint32_t four = lane_id() + 32 * n, fragment = warp_id() + four / kFours * kConsumerWarps;
      const int column = fragment * kKBlock + four % kFours * 4;
      columns[n] = four < kShare * kFours && column < P::kCols ? column : -1;
      weight[n] = {kOne, kOne, kOne, kOne};
      if (P::kNorm != kNone && columns[n] >= 0) weight[n] = *reinterpret_cast<const Word4*>(norm_weights<P>(layer) + column);
    }
    uint64_t* to = reinterpret_cast<uint64_t*>(input()) + ptx::kept(lane_id());
    fetch(columns, v);
    squares_ = 0.0f;
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      const uint32_t own = columns[n] >= 0 ? ~0u : 0u;
#pragma unroll
      for (int i = 0; i < 4; i++) v[n][i] = ptx::float_of(ptx::bits_of(v[n][i]) & own);
      squares_ += scale_four(v[n], weight[n]);
      const uint64_t low = ptx::bf16_pair(v[n][0], v[n][1]), high = ptx::bf16_pair(v[n][2], v[n][3]);
      if (32 * (n + 1) <= kShare * kFours || lane_id() + 32 * n < kShare * kFours) to[32 * n] = high << 32 | low;
    }
    ptx::sync_warp();
  }

  // Multiplies and calls `finish(result, row, sum, second sum, scale)` as Product does. `step`: of the stage.
  template <class Finish>
  MONOLANE_DEVICE void multiply(uint32_t step, Finish finish) {
    const int warp = warp_id(), lane = lane_id();
    uint64_t x[kShare];
#pragma unroll
    for (int j = 0; j < kShare; j++) x[j] = *reinterpret_cast<const uint64_t*>(shared::at<char>(from_) + j * kKBlock * 2);
    int mask = P::kNorm != kNone ? 16 : 0;
    const auto add_squares = [&] {
      if (mask) squares_ += ptx::shuffle_xor(squares_, mask), mask /= 2;
    };
    float sums[P::kMaxTiles][4] = {};
    add_squares();
#pragma unroll
    for (int j = 0; j < kShare; j++) {
      if (has(j))
#pragma unroll
        for (int i = 0; i < P::kMaxTiles; i++) {
          const Word4& w = weights_[i][j];
          ptx::mma(sums[i], w.x, w.y, w.z, w.w, static_cast<uint32_t>(x[j]), static_cast<uint32_t>(x[j] >> 32));
        }
      add_squares();
    }
#pragma unroll
    for (int j = kShare + 1; j < 5; j++) add_squares();
    if (warp < kWarps && lane % 4 == 0) {  // all threads 4g + t with the same g have the same sums
      float* to = shared::at<float>(to_);
#pragma unroll
      for (int i = 0; i < P::kMaxTiles; i++) to[i * (kMmaCols * kSmallStride)] = sums[i][0] + sums[i][3];
    }
    if (P::kNorm != kNone && lane == 0) small_squares(step)[warp] = squares_;
    sync_consumers();
    const int results = tiles_ * kRowsOfTile<P> * kResultThreads<P>;
    if (warp * 32 < results) {
      const float* row = shared::at<float>(row_);
      const float sum = sum_of_warps<kWarps>(row);
      const float scale = P::kNorm != kNone ? norm_scale<P>(sum_of_warps<kConsumerWarps>(small_squares(step))) : 1.0f;
      const float other = P::kOutput == Output::kGate ? ptx::shuffle_xor(sum, 1) : 0.0f;
      if (lane % kResultThreads<P> == 0 && thread_id() < results) finish(own_result<P>(), 0, sum, other, scale);
    }
    chunks_.release();
  }

 private:
  MONOLANE_DEVICE static bool has(int j) { return (j + 1) * kConsumerWarps <= P::kFragments || warp_id() + j * kConsumerWarps < P::kFragments; }
  // The columns of this warp, in order.
  MONOLANE_DEVICE static uint16_t* input() { return shared::x() + warp_id() * (kShare * kKBlock); }

  template <int kCount>
  MONOLANE_DEVICE static float sum_of_warps(const float* from) {
    float v[kConsumerWarps];
#pragma unroll
    for (int i = 0; i < kConsumerWarps; i += 4) {
      const Word4 four = *reinterpret_cast<const Word4*>(from + i);
      v[i] = ptx::float_of(four.x), v[i + 1] = ptx::float_of(four.y), v[i + 2] = ptx::float_of(four.z), v[i + 3] = ptx::float_of(four.w);
    }
#pragma unroll
    for (int i = 0; i < kConsumerWarps; i++)
      if (i >= kCount) v[i] = 0.0f;
    // In a prefill pass a warp has the fragments of two of these.
    return (((v[0] + v[4]) + (v[1] + v[5])) + (v[2] + v[6])) + (v[3] + v[7]);
  }

  const int tiles_;
  const StageChunks<P> chunks_;
  Word4 weights_[P::kMaxTiles][kShare];
  float squares_;
  int from_, to_, row_;  // offsets in shared memory: of this thread's inputs, sums and result
};

// The input of a small projection from the tagged words of the stage before, which are polled until all words of the warp have the tag `step`.
template <class P, int kLoads>
MONOLANE_DEVICE void await_columns(const int (&columns)[kLoads], uint32_t step, float (&v)[kLoads][4]) {
  const uint32_t* words = buffers().activation_words + kWordOffsets[P::kReads];
  const uint32_t* from[kLoads];
  Word4 four[kLoads];
  const uint32_t blank = step & 0xffffu;
#pragma unroll
  for (int n = 0; n < kLoads; n++) from[n] = words + word_place(max(columns[n], 0));  // where there are none: some that others poll as well
  ptx::spin(kSpinCycles);
  for (;;) {
    uint32_t wrong = 0;
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      four[n] = ptx::load_relaxed(reinterpret_cast<const Word4*>(from[n]));
      if (P::kCols % 4 && columns[n] + 4 > P::kCols) {
        if (columns[n] + 1 >= P::kCols) four[n].y = blank;
        if (columns[n] + 2 >= P::kCols) four[n].z = blank;
        if (columns[n] + 3 >= P::kCols) four[n].w = blank;
      }
    }
    const bool failed = shared::failed();
#pragma unroll
    for (int n = 0; n < kLoads; n++) wrong |= (four[n].x ^ step) | (four[n].y ^ step) | (four[n].z ^ step) | (four[n].w ^ step);
    if (!ptx::any((wrong & 0xffffu) != 0 && !failed)) break;
  }
#pragma unroll
  for (int n = 0; n < kLoads; n++) v[n][0] = value_of(four[n].x), v[n][1] = value_of(four[n].y), v[n][2] = value_of(four[n].z), v[n][3] = value_of(four[n].w);
}

}  // namespace monolane
