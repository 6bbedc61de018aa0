// The background of a latency measurement: one thread of a thread block keeps `in_flight` bulk copies in flight while the other warps measure.
// Included by handoff.cu and exchange.cu, whose Launch has the memory, share_chunks, in_flight, stamps and failed that are used here.

namespace monolane {

constexpr int kChunkBytes = 16384;
constexpr int kFlagBytes = 16;          // of shared memory, for flags of the thread block; the first is `done`
constexpr int kPollsPerClockRead = 16;  // the clock is read once per so many polls
constexpr int kStamps = 5;              // of a thread block: rounds began, ended, streaming began, ended (ns), chunks streamed

MONOLANE_DEVICE int64_t* stamps() { return monolane_launch.stamps + kStamps * ptx::block_index(); }

// Shared memory: a slot for each copy in flight, an mbarrier for each, the flags, and what the measurement itself needs.
struct Shared {
  MONOLANE_DEVICE static char* slot(int index) { return ptx::shared_memory() + index * kChunkBytes; }
  MONOLANE_DEVICE static uint64_t* landed() { return reinterpret_cast<uint64_t*>(slot(monolane_launch.in_flight)); }
  // Every mbarrier has room for two, so that what follows is aligned to 16 bytes.
  MONOLANE_DEVICE static uint32_t* done() { return reinterpret_cast<uint32_t*>(landed() + 2 * monolane_launch.in_flight); }
  MONOLANE_DEVICE static char* rest() { return reinterpret_cast<char*>(done()) + kFlagBytes; }
};

// Each slot gets a new copy as soon as the previous one has landed, until `done` is set. The copied bytes are not used.
class Stream {
 public:
  MONOLANE_DEVICE explicit Stream(int64_t deadline) : deadline_(deadline) {}

  MONOLANE_DEVICE void run() {
    const int64_t began = ptx::now_ns();
    const Word4* share = monolane_launch.memory + ptx::block_index() * monolane_launch.share_chunks * (kChunkBytes / 16);
    int64_t chunks = 0;
    for (int64_t next = 0; wait() && !ptx::load_shared(Shared::done()); chunks++, advance()) {
      ptx::mbarrier_arrive_expect(Shared::landed() + slot_, kChunkBytes);
      ptx::bulk_copy(Shared::slot(slot_), share + next * (kChunkBytes / 16), kChunkBytes, Shared::landed() + slot_);
      if (++next == monolane_launch.share_chunks) next = 0;
    }
    for (int left = 0; left < monolane_launch.in_flight && wait(); left++) advance();  // no copy may land after the kernel has ended
    stamps()[2] = began;
    stamps()[3] = ptx::now_ns();
    stamps()[4] = chunks;
  }

 private:
  // Waits until the slot's copy has landed. False after the deadline.
  MONOLANE_DEVICE bool wait() {
    for (int polls = 1; !ptx::mbarrier_try_wait(Shared::landed() + slot_, parity_); polls++)
      if (polls % kPollsPerClockRead == 0 && ptx::now_ns() > deadline_) {
        ptx::store_relaxed(monolane_launch.failed, 1u);
        return false;
      }
    return true;
  }
  MONOLANE_DEVICE void advance() {
    if (++slot_ == monolane_launch.in_flight) slot_ = 0, parity_ ^= 1;
  }

  int64_t deadline_;
  int slot_ = 0;
  uint32_t parity_ = 1;  // waiting for parity 1 of a new mbarrier returns at once: its slot is free
};

// Initialises the mbarriers and clears the flags; all kThreads threads of the thread block call it.
template <int kThreads>
MONOLANE_DEVICE void prepare_shared() {
  if (ptx::thread_index() == 0) {
    for (int slot = 0; slot < monolane_launch.in_flight; slot++) ptx::mbarrier_init(Shared::landed() + slot, 1);
    ptx::mbarrier_init_fence();
    for (int word = 0; word < kFlagBytes / 4; word++) ptx::store_shared(Shared::done() + word, 0);
  }
  ptx::named_barrier<0, kThreads>();
}

}  // namespace monolane
