// Measures the round trip of one word between this GPU and the host. In each round the kernel writes the round number to a word in
// pinned host memory, and polls a second word there until the host has written the same number. With 0 rounds the kernel only reports
// that it has started. The lines generated before this one include ptx.cuh (or emulate.hpp) and define AnswerLaunch of latency_gpu.py
// as Launch.

constexpr int kThreads = 32;

namespace monolane {

constexpr int kPollsPerClockRead = 16;  // the clock is read once per so many polls of the word

// Polls the host's word until it has the number of this round. False after the deadline.
MONOLANE_DEVICE bool await_host(uint32_t round, int64_t deadline) {
  for (int polls = 1; ptx::load_system(monolane_launch.host_word) != round; polls++)
    if (polls % kPollsPerClockRead == 0 && ptx::now_ns() > deadline) {
      ptx::store_relaxed(monolane_launch.failed, 1u);
      return false;
    }
  return true;
}

}  // namespace monolane

MONOLANE_KERNEL void MONOLANE_BOUNDS(kThreads) monolane_kernel(MONOLANE_PARAMETER int) {
  using namespace monolane;
  if (ptx::block_index() != 0 || ptx::thread_index() != 0) return;
  const int64_t deadline = ptx::now_ns() + monolane_launch.deadline_ns;
  const uint32_t rounds = monolane_launch.rounds;
  for (uint32_t round = 1; round <= rounds; round++) {
    const int64_t began = ptx::now_ns();
    ptx::store_system_release(monolane_launch.kernel_word, round);
    if (!await_host(round, deadline)) break;
    monolane_launch.took[round - 1] = ptx::now_ns() - began;
  }
  ptx::store_system_release(monolane_launch.kernel_word, rounds + 1);
}
