// Prepares the input of a projection: RMS norm, merge of the partial outputs of attention, or a plain copy. Every worker prepares the whole input for
// itself, from the shared buffers to Worker::x.
//
// Layout for the dot products: of each k-block of 32 columns the 16 even columns come first, then the 16 odd ones, as load_pair() splits the weights.
#pragma once
#include <cmath>

#include "quantise.hpp"

namespace monolane {

inline void lay_out(const float* in, int cols, float* out) {
  for (int k = 0; k < round_up(cols, kKBlock); k += kKBlock)
    for (int i = 0; i < kKBlock / 2; i++) {
      out[k + i] = in[k + 2 * i];
      out[k + kKBlock / 2 + i] = in[k + 2 * i + 1];
    }
}

// 1 / rms of a vector. `in` is zero behind its `size` elements, up to a multiple of 16.
inline float inverse_rms(const float* in, int size, float eps) {
  F16 squares = splat(0.0f);
  for (int k = 0; k < round_up(size, kVectorFloats); k += kVectorFloats) squares += load(in + k) * load(in + k);
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
}

// The same in the order of the columns.
inline void norm_in_order(const float* in, const float* weight, int cols, float eps, float* out) {
  const float scale = inverse_rms(in, cols, eps);
  for (int k = 0; k < cols; k++) out[k] = in[k] * scale * weight[k];
  for (int k = cols; k < round_up(cols, kKBlock); k++) out[k] = 0.0f;
}

inline void prepare_norm(const float* in, const float* weight, int cols, float eps, float* out) {
  const float scale = inverse_rms(in, cols, eps);
  for (int k = 0; k < round_up(cols, kKBlock); k += kKBlock)
    for (int i = 0; i < kKBlock / 2; i++) {
      const int even = k + 2 * i, odd = even + 1;
      out[k + i] = even < cols ? in[even] * scale * weight[even] : 0.0f;
      out[k + kKBlock / 2 + i] = odd < cols ? in[odd] * scale * weight[odd] : 0.0f;
    }
}

constexpr int kMerged = round_up(kHeads * kHeadDim, kKBlock) + kHeadStride;  // floats of all heads, padded

// Merges the partial outputs of all splits that the row's position sees, for each query head, by their row maxes and row sums. A sink is one more
// attention score of the head, without a value.
inline void merge_heads(Lane& lane, const Stage& stage, int row, int64_t position, float* merged) {
  const int64_t first = first_seen(position, stage.window) / kSplit, last = position / kSplit;
  for (int head = 0; head < kHeads; head++) {
    const float sink = stage.sinks == kNone ? -INFINITY : lane.constants[stage.sinks + head];
    float top = std::fmax(sink, lane.partial(stage.reads, row, first, head)[kHeadStride]);
    for (int64_t s = first + 1; s <= last; s++) top = std::fmax(top, lane.partial(stage.reads, row, s, head)[kHeadStride]);
    alignas(64) float value[kHeadStride] = {};
    float total = stage.sinks == kNone ? 0.0f : exponential(sink - top);
    for (int64_t s = first; s <= last; s++) {
      const float* part = lane.partial(stage.reads, row, s, head);
      const float weight = exponential(part[kHeadStride] - top);
      total += weight * part[kHeadStride + 1];
      for (int d = 0; d < kHeadStride; d += kVectorFloats) store(value + d, load(value + d) + splat(weight) * load(part + d));
    }
    for (int d = 0; d < kHeadDim; d++) merged[head * kHeadDim + d] = value[d] / total;
  }
}

// Prepares rows [first_row, pass.rows) of the pass.
inline void prepare(Worker& worker, const Stage& stage, const Pass& pass, int first_row) {
  Lane& lane = worker.lane;
  const int stride = round_up(stage.cols, kKBlock);
  for (int p = first_row; p < pass.rows; p++) {
    float* out = worker.x.get() + (p - first_row) * stride;
    switch (stage.input) {
      case Input::kNorm:
        prepare_norm(lane.row(stage.reads, p), lane.constants + stage.norm, stage.cols, stage.eps, out);
        break;
      case Input::kMerge: {
        alignas(64) float merged[kMerged] = {};
        merge_heads(lane, stage, p, pass.start + p, merged);
        lay_out(merged, stage.cols, out);
        break;
      }
      case Input::kPlain:
        lay_out(lane.row(stage.reads, p), stage.cols, out);
        break;
    }
  }
}

// The same for a low-bit matrix: in order, then in units.
template <class Unit>
inline void prepare_units(Worker& worker, const Stage& stage, const Pass& pass, int first_row, Unit* units) {
  Lane& lane = worker.lane;
  const int stride = divide_up(stage.cols, kUnit);
  const auto store = [&](const float* in, Unit* out) {
    if (stage.order == kNone) return to_units(in, stage.cols, out);
    float* ordered = worker.x.get() + kMaxCols;  // behind the normed row
    for (int k = 0; k < stage.cols; k++) ordered[k] = in[static_cast<int>(lane.constants[stage.order + k])];
    to_units(ordered, stage.cols, out);
  };
  for (int p = first_row; p < pass.rows; p++) {
    Unit* out = units + (p - first_row) * stride;
    switch (stage.input) {
      case Input::kNorm:
        norm_in_order(lane.row(stage.reads, p), lane.constants + stage.norm, stage.cols, stage.eps, worker.x.get());
        store(worker.x.get(), out);
        break;
      case Input::kMerge: {
        alignas(64) float merged[kMerged] = {};
        merge_heads(lane, stage, p, pass.start + p, merged);
        store(merged, out);
        break;
      }
      case Input::kPlain:
        store(lane.row(stage.reads, p), out);
        break;
    }
  }
}

inline void to_input(const float* in, int cols, float* out) { lay_out(in, cols, out); }
template <class Unit>
inline void to_input(const float* in, int cols, Unit* out) { to_units(in, cols, out); }

// Prepares one expert's part of the input of a row. The parts follow each other in the buffer without padding.
template <class T>
inline void prepare_place(Worker& worker, const Stage& stage, int row, int place, T* out) {
  const float* part = worker.lane.row(stage.reads, row) + static_cast<int64_t>(place) * stage.cols;
  float* const padded = worker.picked.get();
  std::copy_n(part, stage.cols, padded);
  std::fill(padded + stage.cols, padded + round_up(stage.cols, kKBlock), 0.0f);
  to_input(padded, stage.cols, out);
}

}  // namespace monolane
