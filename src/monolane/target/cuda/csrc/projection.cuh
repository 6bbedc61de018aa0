// What the kernel knows of a projection when it is compiled. Every layer has the same projections with the same shapes, so there is one type for each
// projection of a layer and one for the output head. Where the matrices of a projection have different formats in different layers, there is a type for
// each format, a variant; for_layer() chooses. The generated source defines them as specializations of Projection, in the order of the stages;
// target/cuda/projections.py computes them. Template parameters named P are such a type.
#pragma once

namespace monolane {

// The in-flight limit: how many chunks of a stage may be in flight to one thread block at a time. The small loads of a hand-off queue behind bulk
// copies, so the limit is low for the first chunks of a stage, while hand-offs follow each other, and higher for the rest.
struct InFlightLimits {
  int first_chunks, first;    // the limit `first` holds up to this chunk of the stage
  int second_chunks, second;  // then `second` holds up to this chunk
  int rest;                   // then this limit holds
  int prefill;                // the limit in a prefill pass, where hand-offs are grid barriers
};

// Members of each specialization:
//   kIndex                   its place among the projections of a layer; the head comes last
//   kVariants                number of variants
//   kInEveryLayer            whether every layer has it: those without experts have no router
//   Format                   Bf16, or the type of a low-bit format (lowbit.cuh, fp8.cuh)
//   kIsHead                  whether it is the output head
//   kStage, kFirst           index of its stage, and of its segment on the tapes, in the first layer
//   kContinues, kEndsStage   whether it continues the stage of the projection before, with the same input; whether none continues its own
//   kTakesInput              whether it takes the input as the projection before has prepared it
//   kRows, kCols             shape of the matrix
//   kTileRows, kFragmentCols rows of a tile and columns (k) of a fragment: 8 x 32, or 4 x 64 in half tiles, or 8 x 256 of low-bit weights
//   kFragmentBytes           what a warp loads at once
//   kFragments               fragments of a tile
//   kShortGroups             groups of the last fragment of a tile, where it is short; else 0
//   kTileBytes               of a tile
//   kChunks, kChunkFragments how a tile is cut along k into chunks that fit a slot of the ring
//   kChunkTiles              tiles of a chunk in a decode pass: several where tiles are small and not cut
//   kMinTiles                fewest tiles that one worker owns, of those that own any
//   kMaxTiles                most tiles that one worker has in a pass: those that it owns, or is dealt (kChooses)
//   kAhead                   chunks that a warpgroup holds in registers ahead of their use
//   kInFlight                its in-flight limits
//   kOutput                  what happens to a row's sum
//   kIsSmall                 whether a decode pass holds a worker's weights in registers before the input is there (small_product.cuh)
//   kMergesSplits            whether its input is the output of attention, which may still be split
//   kNorm, kBias             offsets of the first layer's norm weights and biases among the constants, or kNone
//   kOrder                   offset of the first layer's order of columns, where the matrix is ordered, or kNone
//   kEps                     of the norm
//   kReads, kWrites          buffers
//   kFirstRow                of its output, in the buffer that it writes
//   kExchange                its place among the projections whose outputs lanes exchange (exchange.cuh), or kNone
//   kInputAge                how many stages before its own its input was written
//   kRoutes                  whether its outputs are the logits that experts are chosen by (route.cuh)
//   kExperts, kChosen        matrices of this shape, and how many of them a row of the pass uses. A worker owns the same tiles of each, one expert's
//                            after the other's on its tape
//   kLogit, kScoring         the first logit of its experts, or kNone, and what makes weights of logits
//   kChooses                 whether its experts have to be chosen: those of down are the ones of gate_up. In a decode pass the tiles of the chosen
//                            ones are dealt out to the workers (dealing.py)
//   kSegments                chosen experts where each has an input of its own, one after the other; else 1. kCols and kFragments are those of one
//   kOutputStride            from the outputs of a chosen expert to those of the next one
//   kGateSlope, kGateShift   of a gate: (up + shift) * gate * sigmoid(slope * gate)
//   kGateLimited, kGateLimit whether gate and up are limited, and to what
template <int kIndex, int kVariant = 0>
struct Projection;

struct Bf16 {
  static constexpr bool kIsLowBit = false, kIsInteger = false;
};

}  // namespace monolane
