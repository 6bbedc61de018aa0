// Measures an exchange: an all-reduce among lanes, which are groups of consecutive thread blocks (workers) of one launch. Every lane has a partial
// of each of `values` fp32 values, divided among its workers by rows in the same way on every lane. A round is one exchange, by one of three protocols:
//
//   kOwnRows   A worker pushes its partials into the mailbox of every other lane, as 64-bit tagged words (fp32 value, round). The worker of the same
//              rank there polls the words of all lanes at once and adds them in the order of the lanes, so that all lanes have the same bits.
//   kTwoHops   The same, and then the lane's ordinary hand-off: the worker publishes its sums as 32-bit tagged words (bf16 value, round) to its own
//              lane, and every worker reads all of them into shared memory.
//   kOneHop    Partials are pushed into the mailboxes of all lanes, and every worker reads and adds all partials of all lanes itself: one trip through
//              memory instead of two, but `kLanes` times the words to read.
//
// Mailboxes and hand-off words have two copies, for alternate rounds. A worker that writes a copy again has read the words of the round between, and
// their writers had read the copy before. In kOwnRows this holds thread by thread, because a thread reads the rows that it sends; otherwise a barrier
// of the thread block ends each round. Where there are fewer lines of words than workers, some workers write nothing, and no word shows whether they
// have read: then there are more copies, and all workers confirm once per half of them (see `confirm`). In a model the next stage does that.
//
// One thread of a further warp streams bulk copies (stream.cuh). The lines generated before this one include ptx.cuh (or emulate.hpp), define Protocol,
// kLanes and ExchangeLaunch of exchange_gpu.py as Launch, and contain stream.cuh.

constexpr int kReaders = 256, kThreads = kReaders + 32;

namespace monolane {

constexpr int kLinePairs = 8;    // pairs of 64-bit words in a line of 128 bytes: no line of a mailbox has two writers
constexpr int kQuadsAtOnce = 4;  // loads of a hand-off that a thread has in flight
constexpr int kPatterns = 16;    // partials repeat after so many rounds, so that the host can compute what all sums must be
constexpr int kTagMask = 0xffff;

// Any mixture of the bits of row, round and lane: exchange_gpu.py computes the same. The result is within +-128 and has 24 significant bits, so
// the order of additions shows in the sum.
MONOLANE_DEVICE float partial(int row, uint32_t round, int lane) {
  uint32_t bits = static_cast<uint32_t>(row) << 8 | (round % kPatterns) << 4 | static_cast<uint32_t>(lane);
  bits *= 0x9e3779b1u;
  bits ^= bits >> 15;
  bits *= 0x85ebca77u;
  return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24f;
}

MONOLANE_DEVICE uint64_t tagged(float value, uint32_t round) { return uint64_t{ptx::bits_of(value)} << 32 | round; }
MONOLANE_DEVICE float value_of(uint64_t word) { return ptx::float_of(static_cast<uint32_t>(word >> 32)); }

MONOLANE_DEVICE bool has_tag(const LongWord2& pair, uint32_t round) {
  return static_cast<uint32_t>(pair.x) == round && static_cast<uint32_t>(pair.y) == round;
}
MONOLANE_DEVICE bool has_tag(const Word4& quad, uint32_t round) {
  return (((quad.x ^ round) | (quad.y ^ round) | (quad.z ^ round) | (quad.w ^ round)) & kTagMask) == 0;
}

class Rounds {
 public:
  MONOLANE_DEVICE explicit Rounds(int64_t deadline)
      : deadline_(deadline), lane_(ptx::block_index() / monolane_launch.workers), pairs_(monolane_launch.values / 2) {
    const int rank = ptx::block_index() % monolane_launch.workers, workers = monolane_launch.workers;
    lines_ = (pairs_ + kLinePairs - 1) / kLinePairs;
    first_ = rank * lines_ / workers * kLinePairs;
    end_ = min((rank + 1) * lines_ / workers * kLinePairs, pairs_);
  }

  // Returns the sum of the bits of all values that this thread has received. A thread that missed the deadline goes on without waiting.
  MONOLANE_DEVICE uint32_t run() {
    const uint32_t warm_up = monolane_launch.warm_up, last = warm_up + monolane_launch.rounds;
    for (uint32_t round = 1; round <= last; round++) {
      if (round == warm_up + 1 && ptx::thread_index() == 0) stamps()[0] = ptx::now_ns();
      if (monolane_launch.protocol == kOneHop)
        one_hop(round);
      else if (monolane_launch.protocol == kTwoHops)
        two_hops(round);
      else
        reduce<false>(round);
      if (monolane_launch.protocol != kOwnRows && monolane_launch.copies > 2) confirm(round);
    }
    if (ptx::thread_index() == 0) stamps()[1] = ptx::now_ns();
    return bits_;
  }

  // Copies what the last round has left in shared memory to where the host compares it. A round in kOwnRows fills in a worker's own rows alone.
  MONOLANE_DEVICE void report() const {
    ptx::named_barrier<1, kReaders>();
    float* to = monolane_launch.received + static_cast<int64_t>(ptx::block_index()) * monolane_launch.values;
    for (int row = ptx::thread_index(); row < monolane_launch.values; row += kReaders) to[row] = received()[row];
  }

  // Keeps this worker streaming until the last worker has ended its rounds.
  MONOLANE_DEVICE void await_all_workers() {
    if (ptx::thread_index() != 0) return;
    ptx::add_release(monolane_launch.finished, 1);
    const uint32_t all = kLanes * monolane_launch.workers;
    for (int polls = 1; ptx::load_acquire(monolane_launch.finished) < all && !too_late(polls); polls++) ptx::nanosleep(1000);
    ptx::store_shared(Shared::done(), 1);
  }

 private:
  MONOLANE_DEVICE static float* received() { return reinterpret_cast<float*>(Shared::rest()); }

  // The words that lane `from` sends to lane `to`: a pair for every two rows.
  MONOLANE_DEVICE LongWord2* mailbox(uint32_t round, int to, int from) const {
    return monolane_launch.mailboxes + (static_cast<int64_t>(copy(round) * kLanes + to) * kLanes + from) * lines_ * kLinePairs;
  }
  // The hand-off words of this lane.
  MONOLANE_DEVICE uint32_t* words(uint32_t round) const {
    return monolane_launch.words + static_cast<int64_t>(copy(round) * kLanes + lane_) * monolane_launch.values;
  }
  MONOLANE_DEVICE static int copy(uint32_t round) { return round & (monolane_launch.copies - 1); }  // of a power of two
  MONOLANE_DEVICE LongWord2 own(int pair, uint32_t round) const {
    return {tagged(partial(2 * pair, round, lane_), round), tagged(partial(2 * pair + 1, round, lane_), round)};
  }

  MONOLANE_DEVICE void two_hops(uint32_t round) {
    reduce<true>(round);
    ptx::named_barrier<1, kReaders>();  // no warp polls for the sums of other workers while this worker still waits for its own
    gather(round);
    ptx::named_barrier<1, kReaders>();
  }

  MONOLANE_DEVICE void one_hop(uint32_t round) {
    for (int pair = first_ + ptx::thread_index(); pair < end_; pair += kReaders) {
      const LongWord2 mine = own(pair, round);
#pragma unroll
      for (int to = 0; to < kLanes; to++) ptx::store_relaxed(mailbox(round, to, lane_) + pair, mine);
    }
    for (int start = 0; start < pairs_; start += kReaders) {
      const int pair = start + ptx::thread_index();
      LongWord2 got[kLanes];
      const LongWord2* from[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; lane++) from[lane] = pair < pairs_ ? mailbox(round, lane_, lane) + pair : nullptr;
      await(got, from, round);
      if (pair < pairs_) keep(add(got), pair);
    }
    ptx::named_barrier<1, kReaders>();
  }

  // Every worker counts itself at the end of the rounds that half of the copies divide, and looks half of the copies later whether all have done so.
  // That costs one load, since nobody is as late as that.
  MONOLANE_DEVICE void confirm(uint32_t round) {
    const uint32_t half = monolane_launch.copies / 2, all = kLanes * monolane_launch.workers;
    if (round % half == 0 && ptx::thread_index() == 0) ptx::add_release(monolane_launch.confirmed, 1);
    if (round % half != half - 1) return;
    if (ptx::thread_index() == 0)
      for (int polls = 1; ptx::load_acquire(monolane_launch.confirmed) < round / half * all && !too_late(polls); polls++) {
      }
    ptx::named_barrier<1, kReaders>();
  }

  // Sends this worker's partials to the other lanes and receives theirs; with kPublish, the sums are published to this lane.
  template <bool kPublish>
  MONOLANE_DEVICE void reduce(uint32_t round) {
    for (int pair = first_ + ptx::thread_index(); pair < end_; pair += kReaders) {
      const LongWord2 mine = own(pair, round);
#pragma unroll
      for (int ahead = 1; ahead < kLanes; ahead++) ptx::store_relaxed(mailbox(round, (lane_ + ahead) % kLanes, lane_) + pair, mine);
    }
    for (int start = first_ + ptx::thread_index() / 32 * 32; start < end_; start += kReaders) {
      const int pair = start + ptx::thread_index() % 32;
      const LongWord2 mine = own(pair, round);
      LongWord2 got[kLanes];
      const LongWord2* from[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; lane++) {
        got[lane] = mine;
        from[lane] = pair >= end_ || lane == lane_ ? nullptr : mailbox(round, lane_, lane) + pair;
      }
      await(got, from, round);
      if (pair >= end_) continue;
      const Sums sums = add(got);
      if (!kPublish) {
        keep(sums, pair);
      } else {
        const uint32_t both = ptx::bf16_pair(sums.first, sums.second);
        const uint64_t low = both << 16 | round, high = (both & 0xffff0000u) | round;
        ptx::store_relaxed(reinterpret_cast<uint64_t*>(words(round)) + pair, high << 32 | low);
      }
    }
  }

  // Reads the sums of all workers of this lane.
  MONOLANE_DEVICE void gather(uint32_t round) {
    const Word4* quads = reinterpret_cast<const Word4*>(words(round));
    const int count = monolane_launch.values / 4;
    for (int start = 0; start < count; start += kReaders * kQuadsAtOnce) {
      const int quad = start + ptx::thread_index();
      Word4 got[kQuadsAtOnce];
      const Word4* from[kQuadsAtOnce];
#pragma unroll
      for (int i = 0; i < kQuadsAtOnce; i++) from[i] = quad + i * kReaders < count ? quads + quad + i * kReaders : nullptr;
      await(got, from, round);
#pragma unroll
      for (int i = 0; i < kQuadsAtOnce; i++) {
        if (!from[i]) continue;
        const Word4 values = {got[i].x & 0xffff0000u, got[i].y & 0xffff0000u, got[i].z & 0xffff0000u, got[i].w & 0xffff0000u};
        reinterpret_cast<Word4*>(received())[quad + i * kReaders] = values;
        bits_ += values.x + values.y + values.z + values.w;
      }
    }
  }

  // Polls the words at all addresses that are not null, at once, until the warp has all of its words of this round. All threads of a warp call it.
  template <int kCount, class Word>
  MONOLANE_DEVICE void await(Word (&got)[kCount], const Word* const (&from)[kCount], uint32_t round) {
    bool missing[kCount];
#pragma unroll
    for (int i = 0; i < kCount; i++) missing[i] = from[i] != nullptr;
    for (int polls = 1;; polls++) {
      bool wait = false;
#pragma unroll
      for (int i = 0; i < kCount; i++)
        if (missing[i]) got[i] = ptx::load_relaxed(from[i]);
#pragma unroll
      for (int i = 0; i < kCount; i++) {
        missing[i] = missing[i] && !has_tag(got[i], round);
        wait = wait || missing[i];
      }
      if (!ptx::any(wait && !too_late(polls))) return;
    }
  }

  struct Sums {
    float first, second;
  };
  // Adds the partials of a pair of rows in the order of the lanes.
  MONOLANE_DEVICE static Sums add(const LongWord2 (&got)[kLanes]) {
    Sums sums = {value_of(got[0].x), value_of(got[0].y)};
#pragma unroll
    for (int lane = 1; lane < kLanes; lane++) sums.first += value_of(got[lane].x), sums.second += value_of(got[lane].y);
    return sums;
  }

  MONOLANE_DEVICE void keep(const Sums& sums, int pair) {
    received()[2 * pair] = sums.first;
    received()[2 * pair + 1] = sums.second;
    bits_ += ptx::bits_of(sums.first) + ptx::bits_of(sums.second);
  }

  MONOLANE_DEVICE bool too_late(int polls) {
    if (late_ || polls % kPollsPerClockRead || ptx::now_ns() <= deadline_) return late_;
    ptx::store_relaxed(monolane_launch.failed, 1u);
    return late_ = true;
  }

  int64_t deadline_;
  int lane_, pairs_, lines_;  // this worker's lane; pairs of rows of all workers, and lines of 128 bytes that their words take
  int first_, end_;           // pairs that this worker owns
  uint32_t bits_ = 0;
  bool late_ = false;
};

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  prepare_shared<kThreads>();
  if (ptx::thread_index() < kReaders) {
    Rounds rounds(deadline);
    const uint32_t bits = rounds.run();
    rounds.await_all_workers();
    rounds.report();
    ptx::add_global(monolane_launch.sum, uint64_t{bits});
  } else if (ptx::thread_index() == kReaders && monolane_launch.in_flight) {
    Stream(deadline).run();
  }
}
