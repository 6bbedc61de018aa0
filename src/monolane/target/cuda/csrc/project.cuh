// The matrix product of a projection on the tensor cores: the worker's own tiles of the matrix times the prepared input of 1 row or up to kPassRows =
// 16 rows of the pass. The 8 consumer warps of every worker run it. They read weights from the ring and inputs from shared memory (or, in prefill,
// from global memory), write each warp's sums to shared memory, and pass the sum of each output row to the caller's finish().
//
// Operands of mma.m16n8k16: the weights are B (16 k, 8 columns), the rows of the pass are the rows of A. So 1 row and 16 rows take the same number of
// MMAs. B's columns are output rows. Thread 4g + t of a warp loads 16 bytes of a weight fragment, four words of two k each: w0 w1 are B of one MMA,
// w2 w3 are B of a second one. The order of k within the two MMAs differs from the order in memory; A has its input words in the same order.
//
//     fragment                                   column g of B            the 16 bytes of thread 4g + t
//     whole tile: 8 output rows x 32 k           output row g             k = 8t to 8t + 7
//     half tile:  4 output rows x 64 k   g < 4:  output row g             k = 8t to 8t + 7 of the first k-block
//                                        g >= 4: output row g - 4         k = 8t to 8t + 7 of the second k-block
//
// What A holds, and which part of the product C (16 rows x 8 columns) counts:
//
//                           A                                                            C that counts
//     1 row,   whole tile   rows 0-7: the input for w0 w1; rows 8-15: that for w2 w3     MMA with w0 w1: rows 0-7; with w2 w3: rows 8-15
//     1 row,   half tile    rows 0-7: the first k-block; rows 8-15: the second           rows 0-7 of columns 0-3; rows 8-15 of columns 4-7
//     16 rows, whole tile   row r: row r of the pass                                     all
//     16 rows, half tile    row r: row r of the pass, one k-block in each MMA            first k-block: columns 0-3; second: columns 4-7
//
// Low-bit weights have fragments of 8 rows x 256 columns; lowbit.cuh and fp8.cuh show how they are multiplied. All else is the same.
//
// The rest of C is ignored and costs nothing. With 1 row all rows of the same half of A are equal; 16 bytes of the input as they lie in shared memory
// are an A operand (see input_index). The sum of an output row of a half tile is the sum of two columns of C.
//
// Every sum has a fixed order, so the same request gives the same bits on every run: a warp adds up its fragments of a tile in the order of k, and
// row_sum() adds the sums of the warps in a fixed order (sums.cuh).
//
// With 1 row the chunks come tile by tile. With 16 rows the first chunks of all tiles of a batch come first, then the second ones, and so on: a warp
// then has the same input for consecutive chunks, and an input that comes from L2 stays in registers, so that it is read once per batch. (With 1 row
// this order was 2% slower; integers have it all the same, see kOneRowByChunks.)
#pragma once
#include "prepare.cuh"
#include "sums.cuh"

namespace monolane {

// --- 1 row ---

// What a thread knows of its own place in the products of a warp.
template <class S, bool kIsInteger = S::kIsInteger>
struct ThreadOf {
  MONOLANE_DEVICE ThreadOf(int, int) {}
};
template <class S>
struct ThreadOf<S, true> : IntegerThread<typename S::Format, S::kKBlocks> {
  using IntegerThread<typename S::Format, S::kKBlocks>::IntegerThread;
};

// A warp's A operands for its fragments [kFirst, kFirst + kCount) of a chunk: one per k-block.
template <class S, int kFirst, int kCount, bool kIsInteger = S::kIsInteger, bool kIsFp8 = S::kIsFp8>
struct DecodeInputs {
  Word4 values[kCount * S::kKBlocks];

  // `from`: this thread's address in the input of the chunk.
  MONOLANE_DEVICE void load(const uint16_t* from, int fragments, int warp, const ThreadOf<S>&) {
#pragma unroll
    for (int i = 0; i < kCount * S::kKBlocks; i++) {
      const int j = kFirst + i / S::kKBlocks;
      values[i] = {0, 0, 0, 0};
      if (S::has(j, fragments, warp))
        values[i] = *reinterpret_cast<const Word4*>(from + (j * kWarpgroupWarps * S::kKBlocks + i % S::kKBlocks) * kKBlock);
    }
  }

  // Two MMAs per fragment. In whole tiles both have the same A operand. In half tiles the first operand holds the words for w0 w1 of both k-blocks,
  // the second those for w2 w3. MMAs alternate between four accumulators, so that an MMA does not depend on the one before.
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, const ThreadOf<S>&, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int j = kFirst + i;
      if (!S::has(j, fragments, warp)) continue;
      const Word4 &w = weights[j], &a = values[i * S::kKBlocks], &b = values[i * S::kKBlocks + S::kKBlocks - 1];
      ptx::mma(sums[2 * j % 4], a.x, a.y, a.z, a.w, w.x, w.y);
      ptx::mma(sums[2 * j % 4 + 1], b.x, b.y, b.z, b.w, w.z, w.w);
    }
  }
};

// The same for integers. The sum of row g over the thread's groups is in sums[0][0].
template <class S, int kFirst, int kCount>
struct DecodeInputs<S, kFirst, kCount, true, false> {
  IntegerInput<typename S::Format, S::kKBlocks, S::kMasksPairs> values[kCount];

  // Those behind the end of a short chunk are loaded, too, as its weights are.
  MONOLANE_DEVICE void load(const uint16_t* from, int, int, const ThreadOf<S>& thread) {
#pragma unroll
    for (int i = 0; i < kCount; i++) values[i].load(from + (kFirst + i) * kWarpgroupWarps * S::kKBlocks * kBlockElements, thread);
  }

  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (S::has(kFirst + i, fragments, warp)) sums[0][0] = multiply_integers(weights[kFirst + i], values[i], thread, sums[0][0]);
  }
};

// The same for FP8: an A operand for each group. The sums of rows 2t and 2t + 1 are in sums[0][0..1].
template <class S, int kFirst, int kCount>
struct DecodeInputs<S, kFirst, kCount, false, true> {
  Word4 values[kCount][kBlockGroups];

  MONOLANE_DEVICE void load(const uint16_t* from, int fragments, int warp, const ThreadOf<S>&) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int j = 0; j < kBlockGroups; j++) {
        values[i][j] = {0, 0, 0, 0};
        if (S::has(kFirst + i, fragments, warp))
          values[i][j] = *reinterpret_cast<const Word4*>(from + (kFirst + i) * kWarpgroupWarps * kBlockCols + j * kGroupCols);
      }
  }

  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>&, float (&sums)[4][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      if (S::has(kFirst + i, fragments, warp)) multiply_fp8(weights[kFirst + i], values[i], sums[0]);
  }
};

// Multiplies a warp's fragments of a chunk, from kFirst on, with inputs that are loaded from shared memory for this chunk, 8 operands at a time, or 2 of
// integers.
template <class S, int kFirst, class Weights>
MONOLANE_DEVICE void multiply_one(const Weights& weights, const uint16_t* from, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) {
  constexpr int kTogether = S::kIsFp8 ? 1 : S::kIsInteger ? 2 : 8 / S::kKBlocks, kCount = lesser(kTogether, S::kWarpFragments - kFirst);
  DecodeInputs<S, kFirst, kCount> inputs;
  inputs.load(from, fragments, warp, thread);
  inputs.multiply(weights, fragments, warp, thread, sums);
  if constexpr (kFirst + kCount < S::kWarpFragments) multiply_one<S, kFirst + kCount>(weights, from, fragments, warp, thread, sums);
}

// --- up to 16 rows ---

// Two input words of one row and one k-block: those that match w0 w1 (half 0) or w2 w3 (half 1). `pieces` are the thread's 16-byte loads of all
// k-blocks of a fragment: in the layout of input_index() if kStaged, else with their columns in order.
template <bool kStaged, int kKBlocks>
MONOLANE_DEVICE void words_of(const Word4 (&pieces)[kKBlocks], int k_block, int half, uint32_t& first, uint32_t& second) {
  const Word4& in_order = pieces[k_block];
  const Word4& paired = pieces[kKBlocks > 1 ? half : 0];
  if (!kStaged)
    first = half ? in_order.z : in_order.x, second = half ? in_order.w : in_order.y;
  else if (kKBlocks > 1 ? k_block : half)
    first = paired.y, second = paired.w;
  else
    first = paired.x, second = paired.z;
}

// A warp's inputs for its fragments [first, first + kCount) of a chunk. They are loaded together, so that the MMAs do not wait for one load after the
// other. Thread 4g + t holds row g of the pass in `upper` and row g + 8 in `lower`.
template <class S, bool kStaged, int kCount>
struct PrefillInputs {
  Word4 upper[kCount][S::kKBlocks], lower[kCount][S::kKBlocks];

  MONOLANE_DEVICE void load(const uint16_t* from, int lower_row, int fragments, int warp, int first = 0) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int b = 0; b < S::kKBlocks; b++) {
        upper[i][b] = lower[i][b] = {0, 0, 0, 0};
        if (first + i >= S::kWarpFragments || !S::has(first + i, fragments, warp)) continue;
        const uint16_t* at = from + ((first + i) * kWarpgroupWarps * S::kKBlocks + b) * kKBlock;
        upper[i][b] = input_words<kStaged>(at);
        lower[i][b] = input_words<kStaged>(at + lower_row);
      }
  }

  // Two MMAs per fragment and k-block. In half tiles accumulators 0 and 1 are of the first k-block, 2 and 3 of the second.
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, float (&sums)[4][4], int first = 0) const {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int n = 0; n < 2 * S::kKBlocks; n++) {
        if (first + i >= S::kWarpFragments || !S::has(first + i, fragments, warp)) continue;
        const Word4 w = weights[first + i];
        uint32_t a[4];
        words_of<kStaged>(upper[i], n / 2, n % 2, a[0], a[2]);
        words_of<kStaged>(lower[i], n / 2, n % 2, a[1], a[3]);
        ptx::mma(sums[(2 * i * S::kKBlocks + n) % 4], a[0], a[1], a[2], a[3], n % 2 ? w.z : w.x, n % 2 ? w.w : w.y);
      }
  }
};

// Multiplies a warp's fragments of a chunk with inputs from shared memory. They are loaded again for every tile, a few fragments at a time.
template <class S>
MONOLANE_DEVICE void multiply_staged(const Word4 (&weights)[S::kWarpFragments], const uint16_t* from, int lower_row, int fragments, int warp,
                                     float (&sums)[4][4]) {
  constexpr int kTogether = divide_up(2, S::kKBlocks);
#pragma unroll
  for (int first = 0; first < S::kWarpFragments; first += kTogether) {
    PrefillInputs<S, true, kTogether> inputs;
    inputs.load(from, lower_row, fragments, warp, first);
    inputs.multiply(weights, fragments, warp, sums, first);
  }
}

// The same for low-bit weights, with inputs from shared or from global memory. In the latter their columns are in order.
template <class S, bool kStaged, class Weights>
MONOLANE_DEVICE void multiply_low_bit(const Weights& weights, const uint16_t* from, int lower_row, int fragments, int warp, float (&sums)[4][4]) {
  const auto words = [](const uint16_t* p) -> Word4 {
    if constexpr (kStaged) {
      const Word4 four = *reinterpret_cast<const Word4*>(p);
      return S::kIsFp8 ? Word4{four.x, four.z, four.y, four.w} : four;  // the columns in order
    }
    const uint64_t first = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(p)), last = ptx::load_relaxed(reinterpret_cast<const uint64_t*>(p + 16));
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(last), static_cast<uint32_t>(last >> 32)};
  };
#pragma unroll
  for (int i = 0; i < S::kWarpFragments; i++) {
    if (!S::has(i, fragments, warp)) continue;
    const uint16_t* at = from + i * kWarpgroupWarps * S::kFragmentCols;
    const auto inputs = [&](int group, Word4& upper, Word4& lower) {
      upper = words(at + group * kGroupCols);
      lower = words(at + group * kGroupCols + lower_row);
    };
    if constexpr (S::kIsFp8)
      multiply_fp8_rows(weights[i], sums[0], inputs);
    else
      multiply_widened(weights[i], lane_id(), sums, inputs);
  }
}

// Inputs that a warp keeps in registers from one tile to the next: of all its fragments of a chunk. kInputRows: 1 or kPassRows.
template <class S, int kInputRows>
struct KeptInputs {
  PrefillInputs<S, false, S::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int lower_row, int fragments, int warp, const ThreadOf<S, false>&) { inputs.load(from, lower_row, fragments, warp); }
  MONOLANE_DEVICE void multiply(const Word4 (&weights)[S::kWarpFragments], int fragments, int warp, const ThreadOf<S, false>&, float (&sums)[4][4]) const {
    inputs.multiply(weights, fragments, warp, sums);
  }
};
template <class S>
struct KeptInputs<S, 1> {
  DecodeInputs<S, 0, S::kWarpFragments> inputs;

  MONOLANE_DEVICE void load(const uint16_t* from, int, int fragments, int warp, const ThreadOf<S>& thread) { inputs.load(from, fragments, warp, thread); }
  template <class Weights>
  MONOLANE_DEVICE void multiply(const Weights& weights, int fragments, int warp, const ThreadOf<S>& thread, float (&sums)[4][4]) const {
    inputs.multiply(weights, fragments, warp, thread, sums);
  }
};

// Multiplies this worker's `tiles` tiles of one matrix, a batch of tiles at a time, for kInputRows rows (of which `rows` are in the pass).
//
// A warpgroup holds its next 1 to 3 chunks in registers and has released their slots. It loads the first ones before `prepare()`, which waits for the
// input, stores it at `x` and returns its norm factor. With 16 rows thread 4g + t has rows g and g + 8 of the input, at `x` and at x + lower_row, in shared
// memory if kStaged.
//
// After each batch `finish(result, row, sum, second sum, scale)` is called once for each result and row of the pass: `result` counts from the first
// of this worker, and where the projection is a gate, the two sums are those of the gate row and of the up row.
template <bool kPrefill, class P, int kInputRows, bool kStaged, class Prepare, class Finish>
MONOLANE_DEVICE void project(int tiles, Cursor<kPrefill>& cursor, const uint16_t* x, int lower_row, int rows, Prepare prepare, Finish finish) {
  constexpr int kTiles = kPrefill ? 1 : P::kChunkTiles;  // of a chunk
  constexpr int kSegments = kPrefill ? 1 : P::kSegments;
  using S = WarpgroupShare<P, kTiles, kSegments>;
  using Of = Sums<S, kInputRows>;
  constexpr int kBatch = Of::kBatch;
  constexpr int kAhead = kPrefill ? 1 : P::kAhead;  // chunks in registers
  constexpr bool kOneBatch = P::kMaxTiles <= kBatch;
  constexpr bool kByChunks = S::kOwnChunks > 1 && (kInputRows > 1 || kOneRowByChunks<P>);  // the same chunk of all tiles of a batch, then the next chunk
  static_assert(kTiles == 1 || (S::kSegmentChunks == 1 && kBatch % kTiles == 0), "a chunk of several tiles has whole ones, and lies in one batch");
  // Inputs stay in registers where all chunks of this warpgroup have the same input (1 row), or where they would come from L2 (16 rows; those of a
  // super-block are too many).
  constexpr bool kLowBit = P::Format::kIsLowBit, kIntegers = P::Format::kIsInteger && kInputRows == 1;
  constexpr bool kKeepsInputs = kInputRows > 1 ? !kStaged && !kLowBit : S::kOwnChunks == 1 || kByChunks;
  // Of the input, in elements: of a fragment; of a chunk; and between those of two neighbouring threads. A thread has its own group of each super-block
  // in integers (1 row), else a part of every group.
  constexpr int kInputStep = kIntegers ? S::kKBlocks * kBlockElements : P::kFragmentCols, kChunkStep = S::kChunkFragments * kInputStep;
  constexpr int kThreadStep = kLowBit && !kStaged ? 4 : 8;
  const uint32_t lane_index = kLowBit ? ptx::kept(lane_id()) : lane_id(), own_warp = warp_id();  // unsigned: divisions are shifts
  const int warpgroup = cursor.order, part = S::kWholeTiles ? 0 : warpgroup;
  const uint32_t turned = (own_warp + own_warp / kWarpgroupWarps * S::kTurn) % kWarpgroupWarps;
  const int team = kTiles > 1 ? turned / S::kTileWarps : 0, warp = turned % S::kTileWarps;
  const uint32_t own_x = warp * kInputStep + (kSegments > 1 ? 0 : part * kChunkStep);
  const ThreadOf<S, kIntegers> thread(lane_index, own_x);
  constexpr bool kOwnSums = kInputRows == 1 && kOneResult<P>;
  static_assert(!kOwnSums || kOneBatch, "a thread has one result of all batches");
  OwnSums<P, S> own_sums;
  if constexpr (kOwnSums && kIntegers) own_sums.find(tiles);  // early: behind the input every instruction counts. With bf16 there are no registers left for it.
  const uint16_t* thread_x = kIntegers ? x : x + lane_index % 4 * kThreadStep + own_x;
  const int chunks = divide_up(tiles, kTiles) * S::kChunks;
  const int own_chunks = S::kWholeTiles ? cursor.own_chunks(chunks) : divide_up(tiles, kTiles) * S::kOwnChunks;  // of this warpgroup
  int unloaded = own_chunks;                                                                  // of them, not in registers yet
  constexpr int kUnits = S::kTeamTiles * S::kWarpShares;  // shares of tiles that a warp has of a chunk
  using Weights = typename S::Weights;
  const typename S::Fragment::Thread place(lane_index, S::has_last(part, warp));
  // Whether each warpgroup has a chunk. Where it may have none, the weights are zeroed: otherwise the compiler keeps what the stage before has left in these
  // registers alive up to here, and spills.
  constexpr bool kHasChunk = P::kEndsStage && !P::kChooses && (!S::kWholeTiles || P::kMinTiles > (kWarpgroups - 1) * kTiles);
  Weights weights0, weights1 = {}, weights2 = {};
  if constexpr (!kHasChunk)
#pragma unroll
    for (auto& fragments : weights0)
#pragma unroll
      for (auto& fragment : fragments) fragment = {};
  const auto load_next = [&](Weights& weights, bool exists) {
    if (exists) cursor.release(cursor.template load_chunk<S>(weights, team, warp, place)), unloaded--;
  };
  const auto load_first = [&] {
    load_next(weights0, kHasChunk || unloaded > 0);
    if (kAhead > 1) load_next(weights1, unloaded > 0);
    if (kAhead > 2) load_next(weights2, unloaded > 0);
  };
  constexpr bool kLoadsFirst = kPrefill || !P::kChooses;  // where prepare() chooses the experts, nothing is streamed before
  if (kLoadsFirst) load_first();
  note_wait(kWaitActivations);
  const float scale = prepare();
  if (!P::kEndsStage && !tiles) return;  // the input was prepared for the projections that continue the stage
  note_wait(kWaitCopy);
  if (!kLoadsFirst) load_first();
  float sums[4][4] = {};
  int first = 0, count = min(kBatch, tiles);             // the first tile of the batch, and how many it has
  int tile = S::kWholeTiles ? warpgroup * kTiles : 0, chunk = 0;  // first tile of the chunk in the batch; chunk of the tile, counted among those of this warpgroup
  KeptInputs<S, kInputRows> kept[S::kWarpShares];
  const auto inputs = [&] {
    if constexpr (kSegments > 1) {
      constexpr int kSegmentStep = kIntegers ? kPaddedCols<P> / kBlockCols * kBlockElements : kPaddedCols<P>;
      const int own = chunk * kWarpgroups + part;
      return thread_x + own / S::kSegmentChunks * kSegmentStep + own % S::kSegmentChunks * kChunkStep;
    }
    return thread_x + (S::kOwnChunks > 1 ? chunk * kWarpgroups * kChunkStep : 0);
  };
  const auto fragments = [&] { return S::fragments_of((S::kOwnChunks > 1 ? chunk * kWarpgroups : 0) + part); };
  const auto keep_inputs = [&] {
    if constexpr (kKeepsInputs)
#pragma unroll
      for (int i = 0; i < S::kWarpShares; i++)
        kept[i].load(inputs() + i * S::kTileWarps * kInputStep, lower_row, fragments(), warp + i * S::kTileWarps, thread);
  };
  keep_inputs();
  const auto end_batch = [&] {
    sync_consumers();
    if constexpr (kOwnSums && !kIntegers) own_sums.find(tiles);
    if constexpr (kOwnSums)
      finish_own(own_sums, scale, finish);
    else
      finish_batch<P, S, kInputRows>(first, count, rows, scale, finish);
    first += kBatch, tile -= kBatch;
    if (kByChunks) tile = chunk = 0;
    count = min(kBatch, tiles - first);
    if (!kOneBatch && first < tiles) sync_consumers();  // the next batch overwrites the sums
  };
  // Multiplies the chunk in `weights` and loads the next chunk that is not in registers into them. Returns false when no chunk is left. Where there
  // is only one batch, end_batch() is called once after the loop and not in here: step() is inlined once for each chunk in registers, and a jump
  // over another copy of end_batch() waits for instructions that are not in the instruction cache.
  //
  // kReleasesLate: a slot is released when its chunk has been multiplied and the sums are stored. These depend on all loads from the slot, so that nothing
  // else has to wait for them. The first chunk has been released before: `releases` is set from the second one on, in the thread that releases `held`.
  constexpr bool kReleasesLate = kLowBit && kInputRows == 1;
  static_assert(!kReleasesLate || kAhead == 1, "the chunk in registers is the one in the slot");
  // Where a chunk has all tiles of one expert, a warp has the same shares of the same tiles in every chunk, and adds them up in registers.
  constexpr bool kAddsUp = kIntegers && kSegments > 1 && kTiles > 1 && kTiles >= P::kMaxTiles;
  static_assert(!kAddsUp || S::kSegmentChunks == 1, "a chunk has all columns of an expert");
  float added[kUnits] = {};
  bool releases = false;
  uint64_t* held = cursor.place.empty();
  int steps_left = own_chunks;
  const auto step = [&](Weights& weights) {
    if (kOneBatch && !kReleasesLate && !steps_left--) return false;
    while (!kOneBatch && tile >= count) {
      if (kByChunks && ++chunk < S::kOwnChunks) {
        tile = 0;
      } else {
        end_batch();
        if (first >= tiles) return false;
      }
      if (kByChunks) keep_inputs();
    }
    if (kOneBatch && kByChunks && !kAddsUp && tile >= count) tile = 0, chunk++, keep_inputs();
    // Of several units all but the last are done here. Behind a short chunk its slot holds older tiles: their sums are not stored.
    const auto tile_of = [&](int unit) { return tile + team + unit / S::kWarpShares * S::kTeams; };
    const auto exists = [&](int at) { return at < count; };
    const auto share_of = [&](int unit) { return warp + unit % S::kWarpShares * S::kTileWarps; };
    if constexpr (kAddsUp) {
#pragma unroll
      for (int i = 0; i < kUnits; i++) {
        kept[i % S::kWarpShares].multiply(weights[i], fragments(), share_of(i), thread, sums);
        added[i] += sums[0][0], sums[0][0] = 0.0f;
      }
      if (unloaded) chunk++, keep_inputs();
    } else if constexpr (kUnits > 1) {
#pragma unroll
      for (int i = 0; i + 1 < kUnits; i++) {
        kept[i % S::kWarpShares].multiply(weights[i], fragments(), share_of(i), thread, sums);
        store_sums<S, kInputRows>(Of::at(tile_of(i), part, share_of(i)), lane_index, sums, kByChunks && chunk > 0, exists(tile_of(i)));
      }
    }
    if constexpr (kAddsUp) {  // all units are done
    } else if constexpr (kKeepsInputs)
      kept[S::kWarpShares - 1].multiply(weights[kUnits - 1], fragments(), share_of(kUnits - 1), thread, sums);
    else if constexpr (kInputRows == 1)
      multiply_one<S, 0>(weights[0], inputs(), fragments(), warp, thread, sums);
    else if constexpr (kLowBit)
      multiply_low_bit<S, kStaged>(weights[0], inputs(), lower_row, fragments(), warp, sums);
    else
      multiply_staged<S>(weights[0], inputs(), lower_row, fragments(), warp, sums);
    if constexpr (!kReleasesLate) load_next(weights, unloaded > 0);
    if (!kAddsUp && (kByChunks || S::kOwnChunks == 1 || ++chunk == S::kOwnChunks)) {
      const int last = tile_of(kUnits - 1);
      store_sums<S, kInputRows>(Of::at(last, part, share_of(kUnits - 1)), lane_index, sums, kByChunks && chunk > 0,
                                          kTiles == 1 || exists(last));
      tile += S::kWholeTiles ? kWarpgroups * kTiles : kTiles;
      if (!kByChunks) chunk = 0;
    }
    if constexpr (kReleasesLate) {
      ptx::sync_warp();
      if (releases) ptx::mbarrier_arrive(held);
      if (!unloaded) return false;
      unloaded--;
      held = cursor.place.empty(), releases = lane_index == 0;
      cursor.template load_chunk<S>(weights, team, warp, place);
      cursor.place.advance(kWarpgroups);
    }
    return true;
  };
  if (!kReleasesLate || own_chunks) {
#pragma unroll 1
    while (step(weights0) && (kAhead < 2 || step(weights1)) && (kAhead < 3 || step(weights2))) {
    }
  }
  if constexpr (kAddsUp)
#pragma unroll
    for (int i = 0; i < kUnits; i++) {
      const int at = team + i / S::kWarpShares * S::kTeams, share = warp + i % S::kWarpShares * S::kTileWarps;
      sums[0][0] = added[i];
      store_sums<S, kInputRows>(Of::at(at, part, share), lane_index, sums, false, at < count);
    }
  if (kOneBatch)
    end_batch();
  else if (kReleasesLate)
    while (first < tiles) end_batch();
  cursor.skip(chunks);
}

}  // namespace monolane
