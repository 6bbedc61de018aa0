// The matrix product of a projection on the tensor cores: the worker's own tiles of the matrix times the prepared input of 1 row or up to kPassRows =
// 16 rows of the pass. The 8 consumer warps of every worker run it. They read weights from the ring and inputs from shared memory (or, in prefill,
// from global memory), write each warp's sums to shared memory, and pass the sum of each output row to the caller's finish().
//
// Every sum has a fixed order, so the same request gives the same bits on every run: a warp adds up its fragments of a tile in the order of k, and
// row_sum() adds the sums of the warps in a fixed order (sums.cuh).
//
// With 1 row the chunks come tile by tile. With 16 rows the first chunks of all tiles of a batch come first, then the second ones, and so on: a warp
// then has the same input for consecutive chunks, and an input that comes from L2 stays in registers, so that it is read once per batch. (With 1 row
// this order was 2% slower; integers have it all the same, see kOneRowByChunks.)
#pragma once
#include "operands.cuh"
#include "sums.cuh"

namespace monolane {

// The product of this worker's `tiles` tiles of one matrix with kInputRows rows, of which `rows` are in the pass. Every consumer warp has one for each stage.
//
// A warpgroup holds its next 1 to 3 chunks in registers and has released their slots. load_first() fills these registers, before the input has arrived if possible, and
// multiply() does the rest. The input is at `x`: with 16 rows thread 4g + t has rows g and g + 8 of it, at `x` and at x + lower_row, in shared memory if kStaged.
//
// A warpgroup walks through its chunks: those of a tile, then of the next tile of a batch; or, if kByChunks, the first ones of all tiles of a batch, then the second ones.
template <bool kPrefill, class P, int kInputRows, bool kStaged>
class Product {
  static constexpr int kTiles = kPrefill ? 1 : P::kChunkTiles;  // of a chunk
  static constexpr int kSegments = kPrefill ? 1 : P::kSegments;
  using S = WarpgroupShare<P, kTiles, kSegments>;
  using Of = Sums<S, kInputRows>;
  using Weights = typename S::Weights;
  static constexpr int kBatch = Of::kBatch, kUnits = S::kTeamTiles * S::kWarpShares;  // a unit: a share of a tile of a chunk
  static constexpr int kAhead = kPrefill ? 1 : P::kAhead;                             // chunks in registers
  static_assert(kTiles == 1 || (S::kSegmentChunks == 1 && kBatch % kTiles == 0), "a chunk of several tiles has whole ones, and lies in one batch");
  static constexpr bool kLowBit = P::Format::kIsLowBit, kIntegers = P::Format::kIsInteger && kInputRows == 1;
  static constexpr bool kOneBatch = P::kMaxTiles <= kBatch;
  static constexpr bool kByChunks = S::kOwnChunks > 1 && (kInputRows > 1 || kOneRowByChunks<P>);
  // Inputs stay in registers where all chunks of this warpgroup have the same input (1 row), or where they would come from L2 (16 rows; those of a
  // super-block are too many).
  static constexpr bool kKeepsInputs = kInputRows > 1 ? !kStaged && !kLowBit : S::kOwnChunks == 1 || kByChunks;
  // Whether a thread has the sums of one result at the end.
  static constexpr bool kOwnSums = kInputRows == 1 && kOneResult<P>;
  static_assert(!kOwnSums || kOneBatch, "a thread has one result of all batches");
  // Whether it finds them before the input is there. With many tiles of bf16 there are no registers left for that.
  static constexpr int kFewTiles = 8;
  static constexpr bool kFindsEarly = kOwnSums && (kIntegers || P::kMaxTiles <= kFewTiles);
  // A slot is released when its chunk has been multiplied and the sums are stored. These depend on all loads from the slot, so that nothing else has to wait for them.
  static constexpr bool kReleasesLate = kLowBit && kInputRows == 1;
  static_assert(!kReleasesLate || kAhead == 1, "the chunk in registers is the one in the slot");
  // Where a chunk has all tiles of one expert, a warp has the same shares of the same tiles in every chunk, and adds them up in registers.
  static constexpr bool kAddsUp = kIntegers && kSegments > 1 && kTiles > 1 && kTiles >= P::kMaxTiles;
  static_assert(!kAddsUp || S::kSegmentChunks == 1, "a chunk has all columns of an expert");
  // Whether each warpgroup has a chunk. Where it may have none, the weights are zeroed: otherwise the compiler keeps what the stage before has left in these
  // registers alive up to here, and spills.
  static constexpr bool kHasChunk = P::kEndsStage && !P::kChooses && (!S::kWholeTiles || P::kMinTiles > (kWarpgroups - 1) * kTiles);
  // Of the input, in elements: of a fragment; of a chunk; and between those of two neighbouring threads. A thread has its own group of each super-block
  // in integers (1 row), else a part of every group.
  static constexpr int kInputStep = kIntegers ? S::kKBlocks * kBlockElements : P::kFragmentCols, kChunkStep = S::kChunkFragments * kInputStep;
  static constexpr int kThreadStep = kLowBit && !kStaged ? 4 : 8;

 public:
  MONOLANE_DEVICE Product(int tiles, Cursor<kPrefill>& cursor, const uint16_t* x, int lower_row, int rows)
      : cursor_(cursor),
        tiles_(tiles),
        lower_row_(lower_row),
        rows_(rows),
        lane_index_(kLowBit ? ptx::kept(lane_id()) : lane_id()),
        part_(S::kWholeTiles ? 0 : cursor.order),
        team_(kTiles > 1 ? turned_warp() / S::kTileWarps : 0),
        warp_(turned_warp() % S::kTileWarps),
        own_x_(warp_ * kInputStep + (kSegments > 1 ? 0 : part_ * kChunkStep)),
        thread_(lane_index_, own_x_),
        own_sums_(early_sums(tiles)),
        thread_x_(kIntegers ? x : x + lane_index_ % 4 * kThreadStep + own_x_),
        chunks_(divide_up(tiles, kTiles) * S::kChunks),
        own_chunks_(S::kWholeTiles ? cursor.own_chunks(chunks_) : divide_up(tiles, kTiles) * S::kOwnChunks),
        unloaded_(own_chunks_),
        place_(lane_index_, S::has_last(part_, warp_)) {
    if constexpr (!kHasChunk)
#pragma unroll
      for (auto& fragments : weights0_)
#pragma unroll
        for (auto& fragment : fragments) fragment = {};
  }

  MONOLANE_DEVICE void load_first() {
    load_next(weights0_, kHasChunk || unloaded_ > 0);
    if (kAhead > 1) load_next(weights1_, unloaded_ > 0);
    if (kAhead > 2) load_next(weights2_, unloaded_ > 0);
  }

  // After each batch `finish(result, row, sum, second sum, scale)` is called once for each result and row of the pass: `result` counts from the first
  // of this worker, and where the projection is a gate, the two sums are those of the gate row and of the up row.
  template <class Finish>
  MONOLANE_DEVICE void multiply(float scale, Finish finish) {
    const auto end = [&] { end_batch(scale, finish); };
    begin();
    if (!kReleasesLate || own_chunks_) {
#pragma unroll 1
      while (step(weights0_, end) && (kAhead < 2 || step(weights1_, end)) && (kAhead < 3 || step(weights2_, end))) {
      }
    }
    if constexpr (kAddsUp) store_added();
    // Where there is only one batch, it ends here and not in step(): that is inlined once for each chunk in registers, and a jump over another copy of
    // end_batch() waits for instructions that are not in the instruction cache.
    if (kOneBatch)
      end();
    else if (kReleasesLate)
      while (first_ < tiles_) end();
    cursor_.skip(chunks_);
  }

 private:
  MONOLANE_DEVICE static uint32_t turned_warp() {
    const uint32_t own = warp_id();  // unsigned: divisions are shifts
    return (own + own / kWarpgroupWarps * S::kTurn) % kWarpgroupWarps;
  }

  // Where this thread's result will be, found early: behind the input every instruction counts.
  MONOLANE_DEVICE static OwnSums<P, S> early_sums(int tiles) {
    OwnSums<P, S> found;
    if constexpr (kFindsEarly) found.find(tiles);
    return found;
  }

  // --- where this warp is ---

  // Of a unit: its tile in the batch, whether there is such a tile, and its share. Behind a short chunk its slot holds older tiles: their sums are not stored.
  MONOLANE_DEVICE int tile_of(int unit) const { return tile_ + team_ + unit / S::kWarpShares * S::kTeams; }
  MONOLANE_DEVICE bool exists(int tile) const { return tile < count_; }
  MONOLANE_DEVICE int share_of(int unit) const { return warp_ + unit % S::kWarpShares * S::kTileWarps; }
  MONOLANE_DEVICE float* sums_of(int unit) const { return Of::at(tile_of(unit), part_, share_of(unit)); }
  // Of the chunk.
  MONOLANE_DEVICE int fragments() const { return S::fragments_of((S::kOwnChunks > 1 ? chunk_ * kWarpgroups : 0) + part_); }
  MONOLANE_DEVICE const uint16_t* inputs() const {
    if constexpr (kSegments > 1) {
      constexpr int kSegmentStep = kIntegers ? kPaddedCols<P> / kBlockCols * kBlockElements : kPaddedCols<P>;
      const int own = chunk_ * kWarpgroups + part_;
      return thread_x_ + own / S::kSegmentChunks * kSegmentStep + own % S::kSegmentChunks * kChunkStep;
    }
    return thread_x_ + (S::kOwnChunks > 1 ? chunk_ * kWarpgroups * kChunkStep : 0);
  }

  // --- what it does ---

  MONOLANE_DEVICE void begin() {
#pragma unroll
    for (auto& of : sums_)
#pragma unroll
      for (float& sum : of) sum = 0.0f;
    first_ = 0, count_ = min(kBatch, tiles_);
    tile_ = S::kWholeTiles ? cursor_.order * kTiles : 0, chunk_ = 0;
    keep_inputs();
#pragma unroll
    for (float& sum : added_) sum = 0.0f;
    releases_ = false, held_ = cursor_.place.empty();
    steps_left_ = own_chunks_;
  }

  MONOLANE_DEVICE void load_next(Weights& weights, bool exists) {
    if (exists) cursor_.release(cursor_.template load_chunk<S>(weights, team_, warp_, place_)), unloaded_--;
  }

  MONOLANE_DEVICE void keep_inputs() {
    if constexpr (kKeepsInputs)
#pragma unroll
      for (int i = 0; i < S::kWarpShares; i++)
        kept_[i].load(inputs() + i * S::kTileWarps * kInputStep, lower_row_, fragments(), warp_ + i * S::kTileWarps, thread_);
  }

  // Multiplies the chunk in `weights` and loads the next chunk that is not in registers into them. Returns false when no chunk is left.
  template <class End>
  MONOLANE_DEVICE bool step(Weights& weights, End end) {
    if (!find_chunk(end)) return false;
    multiply_units(weights);
    if constexpr (!kReleasesLate) load_next(weights, unloaded_ > 0);
    if (!kAddsUp && (kByChunks || S::kOwnChunks == 1 || ++chunk_ == S::kOwnChunks)) {
      const int last = tile_of(kUnits - 1);
      store(kUnits - 1, kTiles == 1 || exists(last));
      tile_ += S::kWholeTiles ? kWarpgroups * kTiles : kTiles;
      if (!kByChunks) chunk_ = 0;
    }
    if constexpr (kReleasesLate) return release_and_load(weights);
    return true;
  }

  // Ends the batch, or goes on to the next chunks of its tiles, where no tile is left. Returns false when no chunk is.
  template <class End>
  MONOLANE_DEVICE bool find_chunk(End end) {
    if (kOneBatch && !kReleasesLate && !steps_left_--) return false;
    while (!kOneBatch && tile_ >= count_) {
      if (kByChunks && ++chunk_ < S::kOwnChunks) {
        tile_ = 0;
      } else {
        end();
        if (first_ >= tiles_) return false;
      }
      if (kByChunks) keep_inputs();
    }
    if (kOneBatch && kByChunks && !kAddsUp && tile_ >= count_) tile_ = 0, chunk_++, keep_inputs();
    return true;
  }

  // All units of a chunk. The sums of the last one are left in registers, unless kAddsUp.
  MONOLANE_DEVICE void multiply_units(const Weights& weights) {
    if constexpr (kAddsUp) {
#pragma unroll
      for (int i = 0; i < kUnits; i++) {
        kept_[i % S::kWarpShares].multiply(weights[i], fragments(), share_of(i), thread_, sums_);
        added_[i] += sums_[0][0], sums_[0][0] = 0.0f;
      }
      if (unloaded_) chunk_++, keep_inputs();
    } else if constexpr (kUnits > 1) {
#pragma unroll
      for (int i = 0; i + 1 < kUnits; i++) {
        kept_[i % S::kWarpShares].multiply(weights[i], fragments(), share_of(i), thread_, sums_);
        store(i, exists(tile_of(i)));
      }
    }
    if constexpr (kAddsUp) {  // all units are done
    } else if constexpr (kKeepsInputs)
      kept_[S::kWarpShares - 1].multiply(weights[kUnits - 1], fragments(), share_of(kUnits - 1), thread_, sums_);
    else if constexpr (kInputRows == 1)
      multiply_one<S, 0>(weights[0], inputs(), fragments(), warp_, thread_, sums_);
    else if constexpr (kLowBit)
      multiply_low_bit<S, kStaged>(weights[0], inputs(), lower_row_, fragments(), warp_, sums_);
    else
      multiply_staged<S>(weights[0], inputs(), lower_row_, fragments(), warp_, sums_);
  }

  MONOLANE_DEVICE void store(int unit, bool exists) { store_sums<S, kInputRows>(sums_of(unit), lane_index_, sums_, kByChunks && chunk_ > 0, exists); }

  MONOLANE_DEVICE void store_added() {
    tile_ = 0;
#pragma unroll
    for (int i = 0; i < kUnits; i++) {
      sums_[0][0] = added_[i];
      store_sums<S, kInputRows>(sums_of(i), lane_index_, sums_, false, exists(tile_of(i)));
    }
  }

  // The first chunk has been released before: `releases_` is set from the second one on, in the thread that releases `held_`.
  MONOLANE_DEVICE bool release_and_load(Weights& weights) {
    ptx::sync_warp();
    if (releases_) ptx::mbarrier_arrive(held_);
    if (!unloaded_) return false;
    unloaded_--;
    held_ = cursor_.place.empty(), releases_ = lane_index_ == 0;
    cursor_.template load_chunk<S>(weights, team_, warp_, place_);
    cursor_.place.advance(kWarpgroups);
    return true;
  }

  template <class Finish>
  MONOLANE_DEVICE void end_batch(float scale, Finish finish) {
    sync_consumers();
    if constexpr (kOwnSums && !kFindsEarly) own_sums_.find(tiles_);
    if constexpr (kOwnSums)
      finish_own(own_sums_, scale, finish);
    else
      finish_batch<P, S, kInputRows>(first_, count_, rows_, scale, finish);
    first_ += kBatch, tile_ -= kBatch;
    if (kByChunks) tile_ = chunk_ = 0;
    count_ = min(kBatch, tiles_ - first_);
    if (!kOneBatch && first_ < tiles_) sync_consumers();  // the next batch overwrites the sums
  }

  Cursor<kPrefill>& cursor_;
  const int tiles_, lower_row_, rows_;
  const uint32_t lane_index_;
  const int part_, team_, warp_;  // the part of a tile (Sums), the team (WarpgroupShare), and the number in it
  const uint32_t own_x_;          // where the inputs of this warp begin
  const ThreadOf<S, kIntegers> thread_;
  OwnSums<P, S> own_sums_;
  const uint16_t* const thread_x_;
  const int chunks_, own_chunks_;  // of the stage; of this warpgroup
  int unloaded_;                   // of own_chunks_, not in registers yet
  const typename S::Fragment::Thread place_;
  Weights weights0_, weights1_ = {}, weights2_ = {};
  KeptInputs<S, kInputRows> kept_[S::kWarpShares];
  float sums_[4][4], added_[kUnits];
  int first_, count_;  // the first tile of the batch, and how many it has
  int tile_, chunk_;   // first tile of the chunk in the batch; chunk of the tile, counted among those of this warpgroup
  int steps_left_;
  uint64_t* held_;
  bool releases_;
};

// Multiplies this worker's tiles of a matrix (Product). `prepare()` waits for the input, stores it at `x` and returns its norm factor.
template <bool kPrefill, class P, int kInputRows, bool kStaged, class Prepare, class Finish>
MONOLANE_DEVICE void project(int tiles, Cursor<kPrefill>& cursor, const uint16_t* x, int lower_row, int rows, Prepare prepare, Finish finish) {
  constexpr bool kLoadsFirst = kPrefill || !P::kChooses;  // where prepare() chooses the experts, nothing is streamed before
  Product<kPrefill, P, kInputRows, kStaged> product(tiles, cursor, x, lower_row, rows);
  if (kLoadsFirst) product.load_first();
  note_wait(kWaitActivations);
  const float scale = prepare();
  if (!P::kEndsStage && !tiles) return;  // the input was prepared for the projections that continue the stage
  note_wait(kWaitCopy);
  if (!kLoadsFirst) product.load_first();
  product.multiply(scale, finish);
}

}  // namespace monolane
