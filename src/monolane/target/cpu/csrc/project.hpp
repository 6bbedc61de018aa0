// The projection stage: a worker reads its tiles of the matrix from its tape, in order, and multiplies each tile with the prepared input of all rows
// of the pass. finish_tile() writes the results to the shared buffers. The sum of an output row has the same order for any number of rows, workers
// or registers. Of a matrix with experts, a worker reads those that any row of the pass has chosen, each once, for the rows that have chosen it.
//
// A tile has 8 output rows. In bf16 it lies on the tape as [k-block of 32 columns][output row][column]: 64 bytes per output row and k-block. Tiles of
// low-bit matrices are those of lowbit.hpp and fp8.hpp.
#pragma once
#include "fp8.hpp"
#include "prepare.hpp"
#include "route.hpp"

#include <type_traits>

namespace monolane {

#if defined(__AVX512F__)
constexpr int kRowsOfOne = 8, kRowsOfMany = 4, kPositions = 4;  // accumulators fit 32 registers of 16 floats
#elif defined(__aarch64__)
constexpr int kRowsOfOne = 4, kRowsOfMany = 2, kPositions = 2;  // accumulators fit 32 registers of 4 floats
#else
constexpr int kRowsOfOne = 4, kRowsOfMany = 2, kPositions = 2;  // accumulators fit 16 registers of 8 floats
#endif

// Dot products of kRows output rows of a tile with kCount rows of the pass. kFetch: prefetch the tape.
template <int kRows, int kCount, bool kFetch>
inline void dot(const uint16_t* tile, const float* x, int stride, float (*out)[kTileRows]) {
  F16 sums[kRows][kCount];
  for (int r = 0; r < kRows; r++)
    for (int p = 0; p < kCount; p++) sums[r][p] = splat(0.0f);
  for (int k = 0; k < stride; k += kKBlock) {
    const uint16_t* block = tile + k * kTileRows;
    F16 even_x[kCount], odd_x[kCount];
    for (int p = 0; p < kCount; p++) {
      even_x[p] = load(x + p * stride + k);
      odd_x[p] = load(x + p * stride + k + kVectorFloats);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      F16 even, odd;
      if (kFetch) __builtin_prefetch(reinterpret_cast<const char*>(block + r * kKBlock) + kAhead);
      load_pair(block + r * kKBlock, even, odd);
#pragma GCC unroll 4
      for (int p = 0; p < kCount; p++) {
        sums[r][p] += even * even_x[p];
        sums[r][p] += odd * odd_x[p];
      }
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int p = 0; p < kCount; p++) out[p][r] = sum(sums[r][p]);
}

template <int kRows, int kCount, bool kFetch>
inline void dot_tile(const uint16_t* tile, const float* x, int stride, float (*out)[kTileRows]) {
  for (int r = 0; r < kTileRows; r += kRows)
    dot<kRows, kCount, kFetch>(tile + r * kKBlock, x, stride, reinterpret_cast<float(*)[kTileRows]>(&out[0][r]));
}

// A tile with all rows of the pass, kPositions rows at a time. Only the first sweep over the tile reads it from memory, so only that one prefetches.
inline void dot_positions(const uint16_t* tile, const float* x, int stride, int count, float (*out)[kTileRows]) {
  int p = 0;
  if (count >= kPositions) {
    dot_tile<kRowsOfMany, kPositions, true>(tile, x, stride, out);
    p = kPositions;
  } else {
    dot_tile<kRowsOfOne, 1, true>(tile, x, stride, out);
    p = 1;
  }
  for (; p + kPositions <= count; p += kPositions)
    dot_tile<kRowsOfMany, kPositions, false>(tile, x + p * stride, stride, out + p);
  for (; p < count; p++) dot_tile<kRowsOfOne, 1, false>(tile, x + p * stride, stride, out + p);
}

// The same for a low-bit tile, 4 rows at a time. `dots(number, p)` computes those of `number` rows, from row p on.
template <class Dots>
inline void in_fours(int count, const Dots& dots) {
  constexpr std::integral_constant<int, 4> kMany;
  int p = 0;
  for (; p + kMany <= count; p += kMany) dots(kMany, p);
  for (; p < count; p++) dots(std::integral_constant<int, 1>{}, p);
}

// Finishes the eight dot products of a tile with one row of the pass: adds the bias, then stores them, adds them to the residual stream, or applies
// the gate. Of a gate, even output rows are gate rows and odd ones are up rows. With several lanes, what goes to the residual stream is only a lane's
// part of it, which goes to the mailbox; exchange.hpp adds the parts. `sums`: of row `i` of the group; `bias`: of the tile's rows, or null.
inline void finish_tile(Lane& lane, const Stage& stage, const Weights& weights, int exchange, const Pass& pass, int64_t first_row, const Group& group, int i,
                        const float* sums, const float* bias) {
  const int position = group.rows[i];
  int rows = static_cast<int>(std::min<int64_t>(kTileRows, stage.rows - first_row));
  float y[kTileRows];
  for (int r = 0; r < rows; r++) y[r] = bias ? sums[r] + bias[r] : sums[r];
  switch (stage.output) {
    case Output::kStore:
      std::copy(y, y + rows, lane.row(stage.writes, position) + weights.first_row + first_row);
      break;
    case Output::kLogits: {
      const int64_t first_token = static_cast<int64_t>(lane.index) * stage.rows + first_row;
      rows = static_cast<int>(std::clamp<int64_t>(kVocab - first_token, 0, rows));  // the last lane's head is padded
      std::copy(y, y + rows, lane.mailbox.logits(pass, i) + first_token);
      break;
    }
    case Output::kResidual: {
      if (exchange != kNone) {
        std::copy(y, y + rows, lane.mailbox.output(pass, exchange, lane.index, position) + first_row);
        break;
      }
      const float* residual = lane.row(stage.residual, position) + first_row;
      float* out = lane.row(stage.writes, position) + first_row;
      for (int r = 0; r < rows; r++) out[r] = residual[r] + y[r];
      break;
    }
    case Output::kGate: {
      const Gate& limits = stage.gate;
      static_assert(kTileRows / 2 == 4, "a vector has the gate rows of a tile");
      F4 gate{};
      for (int r = 0; r < rows / 2; r++) gate[r] = std::fmin(y[2 * r], limits.limit);
      const F4 activated = gate / (1.0f + exponential(-limits.slope * gate)) * group.weights[i];
      float* out = lane.row(stage.writes, position) + group.places[i] * (stage.rows / 2) + first_row / 2;
      for (int r = 0; r < rows / 2; r++) out[r] = activated[r] * (std::clamp(y[2 * r + 1], -limits.limit, limits.limit) + limits.shift);
      break;
    }
  }
}

// A projection whose input has a part for each expert that a row has chosen, and whose output is the sum of what they make of it.
inline bool sums_experts(const Stage& stage) { return stage.routing.reads != kNone && stage.output == Output::kResidual; }

// The inputs of the rows of a group, one after the other. `prepared`: of all rows from `first` on, `stride` elements each.
template <class T>
inline const T* inputs_of(Worker& worker, const Stage& stage, const Pass& pass, int first, const Group& group, T* prepared, int stride) {
  if (sums_experts(stage)) {
    for (int i = 0; i < group.count; i++) prepare_place(worker, stage, group.rows[i], group.places[i], prepared + i * stride);
    return prepared;
  }
  if (group.count == pass.rows - first) return prepared;
  T* const picked = reinterpret_cast<T*>(worker.picked.get());
  for (int i = 0; i < group.count; i++) std::copy_n(prepared + (group.rows[i] - first) * stride, stride, picked + i * stride);
  return picked;
}

inline void project(Worker& worker, const Stage& stage, const Weights& weights, int exchange, const Pass& pass) {
  Lane& lane = worker.lane;
  const int first = stage.output == Output::kLogits ? pass.logits_from : 0;
  if (first == pass.rows) return;
  const Segment& segment = lane.segment(worker.rank, stage.projection);
  const int owned = static_cast<int>(segment.tiles) * kTileRows;
  if (sums_experts(stage)) std::fill_n(worker.expert_sums.get(), pass.rows * owned, 0.0f);
  Group group;
  const auto bias_of = [&](int64_t first_row) {
    return stage.bias == kNone ? nullptr : lane.constants + stage.bias + static_cast<int64_t>(group.expert) * stage.rows + first_row;
  };
  const auto multiply = [&](auto&& dots) {
    const uint8_t* tile = worker.tape() + segment.offset + group.expert * segment.tiles * weights.tile_bytes;
    for (int64_t t = 0; t < segment.tiles; t++, tile += weights.tile_bytes) {
      const int64_t first_row = (segment.first_tile + t) * kTileRows;
      const float* bias = bias_of(first_row);
      alignas(64) float sums[kPassRows][kTileRows];
      dots(tile, sums);
      for (int i = 0; i < group.count; i++) {
        if (!sums_experts(stage)) {
          finish_tile(lane, stage, weights, exchange, pass, first_row, group, i, sums[i], bias);
          continue;
        }
        // The input has been multiplied with the expert's weight before; the bias has not.
        float* total = worker.expert_sums.get() + group.rows[i] * owned + t * kTileRows;
        for (int r = 0; r < std::min<int64_t>(kTileRows, stage.rows - first_row); r++) total[r] += bias ? sums[i][r] + group.weights[i] * bias[r] : sums[i][r];
      }
      worker.beat();
    }
  };
  Groups groups(lane, stage, pass, first);
  if (kHasBf16 && weights.format == kBf16) {
    if (!sums_experts(stage)) prepare(worker, stage, pass, first);
    const int stride = round_up(stage.cols, kKBlock);
    while (groups.next(group)) {
      const float* x = inputs_of(worker, stage, pass, first, group, worker.x.get(), stride);
      multiply([&](const uint8_t* bytes, float(*sums)[kTileRows]) {
        dot_positions(reinterpret_cast<const uint16_t*>(bytes), x, stride, group.count, sums);
      });
    }
  }
  with_format(weights.format, [&](auto format) {
    using F = decltype(format);
    using Unit = std::conditional_t<F::kIsInteger, InputUnit, FloatUnit>;
    Unit* const units = reinterpret_cast<Unit*>(worker.units.get());
    if (!sums_experts(stage)) prepare_units(worker, stage, pass, first, units);
    const int stride = divide_up(stage.cols, kUnit);
    while (groups.next(group)) {
      const Unit* x = inputs_of(worker, stage, pass, first, group, units, stride);
      multiply([&](const uint8_t* bytes, float(*sums)[kTileRows]) {
        in_fours(group.count, [&](auto number, int p) {
          if constexpr (F::kIsInteger)
            dot_lowbit<F, number>(bytes, x + p * stride, stride, stage.cols, sums + p);
          else
            dot_fp8<F, number>(bytes, x + p * stride, stride, stage.cols, sums + p);
        });
      });
    }
  });
  if (!sums_experts(stage)) return;
  Group all{0, pass.rows, {}, {}, {}};
  for (int p = 0; p < pass.rows; p++) {
    all.rows[p] = p;
    for (int64_t t = 0; t < segment.tiles; t++)
      finish_tile(lane, stage, weights, exchange, pass, (segment.first_tile + t) * kTileRows, all, p, worker.expert_sums.get() + p * owned + t * kTileRows, nullptr);
  }
}

}  // namespace monolane
