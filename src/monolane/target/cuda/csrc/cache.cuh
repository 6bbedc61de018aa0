// The KV cache: the layout of its pages in global memory, and how the pages that a position sees are divided into splits. The consumer
// warps, the producer warp and the prefetch warp all use this file, so that they agree on the division.
//
// A page has kPageTokens = 16 tokens of one KV head, as bf16 fragments of 512 bytes. A warp loads a fragment at once, 16 bytes per thread,
// and the registers are an operand of the MMA without any rearrangement. Keys and values lie in two arrays:
//
//   keys:   [lane][layer][KV head][page] of [token / 8][dim / 32] fragments
//   values: [lane][layer][KV head][page] of [dim / 16] fragments
//
// A key fragment has 8 tokens of 32 dimensions, row by row, as a fragment of weights does. Dimensions are padded with
// zeros to a multiple of 32: the MMA multiplies the padding with zeros of the query, and a NaN there would spoil the sum.
// A value fragment has 16 tokens of 16 dimensions, in the order in which the second MMA of attention needs them: it multiplies values with
// probabilities as they come out of the first MMA. The 16 bytes of thread 4g+t are four words x, y, z, w of two bf16 each:
//
//                     x              y              z                w
//   key fragment:     dims 8t, 8t+1  dims 8t+2, +3  dims 8t+4, +5    dims 8t+6, +7     of token g
//   value fragment:   tokens 2t, +1                 tokens 2t+8, +9                    of dimension g
//                                    tokens 2t, +1                   tokens 2t+8, +9   of dimension g+8
#pragma once
#include "launch.cuh"

namespace monolane {

constexpr int kFragmentElements = kFragmentBytes / 2;
constexpr int kDimFragments = divide_up(kHeadDim, kKBlock);  // key fragments of 8 tokens
constexpr int kKeyFragments = 2 * kDimFragments, kValueFragments = divide_up(kHeadDim, 16);  // of a page
static_assert(kHeadDim <= 256 && kHeadDim % 2 == 0, "a head has at most 256 dimensions, in pairs");

// Index of a page of this lane in either array. `page` is the page of the sequence: position / kPageTokens.
MONOLANE_DEVICE int64_t cache_page(int layer, int head, int page) {
  return (static_cast<int64_t>(lane_here() * kLayers + layer) * kKvHeads + head) * divide_up(monolane_launch.context, kPageTokens) + page;
}
MONOLANE_DEVICE uint16_t* key_page(int layer, int head, int page) {
  return monolane_launch.keys + cache_page(layer, head, page) * (kKeyFragments * kFragmentElements);
}
MONOLANE_DEVICE uint16_t* value_page(int layer, int head, int page) {
  return monolane_launch.values + cache_page(layer, head, page) * (kValueFragments * kFragmentElements);
}

// Index of the element of dimension d of token r (0 to 15) in a page.
MONOLANE_DEVICE int key_element(int r, int d) {
  const int fragment = r / 8 * kDimFragments + d / kKBlock, lane_index = r % 8 * 4 + d % kKBlock / 8;
  return fragment * kFragmentElements + lane_index * 8 + d % 8;
}
MONOLANE_DEVICE int value_element(int r, int d) {
  const int lane_index = d % 8 * 4 + r % 8 / 2;
  return d / 16 * kFragmentElements + lane_index * 8 + r / 8 * 4 + d % 16 / 8 * 2 + r % 2;
}

// Prefetches lines first, first + stride, … of `bytes` bytes into L2.
MONOLANE_DEVICE void prefetch_lines(const void* from, int bytes, int first, int stride) {
  for (int line = first; line * kLineBytes < bytes; line += stride) ptx::prefetch(static_cast<const char*>(from) + line * kLineBytes);
}

// The attention window of a layer in tokens; 0 for full attention.
MONOLANE_DEVICE int window_of(int layer) { return kAnyWindow ? kWindows[layer] : 0; }

// The first position that `position` sees.
MONOLANE_DEVICE int first_seen(int position, int window) { return window && position >= window ? position - window + 1 : 0; }

// --- division into splits ---

// With many splits a decode pass streams the KV cache through the ring, as it streams weights, between the chunks of qkv and those of o.
// A chunk has up to kChunkPages whole pages: the keys of all of them, then, at a fixed offset in the slot, their values. Where a KV head has
// more query heads than an MMA has rows, every page is needed more than once, so pages are read from global memory instead.
constexpr int kPageBytes = (kKeyFragments + kValueFragments) * kFragmentBytes;
constexpr int kMmaRows = 16;  // rows of the A operand and of the result
constexpr bool kStreamsCache = kQueriesPerKv <= kMmaRows && kPageBytes <= kSlotBytes;
constexpr int kChunkPages = kStreamsCache ? lesser(kWarpgroupWarps, kSlotBytes / kPageBytes) : 1;

// The pages that a position sees, and their division into splits, which are divided among the workers. A split has whole units of pages.
//
// - Decode pass, up to kFusedSplits * kSplitPages pages ("few splits"): a unit has kSplitPages pages and a split has one unit. The stage
//   after attention merges these splits while it loads its input. The last split is the short one, because the newest token, which only
//   this split sees, comes late.
// - Decode pass, more pages ("many splits"): a unit is one chunk of the ring. There are up to kMaxSplits splits, or half or a quarter of that
//   (see below), and their lengths differ by at most one unit.
// - Prefill pass: a unit has kSplitPages pages, so splits are not shorter than those of a decode pass with few splits. There are at most
//   kMaxSplits.
//
//   pages:     first                                                first + pages
//              |-- unit --|-- unit --|-- unit --|-- unit --|-- unit --|           here splits = 3, length = 1, shorter = 1
//   splits:    |    0     |          1          |          2          |
struct Span {
  int first, pages;     // first page of the sequence that is seen, and how many
  int splits, unit;     // number of splits, and pages of a unit
  int length, shorter;  // the first `shorter` splits have `length` units each; the others have one unit more
};
// Merging many splits takes longer than reading a few more pages. So there are a quarter or half of kMaxSplits splits, but more than
// kFusedSplits, as long as no split has more than kSplitBytes of keys and values.
constexpr int kSplitUnits = kSplitBytes / (kChunkPages * kPageBytes);
constexpr int kHalfSplits = kMaxSplits / 2 > kFusedSplits ? kMaxSplits / 2 : kMaxSplits;
constexpr int kQuarterSplits = kMaxSplits / 4 > kFusedSplits ? kMaxSplits / 4 : kHalfSplits;
// The first kFusedTokens positions have few splits in a decode pass, whatever the window.
constexpr int kFusedTokens = kFusedSplits * kSplitPages * kPageTokens;

// Whether the owners of the residual stream attend, all of them to all that a position of a decode pass sees (attend_at_once.cuh).
MONOLANE_DEVICE bool attends_at_once(int position, int window) {
  return kStreamOwners && position / kPageTokens - first_seen(position, window) / kPageTokens < kAtOncePages;
}

template <bool kPrefill>
MONOLANE_DEVICE Span span_of(int position, int window) {
  const int last = position / kPageTokens;
  // The rows of a prefill pass lie in one page, and the division depends on that page alone, not on the rows. Every row must see at least
  // one position in every split.
  const int first = kPrefill ? max(last - divide_up(window, kPageTokens), 0) : first_seen(position, window) / kPageTokens;
  const int seen = window ? last + 1 - first : last + 1;
  if (!kPrefill && attends_at_once(position, window)) return {last + 1 - seen, seen, 1, seen, 1, 1};
  // All divisions below are by constants, because a division takes long and consumer and producer warps wait for its result.
  if (!kPrefill && seen <= kFusedSplits * kSplitPages) {
    const int splits = divide_up(seen, kSplitPages);
    return {last + 1 - seen, seen, splits, kSplitPages, 1, splits};
  }
  const int units = kPrefill ? divide_up(seen, kSplitPages) : divide_up(seen, kChunkPages);
  const bool quarter = !kPrefill && units <= kQuarterSplits * kSplitUnits, half = !kPrefill && units <= kHalfSplits * kSplitUnits;
  const int max_splits = quarter ? kQuarterSplits : half ? kHalfSplits : kMaxSplits;
  const int split_units = quarter ? units / kQuarterSplits : half ? units / kHalfSplits : units / kMaxSplits;
  const int splits = min(units, max_splits), length = max(split_units, 1);
  return {last + 1 - seen, seen, splits, kPrefill ? kSplitPages : kChunkPages, length, splits * (length + 1) - units};
}
// The pages [split_start, split_end) of a split.
MONOLANE_DEVICE int split_start(const Span& span, int split) {
  return span.first + (split * span.length + max(split - span.shorter, 0)) * span.unit;
}
MONOLANE_DEVICE int split_end(const Span& span, int split) { return min(span.first + span.pages, split_start(span, split + 1)); }

// The split of an item of a decode pass (a split of a KV head); negative behind the last item. The first items have the newest split, which takes longest, because it
// waits for the new key and value and appends them. They belong to the first workers, which own nothing of the projection that follows attention, where some own nothing.
MONOLANE_DEVICE int split_of(int item, const Span& span) { return span.splits - 1 - item / kKvHeads; }

// --- streaming through the ring ---

// The pages before this one come through the ring in the decode pass of `position`; 0 where the cache is not streamed. They are the pages
// that lie before the page of position - 1. When the pass of position - 1 has begun on one worker, the pass of position - 2 has ended on
// all workers, so every token up to position - 2 has been written.
MONOLANE_DEVICE int streamed_end(int position, const Span& span) {
  return kStreamsCache && span.splits > kFusedSplits ? max(position - 1, 0) / kPageTokens : 0;
}

}  // namespace monolane
