// A form of projection: what the layers' stages of one kind have in common, all of it known when the kernel is compiled.
// Every layer has the same stages with the same shapes, and its constants lie equally far from the last layer's.
#pragma once

namespace monolane {

// How many chunks of a stage may be on their way to a block. Hand-offs wait for small loads, which queue behind them.
struct Pace {
  int until, first, then_until, then, rest;
  int wide;  // of a wide pass, whose hand-offs are barriers
};

struct Form {
  int stage, projection;  // of the first layer
  int rows, cols;
  int tile_rows, unit_cols;  // rows of a tile, and k that a unit has of each of them: 8 and 32, or half and twice that
  int units, chunks, chunk_units;  // of a tile: what a warp loads at once, and how they are cut into slots of the ring
  int most_tiles; // that a block has
  int ahead;      // chunks that a group has in registers
  Pace pace;
  Output output;
  bool merges;     // its input is what attention has left
  int norm, bias;  // where the first layer's constants are, or kNone
  float eps;
  int reads, writes;  // buffers
};

}  // namespace monolane
