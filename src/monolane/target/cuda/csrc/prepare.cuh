// The input of a projection in shared memory, as bf16, prepared by every block for itself. A norm's weight is multiplied
// in here, its scale at the end, when the sums are in: it is one number per position.
#pragma once
#include "handoff.cuh"

namespace monolane {

constexpr uint32_t kOne = 0x3f800000u;  // the bits of 1.0f

// Four words of the input, from shared memory, or from global where it did not fit: past L1, which others do not write to.
template <bool kStaged>
MONOLANE_DEVICE Word4 input_words(const uint16_t* p) {
  return kStaged ? *reinterpret_cast<const Word4*>(p) : ptx::load_l2(reinterpret_cast<const Word4*>(p));
}

// Four consecutive elements of a token's embedding; `k` is a multiple of 4.
MONOLANE_DEVICE void embedding(int32_t token, int k, float (&v)[4]) {
  const uint16_t* from =
      monolane_launch.table ? monolane_launch.table + static_cast<int64_t>(token) * kHidden + k
                   : reinterpret_cast<const uint16_t*>(monolane_launch.head_tiles[token / kTileRows]) + k / kKBlock * (kTileRows * kKBlock) +
                         token % kTileRows * kKBlock + k % kKBlock;
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = k + i < kHidden ? bf16_to_float(from[i]) : 0.0f;
}

// In shared memory an input lies as the tensor core's A operand wants it for one position: 16 bytes are four registers, of
// which the first and the third are of A's upper rows, the others of its lower. A unit's piece of eight elements (four
// words, met by the four words of a lane's weights) lies in the order 0 2 1 3: upper rows have what the first two words of
// weights want, lower rows what the last two want. Of half tiles, whose units have two blocks of k, upper rows have the
// first block, lower rows the second: words 0 and 1 of both, and behind those of all lanes, words 2 and 3.
// Returns the place of elements k and k + 1, k a multiple of four; k + 2 and k + 3 lie four elements further.
template <class P>
MONOLANE_DEVICE int input_index(int k) {
  if constexpr (P::kFragmentCols == kKBlock) return k / 8 * 8 + k % 8 / 4 * 2;
  return k / (2 * kKBlock) * (2 * kKBlock) + k % 8 / 4 * kKBlock + k % kKBlock / 8 * 8 + k / kKBlock % 2 * 2;
}

// Where a prepared input lies: in shared memory, in places of its own (see input_place), or in global memory, in order.
enum class To { kShared, kGlobal };

// Four elements, with a norm's weights, to their places in `x`; returns their sum of squares.
template <To kTo>
MONOLANE_DEVICE float store_four(const float (&v)[4], const Word4& weight, uint16_t* x) {
  uint32_t* words = reinterpret_cast<uint32_t*>(x);
  words[0] = ptx::bf16_pair(v[0] * ptx::float_of(weight.x), v[1] * ptx::float_of(weight.y));
  words[kTo == To::kShared ? 2 : 1] = ptx::bf16_pair(v[2] * ptx::float_of(weight.z), v[3] * ptx::float_of(weight.w));
  return (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
}

template <class P>
MONOLANE_DEVICE const float* norm_weights(int layer) {
  return monolane_launch.constants + P::kNorm + layer * kConstantsPerLayer;
}

// The columns of a matrix, with those that fill up its last unit.
template <class P>
constexpr int kPaddedCols = P::kFragments * P::kFragmentCols;

// Elements [0, cols), and zeros behind them up to whole units, four at a time, this thread's share of kThreadCount.
// `fetch(base, v)` gives the four at base, base + 4 * kThreadCount, … of a burst; a norm's weights are asked for before.
// Returns the sum of squares.
template <class P, int kThreadCount, int kBurst, To kTo = To::kShared, class Fetch>
MONOLANE_DEVICE float prepare_with(int layer, uint16_t* x, int thread, Fetch fetch) {
  constexpr int kCols = P::kCols, kPadded = kPaddedCols<P>, kStride = kThreadCount * 4;
  constexpr bool kNorm = P::kNorm != kNone;
  constexpr int kRounds = divide_up(kPadded, kBurst * kStride);
  const float* weights = kNorm ? norm_weights<P>(layer) + thread * 4 : nullptr;
  uint16_t* to = x + (kTo == To::kShared ? input_index<P>(thread * 4) : thread * 4);  // steps are whole units
  float squares = 0.0f;
#pragma unroll
  for (int round = 0; round < kRounds; round++) {
    const int first = round * kBurst * kStride, base = first + thread * 4;
    Word4 weight[kBurst];
    float v[kBurst][4] = {};
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int from = first + j * kStride;  // of the first thread: known to the compiler
      weight[j] = {kOne, kOne, kOne, kOne};
      if (kNorm && (from + kStride <= kCols || from + thread * 4 < kCols)) weight[j] = *reinterpret_cast<const Word4*>(weights + from);
    }
    fetch(base, v);
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int from = first + j * kStride;
      if (from + kStride <= kPadded || from + thread * 4 < kPadded) squares += store_four<kTo>(v[j], weight[j], to + from);
    }
  }
  return squares;
}

template <class P, int kThreadCount>
constexpr int kFours = divide_up(kPaddedCols<P>, kThreadCount * 4);  // of a thread
template <class P, int kThreadCount, int kMost>
constexpr int kBurstOf = divide_up(kFours<P, kThreadCount>, divide_up(kFours<P, kThreadCount>, kMost));

// Words that carry tags, looked at until all tags are right.
template <class P>
MONOLANE_DEVICE float prepare_words(int layer, uint32_t step) {
  constexpr int kBurst = kBurstOf<P, kConsumers, 6>, kStride = kConsumers * 4, kCols = P::kCols;
  const uint32_t* words = monolane_launch.activation_words + kWordOffsets[P::kReads];
  const uint32_t blank = step & 0xffffu;  // zero, with the right tag
  return prepare_with<P, kConsumers, kBurst>(layer, shared::x(), thread_id(), [&](int base, float (&v)[kBurst][4]) {
    Word4 four[kBurst];
    for (;;) {
      uint32_t wrong = 0;
#pragma unroll
      for (int j = 0; j < kBurst; j++) {
        const int k = base + j * kStride;
        four[j] = {blank, blank, blank, blank};
        if (k < kCols) four[j] = ptx::load_relaxed(reinterpret_cast<const Word4*>(words + k));  // buffers end with whole units
        if (kCols % 4 && k + 4 > kCols) {
          if (k + 1 >= kCols) four[j].y = blank;
          if (k + 2 >= kCols) four[j].z = blank;
          if (k + 3 >= kCols) four[j].w = blank;
        }
      }
#pragma unroll
      for (int j = 0; j < kBurst; j++) wrong |= (four[j].x ^ step) | (four[j].y ^ step) | (four[j].z ^ step) | (four[j].w ^ step);
      const bool ready = (wrong & 0xffffu) == 0;
      if (P::kNorm != kNone ? all_ready(ready) : ready || shared::failed()) break;
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++) v[j][0] = value_of(four[j].x), v[j][1] = value_of(four[j].y), v[j][2] = value_of(four[j].z), v[j][3] = value_of(four[j].w);
  });
}

template <class P, int kThreadCount, To kTo = To::kShared>
MONOLANE_DEVICE float prepare_embedding(int layer, int32_t token, uint16_t* x, int thread) {
  return prepare_with<P, kThreadCount, 1, kTo>(layer, x, thread, [&](int k, float (&v)[1][4]) {
    if (k < kHidden) embedding(token, k, v[0]);
  });
}

MONOLANE_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) v += ptx::shuffle_xor(v, mask);
  return v;
}

template <class P>
MONOLANE_DEVICE float norm_scale(float squares) {
  constexpr float kShare = 1.0f / static_cast<float>(P::kCols);
  return ptx::rsqrt(squares * kShare + P::kEps);
}

// All consumers have stored their parts of `x`; the scale of its norm from the sums of squares.
template <class P>
MONOLANE_DEVICE float finish_prepare(float squares) {
  if constexpr (P::kNorm == kNone) {
    sync_consumers();
    return 1.0f;
  } else {
    squares = warp_sum(squares);
    if (lane_id() == 0) shared::reduce()[warp_id()] = squares;
    sync_consumers();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w++) total += shared::reduce()[w];
    return norm_scale<P>(total);
  }
}

// One position of a wide pass, plain elements, asked for all at once. Rows of plain elements are whole units.
template <class P, int kThreadCount, To kTo = To::kShared>
MONOLANE_DEVICE float prepare_plain(int layer, const uint16_t* plain, uint16_t* x, int thread) {
  constexpr int kBurst = kBurstOf<P, kThreadCount, 16>, kCols = P::kCols;
  return prepare_with<P, kThreadCount, kBurst, kTo>(layer, x, thread, [&](int base, float (&v)[kBurst][4]) {
    uint64_t four[kBurst];
#pragma unroll
    for (int j = 0; j < kBurst; j++) {
      const int k = base + j * kThreadCount * 4;
      four[j] = 0;
      if (k < kCols) four[j] = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(plain + k));  // past L1, as all that others write
    }
#pragma unroll
    for (int j = 0; j < kBurst; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) v[j][i] = base + j * kThreadCount * 4 + i < kCols ? bf16_to_float(static_cast<uint16_t>(four[j] >> 16 * i)) : 0.0f;
  });
}

}  // namespace monolane
