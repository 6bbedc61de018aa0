// Vectors of 16 floats on every machine: one AVX-512 register, two AVX2 registers, four NEON or SSE registers. All stages compute with them, so the
// order of every sum is fixed by these 16 elements and not by the width of the registers.
#pragma once
#include <cstdint>
#include <cstring>

namespace monolane {

constexpr int kVectorFloats = 16;  // elements of a vector

typedef float F16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));

inline F16 splat(float v) { return F16{v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v}; }

inline F16 load(const float* p) {
  F16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline F16 load(const uint16_t* bf16) {
  H16 h;
  std::memcpy(&h, bf16, sizeof h);
  return reinterpret_cast<F16>(__builtin_convertvector(h, U16) << 16);
}

inline void store(float* p, F16 v) { std::memcpy(p, &v, sizeof v); }

// Loads 32 bf16 weights as two vectors, the 16 even and the 16 odd ones: a shift and a mask, no shuffle.
inline void load_pair(const uint16_t* bf16, F16& even, F16& odd) {
  U16 w;
  std::memcpy(&w, bf16, sizeof w);
  even = reinterpret_cast<F16>(w << 16);
  odd = reinterpret_cast<F16>(w & 0xffff0000u);
}

inline float from_bf16(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline uint16_t to_bf16(float v) {  // fp32 to bf16, rounded to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float sum(F16 v) {  // a tree: the upper half is added to the lower half, four times
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = v[i] + v[i + 8];
  for (int i = 0; i < 4; i++) a[i] += a[i + 4];
  return (a[0] + a[2]) + (a[1] + a[3]);
}

inline float highest(F16 v) {
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = v[i] > v[i + 8] ? v[i] : v[i + 8];
  for (int n = 4; n; n >>= 1)
    for (int i = 0; i < n; i++) a[i] = a[i] > a[i + n] ? a[i] : a[i + n];
  return a[0];
}

// exp(x) with an error of about one unit in the last place: 2^n * exp(r) with |r| <= ln(2) / 2 and a polynomial for exp(r).
inline F16 exponential(F16 x) {
  const F16 low = splat(-87.0f), high = splat(88.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const F16 shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const F16 biased = x * splat(1.44269504f) + shift;
  const F16 n = biased - shift;
  const F16 r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  F16 p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const I16 exponent = reinterpret_cast<I16>(biased) - reinterpret_cast<I16>(shift);
  return reinterpret_cast<F16>(reinterpret_cast<I16>(p) + (exponent << 23));
}

inline float exponential(float x) { return exponential(splat(x))[0]; }

}  // namespace monolane
