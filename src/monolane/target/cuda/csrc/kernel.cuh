// The monokernel: one launch is one request. Prefill in wide passes, then a token a pass, sampled and checked for its end
// here. One warp of every block streams the block's tape; the others are the consumers, and all blocks are in step.
#pragma once
#include "attend.cuh"
#include "watchdog.cuh"
#include "prefetch.cuh"
#include "project.cuh"
#include "sample.cuh"

namespace monolane {

struct Pass {
  int start, rows;
  bool last_of_prompt;  // or of the answer so far: its last position's logits are asked for
};

// Wide passes keep within a block of the cache.
MONOLANE_DEVICE Pass prefill_pass(int position, int count) {
  const int rows = min(kPageTokens - position % kPageTokens, count - position);
  return {position, rows, position + rows == count};
}

class Consumer {
 public:
  MONOLANE_DEVICE void run() {
    const Request& request = monolane_launch.request;
    if (worker_id() == 0 && thread_id() == 0) monolane_launch.outcome->start_ns = ptx::now_ns();
    if (monolane_launch.adjusts_logits) note_prompt();
    if (request.token_count - request.cached > 1) *this = prefill(*this);
    ptx::fence_proxy_async_shared();  // the upper slots of the ring held inputs; copies may write there now
    sync_consumers_and_producer();
    Cursor<false> cursor;
    while (!left_ && !(request.all_logits && position_ >= request.token_count)) {
      if (position_ < request.token_count) token_ = request.tokens[position_];
      pass<false>({position_, 1, true}, cursor);
      position_++;
    }
    if (request.all_logits && !left_) end(kLengthReached);
    sync_consumers();
    if (thread_id() == 0) ptx::store_shared_release(&shared::flags()->consumers_done, 1);
  }

 private:
  // All wide passes.
  MONOLANE_NOINLINE static Consumer prefill(Consumer consumer) {
    const int count = static_cast<int>(monolane_launch.request.token_count);
    Cursor<true> cursor;
    while (count - consumer.position_ > 1 && !consumer.left_) {
      const Pass now = prefill_pass(consumer.position_, count);
      consumer.pass<true>(now, cursor);
      consumer.position_ += now.rows;
    }
    return consumer;
  }

  template <bool kPrefill>
  MONOLANE_DEVICE void pass(const Pass& now, Cursor<kPrefill>& cursor) {
    if (step_ + kStageCount > kMaxTag) renew_tags();
    begin<kPrefill>(0, now);
    embed<kPrefill>(now);
    mark<kPrefill>(0, 2);
#pragma unroll 1
    for (int layer = 0; layer < kLayers; layer++) {
      project_stage<kPrefill, Projection<0>>(layer, now, cursor);
      attend_stage<kPrefill>(layer, now, cursor);
      layer_projections<kPrefill, 1>(layer, now, cursor);
    }
    if (now.last_of_prompt || monolane_launch.request.all_logits) {
      project_stage<kPrefill, Head>(0, now, cursor);
      begin<kPrefill>(kStageCount - 1, now);
      if (!monolane_launch.request.all_logits) sample(now);
      mark<kPrefill>(kStageCount - 1, 2);
    }
    if (failed_together()) left_ = true;
    if (kTraced) decode_passes_ += !kPrefill;
  }

  template <bool kPrefill, int kIndex>
  MONOLANE_DEVICE void layer_projections(int layer, const Pass& now, Cursor<kPrefill>& cursor) {
    if constexpr (kIndex < kProjectionsPerLayer) {
      project_stage<kPrefill, Projection<kIndex>>(layer, now, cursor);
      layer_projections<kPrefill, kIndex + 1>(layer, now, cursor);
    }
  }

  // Tags run out before the next pass ends: all words are cleared, and tags begin anew. Between two passes nobody has a word to wait for but
  // the chosen token, so the first barrier is for that.
  MONOLANE_NOINLINE static void clear_words() {
    grid_barrier();
    Word4* words = reinterpret_cast<Word4*>(monolane_launch.activation_words);
    for (int64_t i = worker_id() * kConsumers + thread_id(); i < monolane_launch.tagged_bytes / 16; i += kWorkers * kConsumers) words[i] = {0, 0, 0, 0};
    grid_barrier();
  }
  MONOLANE_DEVICE void renew_tags() {
    clear_words();
    if (thread_id() == 0) shared::flags()->steps_before += step_;
    step_ = 0;
  }

  // A stage begins: a new tag, and the others of the block know where we are.
  template <bool kPrefill>
  MONOLANE_DEVICE void begin(int s, const Pass& now) {
    step_++;
    if (thread_id() == 0) {
      shared::Flags* flags = shared::flags();
      ptx::store_shared(&flags->stage, s);
      ptx::store_shared(&flags->position, now.start);
      ptx::store_shared(&flags->step, flags->steps_before + step_);
    }
    if (s == 0 && thread_id() == 0) ptx::store_shared_release(&shared::flags()->pass_position, now.start);
    if (kStallWorker >= 0 && worker_id() == kStallWorker && s == kStallStage) stall();
    mark<kPrefill>(s, 0);
  }

  template <bool kPrefill>
  MONOLANE_DEVICE void attend_stage(int layer, const Pass& now, Cursor<kPrefill>& cursor) {
    const int s = kAttendStage + layer * kStagesPerLayer;
    begin<kPrefill>(s, now);
    if constexpr (kPrefill)
      attend_prefill(layer, now.start, now.rows, step_);
    else
      attend_decode(layer, now.start, step_, cursor, [&] { mark<false>(s, 1); });
    mark<kPrefill>(s, 2);
    if (kPrefill) grid_barrier();
  }

  // A time stamp for the trace: 0 at the beginning of a stage, 1 when its input is there, 2 at its end.
  template <bool kPrefill>
  MONOLANE_DEVICE void mark(int s, int what) const {
    if (!kTraced || kPrefill || thread_id() != 0) return;
    const int64_t pass = decode_passes_ - monolane_launch.trace_from;
    if (pass < 0 || pass >= monolane_launch.trace_passes) return;
    monolane_launch.trace[((pass * kWorkers + worker_id()) * kStageCount + s) * 3 + what] = ptx::now_ns();
  }

  MONOLANE_DEVICE void stall() const {
    const int64_t end = ptx::now_ns() + kStallSeconds * int64_t(1000000000);
    while (ptx::now_ns() < end) ptx::nanosleep(1000000);
  }

  // Looked at once per pass by one thread, so that all threads of the block agree. They meet many times before the next.
  MONOLANE_DEVICE static bool failed_together() {
    uint32_t* answer = reinterpret_cast<uint32_t*>(shared::reduce()) + 31;
    if (thread_id() == 0) *answer = shared::failed();
    sync_consumers();
    return *answer;
  }

  // The owners of the residual stream take their rows; everybody reads the embedding for himself in the stage that follows.
  template <bool kPrefill>
  MONOLANE_DEVICE void embed(const Pass& now) {
    const Own own = shared::own()[kResidualProjection];
    constexpr int kRows = Projection<kResidualProjection>::kTileRows;
    const int rows = own.tiles * kRows;
#pragma unroll 1
    for (int i = thread_id() * 4; i < rows * now.rows; i += kConsumers * 4) {
      float v[4];
      const int position = i / rows, row = i % rows;
      embedding(token_at<kPrefill>(now, position), own.first_tile * kRows + row, v);
      for (int j = 0; j < 4; j++) shared::residual()[position * kMaxOwnedRows + row + j] = v[j];
    }
  }

  template <bool kPrefill>
  MONOLANE_DEVICE int32_t token_at(const Pass& now, int position) const {
    return kPrefill ? monolane_launch.request.tokens[now.start + position] : token_;
  }

  template <bool kPrefill, class P>
  MONOLANE_DEVICE void project_stage(int layer, const Pass& now, Cursor<kPrefill>& cursor) {
    constexpr bool kHead = P::kIsHead;
    const int s = P::kStage + layer * kStagesPerLayer;
    begin<kPrefill>(s, now);
    const Own own = shared::own()[P::kFirst + layer * kProjectionsPerLayer];
    const StageTiles tiles{s, layer, own.tiles, (own.first_tile * P::kTileRows) >> (P::kOutput == Output::kGate)};
    if (kHead) ptx::fence();  // keys and values that this pass has kept are seen by whoever sees what is published next
    if constexpr (kPrefill && kPaddedCols<P> > kPrefillCols && P::kNorm != kNone)
      if (!kHead || monolane_launch.request.all_logits) prepare_shared<P>(layer, now);
    uint64_t best = 0;
    if (own.tiles) {
      if constexpr (!kPrefill)
        project_decode<P>(tiles, now, cursor, best);
      else if (kHead && !monolane_launch.request.all_logits)
        project_last_row<P>(tiles, now, cursor, best);
      else
        project_prefill<P>(tiles, now, cursor);
    }
    if (kHead && !monolane_launch.request.all_logits) {
      if (monolane_launch.request.logprobs >= 0) publish_best(best, step_, kLikeliest);
      if (monolane_launch.adjusts_logits) best = best_adjusted();
      publish_best(ptx::load_shared(&shared::flags()->aborted) ? kAbortRank : best, step_);
    }
    mark<kPrefill>(s, 2);
    if (kPrefill) grid_barrier();
  }

  // This block's rows of one stage.
  struct StageTiles {
    int stage, layer, count, first_row;
  };

  template <class P>
  MONOLANE_DEVICE void project_decode(const StageTiles& tiles, const Pass& now, Cursor<false>& cursor, uint64_t& best) {
    const auto prepare = [&] {
      const float scale = finish_prepare<P>(prepare_decode<P>(tiles.layer, now));
      mark<false>(tiles.stage, 1);
      return scale;
    };
    // That of the first row this thread will finish is asked for now: it would be waited for when all else is done.
    const Bias bias = bias_of<P>(tiles.layer, tiles.first_row + thread_id());
    project<false, P, 1, true>(tiles.count, cursor, shared::x(), 0, 1, prepare, [&](int local, int, float first, float second, float scale) {
      const Bias own = local < kConsumers ? bias : bias_of<P>(tiles.layer, tiles.first_row + local);
      finish<false, P>(tiles, now, local, 0, first * scale, second * scale, own, best);
    });
  }

  // Results of attention take 3 µs, so who has no part in it need not look for them at once; nor need anybody for merged ones, which take
  // another hand-off. A pause takes no more than twice its time.
  static constexpr int kBackoffNs = 1000, kMergeBackoffNs = 500;

  // The input of a narrow pass, wherever it comes from; returns this thread's part of the sum of its squares.
  template <class P>
  MONOLANE_DEVICE float prepare_decode(int layer, const Pass& now) {
    if (P::kIndex == 0 && layer == 0) return prepare_embedding<P, kConsumers>(layer, token_, shared::x(), thread_id());
    if constexpr (P::kMergesSplits) {
      const int splits = span_of<false>(now.start, window_of(layer)).splits;
      if (splits > kFusedSplits)
        ptx::nanosleep(kMergeBackoffNs);
      else if (worker_id() >= kKvHeads * splits)
        ptx::nanosleep(kBackoffNs);
      if constexpr (kFusedSplits > 1)
        if (splits > 1 && splits <= kFusedSplits) return prepare_splits(splits, step_ - 1);
    }
    return prepare_words<P>(layer, step_ - 1);
  }

  template <class P>
  MONOLANE_DEVICE void project_prefill(const StageTiles& tiles, const Pass& now, Cursor<true>& cursor) {
    constexpr bool kStaged = kPaddedCols<P> <= kPrefillCols, kNorm = P::kNorm != kNone;
    constexpr int kStride = kBufferStrides[P::kReads];
    const uint16_t* plain = monolane_launch.prefill_activations + kPrefillOffsets[P::kReads];
    const auto prepare = [&] {  // a warp per position; its scale goes to `reduce`
      if constexpr (kStaged) {
        for (int p = warp_id(); p < now.rows; p += kConsumerWarps) {
          uint16_t* to = shared::prefill_x() + p * kPrefillStride;
          const bool first = P::kIndex == 0 && tiles.layer == 0;
          const float squares = first ? prepare_embedding<P, 32>(tiles.layer, token_at<true>(now, p), to, lane_id())
                                      : prepare_plain<P, 32>(tiles.layer, plain + p * kStride, to, lane_id());
          const float scale = norm_scale<P>(warp_sum(squares));
          if (lane_id() == 0) shared::reduce()[p] = scale;
        }
        sync_consumers();
      }
      return 1.0f;
    };
    uint64_t unused = 0;
    const uint16_t* x = kStaged ? shared::prefill_x() : kNorm ? monolane_launch.prefill_normed : plain;
    project<true, P, kPassRows, kStaged>(tiles.count, cursor, x, kStaged ? kPrefillStride : kStride, now.rows, prepare,
                                          [&](int local, int position, float first, float second, float) {
                                            const float scale = kNorm ? shared::reduce()[position] : 1.0f;
                                            finish<true, P>(tiles, now, local, position, first * scale, second * scale, bias_of<P>(tiles.layer, tiles.first_row + local), unused);
                                          });
  }

  // The input of a norm that shared memory has no room for: a block prepares a position for all. Called by all blocks, with rows or without.
  template <class P>
  MONOLANE_DEVICE void prepare_shared(int layer, const Pass& now) {
    constexpr int kStride = kBufferStrides[P::kReads];
    const uint16_t* plain = monolane_launch.prefill_activations + kPrefillOffsets[P::kReads];
    for (int p = worker_id(); p < now.rows; p += kWorkers) {
      uint16_t* to = monolane_launch.prefill_normed + p * kStride;
      const float squares = P::kIndex == 0 && layer == 0 ? prepare_embedding<P, kConsumers, To::kGlobal>(layer, token_at<true>(now, p), to, thread_id())
                                                     : prepare_plain<P, kConsumers, To::kGlobal>(layer, plain + p * kStride, to, thread_id());
      const float scale = finish_prepare<P>(squares);
      if (thread_id() == 0) ptx::store_relaxed(monolane_launch.prefill_scales + p, ptx::bits_of(scale));
      sync_consumers();  // the sums of squares have been read
    }
    grid_barrier();
    if (thread_id() < now.rows) shared::reduce()[thread_id()] = ptx::float_of(ptx::load_relaxed(monolane_launch.prefill_scales + thread_id()));
    sync_consumers();
  }

  // The logits of the last position of a wide pass.
  template <class P>
  MONOLANE_DEVICE void project_last_row(const StageTiles& tiles, const Pass& now, Cursor<true>& cursor, uint64_t& best) {
    constexpr int kBuffer = P::kReads;
    const uint16_t* plain = monolane_launch.prefill_activations + kPrefillOffsets[kBuffer] + (now.rows - 1) * kBufferStrides[kBuffer];
    const auto prepare = [&] { return finish_prepare<P>(prepare_plain<P, kConsumers>(0, plain, shared::x(), thread_id())); };
    project<true, P, 1, true>(tiles.count, cursor, shared::x(), 0, 1, prepare, [&](int local, int, float first, float second, float scale) {
      finish<true, P>(tiles, now, local, now.rows - 1, first * scale, second * scale, bias_of<P>(tiles.layer, tiles.first_row + local), best);
    });
  }

  // A row's bias; of a gate, those of both its rows.
  struct Bias {
    float first = 0.0f, second = 0.0f;
  };
  template <class P>
  MONOLANE_DEVICE static Bias bias_of(int layer, int row) {
    constexpr int kBias = P::kBias, kGate = P::kOutput == Output::kGate;
    if (kBias == kNone || row >= P::kRows >> kGate) return {};
    const float* from = monolane_launch.constants + kBias + layer * kConstantsPerLayer + (row << kGate);
    return {from[0], kGate ? from[1] : 0.0f};
  }

  // What becomes of a row's sum; of logits, the best is kept.
  template <bool kPrefill, class P>
  MONOLANE_DEVICE void finish(const StageTiles& tiles, const Pass& now, int local, int position, float first, float second, const Bias& bias, uint64_t& best) {
    constexpr Output kOutput = P::kOutput;
    constexpr int kGate = kOutput == Output::kGate, kBuffer = P::kWrites;
    const int row = tiles.first_row + local;
    if (row >= P::kRows >> kGate) return;
    float v = first + bias.first;
    if constexpr (kGate) {
      v = ptx::divide(v, 1.0f + ptx::exp(-v)) * (second + bias.second);
      publish_activation<kPrefill>(kBuffer, row, position, v, step_);
    } else if constexpr (kOutput == Output::kResidual) {
      v += shared::residual()[position * kMaxOwnedRows + local];
      shared::residual()[position * kMaxOwnedRows + local] = v;
      publish_activation<kPrefill>(kBuffer, row, position, v, step_);
    } else if constexpr (kOutput == Output::kStore) {
      if (kPrefill)
        monolane_launch.prefill_qkv[position * (kQueryDims + 2 * kKvDims) + row] = v;
      else
        ptx::store_relaxed(monolane_launch.qkv_words + row, tagged_float(v, step_));
    } else if (monolane_launch.request.all_logits) {
      monolane_launch.request.all_logits[(now.start - monolane_launch.request.cached + position) * kVocab + row] = v;
    } else {
      if (!monolane_launch.plain_greedy) keep_logit(local, row, v);
      best = max(best, rank_of(v, static_cast<uint32_t>(row)));
    }
  }

  // One token more, the same for all blocks.
  MONOLANE_DEVICE void sample(const Pass& now) {
    const Request& request = monolane_launch.request;
    note_wait(kWaitToken);
    const int made = now.start + now.rows - static_cast<int>(request.token_count);  // before this one
    const uint32_t token = monolane_launch.plain_greedy ? token_of(max_of_block(await_best(step_ - 1, kBest))) : choose(now.start + now.rows, made, step_);
    if (shared::failed()) return;  // whatever was chosen, it is not an answer
    if (token == kAbortToken || token == kNoToken) return end(token == kNoToken ? kNotANumber : kAborted);
    token_ = static_cast<int32_t>(token);
    if (worker_id() == 0 && thread_id() == 0) post(token_, made);
    bool stop = false;
#pragma unroll 1
    for (int64_t i = 0; i < request.stop_count; i++) stop |= request.stop_tokens[i] == token_;
    if (stop || made + 1 == request.max_tokens) end(stop ? kStopped : kLengthReached);
  }

  MONOLANE_DEVICE void end(Status status) {
    left_ = true;
    if (thread_id() == 0) ptx::store_shared(&shared::flags()->status, status);
  }

  uint32_t step_ = 0;  // the tag of what this stage publishes: 1 to kMostTags
  int32_t token_ = kNone;
  int decode_passes_ = 0;
  int position_ = static_cast<int>(monolane_launch.request.cached);
  bool left_ = false;
};

// The producer's twin of Consumer::run: the same passes in the same order.
MONOLANE_DEVICE void produce() {
  const Request& request = monolane_launch.request;
  const uint8_t* tape = monolane_launch.tapes[worker_id()];
  const int count = static_cast<int>(request.token_count);
  int position = static_cast<int>(request.cached);
  bool going = true;
  {
    Producer<true> prefill;
    while (count - position > 1 && going) {
      const Pass now = prefill_pass(position, count);
      position += now.rows;
      if (lane_id() == 0) going = prefill.pass(tape, now.start, now.last_of_prompt || request.all_logits);
      going = !ptx::any(!going);
    }
    if (lane_id() == 0) prefill.drain();
  }
  sync_consumers_and_producer();
  if (lane_id() != 0) return;
  Producer<false> decode;
  const int passes = (count - position) + (request.all_logits ? 0 : static_cast<int>(request.max_tokens) - 1);  // no more than fit the context
  for (int i = 0; i < passes && going && !shared::consumers_done(); i++) going = decode.pass(tape, position + i, true);
  decode.drain();
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(monolane::kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int thread = ptx::thread_index();
  if (thread == 0) {
    for (int prefill = 0; prefill < 2; prefill++)
      for (int slot = 0; slot < kSlots; slot++) {
        ptx::mbarrier_init(&shared::full(prefill)[slot], 1);
        ptx::mbarrier_init(&shared::empty(prefill)[slot], kWarpgroupWarps);
      }
    *shared::flags() = {};
    ptx::mbarrier_init_fence();
  }
  for (int p = thread; p < kProjections; p += kThreads)
    shared::own()[p] = {static_cast<int>(segment(p).first_tile), static_cast<int>(segment(p).tiles)};
  sync_block();
  if (warp_id() < kConsumerWarps) {
    ptx::grow_registers<kConsumerRegisters>();
    Consumer().run();
  } else {
    ptx::shrink_registers<kProducerRegisters>();
    if (warp_id() == kConsumerWarps) produce();
    if (warp_id() == kConsumerWarps + 1 && lane_id() == 0) Watchdog().run();
    if (warp_id() == kConsumerWarps + 2) Prefetcher().run();
  }
}
