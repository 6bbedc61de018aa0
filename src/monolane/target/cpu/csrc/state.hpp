// The state of the engine: what all workers share (buffers, hand-off, RoPE coefficients) and what each worker has for itself. The generated constants
// (kHidden, kStages, ...) are declared before this header is included.
#pragma once
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "handoff.hpp"
#include "vector.hpp"

namespace monolane {

constexpr int kPassRows = 16;                               // most rows of a pass
constexpr int kHeadStride = round_up(kHeadDim, kVectorFloats);  // floats of a head, padded to whole vectors
constexpr int kQueriesPerKv = kHeads / kKvHeads;                // query heads that share a KV head
constexpr int kPartial = kHeadStride + kVectorFloats;           // floats of a partial output: the accumulator, then row max and row sum
constexpr int kStages_ = sizeof kStages / sizeof kStages[0];

struct AlignedDelete {
  void operator()(void* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float[], AlignedDelete>;

// Memory for `count` floats, aligned to 128 bytes and zeroed, so that the padding behind every vector is zero.
inline Floats make_floats(size_t count) {
  const size_t bytes = (count * sizeof(float) + 127) / 128 * 128 + 128;
  void* p = std::aligned_alloc(128, bytes);
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return Floats(static_cast<float*>(p));
}

// One pass: `rows` rows of one sequence, from position `start` on. Logits are computed for rows logits_from to rows - 1.
struct Pass {
  int64_t start;
  int rows, logits_from;
  int32_t tokens[kPassRows];
};

struct Shared {
  explicit Shared(const Setup& given) : setup(given), handoff(given.workers, given.deadline_s) {
    splits = (setup.context + kSplit - 1) / kSplit;
    for (int b = 0; b < kBufferCount; b++) {
      const size_t size = kBufferIsPerSplit[b] ? static_cast<size_t>(splits) * kHeads * kPartial : stride(b);
      buffers.push_back(make_floats(size * kPassRows));
    }
    cosines = make_floats(kPassRows * kHeadDim / 2);
    sines = make_floats(kPassRows * kHeadDim / 2);
  }

  static constexpr size_t stride(int buffer) { return round_up(kBufferSizes[buffer], kKBlock); }
  // Row `position` of the pass in a buffer.
  float* row(int buffer, int position) { return buffers[buffer].get() + position * stride(buffer); }
  // The partial output of a row of the pass, a split and a query head.
  float* partial(int buffer, int position, int64_t split, int head) {
    return buffers[buffer].get() + ((position * splits + split) * kHeads + head) * static_cast<size_t>(kPartial);
  }
  const Segment& segment(int worker, int projection) const { return setup.segments[worker * kProjections + projection]; }

  const Setup setup;
  Cache cache{};  // of the current request
  Handoff handoff;
  int64_t splits;
  std::vector<Floats> buffers;
  Floats cosines, sines;  // RoPE coefficients of the current pass: [row][kHeadDim / 2]
};

struct Worker {
  Worker(int index, Shared& everybody) : id(index), shared(everybody), x(make_floats(size_t(kPassRows) * kMaxCols)) {}

  void beat() { shared.handoff.pulse(id).beat(); }

  const int id;
  Shared& shared;
  Floats x;  // the prepared input of a projection, in the layout of prepare.hpp
};

// The first position that attention at `position` sees: 0, or position - window + 1 where the layer has a window.
inline int64_t first_seen(int64_t position, int window) {
  return window && position >= window ? position - window + 1 : 0;
}

}  // namespace monolane
