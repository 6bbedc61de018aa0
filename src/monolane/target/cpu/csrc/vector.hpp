// Vectors of 16 numbers on every machine: one AVX-512 register, two AVX2 registers, four NEON or SSE registers. All stages compute with them, so the
// order of every sum is fixed by these 16 elements and not by the width of the registers.
//
// A vector of several registers is a pair of vectors of half as many elements: compilers keep vector types that are wider than a register in memory.
#pragma once
#include <cstdint>
#include <cstring>

namespace monolane {

constexpr int kVectorFloats = 16;  // elements of a vector

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kRegister = kRegisterBytes / sizeof(float);  // elements of a register

typedef float RegisterF __attribute__((vector_size(kRegisterBytes)));
typedef uint32_t RegisterU __attribute__((vector_size(kRegisterBytes)));
typedef int32_t RegisterI __attribute__((vector_size(kRegisterBytes)));
typedef float F4 __attribute__((vector_size(16)));

template <class V>
struct Pair {
  V low, high;
};

#define MONOLANE_OF_PAIRS(op)                                               \
  template <class V>                                                        \
  inline auto operator op(const Pair<V>& a, const Pair<V>& b) {             \
    return Pair<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high}; \
  }
MONOLANE_OF_PAIRS(+)
MONOLANE_OF_PAIRS(-)
MONOLANE_OF_PAIRS(*)
MONOLANE_OF_PAIRS(/)
MONOLANE_OF_PAIRS(<)
MONOLANE_OF_PAIRS(>)
MONOLANE_OF_PAIRS(==)
#undef MONOLANE_OF_PAIRS
template <class V>
inline Pair<V> operator<<(const Pair<V>& a, int bits) {
  return {a.low << bits, a.high << bits};
}
template <class V>
inline Pair<V> operator&(const Pair<V>& a, uint32_t mask) {
  return {a.low & mask, a.high & mask};
}
template <class V>
inline Pair<V>& operator+=(Pair<V>& a, const Pair<V>& b) {
  return a = a + b;
}

template <class V>
constexpr bool kIsPair = false;
template <class V>
constexpr bool kIsPair<Pair<V>> = true;

// 16 elements in registers of type R.
template <class R, int kBytes = sizeof(R)>
struct Sixteen {
  using Type = typename Sixteen<Pair<R>, 2 * kBytes>::Type;
};
template <class V>
struct Sixteen<V, 4 * kVectorFloats> {
  using Type = V;
};
using F16 = Sixteen<RegisterF>::Type;
using U16 = Sixteen<RegisterU>::Type;
using I16 = Sixteen<RegisterI>::Type;

template <class V = F16>
inline V splat(float v) {
  if constexpr (kIsPair<V>) {
    const auto half = splat<decltype(V::low)>(v);
    return {half, half};
  } else {
    return v - V{};
  }
}

template <class V = F16, class T>
inline V load_bits(const T* p) {
  if constexpr (kIsPair<V>) {
    using Half = decltype(V::low);
    return {load_bits<Half>(p), load_bits<Half>(p + sizeof(Half) / sizeof(T))};
  } else {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
}

inline F16 load(const float* p) { return load_bits<F16>(p); }

template <class V>
inline void store(float* p, const V& v) {
  if constexpr (kIsPair<V>) {
    store(p, v.low);
    store(p + sizeof v.low / sizeof(float), v.high);
  } else {
    std::memcpy(p, &v, sizeof v);
  }
}

// The same bits as another type of elements.
template <class To, class From>
inline To as(const From& v) {
  if constexpr (kIsPair<From>)
    return {as<decltype(To::low)>(v.low), as<decltype(To::high)>(v.high)};
  else
    return reinterpret_cast<To>(v);
}

// The same numbers as another type of elements.
template <class To, class From>
inline To converted(const From& v) {
  if constexpr (kIsPair<From>)
    return {converted<decltype(To::low)>(v.low), converted<decltype(To::high)>(v.high)};
  else
    return __builtin_convertvector(v, To);
}

template <class Mask, class V>
inline V select(const Mask& mask, const V& yes, const V& no) {
  if constexpr (kIsPair<V>)
    return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
  else
    return mask ? yes : no;
}

template <class V = U16>
inline V widened(const uint16_t* p) {
  if constexpr (kIsPair<V>) {
    using Half = decltype(V::low);
    return {widened<Half>(p), widened<Half>(p + sizeof(Half) / sizeof(uint32_t))};
  } else {
    typedef uint16_t Narrow __attribute__((vector_size(sizeof(V) / 2)));
    Narrow narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    return __builtin_convertvector(narrow, V);
  }
}

inline F16 load(const uint16_t* bf16) { return as<F16>(widened(bf16) << 16); }

// Loads 32 bf16 weights as two vectors, the 16 even and the 16 odd ones: a shift and a mask, no shuffle.
inline void load_pair(const uint16_t* bf16, F16& even, F16& odd) {
  const U16 both = load_bits<U16>(bf16);
  even = as<F16>(both << 16);
  odd = as<F16>(both & 0xffff0000u);
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

// Joins all elements: the upper half with the lower half, four times.
template <class V, class Join>
inline float folded(const V& v, const Join& join) {
  if constexpr (kIsPair<V>) {
    return folded(join(v.low, v.high), join);
  } else {
    float a[kRegister];
    std::memcpy(a, &v, sizeof v);
    for (int n = kRegister / 2; n; n >>= 1)
      for (int i = 0; i < n; i++) a[i] = join(a[i], a[i + n]);
    return a[0];
  }
}

inline float greater(float a, float b) { return a > b ? a : b; }
template <class V>
inline V greater(const V& a, const V& b) {
  return select(a > b, a, b);
}

inline float sum(const F16& v) {
  return folded(v, [](const auto& a, const auto& b) { return a + b; });
}
inline float highest(const F16& v) {
  return folded(v, [](const auto& a, const auto& b) { return greater(a, b); });
}

// exp(x) with an error of about one unit in the last place: 2^n * exp(r) with |r| <= ln(2) / 2 and a polynomial for exp(r).
template <class V>
inline V exponential(V x) {
  if constexpr (kIsPair<V>) {
    return {exponential(x.low), exponential(x.high)};
  } else {
    typedef int32_t Ints __attribute__((vector_size(sizeof(V))));
    const V low = splat<V>(-87.0f), high = splat<V>(88.0f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    const V shift = splat<V>(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const V biased = x * 1.44269504f + shift;
    const V n = biased - shift;
    const V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    V p = splat<V>(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Ints exponent = reinterpret_cast<Ints>(biased) - reinterpret_cast<Ints>(shift);
    return reinterpret_cast<V>(reinterpret_cast<Ints>(p) + (exponent << 23));
  }
}

inline float exponential(float x) { return exponential(splat<F4>(x))[0]; }

}  // namespace monolane
