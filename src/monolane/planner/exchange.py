"""The time of an exchange between lanes that are GPUs.

Lanes of one GPU exchange through its L2 cache, and ``monolane ceiling`` measures that. Lanes on several GPUs do the
same through NVLink: a word arrives later by the length of the wire, and all words of a lane leave through one port.
Both of these are assumed. Then follows the hand-off inside the lane, as after every stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges
from monolane.planner.machines import Machine

WORD_BYTES = 8  # of a tagged fp32 value
MICRO = 1e6


@dataclass(frozen=True)
class ExchangeTime:
    """Of one exchange, from the partials of all lanes to the sums on every worker of every lane."""

    us: float
    source: str  # what of it is measured and what is assumed, in words
    measured: bool = False  # at least the part inside a GPU
    wire_us: float = 0.0  # the part that is assumed, where the other is measured


def exchange_time(
    machine: Machine, lanes: int, values: int, measured: MeasuredExchanges | None, handoff_us: float
) -> ExchangeTime:
    """From what was measured on one GPU of this type; where nothing was, the machine's assumed time."""
    inside_us = measured.own_us(lanes, values) if measured is not None else None
    if inside_us is None or machine.wire is None:
        return ExchangeTime(machine.exchange_us, machine.assumed.get("exchange", ""))
    wire, sent = machine.wire, (lanes - 1) * values * WORD_BYTES
    port_us = sent / wire.bytes_per_s * MICRO
    us = inside_us + wire.latency_us + port_us + handoff_us
    return ExchangeTime(
        us,
        f"{inside_us:.2f} µs measured between lanes of one GPU ({values:,} values), {handoff_us:.2f} µs for the "
        f"hand-off inside a lane; assumed: {wire.latency_us:.1f} µs more for the way through "
        f"{wire.name}, and {port_us:.2f} µs for {sent / 1e3:,.0f} KB at {wire.bytes_per_s / 1e9:,.0f} GB/s",
        measured=True,
        wire_us=wire.latency_us + port_us,
    )
