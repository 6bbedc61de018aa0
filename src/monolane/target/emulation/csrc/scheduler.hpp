// How thread blocks run: each in one thread of the operating system, turn after turn, until all its fibers have left the kernel. A thread block
// whose fibers only poll yields its core to the other thread blocks. When no thread block makes progress, the process ends with a report of
// what each fiber waits for.
#pragma once

#include <pthread.h>
#include <sched.h>

#include "machine.hpp"

namespace monolane::emulate {

constexpr int kIdleTurns = 8;  // turns without progress after which a thread block yields its core

inline Block::Block(Run& run_, int index_, int threads_, size_t shared_bytes_)
    : run(run_),
      index(index_),
      threads(threads_),
      shared_bytes(shared_bytes_),
      shared_pages(shared_bytes_ + 128),
      shared(shared_pages.end() - (shared_bytes_ + 127) / 128 * 128),  // ends at the guard page
      fibers(new Fiber[static_cast<size_t>(threads_)]),
      warps(new Warp[static_cast<size_t>(threads_ / kLanes)]),
      random(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index_)) {
  std::memset(shared, 0xff, shared_bytes);  // NaN when read as floats
  for (int i = 0; i < threads; ++i) {
    fibers[i].index = i;
    fibers[i].warp = &warps[i / kLanes];
  }
}

inline Block::~Block() {
  delete[] fibers;
  delete[] warps;
}

// The end of a fiber. The scheduler does not resume it.
MONOLANE_UNTRACKED void leave() {
  Block& self = *here;
  Fiber& fiber = *self.current;
  Warp& warp = *fiber.warp;
  if (warp.meeting.arrived > 0) fail("leaves the kernel while its warp waits at %s", warp.meeting.what);
  ++warp.finished;
  ++self.finished;
  fiber.finished = self.progress = true;
  give_turn("nothing: it has left");
}

inline void fiber_main() {
  Block& self = block();
  self.run.kernel(self.run.launch);
  __atomic_fetch_add(&self.ended, 1, __ATOMIC_RELEASE);
  leave();
}

// One turn: resumes every fiber that can run. Returns whether there was one, or one that is only delayed.
MONOLANE_UNTRACKED bool give_turns(Block& self, Fiber* fibers) {
  bool awake = false;
  for (int i = 0; i < self.threads; ++i) {
    Fiber& fiber = fibers[i];
    if (fiber.finished || (fiber.gate != nullptr && *fiber.gate == fiber.closed)) continue;
    awake = true;
    if (fiber.delay > 0 && --fiber.delay > 0) continue;
    fiber.gate = nullptr;
    self.current = &fiber;
    switch_context(self.scheduler, fiber.context);
    self.current = nullptr;
  }
  return awake;
}

MONOLANE_UNTRACKED const char* waits_of(const Fiber& fiber) { return fiber.waits; }
MONOLANE_UNTRACKED bool all_left(const Block& block) { return block.finished == block.threads; }
// Whether there was progress since the last call. Copies in flight count as progress.
MONOLANE_UNTRACKED bool take_progress(Block& block) {
  const bool progress = block.progress || block.in_flight > 0;
  block.progress = false;
  return progress;
}

// Reports, for every thread block, how many threads wait for what.
inline void Block::deadlock() {
  char* report = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&report, &size);
  std::fprintf(out, "deadlock: no progress");
  for (const Block* each : run.blocks) {
    std::fprintf(out, "\n  block %d:", each->index);
    const auto same = [&](int i, int j) { return std::strcmp(waits_of(each->fibers[i]), waits_of(each->fibers[j])) == 0; };
    for (int i = 0; i < threads; ++i) {
      int first = 0, count = 0;
      while (first < i && !same(first, i)) ++first;
      for (int j = i; j < threads; ++j) count += same(i, j);
      if (first == i) std::fprintf(out, " %d threads wait for %s;", count, waits_of(each->fibers[i]));
    }
  }
  std::fclose(out);
  fail("%s", report);
}

inline void Block::execute() {
  here = this;
  scheduler.begin_here();
  for (int i = 0; i < threads; ++i) fibers[i].context.begin(fibers[i].stack, i, fiber_main);
  for (int idle_turns = 0; !all_left(*this);) {
    const bool awake = give_turns(*this, fibers);
    land_copies();
    if (take_progress(*this)) {
      idle_turns = 0;
      __atomic_store_n(&run.progress_ns, steady_ns(), __ATOMIC_RELAXED);
    } else if (!awake) {
      deadlock();  // every fiber waits at a meeting of this thread block
    } else if (++idle_turns > kIdleTurns) {
      if (steady_ns() - __atomic_load_n(&run.progress_ns, __ATOMIC_RELAXED) > patience_s * 1e9) deadlock();
      sched_yield();
    }
  }
  (void)__atomic_load_n(&ended, __ATOMIC_ACQUIRE);
  for (int i = 0; i < threads; ++i) fibers[i].context.end();
  if (in_flight > 0) fail("block %d has ended with %d copies in flight", index, in_flight);
  here = nullptr;
}

inline void* execute_block(void* block) {
  static_cast<Block*>(block)->execute();
  return nullptr;
}

// Runs the kernel as <<<blocks, threads, shared_bytes>>> would, and returns when all threads have left it.
template <class Launch>
void launch(void (*kernel)(Launch), const Launch& launch, int blocks, int threads, size_t shared_bytes) {
  if (blocks < 1 || threads < kLanes || threads > kMostThreads || threads % kLanes != 0 || shared_bytes > kMostShared)
    fail("cannot launch %d blocks of %d threads and %zu bytes: threads are whole warps, at most %d; bytes at most %zu",
         blocks, threads, shared_bytes, kMostThreads, kMostShared);
  struct Call {
    void (*kernel)(Launch);
    const Launch& launch;
  } const call{kernel, launch};
  Run run{[](const void* given) { static_cast<const Call*>(given)->kernel(static_cast<const Call*>(given)->launch); }, &call, {}, steady_ns()};
  for (int i = 0; i < blocks; ++i) run.blocks.push_back(new Block(run, i, threads, shared_bytes));
  std::vector<pthread_t> running(blocks);
  for (int i = 0; i < blocks; ++i)
    if (pthread_create(&running[i], nullptr, execute_block, run.blocks[i]) != 0) fail("no thread for block %d", i);
  for (int i = 0; i < blocks; ++i) {
    pthread_join(running[i], nullptr);
    delete run.blocks[i];
  }
}

}  // namespace monolane::emulate
