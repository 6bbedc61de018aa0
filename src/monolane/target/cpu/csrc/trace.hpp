// Time stamps of a request for `monolane trace`: when each worker began a stage and when it finished its share. Every worker writes its own stamps.
#pragma once
#include "state.hpp"

namespace monolane {

// Stamp 0, the time at which the worker began to wait for its input, is the end of the stage before; the host fills it in.
enum Mark : int { kHadInput = 1, kEnded = 2 };

// native.py has the same struct.
struct Trace {
  int64_t* stamps;        // ns, [pass][worker][stage][3]; null: nothing is traced
  int64_t first, passes;  // which decode passes are traced: pass 0 has the first token of the answer as its input

  // `pass`: number of the decode pass; prefill passes have negative numbers.
  void mark(int64_t pass, int workers, int worker, int stage, Mark what) const {
    const int64_t place = pass - first;
    if (place < 0 || place >= passes) return;
    stamps[((place * workers + worker) * kStages_ + stage) * 3 + what] = now_ns();
  }
};

}  // namespace monolane
