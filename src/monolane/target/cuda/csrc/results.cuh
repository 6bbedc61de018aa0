// The results of a projection: which output rows the sums of a worker are of, which expert they belong to, and the bias that is added to them.
#pragma once
#include "attend.cuh"
#include "project.cuh"

namespace monolane {

// This worker's tiles of one projection, or of one of its experts. `first_row`: its first output row, where a pair of a gate row and an up row counts
// as one.
struct StageTiles {
  int stage, layer, count, first_row;
};

// The bias of a result; the second one is of the up row of a gate.
struct RowBias {
  float first = 0.0f, second = 0.0f;
};

// The bias of an output row of an expert or, where the projection is a gate, of a gate row and its up row.
template <class P>
MONOLANE_DEVICE RowBias bias_of(int layer, int output_row, int expert = 0) {
  constexpr int kBias = P::kBias, kGate = P::kOutput == Output::kGate;
  if (kBias == kNone || output_row >= P::kRows >> kGate) return {};
  const float* from = buffers().constants + kBias + layer * kConstantsPerLayer + expert * P::kRows + (output_row << kGate);
  return {from[0], kGate ? from[1] : 0.0f};
}

// Whether a thread has one result in a decode pass, which becomes a word of activations at a place that is known, and kept in a register, before the input is there.
template <class P>
constexpr bool kPlacesWord = (P::Format::kIsInteger || P::kIsSmall || (kStreamOwners && P::kMergesSplits)) && kOneResult<P> && P::kExperts == 1 && (P::kOutput == Output::kGate || P::kOutput == Output::kResidual);

// Publishes an element of the activations that P writes. `place`: where its word lies, if kPlacesWord.
template <bool kPrefill, class P>
MONOLANE_DEVICE void publish_result(int element, int place, int row, float v, uint32_t step) {
  if constexpr (!kPrefill && kPlacesWord<P>)
    ptx::store_relaxed(placed_word(P::kWrites, place), tagged(v, step));
  else
    publish_activation<kPrefill>(P::kWrites, element, row, v, step);
}

// Whether the last tile has rows that the matrix does not have.
template <class P>
constexpr bool kHasPadding = P::kRows % P::kTileRows != 0;

// How a row of the pass uses a matrix that is not chosen: a shared expert has a weight.
template <class P>
MONOLANE_DEVICE Chosen choice_of(int row) {
  return {0, 0, P::kExperts == 1 && P::kLogit != kNone ? shared::routes().always[row] : 1.0f};
}

// Whether the tiles of all chosen experts, one after the other, are dealt out to the workers in a decode pass. Then the first row of a worker counts from
// the first row of the first of them.
template <class P>
constexpr bool kIsDealt = P::kChooses;

// The expert that a result of a decode pass is of, and its output row there. `local` counts from this worker's first result.
template <class P>
struct DealtRow {
  static constexpr int kRowsEach = kTilesEach<P> * kRowsOfTile<P>;
  int place, row;

  MONOLANE_DEVICE DealtRow(const StageTiles& tiles, int local) : place((tiles.first_row + local) / kRowsEach), row((tiles.first_row + local) % kRowsEach) {}
};
template <class P>
MONOLANE_DEVICE Chosen decode_choice(const StageTiles& tiles, int local) {
  if constexpr (!kIsDealt<P>) return choice_of<P>(0);
  const int place = DealtRow<P>(tiles, local).place;
  return {shared::routes().experts[0][place], place, shared::routes().weights[0][place]};
}

// The bias of a result of a decode pass: of an output row, or of all chosen experts together.
template <class P>
MONOLANE_DEVICE RowBias decode_bias(const StageTiles& tiles, int local) {
  if constexpr (P::kBias == kNone) return {};
  if constexpr (kIsDealt<P>) {
    if (local >= tiles.count * kRowsOfTile<P>) return {};
    const DealtRow<P> own(tiles, local);
    return bias_of<P>(tiles.layer, own.row, shared::routes().experts[0][own.place]);
  }
  if constexpr (P::kExperts == 1) return bias_of<P>(tiles.layer, tiles.first_row + local);
  RowBias sum;
#pragma unroll
  for (int i = 0; i < P::kChosen; i++)
    sum.first += shared::routes().weights[0][i] * bias_of<P>(tiles.layer, tiles.first_row + local, shared::routes().experts[0][i]).first;
  return sum;
}

}  // namespace monolane
