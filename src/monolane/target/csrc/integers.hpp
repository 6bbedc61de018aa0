// The integer arithmetic of sampling: weights, random numbers, race times and penalties. It is the same on every target, so that all targets choose
// the same token; program/sample.py is the specification. The CUDA and the CPU target include it. They define MONOLANE_DEVICE, MONOLANE_LOOP (do not
// unroll the next loop), MONOLANE_LEADING_ZEROS (of 64 bits), the constants and the tables.
#pragma once

namespace monolane {

// 2^40 * 2^-(fraction / 2^36), where fraction is below 2^36: its upper 8 bits index a table of 256 powers, and the rest r goes into the series
// 1 - r + r * r / 2.
MONOLANE_DEVICE uint64_t power_of(uint64_t fraction) {
  const uint64_t rest = ((fraction & ((uint64_t(1) << 28) - 1)) * kLn2Q32) >> 36;
  const uint64_t series = (uint64_t(1) << 32) - rest + ((rest * rest) >> 33);
  return (kPowers[fraction >> 28] * (series >> 10)) >> 22;
}

// The weight 2^40 * 2^-(distance * rate / 2^36) of a token, where `distance` is the highest fixed-point logit minus the token's, and `rate` is
// 1 / (temperature * ln 2) in steps of 2^-16.
MONOLANE_DEVICE uint64_t weight_of(int64_t distance, uint64_t rate) {
  const uint64_t exponent = static_cast<uint64_t>(distance < kDistanceLimit ? distance : kDistanceLimit) * rate;
  const uint64_t whole = exponent >> 36, fraction = exponent & ((uint64_t(1) << 36) - 1);
  if (whole > kWeightBits) return 0;
  return power_of(fraction) >> whole;
}

// 64 random bits for a position of the sequence: the first two words of Philox4x32-10 with the seed as key and the position as counter.
MONOLANE_DEVICE uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0, c3 = 0;
  MONOLANE_LOOP
  for (int round = 0; round < 10; round++) {
    const uint64_t first = uint64_t(0xD2511F53u) * c0, second = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ key0, n2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(second), c3 = static_cast<uint32_t>(first), c0 = n0, c2 = n2;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return c0 | (static_cast<uint64_t>(c1) << 32);
}

// 64 random bits for a token: number `token` of the sequence that SplitMix64 makes from `state`, the random bits of the position.
MONOLANE_DEVICE uint64_t mixed_bits(uint64_t state, uint32_t token) {
  uint64_t bits = state + (token + uint64_t(1)) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
  return bits ^ bits >> 31;
}

// Linear interpolation in a table. An entry has a value in its upper 32 bits and the difference to the next value in its lower 32 bits. `fraction`,
// in steps of 2^-32, is how far the argument is from this entry to the next.
MONOLANE_DEVICE uint32_t interpolated(uint64_t value_and_step, uint32_t fraction) {
  return static_cast<uint32_t>(value_and_step >> 32) + static_cast<uint32_t>((value_and_step & 0xffffffffu) * fraction >> 32);
}

// The noise of a token: log2(2^42 * an exponential random number) in steps of 2^-26, as noise() of program/sample.py has it. `bits`: the token's
// random bits. `logarithms`, `stretches`: the tables kLogarithms and kStretches, or copies of them in faster memory.
//
// The exponential random number is n * ln 2 - ln(1 - x): n is the number of leading zeros of the lower 24 bits, x between 0 and 1/2 comes from the
// upper 40 bits, and -ln(1 - x) is x times a factor from the table of stretches.
MONOLANE_DEVICE uint32_t noise_of(uint64_t bits, const uint64_t* logarithms, const uint64_t* stretches) {
  const uint32_t doublings = MONOLANE_LEADING_ZEROS(bits << 40 | uint64_t(1) << 39);
  const uint64_t x = bits >> 24 << 1 | 1, stretch = interpolated(stretches[x >> 33], static_cast<uint32_t>(x >> 1));
  const uint64_t number = doublings * kLn2Random + (x * stretch >> 22);
  const int zeros = MONOLANE_LEADING_ZEROS(number);
  const uint64_t mantissa = number << zeros;
  return (static_cast<uint32_t>(63 - zeros) << kNoiseBits) + interpolated(logarithms[mantissa >> 55 & 255], static_cast<uint32_t>(mantissa >> 23));
}

// The time of a token in the exponential race, as a base-2 logarithm in steps of 2^-34: race_times() of program/sample.py.
MONOLANE_DEVICE uint64_t race_time(int64_t distance, uint64_t rate, uint32_t noise) {
  const uint64_t exponent = static_cast<uint64_t>(distance < kDistanceLimit ? distance : kDistanceLimit) * rate;
  const uint64_t time = (exponent >> (kExponentBits - kTimeBits)) + (static_cast<uint64_t>(noise) << (kTimeBits - kNoiseBits));
  return time < kLargestTime ? time : kLargestTime;
}

// The fixed-point logit of a token that occurs in the prompt or the answer, after repetition, presence and frequency penalties. `count`: how often
// the token occurs in the answer.
MONOLANE_DEVICE int64_t penalised(int64_t logit, int64_t count, const Sampling& params) {
  logit = (logit * (logit > 0 ? params.repeat_down : params.repeat_up)) >> kFactorBits;
  return logit - (count ? params.presence : 0) - count * params.frequency;
}

}  // namespace monolane
