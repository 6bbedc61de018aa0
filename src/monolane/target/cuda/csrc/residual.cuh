// What the outputs of a projection are added to: the residual stream and, where other lanes' outputs are added late, what has arrived of them.
#pragma once
#include "exchange.cuh"
#include "results.cuh"

namespace monolane {

// How the outputs of a projection are exchanged in a layer.
template <class P>
MONOLANE_DEVICE Exchange exchange_of(int layer) {
  return kExchanges[P::kExchange < 0 ? 0 : P::kExchange][layer];
}

// Whether what the other lanes make in this layer is not needed in this layer: then the exchange warp sends and receives in a decode pass.
template <class P>
MONOLANE_DEVICE bool is_late(int layer) {
  if constexpr (P::kExchange == kNone) return false;
  return kAllLate || (kAnyLate && exchange_of<P>(layer).late);
}

// What an output is added to: this worker's element of the residual stream and, where the exchange is late, what the other lanes have sent in an earlier layer. This
// lane's own output is then multiplied with a factor.
struct Addend {
  float residual = 0.0f, other_lanes = 0.0f, own_factor = 1.0f;
  bool is_late = false;
};

// Of an output in row `row` of the pass. `exchanges`: those that the exchange warp has done before this one, if this one is late; its sums have arrived.
template <class P>
MONOLANE_DEVICE Addend addend_of(int layer, int row, int local, bool late = false, uint32_t exchanges = 0) {
  Addend found;
  const int element = min(local, kMaxOwnedRows - 1);  // a thread that has no result reads that of another
  found.residual = shared::residual()[row * kMaxOwnedRows + element];
  if (!late) return found;
  const Exchange exchange = exchange_of<P>(layer);
  found.is_late = true, found.own_factor = ptx::float_of(ptx::kept(ptx::bits_of(exchange.own)));  // kept: constant memory is slow behind the input
  if (exchange.late > 0) found.other_lanes = shared::late_sums(exchanges)[element];
  return found;
}

// Whether a thread finds what its result of a decode pass is added to before the input is there: behind it every instruction counts. A projection that continues a
// stage adds to what the one before has left.
template <class P>
constexpr bool kFindsAddend = kOneResult<P> && P::kOutput == Output::kResidual && !P::kContinues;

}  // namespace monolane
