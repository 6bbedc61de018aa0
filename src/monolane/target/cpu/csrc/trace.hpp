// Time stamps of a request, for `monolane trace`: when each worker took a stage up, and when its share was done.
#pragma once
#include "state.hpp"

namespace monolane {

enum Mark : int { kHadInput = 1, kEnded = 2 };  // 0, when it began to wait, is the end of the stage before: the host knows

// Prefill passes have negative numbers.
inline void write_stamp(const Trace& trace, int64_t pass, int workers, int worker, int stage, Mark what) {
  const int64_t place = pass - trace.first;
  if (place < 0 || place >= trace.passes) return;
  trace.stamps[((place * workers + worker) * kStages_ + stage) * 3 + what] = now_ns();
}

}  // namespace monolane
