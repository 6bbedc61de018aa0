// The kernel: one launch serves one request. It runs prefill passes of up to kPassRows = 16 rows, then decode passes of 1 row. It samples every token
// and checks the stop conditions on the device; the host only reads tokens and may raise a flag to abort.
//
// A worker is a thread block that owns one SM. All workers execute the same stages in the same order. Where the model is divided among lanes, a lane
// is a group of consecutive workers (exchange.cuh). The twelve warps of a worker:
//
//     warps 0-7   consumer warps: Consumer::run() executes the stages
//     warp 8      producer warp: produce() streams the worker's tape into the ring
//     warp 9      watchdog warp: watches the deadline and, in the first worker, talks to the host (watchdog.cuh)
//     warp 10     prefetch warp: prefetches constants and cache pages into L2 (prefetch.cuh)
//     warp 11     exchange warp: sends to other lanes and receives from them what is not needed at once (exchange.cuh). With one lane it is idle:
//                 registers move between warps in groups of four warps
//
// The kernel reads the request and all addresses from monolane_launch and writes tokens, their logprobs and the outcome to host memory.
#pragma once
#include "attend_at_once.cuh"
#include "watchdog.cuh"
#include "exchange.cuh"
#include "prefetch.cuh"
#include "produce.cuh"
#include "residual.cuh"
#include "sample.cuh"
#include "small_product.cuh"

namespace monolane {

constexpr int kFirstStage = 1;  // of the first layer: it reads the embedding

// The consumer warps of a worker. All their threads execute run() and hold the same values of its members.
class Consumer {
 public:
  MONOLANE_DEVICE void run() {
    const Request& request = monolane_launch.request;
    if (worker_here() == 0 && thread_id() == 0) monolane_launch.outcome->start_ns = ptx::now_ns();
    if constexpr (kApart) meet_lanes();  // from here on the memory of every lane has been cleared for this request
    if (monolane_launch.adjusts_logits) note_prompt();
    if (request.token_count - request.cached > 1) *this = prefill(*this);
    // In prefill passes the upper slots of the ring held inputs. The fence orders those accesses before the bulk copies of decode passes into the
    // same slots, which belong to the async proxy.
    ptx::fence_proxy_async_shared();
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
  // Runs all prefill passes and returns the consumer's state after them.
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
    if (kAnyLate && !kPrefill && thread_id() == 0 && own_elements().count > 0) {
      shared::exchange_passes()[decode_passes_ % 2] = {step_, layers_};
      ptx::mbarrier_arrive(shared::pass_begun() + decode_passes_ % 2);
    }
    embed<kPrefill>(now);
    mark<kPrefill>(0, 2);
#pragma unroll 1
    for (int layer = 0; layer < kLayers; layer++, layers_++) {
      layer_projections<kPrefill, 0, kProjectionsBeforeAttention>(layer, now, cursor);
      attend_stage<kPrefill>(layer, now, cursor);
      layer_projections<kPrefill, kProjectionsBeforeAttention, kProjectionsPerLayer>(layer, now, cursor);
    }
    if (now.last_of_prompt || monolane_launch.request.all_logits) {
      if constexpr (kCombines != 0) combine_stage<kPrefill>(now);
      float scale;
      project_stage<kPrefill, Head>(0, now, cursor, scale);
      begin<kPrefill>(kStageCount - 1, now);
      if (!monolane_launch.request.all_logits) sample<kPrefill>(now);
      mark<kPrefill>(kStageCount - 1, 2);
    }
    if (failed_together()) left_ = true;
    passes_++;
    decode_passes_ += !kPrefill;
  }

  // Projections [kIndex, kEnd) of a layer. Where several projections with weights in different formats are one stage, `scale` is that of its norm in a
  // decode pass: the first one prepares the input for all that take the same numbers.
  template <bool kPrefill, int kIndex, int kEnd>
  MONOLANE_DEVICE void layer_projections(int layer, const Pass& now, Cursor<kPrefill>& cursor, float scale = 1.0f) {
    if constexpr (kIndex < kEnd) {
      if (has_projection<kIndex>(layer)) for_layer<kIndex>(layer, [&](auto projection) { project_stage<kPrefill, decltype(projection)>(layer, now, cursor, scale); });
      layer_projections<kPrefill, kIndex + 1, kEnd>(layer, now, cursor, Projection<kIndex>::kEndsStage ? 1.0f : scale);
    }
  }

  // Begins with tag 1 again, where the tags would run out before the next pass ends.
  MONOLANE_DEVICE void renew_tags() {
    clear_words();
    if (thread_id() == 0) ptx::store_shared(&shared::flags()->steps_before, shared::flags()->steps_before + step_);
    step_ = 0;
  }

  // Begins stage `s`: advances the tag and tells the producer, watchdog and prefetch warps of this worker which stage, position and step it is at.
  template <bool kPrefill>
  MONOLANE_DEVICE void begin(int s, const Pass& now) {
    step_++;
    ptx::store_shared(&shared::flags()->stage, s);  // by all threads, which takes fewer instructions than a branch
    ptx::store_shared(&shared::flags()->step, step_);
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
    else if (!attends_at_once(now.start, window_of(layer)))
      attend_decode(layer, now.start, step_, cursor, [&] { mark<false>(s, 1); });
    mark<kPrefill>(s, 2);
    if (kPrefill) lane_barrier();
  }

  // Stores a time stamp in ns of a decode pass for the trace. `what`: 0 at the beginning of a stage, 1 when its input has arrived, 2 at its end.
  template <bool kPrefill>
  MONOLANE_DEVICE void mark(int s, int what) const {
    if (!kTraced || kPrefill || thread_id() != 0) return;
    const int64_t pass = decode_passes_ - monolane_launch.trace_from;
    if (pass < 0 || pass >= monolane_launch.trace_passes) return;
    monolane_launch.trace[((pass * kWorkersHere + worker_here()) * kStageCount + s) * 3 + what] = ptx::now_ns();
  }

  // The trace also has the time that the first thread of a worker waits for other lanes in a stage of a decode pass: the exchange that is exposed.
  MONOLANE_DEVICE static int64_t lane_wait_begins() { return kTraced && thread_id() == 0 ? ptx::now_ns() : 0; }
  template <bool kPrefill>
  MONOLANE_DEVICE void lane_wait_ends(int s, int64_t since) const {
    if (!kTraced || kPrefill || thread_id() != 0) return;
    const int64_t pass = decode_passes_ - monolane_launch.trace_from;
    if (pass < 0 || pass >= monolane_launch.trace_passes) return;
    monolane_launch.lane_waits[(pass * kWorkersHere + worker_here()) * kStageCount + s] += ptx::now_ns() - since;
  }

  // The embedding stage. Every worker stores those elements of the embeddings that it owns in the residual stream, fp32, in shared::residual() as
  // [row of the pass][owned element]. The input of the first projection needs the whole embedding: prepare_embedding() reads it again.
  template <bool kPrefill>
  MONOLANE_DEVICE void embed(const Pass& now) {
    const Own own = shared::own()[kResidualProjection];
    constexpr int kRows = Projection<kResidualProjection>::kTileRows;
    const int owned = own.tiles * kRows;
#pragma unroll 1
    for (int i = thread_id() * 4; i < owned * now.rows; i += kConsumers * 4) {
      float v[4];
      const int row = i / owned, element = i % owned;
      embedding(token_at<kPrefill>(now, row), own.first_tile * kRows + element, v);
      for (int j = 0; j < 4; j++) shared::residual()[row * kMaxOwnedRows + element + j] = v[j];
    }
  }

  template <bool kPrefill>
  MONOLANE_DEVICE int32_t token_at(const Pass& now, int row) const {
    return kPrefill ? monolane_launch.request.tokens[now.start + row] : token_;
  }

  // The stage of one projection, or a part of it. For the output head it also publishes the rank of this worker's best token.
  template <bool kPrefill, class P>
  MONOLANE_DEVICE void project_stage(int layer, const Pass& now, Cursor<kPrefill>& cursor, float& scale) {
    constexpr bool kHead = P::kIsHead;
    const int s = P::kStage + layer * kStagesPerLayer;
    if (!P::kContinues) begin<kPrefill>(s, now);
    Own own = shared::own()[P::kFirst + layer * kProjectionsPerLayer];
    if constexpr (!kPrefill && kIsDealt<P>) own = {dealt().first, dealt().count};
    const StageTiles tiles{s, layer, own.tiles, (own.first_tile * P::kTileRows) >> (P::kOutput == Output::kGate)};
    // Orders this pass's stores to the cache before what this worker publishes next: a worker that sees the latter sees the new keys and values.
    if (kHead) ptx::fence();
    if constexpr (kPrefill && kPaddedCols<P> > kPrefillCols && kIsPrepared<P> && !P::kContinues)
      if (!kHead || monolane_launch.request.all_logits) prepare_shared<P>(layer, now);
    if constexpr (P::kChooses) {
      if (kPrefill)
        choose_for_prefill<P>(now.rows);
      else if (!own.tiles && P::kEndsStage)
        choose_for_decode<P>(step_ - 1);  // the worker may have tiles of down
    }
    uint64_t best = 0;
    if (own.tiles || !P::kEndsStage) {  // without tiles, the input is prepared for the projections that continue the stage
      if constexpr (!kPrefill && P::kMergesSplits && kStreamOwners != 0) {
        if (attends_at_once(now.start, window_of(layer)))
          attend_and_project<P>(tiles, now, cursor, best);
        else
          project_decode<P>(tiles, now, cursor, scale, best);
      } else if constexpr (!kPrefill)
        project_decode<P>(tiles, now, cursor, scale, best);
      else if (kHead && !monolane_launch.request.all_logits)
        project_last_row<P>(tiles, now, cursor, best);
      else
        project_prefill<P>(tiles, now, cursor);
    } else if (!kPrefill) {
      sync_consumers();  // the next stage reads what the one before has added to the residual stream
    }
    if (kHead && !monolane_launch.request.all_logits) {
      if (ptx::kept(monolane_launch.adjusts_logits)) {  // kept: the compiler would compare it once for all tokens, and spill the result
        if (monolane_launch.request.logprobs >= 0) publish_best(best, step_, kLikeliest);
        best = best_adjusted();
      }
      publish_best(ptx::load_shared(&shared::flags()->aborted) ? kAbortRank : best, step_);
    }
    if (!P::kEndsStage) return;
    mark<kPrefill>(s, 2);
    if (kPrefill) lane_barrier();
  }

  // A small projection, of which every warp prepares its part of the input.
  template <class P, class Finish>
  MONOLANE_DEVICE void project_small(const StageTiles& tiles, Cursor<false>& cursor, const Finish& finish_row) {
    note_wait(kWaitCopy);
    SmallProduct<P> product(tiles.count, cursor, step_);
    note_wait(kWaitActivations);
    if (P::kStage == kFirstStage && tiles.layer == 0)
      product.prepare(tiles.layer, [&](const auto& columns, auto& v) {
#pragma unroll
        for (int n = 0; n < static_cast<int>(sizeof(columns) / sizeof(int)); n++) embedding(token_, max(columns[n], 0), v[n]);
      });
    else
      product.prepare(tiles.layer, [&](const auto& columns, auto& v) { await_columns<P>(columns, step_ - P::kInputAge, v); });
    mark<false>(tiles.stage, 1);
    product.multiply(step_, finish_row);
  }

  // Attention and P, which is behind it, where owners attend at once.
  template <class P>
  MONOLANE_DEVICE void attend_and_project(const StageTiles& tiles, const Pass& now, Cursor<false>& cursor, uint64_t& best) {
    const bool late = is_late<P>(tiles.layer);
    note_wait(kWaitCopy);
    AttendAtOnce<P> attention(tiles.count, cursor, tiles.layer, now.start);
    const int result = attention.result(), local = max(result, 0);
    const RowBias bias = bias_of<P>(tiles.layer, tiles.first_row + local);
    const int place = kPlacesWord<P> ? ptx::kept(word_place(tiles.first_row + local)) : 0;
    if (late) {
      const int64_t since = lane_wait_begins();
      await_late_sums();
      lane_wait_ends<false>(tiles.stage, since);
    }
    const Addend addend = addend_of<P>(tiles.layer, 0, local, late, exchanges_);
    note_wait(kWaitActivations);
    attention.receive(step_ - 2);
    mark<false>(tiles.stage, 1);
    const float sum = attention.attend_and_multiply();
    if (result >= 0) finish<false, P>(tiles, now, result, 0, sum, 0.0f, bias, Chosen(), best, place, addend);
    attention.release();
    if (late) pass_on_outputs();
    attention.append();
  }

  template <class P>
  MONOLANE_DEVICE void project_decode(const StageTiles& tiles, const Pass& now, Cursor<false>& cursor, float& stage_scale, uint64_t& best) {
    const bool late = is_late<P>(tiles.layer);
    // The bias of the first result that this thread will finish is loaded early, that of an expert as soon as it is chosen. Loaded in finish(), it would
    // be waited for after the last MMA, when nothing else is left to do.
    RowBias bias;
    if (P::kExperts == 1) bias = decode_bias<P>(tiles, own_result<P>());
    const int place = kPlacesWord<P> ? ptx::kept(word_place(tiles.first_row + own_result<P>())) : 0;
    if (late) {  // the sums are there long before the input, as a rule
      const int64_t since = lane_wait_begins();
      await_late_sums();
      lane_wait_ends<false>(tiles.stage, since);
    }
    Addend addend;
    if constexpr (kFindsAddend<P>) addend = addend_of<P>(tiles.layer, 0, own_result<P>(), late, exchanges_);
    const auto prepare = [&] {
      if (P::kContinues) sync_consumers();  // the sums of the projection before have been read
      if (P::kTakesInput && P::kExperts > 1) bias = decode_bias<P>(tiles, own_result<P>());
      if constexpr (P::kTakesInput) return stage_scale;
      const float squares = prepare_decode<P>(tiles.layer, now);
      if constexpr (P::kChooses) choose_for_decode<P>(step_ - 1);  // the input is older than the logits, and has been there before them
      const float scale = finish_prepare<P, kOneRow<P>>(squares);
      if (P::kExperts > 1) bias = decode_bias<P>(tiles, own_result<P>());
      if (!P::kEndsStage) stage_scale = scale;
      mark<false>(tiles.stage, 1);
      return scale;
    };
    const auto finish_row = [&](int local, int, float first, float second, float scale) {
      const RowBias own = kOneResult<P> || local == own_result<P>() ? bias : decode_bias<P>(tiles, local);
      const Chosen chosen = decode_choice<P>(tiles, local);
      if constexpr (kIsDealt<P>) local = DealtRow<P>(tiles, local).row - tiles.first_row;  // finish() adds first_row
      if constexpr (P::kOutput == Output::kResidual && !kFindsAddend<P>) addend = addend_of<P>(tiles.layer, 0, local, late, exchanges_);
      finish<false, P>(tiles, now, local, 0, first * scale, second * scale, own, chosen, best, place, addend);
    };
    if constexpr (P::kIsSmall)
      project_small<P>(tiles, cursor, finish_row);
    else
      project<false, P, 1, true>(tiles.count, cursor, shared::x(), 0, 1, prepare, finish_row);
    if (late) pass_on_outputs();
  }

  // Attention takes about 3 µs, so a worker without a split of its own backs off for 1 µs before it polls for the results. Where splits are merged in
  // a hand-off of their own, the results come later still, and every worker backs off for 0.5 µs. nanosleep takes at most twice the given time.
  static constexpr int kBackoffNs = 1000, kMergeBackoffNs = 500;

  // Prepares the input of a decode pass: the token's embedding, the partial outputs of a few splits, or the tagged words of the stage before. Returns
  // this thread's part of the sum of squares.
  template <class P>
  MONOLANE_DEVICE float prepare_decode(int layer, const Pass& now) {
    if (P::kStage == kFirstStage && layer == 0) return prepare_embedding<P, kConsumers, kOneRow<P>>(layer, token_, shared::x(), thread_id());
    if constexpr (P::kMergesSplits) {
      const int splits = span_of<false>(now.start, window_of(layer)).splits;
      if (splits > kFusedSplits)
        ptx::nanosleep(kMergeBackoffNs);
      else if (rank() >= kKvHeads * splits)
        ptx::nanosleep(kBackoffNs);
      if constexpr (kFusedSplits > 1)
        if (splits > 1 && splits <= kFusedSplits) return prepare_splits<P>(splits, step_ - 1);
    }
    return prepare_words<P>(layer, step_ - P::kInputAge);
  }

  // All rows of a prefill pass. The input lies in shared memory if it fits. Otherwise it is read from global memory: prepared by
  // prepare_shared(), or as the stage before has left it where the projection has neither a norm nor an order.
  //
  // Of a matrix with experts, those that any row uses are multiplied one after the other, each with all rows. What belongs to rows that have not chosen
  // the expert is ignored.
  template <class P>
  MONOLANE_DEVICE void project_prefill(const StageTiles& tiles, const Pass& now, Cursor<true>& cursor) {
    constexpr bool kStaged = kPaddedCols<P> <= kPrefillCols, kNorm = P::kNorm != kNone, kExperts = P::kExperts > 1;
    constexpr int kStride = kBufferStrides[P::kReads];
    const uint16_t* plain = buffers().prefill_activations + kPrefillOffsets[P::kReads];
    const int count = kExperts ? static_cast<int>(shared::routes().used_count) : 1;
    // The barrier before the first sums are read comes before anything is added.
    if constexpr (kExchangesSum<P>) for_own_elements<P>(tiles, now.rows, [](int row, int local) { shared::partials()[row * kMaxOwnedRows + local] = 0.0f; });
#pragma unroll 1
    for (int i = 0; i < count; i++) {
      const int expert = kExperts ? shared::routes().used[i] : 0;
      const uint32_t users = kExperts ? shared::routes().rows[expert] : ~0u;
      const auto chosen_in = [&](int row) { return kExperts ? chosen_by(row, expert) : choice_of<P>(row); };
      // Where the input of a row begins: each of its experts has one of its own.
      const auto input_of = [&](int row) {
        if (P::kSegments == 1 || !(users >> row & 1)) return plain + row * kStride;
        return plain + row * kStride + chosen_in(row).place * kPaddedCols<P>;
      };
      const auto prepare = [&] {  // one warp per row; the norm factor of a row goes to shared::reduce()
        if (P::kContinues || i > 0) sync_consumers();  // the sums of the matrix before have been read
        if constexpr (kStaged && !P::kTakesInput) {
          if (i > 0 && P::kSegments == 1) return 1.0f;  // all experts have the same input
          for (int row = warp_id(); row < now.rows; row += kConsumerWarps) {
            uint16_t* to = shared::prefill_x() + row * kPrefillStride;
            const bool first = P::kStage == kFirstStage && tiles.layer == 0;
            const float squares = first ? prepare_embedding<P, 32>(tiles.layer, token_at<true>(now, row), to, lane_id())
                                        : prepare_plain<P, 32>(tiles.layer, input_of(row), to, lane_id());
            const float scale = norm_scale<P>(warp_sum(squares));
            if (lane_id() == 0) shared::reduce()[row] = scale;
          }
          sync_consumers();
        }
        return 1.0f;
      };
      uint64_t unused = 0;
      const auto finish_row = [&](int local, int row, float first, float second, float) {
        if (kExperts && !(users >> row & 1)) return;
        const float scale = kNorm ? shared::reduce()[row] : 1.0f;
        const Chosen chosen = chosen_in(row);
        RowBias bias = bias_of<P>(tiles.layer, tiles.first_row + local, expert);
        if (P::kSegments > 1) bias.first *= chosen.weight;
        finish<true, P>(tiles, now, local, row, first * scale, second * scale, bias, chosen, unused);
      };
      const int upper = lane_id() / 4, lower = upper + 8;  // rows of this thread
      const uint16_t *x, *lower_x;
      if constexpr (kStaged)
        x = shared::prefill_x() + upper * kPrefillStride, lower_x = x + 8 * kPrefillStride;
      else if constexpr (kIsPrepared<P>)
        x = buffers().prefill_normed + upper * kStride, lower_x = x + 8 * kStride;
      else
        x = input_of(upper), lower_x = P::kSegments > 1 ? input_of(lower) : x + 8 * kStride;
      project<true, P, kPassRows, kStaged>(tiles.count, cursor, x, static_cast<int>(lower_x - x), now.rows, prepare, finish_row);
    }
    if constexpr (kExchangesSum<P>) {
      sync_consumers();
      for_own_elements<P>(tiles, now.rows, [&](int row, int local) {
        add_to_residual<true, P>(tiles, row, local, shared::partials()[row * kMaxOwnedRows + local], addend_of<P>(tiles.layer, row, local));
      });
    }
  }

  // Prepares the input of a prefill pass in global memory, where it does not fit shared memory: each row by one worker, for all workers of
  // the lane. All of them call it, with or without tiles of their own, because it has a barrier. The norm factors of all rows go to shared::reduce().
  template <class P>
  MONOLANE_DEVICE void prepare_shared(int layer, const Pass& now) {
    constexpr int kStride = kBufferStrides[P::kReads];
    const uint16_t* plain = buffers().prefill_activations + kPrefillOffsets[P::kReads];
    for (int row = rank(); row < now.rows; row += kLaneWorkers) {
      uint16_t* to = buffers().prefill_normed + row * kStride;
      const float squares = P::kStage == kFirstStage && layer == 0
                                ? prepare_embedding<P, kConsumers, To::kGlobal>(layer, token_at<true>(now, row), to, thread_id())
                                : prepare_plain<P, kConsumers, To::kGlobal>(layer, plain + row * kStride, to, thread_id());
      const float scale = finish_prepare<P, To::kGlobal>(squares);
      if (thread_id() == 0) ptx::store_relaxed(buffers().prefill_scales + row, ptx::bits_of(scale));
      sync_consumers();  // all threads have read the sums of squares in shared::reduce()
    }
    lane_barrier();
    if (thread_id() < now.rows) shared::reduce()[thread_id()] = ptx::float_of(ptx::load_relaxed(buffers().prefill_scales + thread_id()));
    sync_consumers();
  }

  // The output head of a prefill pass: the logits of its last row only.
  template <class P>
  MONOLANE_DEVICE void project_last_row(const StageTiles& tiles, const Pass& now, Cursor<true>& cursor, uint64_t& best) {
    constexpr int kBuffer = P::kReads;
    const uint16_t* plain = buffers().prefill_activations + kPrefillOffsets[kBuffer] + (now.rows - 1) * kBufferStrides[kBuffer];
    const auto prepare = [&] { return finish_prepare<P, kOneRow<P>>(prepare_plain<P, kConsumers, kOneRow<P>>(0, plain, shared::x(), thread_id())); };
    project<true, P, 1, true>(tiles.count, cursor, shared::x(), 0, 1, prepare, [&](int local, int, float first, float second, float scale) {
      finish<true, P>(tiles, now, local, now.rows - 1, first * scale, second * scale, bias_of<P>(tiles.layer, tiles.first_row + local), Chosen(), best);
    });
  }

  // Finishes one result of a projection: adds the bias and publishes the value, or updates the residual stream with it, or stores the logit. `local`:
  // the output row, counted from this worker's first. `row`: row of the pass. `first`, `second`: sums; the second one is of the up row of a gate.
  // `chosen`: the expert that it is a result of. `best`: the highest rank of this thread's logits so far. `place`: of its word, if kPlacesWord. `addend`: in a decode
  // pass, what it is added to.
  template <bool kPrefill, class P>
  MONOLANE_DEVICE void finish(const StageTiles& tiles, const Pass& now, int local, int row, float first, float second, const RowBias& bias,
                              const Chosen& chosen, uint64_t& best, int place = 0, const Addend& addend = {}) {
    constexpr Output kOutput = P::kOutput;
    constexpr int kGate = kOutput == Output::kGate;
    const int output_row = tiles.first_row + local;
    if (kHasPadding<P> && output_row >= P::kRows >> kGate) return;
    float v = first + bias.first;
    if constexpr (kGate) {
      float up = second + bias.second;
      if constexpr (P::kGateLimited) v = fminf(v, P::kGateLimit), up = fmaxf(-P::kGateLimit, fminf(up, P::kGateLimit));
      const float slope = P::kGateSlope, shift = P::kGateShift;
      v *= ptx::reciprocal(1.0f + ptx::exp(slope == 1.0f ? -v : -slope * v)) * (shift == 0.0f ? up : up + shift);
      if constexpr (P::kLogit != kNone) v *= chosen.weight;
      publish_result<kPrefill, P>(chosen.place * P::kOutputStride + output_row, place, row, v, step_);
    } else if constexpr (kOutput == Output::kResidual) {
      if constexpr (kExchangesSum<P> && kPrefill)
        shared::partials()[row * kMaxOwnedRows + local] += v;
      else
        add_to_residual<kPrefill, P>(tiles, row, local, v, kPrefill ? addend_of<P>(tiles.layer, row, local) : addend, place);
    } else if constexpr (P::kRoutes) {
      if (kPrefill)
        buffers().prefill_routed[row * kRouted + output_row] = v;
      else
        ptx::store_relaxed(buffers().routed_words + output_row, tagged_float(v, step_));
    } else if constexpr (kOutput == Output::kStore) {
      if (kPrefill)
        buffers().prefill_qkv[row * (kQueryDims + 2 * kKvDims) + P::kFirstRow + output_row] = v;
      else
        ptx::store_relaxed(buffers().qkv_words + P::kFirstRow + output_row, tagged_float(v, step_));
    } else {
      const int token = lane() * P::kRows + output_row;
      if (kLanes > 1 && token >= kVocab) return;  // padding
      if (monolane_launch.request.all_logits) {
        monolane_launch.request.all_logits[(now.start - monolane_launch.request.cached + row) * kVocab + token] = v;
      } else {
        if (!monolane_launch.plain_greedy) keep_logit(local, token, v);
        best = max(best, rank_of(v, static_cast<uint32_t>(token)));
      }
    }
  }

  // Adds one output to the residual stream, that of all lanes, and publishes the sum.
  template <bool kPrefill, class P>
  MONOLANE_DEVICE void add_to_residual(const StageTiles& tiles, int row, int local, float own, const Addend& addend, int place = 0) const {
    const bool late = !kPrefill && addend.is_late;
    float v = own;
    if constexpr (kLanes > 1) v = late ? addend.own_factor * own + addend.other_lanes : exchanged<kPrefill, P>(tiles, row, local, own);
    v += addend.residual;
    // Where a shared expert follows, what it adds is still missing.
    if (P::kEndsStage || kPrefill) publish_result<kPrefill, P>(tiles.first_row + local, place, row, v, step_);
    shared::residual()[row * kMaxOwnedRows + local] = v;
    if (late) shared::outputs(exchanges_)[local] = own;
  }

  // --- other lanes ---

  // Experts that a prefill pass multiplies one after the other: lanes exchange the sum of their outputs, once for each element.
  template <class P>
  static constexpr bool kExchangesSum = kLanes > 1 && P::kExperts > 1 && P::kOutput == Output::kResidual;

  // Calls `act(row, local)` for every element of the residual stream that this worker owns, in a pass of `rows` rows.
  template <class P, class Act>
  MONOLANE_DEVICE static void for_own_elements(const StageTiles& tiles, int rows, Act act) {
    const int count = min(tiles.count * P::kTileRows, P::kRows - tiles.first_row);
    for (int i = thread_id(); i < rows * count; i += kConsumers) act(i / count, i % count);
  }

  // Waits until the exchange warp has added up what has arrived for this projection.
  MONOLANE_DEVICE void await_late_sums() const {
    while (!phase_complete(shared::sums_arrived(), exchanges_))
      if (shared::failed()) break;
  }
  // Tells the exchange warp that this warp's outputs are in shared memory.
  MONOLANE_DEVICE void pass_on_outputs() {
    ptx::sync_warp();
    if (lane_id() == 0) ptx::mbarrier_arrive(shared::outputs_made() + exchanges_ % 2);
    exchanges_++;
  }

  // What is added to the residual stream where the exchange warp does nothing: the outputs of all lanes in this layer, or, in a prefill pass, this lane's own and what
  // has arrived late.
  template <bool kPrefill, class P>
  MONOLANE_DEVICE float exchanged(const StageTiles& tiles, int row, int local, float own) const {
    const Exchange exchange = exchange_of<P>(tiles.layer);
    const int slot = exchange_slot(P::kExchange, layers_), output_row = tiles.first_row + local;
    if (!kPrefill || exchange.sends) send(slot, row, output_row, own, step_);
    if (!kPrefill || !exchange.late) {
      note_wait(kWaitLanes);
      const int64_t since = lane_wait_begins();
      const float sum = receive(slot, row, output_row, step_).sum(own);
      lane_wait_ends<kPrefill>(tiles.stage, since);
      return sum;
    }
    if (exchange.late < 0) return exchange.own * own;
    // An earlier layer is of the same pass, so its tag follows from its distance.
    return exchange.own * own + receive(exchange_slot(P::kExchange, layers_ - exchange.late), row, output_row, step_ - exchange.late * kStagesPerLayer).sum(0.0f);
  }

  // The stage that combines the residual streams of all lanes, for those rows of the pass whose logits are needed. A worker sends its own elements,
  // normalised where the stage has a norm, and publishes what becomes of them and of the same elements of the other lanes.
  template <bool kPrefill>
  MONOLANE_DEVICE void combine_stage(const Pass& now) {
    constexpr int kStage = kStageCount - 3;
    begin<kPrefill>(kStage, now);
    sync_consumers();  // all elements of the residual stream have been stored
    const OwnElements own = own_elements();
    const int slot = combine_slot(passes_);
#pragma unroll 1
    for (int row = kPrefill && !monolane_launch.request.all_logits ? now.rows - 1 : 0; row < now.rows; row++) {
      const float scale = stream_scale<kPrefill>(row);
      mark<kPrefill>(kStage, 1);
#pragma unroll 1
      for (int i = thread_id(); i < own.count; i += kConsumers) {
        const int element = own.first + i;
        float v = shared::residual()[row * kMaxOwnedRows + i];
        if (LaneStream::kNorm != kNone) v *= scale * norm_weights<LaneStream>(0)[element];
        send(slot, row, element, v, step_);
        const int64_t since = lane_wait_begins();
        const Arrivals others = receive(slot, row, element, step_);
        lane_wait_ends<kPrefill>(kStage, since);
        if (kConcatenates) {
#pragma unroll
          for (int from = 0; from < kLanes; from++) publish_activation<kPrefill>(kCombined, from * kHidden + element, row, others.value(from, v), step_);
        } else {
          publish_activation<kPrefill>(kCombined, element, row, others.sum(v) * (kAverages ? 1.0f / kLanes : 1.0f), step_);
        }
      }
    }
    mark<kPrefill>(kStage, 2);
    if (kPrefill) lane_barrier();
  }

  // The factor 1 / rms of a row of this lane's stream, where the stage that combines streams has a norm.
  template <bool kPrefill>
  MONOLANE_DEVICE float stream_scale(int row) const {
    if (LaneStream::kNorm == kNone) return 1.0f;
    constexpr int kBuffer = LaneStream::kReads;
    note_wait(kWaitActivations);
    const uint16_t* plain = buffers().prefill_activations + kPrefillOffsets[kBuffer] + row * kBufferStrides[kBuffer];
    const float squares =
        kPrefill ? prepare_plain<LaneStream, kConsumers>(0, plain, shared::x(), thread_id()) : prepare_words<LaneStream>(0, step_ - 1);
    const float scale = finish_prepare<LaneStream, To::kShared>(squares);
    note_wait(kWaitLanes);
    sync_consumers();  // all threads have read the sums of squares in shared::reduce()
    return scale;
  }

  // The highest rank of all workers, which is all that a plain greedy request needs.
  template <bool kPrefill>
  MONOLANE_DEVICE uint64_t highest_rank() const {
    uint64_t rank = max_of_block(await_best(step_ - 1, kBest));
    if constexpr (kApart) {
      const int64_t since = lane_wait_begins();
      rank = max_of_block(of_each_lane(rank, kBest, step_ - 1));
      lane_wait_ends<kPrefill>(kStageCount - 1, since);
    }
    return rank;
  }

  // The sampling stage: all workers choose the same token, and worker 0 posts it to its watchdog warp for the host. A stop token, the limit of
  // tokens, an abort, or a logit that is not a number ends the request.
  template <bool kPrefill>
  MONOLANE_DEVICE void sample(const Pass& now) {
    const Request& request = monolane_launch.request;
    note_wait(kWaitToken);
    const int made = now.start + now.rows - static_cast<int>(request.token_count);  // tokens of the answer before this one
    const uint32_t token = monolane_launch.plain_greedy ? token_of(highest_rank<kPrefill>()) : choose(now.start + now.rows, made, step_);
    if (shared::failed()) return;  // waits ended early, so the token is meaningless
    if (token == kAbortToken || token == kNoToken) return end(token == kNoToken ? kNotANumber : kAborted);
    token_ = static_cast<int32_t>(token);
    if (ptx::kept(worker_id()) == 0 && thread_id() == 0) post(token_, made);  // kept, as above
    bool stop = false;
#pragma unroll 1
    for (int64_t i = 0; i < request.stop_count; i++) stop |= request.stop_tokens[i] == token_;
    if (stop || made + 1 == request.max_tokens) end(stop ? kStopped : kLengthReached);
  }

  MONOLANE_DEVICE void end(Status status) {
    left_ = true;
    if (thread_id() == 0) ptx::store_shared(&shared::flags()->status, status);
  }

  uint32_t step_ = 0;      // tag of what the current stage publishes: 1 to kMaxTag
  int32_t token_ = kNone;  // input token of the next decode pass
  int decode_passes_ = 0;
  uint32_t layers_ = 0;      // of this launch before the current one, which choose slots of mailboxes
  uint32_t passes_ = 0;      // of this launch before the current one
  uint32_t exchanges_ = 0;   // that the exchange warp has done
  int position_ = static_cast<int>(monolane_launch.request.cached);  // of the first row of the next pass
  bool left_ = false;                                                // the request has ended
};

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(monolane::kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int thread = ptx::thread_index();
  if (thread == 0) {
    for (int prefill = 0; prefill < 2; prefill++)
      for (int slot = 0; slot < kSlots; slot++) {
        ptx::mbarrier_init(&shared::full(prefill)[slot], 1);                 // the producer's arrival, and the bytes it expects
        ptx::mbarrier_init(&shared::empty(prefill)[slot], kWarpgroupWarps);  // one arrival for each warp of the warpgroup that had the chunk
      }
    *shared::flags() = {};
    if (kAnyLate) ExchangeWarp::init();
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
    if constexpr (kAnyLate != 0)
      if (warp_id() == kConsumerWarps + 3 && own_elements().count > 0) ExchangeWarp().run();
  }
}
