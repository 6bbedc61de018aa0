// The cache of keys and values, kept as the tensor core wants them, in blocks of sixteen positions of one key/value head.
// Keys: units of 8 positions by 32 dimensions, laid out as weights are. Values: units of 16 positions by 16 dimensions;
// lane 4g+t holds positions 2t, 2t+1, 2t+8, 2t+9 of dimension g, then of dimension g+8: what attention's weights, as they
// come out of one product, meet in the next. A unit is one 16-byte load per lane.
#pragma once
#include "launch.cuh"

namespace monolane {

constexpr int kFragmentElements = kFragmentBytes / 2;
constexpr int kDimFragments = divide_up(kHeadDim, kKBlock);  // units of the keys of 8 positions
constexpr int kKeyFragments = 2 * kDimFragments, kValueFragments = divide_up(kHeadDim, 16);
static_assert(kHeadDim <= 256 && kHeadDim % 2 == 0, "a head has at most 256 dimensions, in pairs");

MONOLANE_DEVICE int64_t cache_page(int layer, int head, int page) {
  return (static_cast<int64_t>(layer) * kKvHeads + head) * divide_up(monolane_launch.context, kPageTokens) + page;
}
MONOLANE_DEVICE uint16_t* key_page(int layer, int head, int page) {
  return monolane_launch.keys + cache_page(layer, head, page) * (kKeyFragments * kFragmentElements);
}
MONOLANE_DEVICE uint16_t* value_page(int layer, int head, int page) {
  return monolane_launch.values + cache_page(layer, head, page) * (kValueFragments * kFragmentElements);
}

// Where dimension d of position r (0 to 15) lies in a block.
MONOLANE_DEVICE int key_element(int r, int d) {
  const int unit = r / 8 * kDimFragments + d / kKBlock, lane = r % 8 * 4 + d % kKBlock / 8;
  return unit * kFragmentElements + lane * 8 + d % 8;
}
MONOLANE_DEVICE int value_element(int r, int d) {
  const int lane = d % 8 * 4 + r % 8 / 2;
  return d / 16 * kFragmentElements + lane * 8 + d % 16 / 8 * 4 + r / 8 * 2 + r % 2;
}

// Into L2, this thread's lines of so many bytes.
MONOLANE_DEVICE void prefetch_lines(const void* from, int bytes, int first, int stride) {
  for (int line = first; line * kLineBytes < bytes; line += stride) ptx::prefetch(static_cast<const char*>(from) + line * kLineBytes);
}

MONOLANE_DEVICE int window_of(int layer) { return kAnyWindow ? kWindows[layer] : 0; }

MONOLANE_DEVICE int first_seen(int position, int window) { return window && position >= window ? position - window + 1 : 0; }

// --- how it is divided ---

// Where there are many splits, decoding streams the cache as it streams weights: between the chunks of qkv and those of o, in
// chunks of whole blocks, the keys of all of them and then their values. Where more query heads share a key/value head than
// a product has rows, blocks are needed twice, and read where they lie.
constexpr int kPageBytes = (kKeyFragments + kValueFragments) * kFragmentBytes;
constexpr int kMmaRows = 16;
constexpr bool kStreamsCache = kQueriesPerKv <= kMmaRows && kPageBytes <= kSlotBytes;
constexpr int kChunkPages = kStreamsCache ? lesser(kWarpgroupWarps, kSlotBytes / kPageBytes) : 1;

// The blocks that a position sees, and how they are divided among blocks of threads: into few splits as long as the stage that
// follows can merge them on its way in, and then among as many as there are. Of a wide pass, into no shorter ones. Splits are
// whole units: of few, one each, so that the last is short, because what it sees of the newest position comes late; of many, as many as
// can be, and units are chunks of the ring.
struct Span {
  int first, pages;    // of the cache
  int splits, unit;     // blocks of a unit
  int length, shorter;  // units of a split, and how many have no more than that; the others, the last, have one more
};
// Merging many splits takes longer than reading a few more blocks: there are half as many, or a quarter, while none has more than kSplitBytes.
constexpr int kSplitUnits = kSplitBytes / (kChunkPages * kPageBytes);
constexpr int kHalfSplits = kMaxSplits / 2 > kFusedSplits ? kMaxSplits / 2 : kMaxSplits;
constexpr int kQuarterSplits = kMaxSplits / 4 > kFusedSplits ? kMaxSplits / 4 : kHalfSplits;
// So many positions have few splits, whatever the window.
constexpr int kFusedTokens = kFusedSplits * kSplitPages * kPageTokens;
template <bool kPrefill>
MONOLANE_DEVICE Span span_of(int position, int window) {
  const int last = position / kPageTokens;
  // A wide pass has positions of the whole block, so it depends on that alone; every split must have something to see.
  const int first = kPrefill ? max(last - divide_up(window, kPageTokens), 0) : first_seen(position, window) / kPageTokens;
  const int seen = window ? last + 1 - first : last + 1;
  // Divided by constants alone: others wait for what is done here.
  if (!kPrefill && seen <= kFusedSplits * kSplitPages) {
    const int splits = divide_up(seen, kSplitPages);
    return {last + 1 - seen, seen, splits, kSplitPages, 1, splits};
  }
  const int units = kPrefill ? divide_up(seen, kSplitPages) : divide_up(seen, kChunkPages);
  const bool quarter = !kPrefill && units <= kQuarterSplits * kSplitUnits, half = !kPrefill && units <= kHalfSplits * kSplitUnits;
  const int most = quarter ? kQuarterSplits : half ? kHalfSplits : kMaxSplits;
  const int each = quarter ? units / kQuarterSplits : half ? units / kHalfSplits : units / kMaxSplits;
  const int splits = min(units, most), length = max(each, 1);
  return {last + 1 - seen, seen, splits, kPrefill ? kSplitPages : kChunkPages, length, splits * (length + 1) - units};
}
MONOLANE_DEVICE int split_start(const Span& span, int split) { return span.first + (split * span.length + max(split - span.shorter, 0)) * span.unit; }
MONOLANE_DEVICE int split_end(const Span& span, int split) { return min(span.first + span.pages, split_start(span, split + 1)); }

// --- through the ring ---

// Blocks before this one come through the ring: those that all blocks of threads have written when the pass before this
// position's has begun here, because then the one before that has ended everywhere.
MONOLANE_DEVICE int streamed_end(int position, const Span& span) {
  return kStreamsCache && span.splits > kFusedSplits ? max(position - 1, 0) / kPageTokens : 0;
}

}  // namespace monolane
