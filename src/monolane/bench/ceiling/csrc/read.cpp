// Measures how fast this machine reads memory: each pinned thread sums its own buffer with 64-byte loads, and prefetches a fixed distance
// ahead or not at all. The sum exists only so that the compiler cannot remove the loads.
#include <cstring>

#include "pinned.hpp"

namespace {

typedef uint64_t Line __attribute__((vector_size(64)));
constexpr int64_t kStep = 512;  // bytes per iteration of the loop: eight cache lines

template <bool kPrefetch>
uint64_t read_all(const uint8_t* p, int64_t bytes, int64_t ahead) {
  Line sums[8] = {};
  for (int64_t i = 0; i + kStep <= bytes; i += kStep)
    for (int j = 0; j < 8; j++) {
      if (kPrefetch) __builtin_prefetch(p + i + j * 64 + ahead);
      Line line;
      std::memcpy(&line, p + i + j * 64, sizeof line);
      sums[j] += line;
    }
  uint64_t total = 0;
  for (auto& s : sums)
    for (int k = 0; k < 8; k++) total += s[k];
  return total;
}

}  // namespace

// Returns the seconds from the moment all threads are ready until the last one has read its buffer. `ahead` is the prefetch distance in bytes;
// 0 leaves prefetching to the processor.
extern "C" double monolane_read_seconds(const uint8_t* const* buffers, int64_t bytes, int threads, const int32_t* processors, int64_t ahead, uint64_t* sink) {
  return run_pinned(threads, processors, [&](int t) {
    sink[t] = ahead ? read_all<true>(buffers[t], bytes, ahead) : read_all<false>(buffers[t], bytes, 0);
  });
}
