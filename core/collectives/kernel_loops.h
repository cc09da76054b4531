// The loops of the reduction kernels as plain C++ that the compiler vectorises; kernels.cpp
// compiles them once for each instruction set. No loop multiplies and adds in one expression, so no
// fused multiply-add can change a bit between instruction sets, however the compiler is told to
// contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace hvd::kernel_loops {

// --- What one element does ----------------------------------------------------------------------

// Integers wrap; unsigned arithmetic keeps that defined.
template <class T>
using Wrapping = std::conditional_t<std::is_floating_point_v<T>, std::type_identity<T>,
                                    std::make_unsigned<T>>::type;

struct Sum {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};

struct Product {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (sizeof(T) < sizeof(unsigned)) {  // would be promoted to int and might overflow
      return static_cast<T>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
  }
};

// A NaN of any rank wins, so the result does not depend on the order of the ranks.
struct Min {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return (b < a) | (b != b) ? b : a;
  }
};

struct Max {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return (a < b) | (b != b) ? b : a;
  }
};

struct LogicalOr {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>((a != 0) | (b != 0));
  }
};

struct LogicalAnd {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>((a != 0) & (b != 0));
  }
};

// Truncates toward zero; beyond the range of T it stays at the nearest end (a conversion would be
// undefined there), NaN becomes 0.
template <class T>
[[gnu::always_inline]] inline T scaled(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double end = static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2.0;
    const double product = static_cast<double>(value) * factor;
    const bool below = product <= low;
    const bool above = product >= end;
    const bool inside = !below & !above & (product == product);
    const T converted = static_cast<T>(inside ? product : 0.0);
    return below   ? std::numeric_limits<T>::min()
           : above ? std::numeric_limits<T>::max()
                   : converted;
  }
}

// --- What a tile does ---------------------------------------------------------------------------
// `ivdep`: the destination may be one of the sources, which is harmless in an elementwise loop.

template <class T, class Op>
[[gnu::always_inline]] inline void combine_loop(void* to, const void* a, const void* b,
                                                std::size_t count) {
  T* const result = static_cast<T*>(to);
  const T* const left = static_cast<const T*>(a);
  const T* const right = static_cast<const T*>(b);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = Op::apply(left[i], right[i]);
}

template <class T>
[[gnu::always_inline]] inline void scale_loop(void* to, const void* from, double factor,
                                              std::size_t count) {
  T* const result = static_cast<T*>(to);
  const T* const source = static_cast<const T*>(from);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = scaled(source[i], factor);
}

// Between a 16-bit float and float32.
template <float (*convert)(std::uint16_t)>
[[gnu::always_inline]] inline void widen_loop(void* to, const void* from, std::size_t count) {
  float* const result = static_cast<float*>(to);
  const std::uint16_t* const source = static_cast<const std::uint16_t*>(from);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = convert(source[i]);
}

template <std::uint16_t (*convert)(float)>
[[gnu::always_inline]] inline void narrow_loop(void* to, const void* from, std::size_t count) {
  std::uint16_t* const result = static_cast<std::uint16_t*>(to);
  const float* const source = static_cast<const float*>(from);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = convert(source[i]);
}

}  // namespace hvd::kernel_loops
