// The state of the engine: what all lanes share (the mailbox), what the workers of a lane share (buffers, RoPE coefficients), and what each worker has
// for itself. The generated constants (kHidden, kStages, ...) are declared before this header is included.
#pragma once
#include <algorithm>
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
constexpr int kGroup = 32, kUnitGroups = 4, kUnit = kGroup * kUnitGroups;  // of a low-bit matrix: columns of a group; groups and columns of a unit
constexpr int kUnitBytes = 512;                                 // most bytes of a unit of the input (quantise.hpp, fp8.hpp)
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
  int64_t number;  // of the request
  int64_t start;
  int rows, logits_from;
  int32_t tokens[kPassRows];
};

// What the lanes exchange: every lane writes its own part, and reads those of the others after Handoff::receive(). With several lanes there are two
// copies, used by alternate passes: a lane may be ahead of another, but never by two passes, because every pass needs something of every lane.
class Mailbox {
 public:
  explicit Mailbox(Region& region)
      : outputs_(region.take<float>(size_t(kCopies) * kExchanges * kLanes * kPassRows * kStride)),
        logits_(region.take<float>(size_t(kCopies) * kPassRows * kVocab)),
        begun_(region.take<std::atomic<uint64_t>>(1)),
        aborted_(region.take<std::atomic<uint64_t>>(1)) {}

  // What a lane's workers have made in the stage with this exchange, for one row of the pass: kHidden floats.
  float* output(const Pass& pass, int exchange, int lane, int row) {
    return outputs_ + (((pass.number % kCopies * kExchanges + exchange) * kLanes + lane) * kPassRows + row) * kStride;
  }
  // The first pass of a request that lane 0 has not begun; a number that only grows from request to request.
  std::atomic<uint64_t>& begun() { return *begun_; }
  // The pass at which all lanes leave the request that is aborted.
  std::atomic<uint64_t>& aborted() { return *aborted_; }
  static uint64_t place(int64_t round, int64_t pass) { return static_cast<uint64_t>(round) << 32 | static_cast<uint64_t>(pass); }

  // The logits of one row, over the whole vocabulary.
  float* logits(const Pass& pass, int row) { return logits_ + (pass.number % kCopies * kPassRows + row) * kVocab; }

 private:
  static constexpr int kCopies = kLanes > 1 ? 2 : 1;
  static constexpr int64_t kStride = round_up(kHidden, kKBlock);
  float *const outputs_, *const logits_;
  std::atomic<uint64_t>*const begun_, *const aborted_;
};

struct Lane {
  Lane(int number, const Setup& given, Mailbox& all)
      : index(number), local_index(number - given.first_lane), setup(given), constants(given.constants[local_index]), mailbox(all) {
    splits = (setup.context + kSplit - 1) / kSplit;
    for (int b = 0; b < kBufferCount; b++) {
      const size_t size = kBufferIsPerSplit[b] ? static_cast<size_t>(splits) * kHeads * kPartial : b == kLogitsBuffer ? 0 : stride(b);
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
  const Segment& segment(int rank, int projection) const { return setup.segments[rank * kProjections + projection]; }

  static constexpr uint64_t kNever = UINT64_MAX;

  const int index;  // among all lanes
  const int local_index;  // among those of this process
  const Setup& setup;
  const float* const constants;
  Mailbox& mailbox;
  Cache cache{};  // of the current request, for all lanes of this process
  int64_t splits;
  std::vector<Floats> buffers;
  Floats cosines, sines;  // RoPE coefficients of the current pass: [row][kHeadDim / 2]
  // The request so far. One worker of the lane writes these before a hand-off, all read them after it.
  int64_t made = 0;   // tokens
  int32_t token = 0;  // the latest
  std::atomic<uint64_t> leave_at{kNever};  // the hand-off at which the lane's workers leave the request
};

struct Worker {
  Worker(int number, int rank_in_lane, Lane& mine, Handoff& all)
      : id(number),
        rank(rank_in_lane),
        lane(mine),
        handoff(all),
        x(make_floats(size_t(kPassRows) * kMaxCols)),
        units(make_floats(kFormats ? kUnitFloats : 0)),
        picked(make_floats(kMaxExperts > 1 ? std::max(kFormats ? kUnitFloats : 0, size_t(kPassRows) * kMaxCols) : 0)),
        expert_sums(make_floats(kMaxExperts > 1 ? size_t(kPassRows) * round_up(kHidden, kTileRows) : 0)) {}

  static constexpr size_t kUnitFloats = size_t(kPassRows) * divide_up(kMaxCols, kUnit) * kUnitBytes / sizeof(float);

  void beat() { handoff.pulse(id).beat(); }
  // Counts what the worker has written to the mailbox in a stage of the pass.
  void send(int stage) { sent[stage] = handoff.send(id, stage); }
  // Waits for what the worker of the same rank in every other lane has sent in `sent_in`, a stage of this pass.
  bool receive(int sent_in, int stage) {
    for (int other = 0; other < kLanes; other++)
      if (other != lane.index && !handoff.receive(id, other * lane.setup.workers + rank, sent[sent_in], stage)) return false;
    return true;
  }

  const uint8_t* tape() const { return lane.setup.tapes[lane.local_index * lane.setup.workers + rank]; }

  const int id;    // among the workers of all lanes
  const int rank;  // among those of its lane
  Lane& lane;
  Handoff& handoff;
  Floats x;                    // the prepared input of a projection, in the layout of prepare.hpp
  Floats units;                // the same in units of quantise.hpp or fp8.hpp, where the matrix is a low-bit one
  Floats picked;               // the inputs of those rows of the pass that use an expert
  Floats expert_sums;          // of what experts add to the residual stream: [row of the pass][row that the worker owns]
  uint64_t sent[kStages_] = {};  // the count of Handoff::send() at each stage of this pass
};

// The first position that attention at `position` sees: 0, or position - window + 1 where the layer has a window.
inline int64_t first_seen(int64_t position, int window) {
  return window && position >= window ? position - window + 1 : 0;
}

}  // namespace monolane
