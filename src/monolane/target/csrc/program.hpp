// What the generated source fills in: the stages of one pass. The same for every target.
#pragma once

namespace monolane {

enum class Kind : int { kEmbed, kProject, kAttend, kSample, kCombine };
enum class Input : int { kPlain, kNorm, kMerge };
enum class Output : int { kStore, kResidual, kGate, kLogits };

constexpr int kNone = -1;

enum class Scoring : int { kSoftmax, kChosenSoftmax, kSigmoid };

// Which experts of a matrix a row of the pass uses: elements [first, first + count) of the buffer `reads` are their logits.
struct Routing {
  int reads = kNone;  // kNone: the matrix has no experts
  int first = 0, count = 1, chosen = 1;
  Scoring scoring = Scoring::kSoftmax;
};

// (up + shift) * gate * sigmoid(slope * gate), with gate and up limited.
struct Gate {
  float slope, shift, limit;
};

struct Stage {
  Kind kind;
  int layer;
  int reads, writes, residual;  // buffers
  int projection;               // index of its segments on the tapes
  int rows, cols;
  Input input;
  Output output;
  int norm, bias, order, q_norm, k_norm, sinks;  // offsets into the constants, or kNone
  float eps;
  int window;  // positions seen, 0: all
  Gate gate;
  Routing routing;
};

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }
constexpr int divide_up(int n, int unit) { return (n + unit - 1) / unit; }
constexpr int lesser(int a, int b) { return a < b ? a : b; }
constexpr int greater(int a, int b) { return a > b ? a : b; }
constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from(divide_up(n, 2)); }

}  // namespace monolane
