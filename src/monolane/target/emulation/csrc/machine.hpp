// The state of one emulated thread block: a fiber for each CUDA thread, meetings (where the threads of a warp or of a named barrier wait for
// each other), shared memory, mbarriers, and bulk copies, which land some turns later and in any order. In one turn the scheduler
// (scheduler.hpp) resumes each fiber that can run once, until the fiber yields. Misuse ends the process with a message.
#pragma once

#include <time.h>

#include <cstdarg>
#include <vector>

#include "fibers.hpp"

namespace monolane::emulate {

// --- what a test may set before a launch ---
inline int delay_permille = 0;  // of 1,000 calls, how many delay the CUDA thread for some turns
inline uint64_t seed = 1;       // of the random delays and of the random time that copies take
inline double patience_s = 60;  // seconds without progress in any thread block after which a deadlock is reported

constexpr int kLanes = 32;
constexpr int kNamedBarriers = 16;
constexpr int kMostThreads = 1024;
constexpr size_t kMostShared = 227 * 1024;        // bytes per thread block on sm_90
constexpr int kMostCopies = 1024;                 // in flight in one thread block
constexpr int kCopyTurns = 16, kDelayTurns = 24;  // most turns of a copy and of a delay
constexpr size_t kStack = (MONOLANE_TSAN ? 256 : 64) * 1024;  // bytes of a fiber's stack; ThreadSanitizer needs some for its reports

// A reusable barrier, where `expected` CUDA threads wait for each other.
struct Meeting {
  uint32_t generation = 0;  // how often it has opened
  int arrived = 0;
  int expected = 0;
  const char* what = nullptr;  // the function that the threads have called
  // For ThreadSanitizer: each thread releases it on arrival and acquires it on leaving. Generations alternate between the two words, so that
  // arrivals of the next generation are not acquired.
  uint32_t order[2] = {};
};

struct Warp {
  Meeting meeting;
  int finished = 0;  // threads that have left the kernel
  // Operands and results of shuffles and `any`.
  uint64_t value[kLanes];
  int source[kLanes];
  uint64_t result[kLanes];
  // Operands and results of `mma`.
  uint32_t a[kLanes][4], b[kLanes][2];
  float c[kLanes][4], sum[kLanes][4];
  int32_t integer_c[kLanes][4], integer_sum[kLanes][4];
};

struct Fiber {
  Pages stack{kStack};
  Context context;
  int index = 0;
  Warp* warp = nullptr;
  int delay = 0;                   // turns before it is resumed
  const uint32_t* gate = nullptr;  // the fiber is not resumed while *gate equals `closed`
  uint32_t closed = 0;
  const char* waits = "its first turn";  // what it waits for, for the report of a deadlock
  bool finished = false;
};

struct Copy {
  void* to;
  const void* from;
  uint32_t bytes;
  uint64_t* barrier;
  int turns;  // until it lands
};

struct Block;

// One launch.
struct Run {
  void (*kernel)(const void* launch);
  const void* launch;
  std::vector<Block*> blocks;
  int64_t progress_ns = 0;  // when any thread block last did something other than polling
};

// One thread block.
struct Block {
  Block(Run& run, int index, int threads, size_t shared_bytes);
  Block(const Block&) = delete;
  ~Block();
  void execute();

  Run& run;
  const int index, threads;
  const size_t shared_bytes;
  const Pages shared_pages;
  char* const shared;
  Fiber* const fibers;
  Warp* const warps;
  Meeting named[kNamedBarriers];
  Copy copies[kMostCopies];
  int in_flight = 0;
  uint32_t issued = 0;  // for ThreadSanitizer: released when a copy is issued, acquired when it lands
  Context scheduler;
  Fiber* current = nullptr;  // the fiber that runs; null while the scheduler runs
  uint64_t random;
  bool progress = false;  // whether a fiber did something other than polling since the last turn
  int finished = 0;       // fibers that have left the kernel
  uint32_t ended = 0;     // for ThreadSanitizer: released by every fiber at its end

 private:
  void land_copies();
  void deadlock();
};

inline thread_local Block* here = nullptr;  // the thread block that this thread of the operating system runs

MONOLANE_UNTRACKED Block& block() { return *here; }
MONOLANE_UNTRACKED int thread() { return here->current->index; }
MONOLANE_UNTRACKED int lane() { return here->current->index % kLanes; }
MONOLANE_UNTRACKED Warp& warp() { return *here->current->warp; }

inline int64_t steady_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t(1000000000) + now.tv_nsec;
}

// Ends the process with a message that names the CUDA thread.
[[noreturn, gnu::format(printf, 1, 2)]] inline void fail(const char* format, ...) {
  if (here != nullptr && here->current != nullptr)
    std::fprintf(stderr, "monolane emulation: block %d, thread %d: ", here->index, here->current->index);
  else
    std::fprintf(stderr, "monolane emulation: ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

// --- turns ---

// A pseudo-random number in [0, below).
MONOLANE_UNTRACKED uint32_t draw(Block& block, uint32_t below) {
  block.random = block.random * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>((block.random >> 33) % below);
}

// The current fiber yields to the scheduler. `what`: what it waits for.
MONOLANE_UNTRACKED void give_turn(const char* what) {
  Block& self = *here;
  Fiber& fiber = *self.current;
  fiber.waits = what;
  switch_context(fiber.context, self.scheduler);
}

MONOLANE_UNTRACKED void delay_sometimes() {
  if (delay_permille <= 0 || draw(*here, 1000) >= static_cast<uint32_t>(delay_permille)) return;
  here->current->delay = 1 + static_cast<int>(draw(*here, kDelayTurns));
  give_turn("an injected delay");
}

MONOLANE_UNTRACKED void note_progress(Block& block) { block.progress = true; }

// Functions that other CUDA threads can observe begin with one of these two: `act` counts as progress, `poll` yields and does not. The
// exceptions, which neither yield nor delay, are load_shared_acquire, store_shared_release, fence and load_l2.
MONOLANE_UNTRACKED void act() {
  delay_sometimes();
  note_progress(*here);
}
MONOLANE_UNTRACKED void poll(const char* what) {
  delay_sometimes();
  give_turn(what);
}

// --- meetings ---

MONOLANE_UNTRACKED uint32_t* order_of(Meeting& meeting) { return &meeting.order[meeting.generation & 1]; }

// Returns true for the last thread to arrive, which does the work for all threads and then calls `open`. For the other threads it returns false
// once the meeting has been opened. All threads must call the same function, with the same number of threads.
MONOLANE_UNTRACKED bool meet(Meeting& meeting, int expected, const char* what) {
  if (meeting.arrived == 0) {
    meeting.expected = expected;
    meeting.what = what;
  }
  if (meeting.what != what) fail("calls %s where others wait at %s", what, meeting.what);
  if (meeting.expected != expected) fail("calls %s for %d threads, others for %d", what, expected, meeting.expected);
  if (++meeting.arrived == expected) return true;
  Fiber& fiber = *here->current;
  fiber.gate = &meeting.generation;
  fiber.closed = meeting.generation;
  give_turn(what);
  return false;
}
MONOLANE_UNTRACKED void open(Meeting& meeting) {
  meeting.arrived = 0;
  ++meeting.generation;
  note_progress(*here);
}

// The meeting of all threads of a warp. It orders no memory by itself, as on the GPU.
MONOLANE_UNTRACKED bool meet_warp(Warp& warp, const char* what) {
  delay_sometimes();
  if (warp.finished > 0) fail("calls %s after %d lanes of its warp have left the kernel", what, warp.finished);
  return meet(warp.meeting, kLanes, what);
}

// Meetings that order memory: after them each thread sees what the other threads wrote before them.
inline void synchronise(Meeting& meeting, int expected) {
  uint32_t* order = order_of(meeting);
  __atomic_fetch_add(order, 1, __ATOMIC_RELEASE);
  if (meet(meeting, expected, "sync")) open(meeting);
  (void)__atomic_load_n(order, __ATOMIC_ACQUIRE);
}
inline void synchronise_warp(Warp& warp) {
  uint32_t* order = order_of(warp.meeting);
  __atomic_fetch_add(order, 1, __ATOMIC_RELEASE);
  if (meet_warp(warp, "sync_warp")) open(warp.meeting);
  (void)__atomic_load_n(order, __ATOMIC_ACQUIRE);
}

// --- mbarriers ---

// The 64 bits of an mbarrier.
struct CopyBarrier {
  int32_t bytes;                      // expected bytes that have not landed; negative when bytes land before they are expected
  uint16_t pending;                   // arrivals that are missing in this phase
  uint16_t arrivals : 15, phase : 1;  // arrivals of every phase; parity of the phase
};
constexpr int kMostArrivals = 0x7ffe;  // 0x7fff is what shared memory that was never written reads as

inline uint64_t pack(CopyBarrier state) { return __builtin_bit_cast(uint64_t, state); }
MONOLANE_UNTRACKED CopyBarrier unpack(uint64_t word) {
  const auto state = __builtin_bit_cast(CopyBarrier, word);
  if (state.arrivals > kMostArrivals) fail("uses an mbarrier before mbarrier_init");
  return state;
}

// Fails unless `bytes` bytes at `p` lie in the shared memory of this thread block and are aligned.
inline void check_shared(const void* p, size_t bytes, size_t alignment, const char* what) {
  const Block& self = block();
  const char* begin = static_cast<const char*>(p);
  if (begin < self.shared || begin + bytes > self.shared + self.shared_bytes)
    fail("%s: %zu bytes at %p are not within the %zu bytes of shared memory at %p", what, bytes, p, self.shared_bytes,
         static_cast<void*>(self.shared));
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) fail("%s: %p is not %zu-byte aligned", what, p, alignment);
}

// Counts arrivals and expected (or, if negative, landed) bytes, and completes the phase when none are missing. Only one thread of the operating
// system runs a thread block, so the read-modify-write need not be atomic; the exchange is a release for ThreadSanitizer.
inline void update_barrier(uint64_t* barrier, int arrivals, int64_t expected_bytes) {
  CopyBarrier state = unpack(__atomic_load_n(barrier, __ATOMIC_RELAXED));
  if (arrivals > state.pending) fail("arrives at a barrier whose %d arrivals of this phase are in", state.arrivals);
  const int64_t bytes = state.bytes + expected_bytes;
  if (bytes >= 1 << 20 || bytes <= -(1 << 20)) fail("a barrier counts %lld bytes: more than 2^20 - 1", (long long)bytes);
  state.pending = static_cast<uint16_t>(state.pending - arrivals);
  state.bytes = static_cast<int32_t>(bytes);
  if (state.pending == 0 && state.bytes == 0) {
    state.phase = !state.phase;
    state.pending = state.arrivals;
  }
  __atomic_exchange_n(barrier, pack(state), __ATOMIC_RELEASE);
}

// --- bulk copies ---

MONOLANE_UNTRACKED void enqueue(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  Block& self = *here;
  if (self.in_flight == kMostCopies) fail("bulk_copy: %d copies are in flight", kMostCopies);
  self.copies[self.in_flight++] = {to, from, bytes, barrier, 1 + static_cast<int>(draw(self, kCopyTurns))};
}

// Removes a copy whose time has come. Where there is none, all copies come one turn nearer, and it returns false.
MONOLANE_UNTRACKED bool dequeue(Block& self, Copy& landed) {
  for (int i = 0; i < self.in_flight; ++i) {
    if (self.copies[i].turns > 0) continue;
    landed = self.copies[i];
    self.copies[i] = self.copies[--self.in_flight];
    return true;
  }
  for (int i = 0; i < self.in_flight; ++i) --self.copies[i].turns;
  return false;
}

inline void Block::land_copies() {
  for (Copy copy; dequeue(*this, copy);) {
    (void)__atomic_load_n(&issued, __ATOMIC_ACQUIRE);
    std::memcpy(copy.to, copy.from, copy.bytes);
    update_barrier(copy.barrier, 0, -static_cast<int64_t>(copy.bytes));
    note_progress(*this);
  }
}

}  // namespace monolane::emulate
