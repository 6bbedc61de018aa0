// What the host prepares once for a loaded model. Its twin is in native.py.
#pragma once

namespace monolane {

struct Setup {
  int32_t workers, context;
  const Segment* segments;  // [workers][projections]
  const uint8_t* const* tapes;
  const float* constants;
  const uint16_t* table;  // the embedding where it is not the head's matrix, else null
  const int32_t* processors;  // one per worker, or null: not pinned
  double deadline_s;          // the longest a worker waits for another that does nothing
};

// Where the keys and values of one conversation lie.
struct Cache {
  void* keys;
  void* values;
};

}  // namespace monolane
