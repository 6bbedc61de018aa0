// How the product of a projection is divided: which chunks of a matrix a warpgroup takes, and which fragments of them a warp.
#pragma once
#include "ring.cuh"

namespace monolane {

// Which chunks of a matrix a warpgroup takes. Where a tile is one chunk, or several tiles are, the warpgroups take turns chunk by chunk. Otherwise a
// tile has the same number of chunks for each warpgroup, and a warpgroup takes every kWarpgroups-th chunk, the same ones of every tile.
//
// The fragments of a chunk's tile are dealt out to four shares one by one, and every share has its own sums. Where a chunk is one tile, each warp of the
// warpgroup has a share. Where it has several, teams of kTileWarps warps take the tiles, so that all of them are multiplied at the same time, and a
// warp has kWarpShares shares. So the order of a sum does not depend on the number of tiles in a chunk.
//
// Where each chosen expert has an input of its own (kSegments), a tile has the chunks of one expert after those of the other, or a chunk has several tiles of one expert.
constexpr int kFewTiles = 4;  // a warpgroup has two of them: so few that an input in integers is not worth preparing for several tiles
template <class P, int kChunkTiles, int kSegments = 1>
struct WarpgroupShare {
  static constexpr int kShares = lesser(P::kChunkFragments, kWarpgroupWarps);  // that have any fragments
  static constexpr int kTileWarps = kWarpgroupWarps / lesser(kChunkTiles, kWarpgroupWarps), kTeams = kWarpgroupWarps / kTileWarps;
  static constexpr int kTeamTiles = kChunkTiles / kTeams, kWarpShares = divide_up(kShares, kTileWarps);
  static_assert(kTeamTiles * kTeams == kChunkTiles, "every team has as many tiles");
  using Format = typename P::Format;
  static constexpr bool kIsLowBit = P::Format::kIsLowBit, kIsInteger = P::Format::kIsInteger, kIsFp8 = kIsLowBit && !kIsInteger;
  static constexpr int kFragments = P::kFragments, kSegmentChunks = P::kChunks, kChunks = kSegments * kSegmentChunks, kChunkFragments = P::kChunkFragments, kFragmentBytes = P::kFragmentBytes, kTileBytes = P::kTileBytes, kSkipped = monolane::kSkipped<P>;
  static constexpr int kKBlocks = P::kFragmentCols / (kIsLowBit ? kBlockCols : kKBlock);  // of a fragment: 1, or 2 in half tiles
  static constexpr int kFragmentCols = P::kFragmentCols;
  static constexpr bool kWholeTiles = kChunks == 1;
  static_assert(kWholeTiles || kChunks % kWarpgroups == 0, "a warpgroup's chunks are the same ones of every tile");
  static_assert(P::kTileRows * kKBlocks == kMmaCols, "a fragment fills all columns of B");
  static constexpr bool kMasksPairs = kKBlocks > 1 || kSegments > 1 || P::kMaxTiles <= kFewTiles;
  static constexpr int kOwnChunks = kWholeTiles ? 1 : kChunks / kWarpgroups;          // of a tile that the warpgroup takes
  static constexpr int kWarpFragments = divide_up(kChunkFragments, kWarpgroupWarps);  // most fragments of a share
  // By how many warps the second warpgroup is turned against the first. The warps of a scheduler are those with the same number in both. Where the fragments of a tile cannot be
  // dealt out evenly, those with more of them should not be on the same schedulers.
  static constexpr int kTurn = kChunkFragments % kWarpgroupWarps == 0 ? 0 : kTileWarps == 2 ? 1 : 2;
  static constexpr bool kEqualChunks = kSegmentChunks * kChunkFragments == kFragments;
  // Of the last chunk of a tile, the number of fragments; then which fragment of which share is the last one. It may be short. A tile has one chunk then, or one for each warpgroup.
  static constexpr int kLastFragments = kFragments - (kSegmentChunks - 1) * kChunkFragments, kLast = (kLastFragments - 1) / kWarpgroupWarps;
  static constexpr int kLastShare = (kLastFragments - 1) % kWarpgroupWarps;
  static constexpr bool kIsShort = P::kShortGroups > 0;
  static_assert(!kIsShort || kSegmentChunks <= kWarpgroups, "a warp has the last fragment of every tile, or of none");
  using Fragment = FragmentOf<P>;
  using Weights = typename Fragment::Type[kTeamTiles * kWarpShares][kWarpFragments];  // of a chunk, in a warp's registers

  MONOLANE_DEVICE static int fragments_of(int chunk) {
    return min(kChunkFragments, kFragments - (kSegments > 1 ? chunk % kSegmentChunks : chunk) * kChunkFragments);
  }

  // Whether a warp of a team has the last fragments of tiles. `part`: see Sums.
  MONOLANE_DEVICE static bool has_last(int part, int warp) { return kIsShort && warp == kLastShare % kTileWarps && (kSegmentChunks == 1 || part == kWarpgroups - 1); }

  // Whether a share (0 to 3) has a j-th fragment in a chunk's tile of `fragments`. Behind a short chunk its slot still holds bytes of an earlier
  // chunk. They must not be multiplied, not even by zero: zero times infinity is NaN.
  MONOLANE_DEVICE static bool has(int j, int fragments, int share) {
    return (kEqualChunks && (j + 1) * kWarpgroupWarps <= kChunkFragments) ||
           j * kWarpgroupWarps + share < (kEqualChunks ? kChunkFragments : fragments);
  }
};

}  // namespace monolane
